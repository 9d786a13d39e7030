"""The deleters for subscription aliases and API Management products, against a fake over HTTPS."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.external.azure.scenes import CACHE, CACHES, GROUP, Azure, made
from unwind.api.names import Reason
from unwind.api.resources import Resource
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Gone, Kept, Pace
from unwind.deleters.registration import Registration, registrations
from unwind.deleters.registry import DeleterRegistry, installed
from unwind.external.azure.api_management_products import product_with_subscriptions
from unwind.external.azure.plugin import AZURE
from unwind.external.azure.service_operator import azure_operator_away
from unwind.external.azure.subscription_aliases import cancel_subscription

ALIASES = Resource("subscription.azure.com", "v1api20211001", "aliases", "Alias")
ALIAS = "/providers/Microsoft.Subscription/aliases/team"
TEAM = "00000000-0000-0000-0000-0000000000aa"
CANCEL = f"/subscriptions/{TEAM}/providers/Microsoft.Subscription/cancel"
PRODUCTS = Resource("apimanagement.azure.com", "v1api20220801", "products", "Product")
PRODUCT = f"{GROUP}/providers/Microsoft.ApiManagement/service/apis/products/gold"


def link(it: Any) -> Registration:
    [one] = registrations(it, source="test")
    assert isinstance(one, Registration)
    return one


CANCELLING = link(cancel_subscription)
WITH_SUBSCRIPTIONS = link(product_with_subscriptions)


def alias(subscription: str | None = TEAM) -> dict[str, Any]:
    return made(ALIASES, ALIAS, status={"properties": {"subscriptionId": subscription} if subscription else {}})


async def test_a_subscription_is_cancelled_before_its_alias_goes(azure: Azure) -> None:
    subscription = azure.arm.subscription(TEAM)
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM})
    assert isinstance(await azure.enter(alias(), ALIASES, CANCELLING), Gone)
    assert subscription.state == "Disabled"
    assert [(request.method, request.path) for request in azure.arm.requests if request.method in ("POST", "DELETE")][
        1:
    ] == [
        ("POST", CANCEL),
        ("DELETE", ALIAS),
    ]
    assert azure.memo["cancel-subscription.cancelled"] == TEAM


async def test_without_the_id_of_a_subscription_the_alias_goes_at_once(azure: Azure) -> None:
    azure.arm.resource(ALIAS)
    assert isinstance(await azure.enter(alias(None), ALIASES, CANCELLING), Gone)
    assert azure.arm.sent("POST") == []


async def test_while_the_subscription_is_not_cancelled_the_alias_stays(azure: Azure) -> None:
    subscription = azure.arm.subscription(TEAM)
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM})
    azure.arm.fail_next(409, "SubscriptionHasResources", method="POST", times=2)
    for _ in range(2):
        failed = await azure.enter(alias(), ALIASES, CANCELLING)
        assert isinstance(failed, Failed)
        assert (failed.reason, failed.pace) == ("SubscriptionHasResources", Pace.SLOW)
    assert azure.arm.sent("DELETE") == []
    assert isinstance(await azure.enter(alias(), ALIASES, CANCELLING), Gone)
    assert subscription.state == "Disabled"


async def test_a_subscription_that_is_cancelled_already_is_no_failure(azure: Azure) -> None:
    azure.arm.subscription(TEAM, state="Disabled")
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM})
    assert isinstance(await azure.enter(alias(), ALIASES, CANCELLING), Gone)


async def test_a_subscription_is_cancelled_once_however_long_its_alias_takes(azure: Azure) -> None:
    azure.arm.subscription(TEAM)
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM}, takes=2)
    for _ in range(3):
        assert isinstance(await azure.enter(alias(), ALIASES, CANCELLING), Waiting)
    assert isinstance(await azure.enter(alias(), ALIASES, CANCELLING), Gone)
    assert azure.arm.sent("POST") == [CANCEL]
    assert azure.arm.sent("DELETE") == [ALIAS]


async def test_a_subscription_that_azure_does_not_know_the_alias_by_is_not_cancelled(azure: Azure) -> None:
    other = azure.arm.subscription("00000000-0000-0000-0000-0000000000bb")
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM})
    failed = await azure.enter(alias(other.id), ALIASES, CANCELLING)
    assert isinstance(failed, Failed)
    assert failed.reason == Reason.HELD
    assert other.state == "Enabled"
    assert azure.arm.sent("POST") == azure.arm.sent("DELETE") == []


async def test_what_is_no_id_of_a_subscription_gets_into_no_url(azure: Azure) -> None:
    failed = await azure.enter(alias("../../evil"), ALIASES, CANCELLING)
    assert isinstance(failed, Failed)
    assert azure.arm.requests == []


async def log_lines(azure: Azure, obj: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The log lines of the deleter in one pass: the event and the subscription."""
    with capture_logs() as logged:
        await azure.enter(obj, ALIASES, CANCELLING)
    return [(line["event"], line.get("subscriptionId")) for line in logged if line.get("deleter") == CANCELLING.name]


async def test_the_cancellation_of_a_subscription_is_logged_in_the_words_of_azure_service_operator(
    azure: Azure,
) -> None:
    azure.arm.subscription(TEAM)
    azure.arm.resource(ALIAS, properties={"subscriptionId": TEAM}, takes=2)
    azure.arm.fail_next(409, "SubscriptionHasResources", method="POST")
    assert await log_lines(azure, alias()) == [("Canceling subscription", TEAM)]
    assert await log_lines(azure, alias()) == [
        ("Canceling subscription", TEAM),
        ("Subscription canceled, proceeding with alias deletion", None),
    ]
    assert await log_lines(azure, alias()) == [], "a cancellation that is recorded is not repeated"


async def test_an_alias_without_a_subscription_is_logged_in_the_words_of_azure_service_operator(azure: Azure) -> None:
    azure.arm.resource(ALIAS)
    expected = [("No subscription ID found, proceeding with alias deletion", None)]
    assert await log_lines(azure, alias(None)) == expected


async def test_a_product_goes_with_its_subscriptions(azure: Azure) -> None:
    azure.arm.resource(PRODUCT, keys=2)
    obj = made(PRODUCTS, PRODUCT)
    refused = await azure.enter(obj, PRODUCTS)
    assert isinstance(refused, Failed), "without the deleter, Azure refuses"
    assert isinstance(await azure.enter(obj, PRODUCTS, WITH_SUBSCRIPTIONS), Gone)
    assert azure.arm.resources == {}


async def test_a_product_that_is_not_there_is_gone(azure: Azure) -> None:
    assert isinstance(await azure.enter(made(PRODUCTS, PRODUCT), PRODUCTS, WITH_SUBSCRIPTIONS), Gone)


async def test_a_product_that_cannot_be_deleted_stays(azure: Azure) -> None:
    azure.arm.resource(PRODUCT).locked = True
    failed = await azure.enter(made(PRODUCTS, PRODUCT), PRODUCTS, WITH_SUBSCRIPTIONS)
    assert isinstance(failed, Failed)
    assert failed.reason == "ScopeLocked"


async def test_the_plugin_loads_and_says_what_its_kinds_go_through() -> None:
    registry = DeleterRegistry(plugins=installed())
    external = await registry.external(ALIASES)
    assert external is not None
    assert external.name == AZURE.name
    assert [deleter.name for deleter in await registry.deleters(ALIASES)] == [
        "azure-operator-away",
        "cancel-subscription",
    ]
    assert [deleter.name for deleter in await registry.deleters(CACHES)] == ["azure-operator-away"]


def operator(name: str, namespace: str, labels: dict[str, str], replicas: int = 1) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("name", "namespace", "labels", "replicas", "held"),
    [
        ("azureserviceoperator-controller-manager", "azureserviceoperator-system", {}, 1, True),
        ("aso", "elsewhere", {"app": "azure-service-operator-v2"}, 2, True),
        ("aso", "elsewhere", {"app": "azure-service-operator-v2"}, 0, False),
        ("aso", "elsewhere", {"app": "something"}, 1, False),
    ],
)
async def test_beside_a_living_operator_nothing_is_deleted(
    azure: Azure, name: str, namespace: str, labels: dict[str, str], replicas: int, *, held: bool
) -> None:
    azure.arm.resource(CACHE)
    azure.others = (operator(name, namespace, labels, replicas),)
    outcome = await azure.enter(made(CACHES, CACHE), CACHES, link(azure_operator_away))
    if held:
        assert isinstance(outcome, Failed)
        assert outcome.reason == Reason.HELD
        assert f"kubectl -n {namespace} scale deployment {name} --replicas=0" in outcome.message
        assert azure.arm.requests == []
    else:
        assert isinstance(outcome, Gone)


async def test_what_a_living_operator_has_deleted_is_gone(azure: Azure) -> None:
    azure.others = (operator("aso", "elsewhere", {"app": "azure-service-operator-v2"}),)
    obj = made(CACHES, CACHE)
    obj["metadata"]["finalizers"] = []
    outcome = await azure.enter(obj, CACHES, link(azure_operator_away))
    assert isinstance(outcome, Gone)
    assert azure.arm.sent("DELETE") == []


async def test_what_a_living_operator_has_let_go_is_kept(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    azure.others = (operator("aso", "elsewhere", {"app": "azure-service-operator-v2"}),)
    obj = made(CACHES, CACHE)
    obj["metadata"]["finalizers"] = []
    outcome = await azure.enter(obj, CACHES, link(azure_operator_away))
    assert isinstance(outcome, Kept)
    assert CACHE in outcome.message
    assert azure.arm.sent("DELETE") == []
