"""Aliases of subscriptions as Azure Service Operator has them, on a real API server, with a stand-in for Azure."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.azure_objects import AzureObjects, ledger_of
from tests.plane.support.buckets import CONDITIONS, ready, running
from tests.plane.support.removals import define_inventories
from unwind.api.meta import ObjectRef
from unwind.api.names import (
    AZURE_CREDENTIAL_ANNOTATION,
    AZURE_FINALIZER,
    AZURE_RESOURCE_ID_ANNOTATION,
    MEMO_ANNOTATION,
    RECONCILE_POLICY_ANNOTATION,
    Finalizer,
    Reason,
)
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, SECRETS, Resource
from unwind.api.rights import Right
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import Failed, Waiting, attempt, enter
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.memo import Memo, on_object
from unwind.deleters.outcomes import Gone
from unwind.deleters.registry import DeleterRegistry, installed
from unwind.external.azure.arm_client import connected
from unwind.external.azure.resource_deletion import ArmEnd
from unwind.external.external_deletion import OPERATOR_AGAIN
from unwind.kube import object_watch
from unwind.kube.watches import Watches
from unwind.testing.arm import CLIENT, SECRET, TENANT, Arm
from unwind.testing.clock import StillClock
from unwind.testing.managers import granting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from unwind.external.azure.arm_client import ArmClient
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

ALIASES = Resource("subscription.azure.com", "v1api20211001", "aliases", "Alias")
TEAM = "00000000-0000-0000-0000-0000000000aa"
CANCEL = f"/subscriptions/{TEAM}/providers/Microsoft.Subscription/cancel"


class Died(BaseException):
    """The process dies here."""


class DyingEnd(ArmEnd):
    """Dies before it has sent anything."""

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        raise Died


def crd() -> Object:
    free: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    status = free | {"properties": {"conditions": CONDITIONS}}
    version = {
        "name": ALIASES.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": status}}},
        "subresources": {"status": {}},
    }
    names = {"kind": "Alias", "plural": "aliases", "singular": "alias", "listKind": "AliasList"}
    return {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": f"aliases.{ALIASES.group}"},
        "spec": {"group": ALIASES.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


class Aliases:
    """The aliases of one namespace, and the Azure that they stand for."""

    def __init__(self, client: Client, namespace: str, arm: Arm) -> None:
        self.client = client
        self.namespace = namespace
        self.arm = arm

    async def create(self, name: str, *, subscription: str = "", **azure: Any) -> ObjectRef:
        """One that Azure Service Operator has created, at Azure as well."""
        id_ = self.id(name)
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "annotations": {AZURE_RESOURCE_ID_ANNOTATION: id_},
            "finalizers": [Finalizer.EXTERNAL],
        }
        body = {"apiVersion": ALIASES.api_version, "kind": "Alias", "metadata": metadata, "spec": {"azureName": name}}
        made = await self.client.create(ALIASES, body)
        properties = {"subscriptionId": subscription} if subscription else {}
        await self.patch(name, {"status": {"id": id_, "properties": properties}}, subresource="status")
        self.arm.resource(id_, properties=properties, **azure)
        if subscription:
            self.arm.subscription(subscription)
        return ObjectRef(
            group=ALIASES.group,
            version=ALIASES.version,
            kind="Alias",
            namespace=self.namespace,
            name=name,
            uid=made["metadata"]["uid"],
        )

    def id(self, name: str) -> str:
        return f"/providers/Microsoft.Subscription/aliases/{name}"

    async def get(self, name: str) -> Object:
        return await self.client.get(ALIASES, name, namespace=self.namespace)

    async def patch(self, name: str, patch: Object, **more: Any) -> Object:
        return await self.client.patch(ALIASES, name, patch, namespace=self.namespace, **more)

    async def delete(self, ref: ObjectRef) -> None:
        await self.client.delete(ALIASES, ref.name, uid=ref.uid, namespace=self.namespace)

    async def until(self, name: str, holds: Callable[[Object], bool], called: str) -> Object:
        found = await object_watch.until(
            self.client,
            ALIASES,
            name,
            lambda it: it is not None and holds(it),
            called,
            namespace=self.namespace,
            within=30,
        )
        assert found
        return found

    async def until_gone(self, name: str) -> None:
        await object_watch.until_absent(self.client, ALIASES, name, namespace=self.namespace, within=30)

    async def enter(self, ref: ObjectRef, end: ArmEnd) -> Gone | object:
        """Enter the chain once, as a process that has just started: with the object as it is, and the memo on it."""
        return await attempt(self._enter(ref, end))

    async def _enter(self, ref: ObjectRef, end: ArmEnd, memo: Callable[[Memo], Memo] = lambda it: it) -> Any:
        obj = await self.get(ref.name)
        cluster, clock = await self.client.cluster_uid(), StillClock()
        async with Watches(self.client, cluster=cluster, clock=clock) as watches:
            ctx = DeleteContext(
                resource=ALIASES,
                ref=ref,
                memo=memo(on_object(self.client, ALIASES, obj)),
                resolver=Resolver(self.client),
                watches=watches,
                clients=(self.client, *end.clients),
                clock=clock,
                cluster=cluster,
            )
            return await enter(DeleterRegistry(BUILTIN, plugins=installed()), end, ctx, obj)

    async def die(self, ref: ObjectRef, end: ArmEnd, memo: Callable[[Memo], Memo] = lambda it: it) -> None:
        """Enter the chain once, and die in it."""
        with pytest.raises(Died):
            await self._enter(ref, end, memo)

    def asked(self) -> list[tuple[str, str]]:
        """What was changed at Azure, in order."""
        return [
            (request.method, request.path)
            for request in self.arm.requests
            if request.method in ("POST", "DELETE") and "/oauth2/" not in request.path
        ]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def served(plane: Plane) -> AsyncIterator[None]:
    """Have aliases served, for as long as these tests run: others must not find the kind."""
    client = plane.management.client
    made = await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd())
    name = made["metadata"]["name"]
    await object_watch.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established")
    rights = (
        Right(ALIASES.group, (ALIASES.plural,), ("get", "list", "watch", "patch")),
        Right(ALIASES.group, (f"{ALIASES.plural}/status",), ("patch",)),
    )
    async with granting(client, "azure-aliases", *rights):
        yield
    for left in await client.list(ALIASES):
        where = left["metadata"]["namespace"]
        await client.patch(ALIASES, left["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace=where)
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=made["metadata"]["uid"])
    await object_watch.until_absent(client, CUSTOM_RESOURCE_DEFINITIONS, name, within=60)


@pytest_asyncio.fixture(loop_scope="session")
async def aliases(plane: Plane, namespace: str, served: None) -> AsyncIterator[Aliases]:
    async with Arm() as arm:
        yield Aliases(plane.management.client, namespace, arm)


@pytest.fixture
def environ(aliases: Aliases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process ran with an identity of Azure's."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes(aliases.arm.certificate)
    variables = {"SSL_CERT_FILE": str(authority), "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    for name, value in {**aliases.arm.environ, **variables}.items():
        monkeypatch.setenv(name, value)


@pytest_asyncio.fixture(loop_scope="session")
async def azure(environ: None) -> AsyncIterator[ArmClient]:
    async with connected() as client:
        yield client


def forgetful(memo: Memo) -> Memo:
    """A memo of a process that dies before anything is written down."""

    async def save(_: Mapping[str, str | None]) -> None:
        raise Died

    return Memo({}, save)


# Entry by entry


async def test_with_the_id_of_a_subscription_that_is_cancelled_first(aliases: Aliases, azure: ArmClient) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]
    assert aliases.arm.subscriptions[TEAM].state == "Disabled"


async def test_without_the_id_of_a_subscription_the_alias_goes_at_once(aliases: Aliases, azure: ArmClient) -> None:
    ref = await aliases.create("bare")
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("DELETE", aliases.id("bare"))]


async def test_when_the_cancellation_fails_the_alias_stays(aliases: Aliases, azure: ArmClient) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    aliases.arm.fail_next(500, "InternalServerError", method="POST")
    failed = await aliases.enter(ref, ArmEnd(azure))
    assert isinstance(failed, Failed)
    assert failed.reason == "InternalServerError"
    assert aliases.asked() == [("POST", CANCEL)]
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("POST", CANCEL), ("POST", CANCEL), ("DELETE", aliases.id("team"))]


async def test_cancelled_and_dead_before_the_deletion_it_is_not_cancelled_again(
    aliases: Aliases, azure: ArmClient
) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.die(ref, DyingEnd(azure))
    written = (await aliases.get("team"))["metadata"]["annotations"]
    assert written[f"{MEMO_ANNOTATION}cancel-subscription.cancelled"] == TEAM
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]


async def test_cancelled_and_dead_before_that_was_written_down_it_goes_on_all_the_same(
    aliases: Aliases, azure: ArmClient
) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.die(ref, ArmEnd(azure), forgetful)
    assert aliases.asked() == [("POST", CANCEL)]
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("POST", CANCEL), ("POST", CANCEL), ("DELETE", aliases.id("team"))]


async def test_a_restart_goes_on_polling_what_is_written_on_the_object(aliases: Aliases, azure: ArmClient) -> None:
    ref = await aliases.create("slow", takes=2)
    for _ in range(3):
        assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Waiting)
    assert f"{MEMO_ANNOTATION}arm.operation" in (await aliases.get("slow"))["metadata"]["annotations"]
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)
    assert aliases.asked() == [("DELETE", aliases.id("slow"))]


async def test_beside_a_living_operator_nothing_is_done(aliases: Aliases, azure: ArmClient, namespace: str) -> None:
    ref = await aliases.create("theirs", subscription=TEAM)
    await aliases.patch("theirs", {"metadata": {"finalizers": ["serviceoperator.azure.com/finalizer"]}})
    labels = {"app": "azure-service-operator-v2"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none.example/c"}]}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "aso", "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod},
    }
    made = await aliases.client.create(DEPLOYMENTS, deployment)
    failed = await aliases.enter(ref, ArmEnd(azure))
    assert isinstance(failed, Failed)
    assert failed.reason == Reason.HELD
    assert aliases.arm.requests == []
    await aliases.client.delete(DEPLOYMENTS, "aso", uid=made["metadata"]["uid"], namespace=namespace)
    await object_watch.until_absent(aliases.client, DEPLOYMENTS, "aso", namespace=namespace, within=30)
    assert isinstance(await aliases.enter(ref, ArmEnd(azure)), Gone)


# Through the controller, with the plugin as it is installed


@asynccontextmanager
async def controller(aliases: Aliases) -> AsyncIterator[StillClock]:
    clock = StillClock()
    async with running(aliases.client, aliases.namespace, plugins=tuple(installed()), clock=clock):
        yield clock


@pytest.mark.usefixtures("environ")
async def test_the_controller_cancels_deletes_and_lets_the_object_go(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    async with controller(aliases):
        await aliases.delete(ref)
        await aliases.until_gone("team")
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]


@pytest.mark.usefixtures("environ")
async def test_the_controller_deletes_an_alias_without_a_subscription(aliases: Aliases) -> None:
    ref = await aliases.create("bare")
    async with controller(aliases):
        await aliases.delete(ref)
        await aliases.until_gone("bare")
    assert aliases.asked() == [("DELETE", aliases.id("bare"))]


@pytest.mark.usefixtures("environ")
async def test_the_controller_says_why_a_subscription_is_not_cancelled_and_tries_again(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    aliases.arm.fail_next(409, "SubscriptionHasResources", method="POST")
    async with controller(aliases) as clock:
        await aliases.delete(ref)
        told = await aliases.until("team", lambda it: ready(it).get("reason") == "SubscriptionHasResources", "told")
        assert ready(told)["severity"] == "Warning"
        assert Finalizer.EXTERNAL in told["metadata"]["finalizers"]
        assert aliases.asked() == [("POST", CANCEL)]
        await _until_gone(aliases, clock)
    assert aliases.asked() == [("POST", CANCEL), ("POST", CANCEL), ("DELETE", aliases.id("team"))]


@pytest.mark.usefixtures("environ")
async def test_a_controller_that_is_restarted_after_the_cancellation_goes_on_with_the_deletion(
    aliases: Aliases,
) -> None:
    ref = await aliases.create("team", subscription=TEAM, takes=1)
    aliases.arm.fail_next(503, "ServiceUnavailable", method="DELETE", times=1000)
    async with controller(aliases):
        await aliases.delete(ref)
        await aliases.until("team", lambda it: ready(it).get("reason") == "ServiceUnavailable", "told")
    aliases.arm.mend()
    before = len(aliases.asked())
    async with controller(aliases) as clock:
        await _until_gone(aliases, clock)
    assert aliases.asked()[before:] == [("DELETE", aliases.id("team"))]
    assert aliases.asked().count(("POST", CANCEL)) == 1


async def _until_gone(aliases: Aliases, clock: StillClock, name: str = "team") -> None:
    """Return when an Alias is gone. The clock goes on whenever something waits for it for less than a minute.

    Objects that other tests left behind wait for it as well, so how often it has to go on is not known.
    """
    gone = asyncio.create_task(aliases.until_gone(name))
    while not gone.done():
        if any(seconds < 60 for seconds in clock.waiting):
            clock.advance(60)
        await asyncio.sleep(0.05)
    await gone


# Credentials in the namespace of the object, as Azure Service Operator reads them


async def put_credentials(aliases: Aliases, name: str) -> None:
    values = {"AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT, "AZURE_CLIENT_SECRET": SECRET}
    metadata = {"name": name, "namespace": aliases.namespace}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}
    await aliases.client.create(SECRETS, body)


@pytest.fixture
def without_identity(environ: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the identity of the manager had no rights."""
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")


@pytest.mark.usefixtures("without_identity")
@pytest.mark.parametrize("named", ["", "own"], ids=["of the namespace", "that the object names"])
async def test_the_credentials_in_the_namespace_of_an_object_come_before_the_identity_of_the_manager(
    aliases: Aliases, named: str
) -> None:
    await put_credentials(aliases, named or "aso-credential")
    ref = await aliases.create("own")
    if named:
        # The one of the namespace does not count then.
        await aliases.client.create(
            SECRETS,
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "aso-credential", "namespace": aliases.namespace},
            },
        )
        await aliases.patch("own", {"metadata": {"annotations": {AZURE_CREDENTIAL_ANNOTATION: named}}})
    async with controller(aliases):
        await aliases.delete(ref)
        await aliases.until_gone("own")
    assert ("DELETE", aliases.id("own")) in aliases.asked()


@pytest.mark.usefixtures("environ")
async def test_credentials_that_an_object_names_are_awaited_and_never_replaced_or_taken_from_another_namespace(
    aliases: Aliases,
) -> None:
    # Objects that other tests left behind are deleted with the identity of the manager meanwhile.
    name = "with-credentials"
    ref = await aliases.create(name)
    await aliases.patch(name, {"metadata": {"annotations": {AZURE_CREDENTIAL_ANNOTATION: "kube-system/own"}}})
    async with controller(aliases) as clock:
        await aliases.delete(ref)
        told = await aliases.until(name, lambda it: ready(it).get("reason") == "Unauthenticated", "told")
        assert "'kube-system/own' is not the name of a Secret in namespace" in ready(told)["message"]
        await aliases.patch(name, {"metadata": {"annotations": {AZURE_CREDENTIAL_ANNOTATION: "own"}}})
        missing = f"cannot find Secret {aliases.namespace}/own"
        await aliases.until(name, lambda it: missing in ready(it).get("message", ""), "told")
        asked = [request.path for request in aliases.arm.requests if name in request.path]
        assert asked == [], "the identity of the manager may have more rights"
        await put_credentials(aliases, "own")
        await _until_gone(aliases, clock, name)
    assert ("DELETE", aliases.id(name)) in aliases.asked()


# The finalizer of Azure Service Operator, while that does not run


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def ledger(plane: Plane) -> None:
    """Serve the kinds of the ledger."""
    await define_inventories(plane.management.client)


@pytest.mark.usefixtures("environ", "ledger")
async def test_the_finalizer_of_an_operator_that_does_not_run_is_removed_after_the_proof_and_recorded(
    aliases: Aliases,
) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.patch("team", {"metadata": {"finalizers": [Finalizer.EXTERNAL, AZURE_FINALIZER]}})
    async with controller(aliases):
        await aliases.delete(ref)
        await aliases.until_gone("team")
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]
    found = await ledger_of(aliases.client, aliases.namespace, ref.uid)
    assert found
    note = found.spec.entries[ref.uid].ledger
    assert note
    assert note.reason == Reason.FINALIZER_REMOVED
    assert AZURE_FINALIZER in note.message


@pytest.mark.usefixtures("environ", "ledger")
async def test_an_alias_that_was_terminating_at_first_sight_is_deleted_at_azure_as_well(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.patch("team", {"metadata": {"finalizers": [AZURE_FINALIZER]}})
    await aliases.delete(ref)
    async with controller(aliases):
        await aliases.until_gone("team")
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]
    assert await ledger_of(aliases.client, aliases.namespace, ref.uid)


@pytest.mark.usefixtures("environ", "ledger")
async def test_an_alias_that_was_terminating_is_left_to_an_operator_that_runs(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.patch("team", {"metadata": {"finalizers": [AZURE_FINALIZER]}})
    await aliases.delete(ref)
    objects = AzureObjects(aliases.client, aliases.namespace, aliases.arm)
    async with controller(aliases) as clock:
        async with objects.operator():
            # The controller has looked at it when it waits for the clock.
            await eventually(lambda: OPERATOR_AGAIN in clock.waiting, "a check that is scheduled again")
            found = await aliases.get("team")
            assert found["metadata"]["finalizers"] == [AZURE_FINALIZER]
            assert ready(found) == {}, "the status is the operator's"
            assert aliases.arm.requests == []
        await _until_gone(aliases, clock)
    assert aliases.asked() == [("POST", CANCEL), ("DELETE", aliases.id("team"))]


@pytest.mark.usefixtures("environ", "ledger")
async def test_a_resource_that_is_kept_keeps_the_finalizer_of_its_operator(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    patch = {
        "finalizers": [Finalizer.EXTERNAL, AZURE_FINALIZER],
        "annotations": {RECONCILE_POLICY_ANNOTATION: "detach-on-delete"},
    }
    await aliases.patch("team", {"metadata": patch})
    async with controller(aliases):
        await aliases.delete(ref)
        found = await aliases.until(
            "team", lambda it: Finalizer.EXTERNAL not in it["metadata"]["finalizers"], "released"
        )
    assert found["metadata"]["finalizers"] == [AZURE_FINALIZER]
    assert aliases.asked() == []
    assert await ledger_of(aliases.client, aliases.namespace, ref.uid) is None


@pytest.mark.usefixtures("environ", "ledger")
async def test_beside_an_operator_that_runs_the_controller_waits_for_its_finalizer(aliases: Aliases) -> None:
    ref = await aliases.create("team", subscription=TEAM)
    await aliases.patch("team", {"metadata": {"finalizers": [Finalizer.EXTERNAL, AZURE_FINALIZER]}})
    objects = AzureObjects(aliases.client, aliases.namespace, aliases.arm)
    async with controller(aliases), objects.operator():
        await aliases.delete(ref)
        told = await aliases.until("team", lambda it: "is running" in ready(it).get("message", ""), "told")
        assert "deletes" in ready(told)["message"]
        assert aliases.arm.requests == []
        # The operator deletes the resource, and removes its finalizer.
        aliases.arm.resources.clear()
        await aliases.patch("team", {"metadata": {"finalizers": [Finalizer.EXTERNAL]}})
        await aliases.until_gone("team")
    assert aliases.asked() == []
    assert await ledger_of(aliases.client, aliases.namespace, ref.uid) is None
