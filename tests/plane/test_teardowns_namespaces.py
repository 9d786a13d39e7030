"""Namespaces in a chain of steps: an empty one does not hold the next wave, and only an absent one is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support.cluster_teardowns import TeardownScene, manager, scene
from tests.plane.support.controllers import HOLD
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import Phase, StepState, Teardown
from unwind.kube import object_watch
from unwind.kube.errors import NotFoundError
from unwind.teardown.deletion_gate import GateClosed, GateOpen, of_teardown

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

CHAIN = {"top": ("middle",), "middle": ("base",), "base": ()}


async def chain(plane: Plane, namespace: str) -> TeardownScene:
    it = await scene(plane, namespace)
    for name, needs in reversed(CHAIN.items()):
        await it.add_on(name, depends_on=needs, objects=1, own_namespace=True)
    return it


async def found(it: TeardownScene, profile: str) -> Object | None:
    try:
        return await it.member.client.get(NAMESPACES, it.namespace_of(profile))
    except NotFoundError:
        return None


def states(it: TeardownScene, teardown: Teardown) -> dict[str, str]:
    names = {f"ClusterProfile/{it.profile(profile)}": profile for profile in CHAIN}
    return {names[step.name]: step.state for step in teardown.status.steps}


def has(it: TeardownScene, **wanted: str) -> Callable[[Teardown], bool]:
    return lambda teardown: wanted.items() <= states(it, teardown).items()


def namespaces_deleted(it: TeardownScene) -> list[str]:
    deletions = it.member.audit.deletions(resource="namespaces")
    ours = {it.namespace_of(profile): profile for profile in CHAIN}
    return [ours[item.object_ref.name] for item in deletions if item.object_ref.name in ours]


async def until_terminating(it: TeardownScene, profile: str) -> None:
    await object_watch.until(
        it.member.client,
        NAMESPACES,
        it.namespace_of(profile),
        lambda one: bool(one and one["metadata"].get("deletionTimestamp")),
        "terminating",
    )


async def test_the_next_wave_starts_while_kubernetes_finalizes_an_empty_namespace(plane: Plane, namespace: str) -> None:
    it = await chain(plane, namespace)
    async with manager(it.client):
        await it.delete()
        await until_terminating(it, "base")
        # The order is kept, and nothing is reported as removed that still exists.
        assert await found(it, "top")
        teardown = await it.teardown(
            lambda one: any("is empty" in step.message for step in one.status.steps), "waiting for Kubernetes"
        )
        assert isinstance(of_teardown(it.uid, teardown), GateClosed)
        await it.teardown(has(it, top=StepState.REMOVED), "removed")
        assert await found(it, "top") is None
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert isinstance(of_teardown(it.uid, teardown), GateOpen)
    assert [name.partition("-")[0] for name in it.deleted()] == ["top", "middle", "base"]
    assert namespaces_deleted(it) == ["top", "middle", "base"]
    assert [await found(it, profile) for profile in CHAIN] == [None] * 3
    await it.let_go()


async def test_a_namespace_with_another_finalizer_holds_the_next_wave(plane: Plane, namespace: str) -> None:
    it = await chain(plane, namespace)
    held, free = {"metadata": {"finalizers": [HOLD]}}, {"metadata": {"finalizers": None}}
    await it.member.client.patch(NAMESPACES, it.namespace_of("middle"), held)
    async with manager(it.client):
        await it.delete()
        await it.teardown(lambda one: HOLD in one.status.blocked_by, "blocked")
        # Kubernetes' own finalizer is removed: its five seconds are over.
        await object_watch.until(
            it.member.client,
            NAMESPACES,
            it.namespace_of("middle"),
            lambda one: bool(one and not one["spec"].get("finalizers")),
            "finalized",
        )
        teardown = await it.teardown(has(it, top=StepState.REMOVED), "removed")
        assert states(it, teardown)["base"] == StepState.WAITING
        assert [name.partition("-")[0] for name in it.deleted()] == ["top", "middle"]
        await it.member.client.patch(NAMESPACES, it.namespace_of("middle"), free)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_killed_while_namespaces_wait_for_kubernetes_it_looks_again(plane: Plane, namespace: str) -> None:
    it = await chain(plane, namespace)
    async with manager(it.client):
        await it.delete()
        await until_terminating(it, "middle")
    async with manager(it.client):
        await until_terminating(it, "base")
    # Killed when nothing but Kubernetes has anything to do: what is gone meanwhile is verified absent.
    for profile in CHAIN:
        await object_watch.until_absent(it.member.client, NAMESPACES, it.namespace_of(profile))
    async with manager(it.client):
        teardown = await it.ended()
    assert teardown.phase is Phase.COMPLETE
    assert states(it, teardown) == dict.fromkeys(CHAIN, StepState.REMOVED)
    assert [name.partition("-")[0] for name in it.deleted()] == ["top", "middle", "base"]
    assert namespaces_deleted(it) == ["top", "middle", "base"]
    await it.let_go()
