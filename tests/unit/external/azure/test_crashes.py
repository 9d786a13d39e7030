"""A process that crashes at any await of a deletion at Azure, and its successor: nothing is lost or repeated."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.external.azure.scenes import CACHE, CACHES, azure_client, made
from tests.unit.external.azure.test_deleters import ALIAS, PRODUCT, PRODUCTS, TEAM, alias
from tests.unit.external.azure.test_key_vaults import VAULT, vault
from unwind.deleters.outcomes import Gone, Kept
from unwind.external.azure.api_management_products import product_with_subscriptions
from unwind.external.azure.key_vaults import purge_vault
from unwind.external.azure.resource_deletion import ArmEnd
from unwind.external.azure.service_operator import azure_operator_away
from unwind.external.azure.subscription_aliases import cancel_subscription
from unwind.testing.arm import Arm, Style
from unwind.testing.proofs import World, prove_idempotent, prove_patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object


def cache(arm: Arm) -> None:
    arm.resource(CACHE)


def slow_cache(arm: Arm) -> None:
    arm.resource(CACHE, takes=1, style=Style.LOCATION)


def failing_cache(arm: Arm) -> None:
    arm.resource(CACHE, fails="InternalServerError")


def team(arm: Arm) -> None:
    arm.subscription(TEAM)
    arm.resource(ALIAS, properties={"subscriptionId": TEAM}, takes=1)


def product(arm: Arm) -> None:
    arm.resource(PRODUCT, keys=2)


def safe(arm: Arm) -> None:
    arm.vault(VAULT, takes=1, purge_takes=1)


def guarded_safe(arm: Arm) -> None:
    arm.vault(VAULT, purge_protection=True)


SCENES: list[tuple[Callable[[Arm], None], Callable[[], Object], Any, type[Gone | Kept]]] = [
    (cache, lambda: made(CACHES, CACHE), azure_operator_away, Gone),
    (slow_cache, lambda: made(CACHES, CACHE), azure_operator_away, Gone),
    (failing_cache, lambda: made(CACHES, CACHE), azure_operator_away, Gone),
    (team, alias, cancel_subscription, Gone),
    (product, lambda: made(PRODUCTS, PRODUCT), product_with_subscriptions, Gone),
    (safe, vault, purge_vault, Gone),
    (guarded_safe, vault, purge_vault, Kept),
]


@pytest.mark.parametrize(("scene", "obj", "deleter", "end"), SCENES, ids=[scene[0].__name__ for scene in SCENES])
async def test_a_deletion_at_azure_ends_the_same_wherever_the_process_dies(
    scene: Callable[[Arm], None], obj: Callable[[], Object], deleter: Any, end: type[Gone | Kept]
) -> None:
    async with AsyncExitStack() as stack:
        arm = await stack.enter_async_context(Arm())

        async def fresh() -> World:
            arm.resources.clear()
            arm.deleted_vaults.clear()
            arm.subscriptions.clear()
            scene(arm)
            # Each process has its own connections and token. The token is fetched before it starts: a crash during the
            # fetch
            # holds a lock that a new process would not see.
            client = await stack.enter_async_context(azure_client(arm))
            await client.get(CACHE, api_version="2023-04-01")

            def picture() -> object:
                states = [subscription.state for subscription in arm.subscriptions.values()]
                return sorted(arm.resources), sorted(arm.deleted_vaults), states

            return World(obj(), deleter, next=ArmEnd(client), external=True, state=picture)

        proof = await prove_idempotent(fresh, entries=40)
        assert isinstance(proof.end, end)
        assert len(proof.crashes) > 5
        assert arm.resources == {}
    # Abandoned work is cleaned up here, and complains: while pytest formats a traceback, Python 3.11 would fail with
    # "AST constructor recursion depth mismatch".
    gc.collect()


@pytest.mark.parametrize(
    ("scene", "obj", "deleter"),
    [(scene[0], scene[1], scene[2]) for scene in SCENES[2:6]],
    ids=["cache", "team", "product", "safe"],
)
async def test_a_deleter_for_azure_lets_nothing_go_too_early(
    scene: Callable[[Arm], None], obj: Callable[[], Object], deleter: Any
) -> None:
    async with Arm() as arm, azure_client(arm) as client:

        def fresh() -> World:
            arm.deleted_vaults.clear()
            scene(arm)
            return World(obj(), deleter, clients=(client,), external=True)

        await prove_patient(fresh, entries=40)


def test_every_deleter_is_proven() -> None:
    assert {scene[2] for scene in SCENES} == {
        azure_operator_away,
        cancel_subscription,
        product_with_subscriptions,
        purge_vault,
    }
