"""What Cluster API is answered: by a process as people run it, and by the gate with caches that lag behind."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.manager_process import running
from tests.unit.capi.answering import NOT_LOADED, unloadable
from tests.unit.capi.asked import V1BETA1, V1BETA2, body, cluster, teardown
from unwind.addons.caches import AddonCaches
from unwind.addons.summary_gate_source import SummaryGateSource
from unwind.api.hooks import API_VERSION, Hook
from unwind.api.meta import ObjectMeta, ObjectRef, find, manifest
from unwind.api.names import CLUSTER_UID_ANNOTATION, MEMBER_LABEL, OWNER_LABEL
from unwind.api.resources import SECRETS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Entry, Inventory, InventorySpec, MemberRef, Teardown
from unwind.capi import hook_protocol
from unwind.capi.hook_handlers import HookHandlers
from unwind.capi.hook_protocol import switched_on
from unwind.capi.hook_registry import HookPlugin, HookRegistry
from unwind.cli import ledger
from unwind.inventory.inventories import Inventories
from unwind.kube.client import Client
from unwind.kube.events import EVENTS, Recorder
from unwind.kube.object_watch import until_absent
from unwind.server import path_segments
from unwind.server.certificate_secret import NAME
from unwind.server.listener import Address, Listener, address_of, bind
from unwind.server.path_keys import NAME as PATHS
from unwind.teardown.signatures import RecordKeys
from unwind.testing.managers import manager_client
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

DELETE = Hook.BEFORE_CLUSTER_DELETE
CLOSED = "waiting for add-on cleanup: "


class Asked:
    """A cluster that Cluster API asks about; all that is in the API of it is what a test puts there."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.name = f"c-{uuid.uuid4().hex[:6]}"
        self.uid = str(uuid.uuid4())

    def body(self, hook: Hook = DELETE, version: str = V1BETA2) -> bytes:
        return body(hook, cluster=cluster(uid=self.uid, name=self.name, namespace=self.namespace, version=version))

    async def add_on(self, name: str, behaviour: str, *, of: str = "") -> Object:
        """A summary of this cluster; of another one that had its name, if that is given."""
        metadata = {
            "name": f"{name}-capi-{self.name}",
            "namespace": self.namespace,
            "annotations": {CLUSTER_UID_ANNOTATION: of or self.uid},
        }
        spec = {
            "clusterNamespace": self.namespace,
            "clusterName": self.name,
            "clusterType": "Capi",
            "clusterProfileSpec": {"clusterDeletionBehavior": behaviour},
        }
        kind = CLUSTER_SUMMARIES
        made = await self.client.create(
            kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
        )
        # No profile backs it, so it counts by what the manager wrote down for it.
        owner = made["metadata"]["uid"]
        inventory = Inventory(
            metadata=ObjectMeta(name=f"{owner}-0", namespace=self.namespace, labels={OWNER_LABEL: owner}),
            spec=InventorySpec(
                owner=ObjectRef(kind=kind.kind, namespace=self.namespace, name=made["metadata"]["name"], uid=owner),
                member=MemberRef(object=ObjectRef(kind="Cluster", name=self.name, uid=self.uid), system_uid="x"),
            ),
        )
        await self.client.create(INVENTORIES, manifest(INVENTORIES, inventory))
        return made

    async def without(self, summary: Object) -> None:
        meta = summary["metadata"]
        await self.client.delete(CLUSTER_SUMMARIES, meta["name"], uid=meta["uid"], namespace=self.namespace)
        await until_absent(self.client, CLUSTER_SUMMARIES, meta["name"], namespace=self.namespace)

    async def torn_down(self, *steps: tuple[str, str, str], phase: str = "Removing", signed: bool = True) -> None:
        """The record of its teardown, with these steps; `signed` by the manager of the same namespace."""
        keys = RecordKeys(self.client, namespace=self.namespace)
        await keys.load()
        made = teardown(*steps, uid=self.uid, phase=phase)
        record = msgspec.structs.replace(made, metadata=ObjectMeta(name=self.uid))
        wanted = manifest(TEARDOWNS, keys.signed(record) if signed else record)
        status = wanted.pop("status")
        await self.client.create(TEARDOWNS, wanted)
        await self.tell(**status)

    async def tell(self, **status: Any) -> None:
        await self.client.patch(TEARDOWNS, self.uid, {"status": status}, subresource="status")

    async def leave_behind(self, home: str, *, effort: str = "") -> None:
        """An inventory on this cluster whose summary is gone."""
        owner = str(uuid.uuid4())
        it = ObjectRef(version="v1", kind="ConfigMap", namespace="default", name="left", uid="left")
        inventory = Inventory(
            metadata=ObjectMeta(name=f"{owner}-0", namespace=home, labels={OWNER_LABEL: owner, MEMBER_LABEL: self.uid}),
            spec=InventorySpec(
                owner=ObjectRef(kind="ClusterSummary", namespace=self.namespace, name="vanished", uid=owner),
                member=MemberRef(object=ObjectRef(kind="Cluster", name=self.name, uid=self.uid), system_uid="x"),
                effort=effort,
                entries={"left": Entry(object=it, resource="configmaps", state="Confirmed")},
            ),
        )
        await self.client.create(INVENTORIES, manifest(INVENTORIES, inventory))


class Caller:
    """Calls as Cluster API does."""

    def __init__(self, address: str, session: aiohttp.ClientSession, caches: AddonCaches | None = None) -> None:
        self._address = address
        self._session = session
        self.caches = caches

    async def post(self, path: str, sent: bytes, *, waits: str = "10s") -> tuple[int, Any]:
        # Cluster API sends no Content-Type.
        async with self._session.post(
            f"{self._address}{path}?timeout={waits}", data=sent, skip_auto_headers=["Content-Type"]
        ) as answer:
            return answer.status, await answer.json()

    async def ask(self, it: Asked, hook: Hook = DELETE, *, version: str = V1BETA2, waits: str = "10s") -> Any:
        """What a hook is answered, which always is a Success."""
        status, told = await self.post(hook_protocol.path(hook), it.body(hook, version), waits=waits)
        assert (status, told["kind"], told["status"]) == (200, f"{hook.value}Response", "Success")
        return told

    async def until(self, it: Asked, holds: Callable[[Any], bool]) -> Any:
        """The answer as soon as it is so: caches learn a little later than whoever wrote."""

        async def answer() -> Any:
            told = await self.ask(it)
            return told if holds(told) else None

        return await eventually(answer, "the expected answer")


def lets_go(told: Any) -> bool:
    return bool(told["retryAfterSeconds"] == 0)


@asynccontextmanager
async def gate(
    reading: Client,
    following: Client,
    home: str,
    *,
    run: bool = True,
    features: dict[str, bool] | None = None,
    plugins: Iterable[HookPlugin] = (),
) -> AsyncIterator[Caller]:
    """The gate behind a listener: caches follow the server by one client, what is confirmed is read by another.

    `plugins`: packages of rules.
    """
    listening = bind(Address("127.0.0.1", 0), option="")
    async with AsyncExitStack() as stack:
        own, follows = [
            await stack.enter_async_context(manager_client(client, home)) for client in (reading, following)
        ]
        caches = AddonCaches(follows)
        source = SummaryGateSource(own, caches, Inventories(own, namespace=home))
        registry, recorder = HookRegistry(plugins=plugins), Recorder(own, instance="test")
        registry.load()
        asking = HookHandlers(
            own,
            caches,
            source,
            namespace=home,
            registry=registry,
            hooks=switched_on(features or {}),
            recorder=recorder,
        )
        listener = Listener("hooks", asking.routes())
        stack.callback(listening.close)
        await listener.open(listening)
        stack.push_async_callback(listener.close, grace=0.5)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(recorder.run())
            task = group.create_task(caches.run()) if run else None
            if run:
                await asyncio.gather(caches.summaries.until_synced(), caches.teardowns.until_synced())
            try:
                yield Caller(f"http://{address_of(listening)}", session, caches)
            finally:
                reporting.cancel()
                if task:
                    task.cancel()


@pytest_asyncio.fixture(loop_scope="session")
async def asked(plane: Plane, namespace: str) -> AsyncIterator[Asked]:
    """A cluster with nothing on it yet."""
    client = plane.management.client
    await profiles.install(client)
    yield Asked(client, namespace)
    for item in await client.list(TEARDOWNS):
        await client.delete(TEARDOWNS, item["metadata"]["name"], uid=item["metadata"]["uid"])


# A process as people run it


async def test_cluster_api_discovers_over_tls_what_is_switched_on_and_is_answered(plane: Plane, asked: Asked) -> None:
    client, home = asked.client, asked.namespace
    options = ("--roles", "serving", "--feature-gates", "BeforeClusterUpgrade=true")
    held = await asked.add_on("held", "EnforceRemovePolicies")
    async with running(plane.management, home, *options) as manager:
        await manager.until_listening("https", "metrics")
        found = await client.get(SECRETS, NAME, namespace=home)
        trust = ssl.create_default_context(cadata=base64.b64decode(found["data"]["ca.crt"]).decode())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            key = base64.b64decode((await client.get(SECRETS, PATHS, namespace=home))["data"]["key"])
            caller = Caller(
                f"https://{manager.addresses['https']}{path_segments.prefix(key, path_segments.HOOKS)}", session
            )
            discovery = json.dumps({"apiVersion": API_VERSION, "kind": "DiscoveryRequest"}).encode()
            status, told = await caller.post(hook_protocol.DISCOVERY_PATH, discovery)
            assert (status, told["status"]) == (200, "Success")
            assert [item["requestHook"]["hook"] for item in told["handlers"]] == [
                "AfterControlPlaneInitialized",
                "BeforeClusterUpgrade",
                "BeforeClusterDelete",
            ]
            # From the first answer on, whatever is known by then.
            told = await caller.until(asked, lambda it: "held" in it["message"])
            assert told["message"] == f"{CLOSED}ClusterSummary/{held['metadata']['name']}"
            assert told["retryAfterSeconds"] == 1
            for version in (V1BETA1, V1BETA2):
                assert (await caller.ask(asked, version=version))["retryAfterSeconds"] == 1
            await manager.until_ready()
            for hook in Hook:
                if hook is not DELETE:
                    assert (await caller.ask(asked, hook)).get("retryAfterSeconds", 0) == 0
            for sent in (b"", b"not json", b"{}", asked.body(Hook.BEFORE_CLUSTER_CREATE)):
                status, told = await caller.post(hook_protocol.path(DELETE), sent)
                assert (status, told["reason"]) == (400, "BadRequest")
                assert "BeforeClusterDeleteRequest" in told["message"]
            assert (await caller.post(f"/{API_VERSION}/beforeclusterdelete/another", asked.body()))[0] == 404

            await asked.without(held)
            await caller.until(asked, lets_go)
        assert await manager.stop() == 0
    assert any(entry["event"] == "cluster deletion allowed" and entry["uid"] == asked.uid for entry in manager.logged)


# The gate


async def test_before_the_caches_are_filled_every_answer_is_to_ask_again_in_a_second(asked: Asked) -> None:
    features = {hook.value: True for hook in Hook}
    async with gate(asked.client, asked.client, asked.namespace, run=False, features=features) as caller:
        for hook in Hook:
            told = await caller.ask(asked, hook)
            if hook.blocks:
                assert told["retryAfterSeconds"] == 1
                assert "has not read all objects yet; Cluster API asks again" in told["message"]


async def test_only_what_is_enforced_on_this_very_cluster_keeps_it(asked: Asked) -> None:
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        assert lets_go(await caller.ask(asked))
        await asked.add_on("left", "LeavePolicies")
        await asked.add_on("removed", "RemovePolicies")
        await asked.add_on("before", "EnforceRemovePolicies", of=str(uuid.uuid4()))
        # What it opens by is read for it, so there is nothing to wait for.
        assert lets_go(await caller.ask(asked))
        enforced = await asked.add_on("enforced", "EnforceRemovePolicies")
        told = await caller.ask(asked)
        assert (told["message"], told["retryAfterSeconds"]) == (
            f"{CLOSED}ClusterSummary/{enforced['metadata']['name']}",
            1,
        )
        await asked.without(enforced)
        await caller.until(asked, lets_go)


async def test_a_teardown_keeps_its_cluster_until_the_last_enforced_step_is_seen_absent(asked: Asked) -> None:
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        await asked.torn_down(("db", "Enforce", "Removing"), ("log", "Enforce", "Waiting"), ("web", "Try", "Removing"))
        told = await caller.until(asked, lambda it: "log" in it["message"])
        assert told["message"] == f"{CLOSED}db, log"
        await asked.tell(steps=[{"name": "db", "state": "Removed"}, {"name": "log", "state": "Removing"}])
        told = await caller.until(asked, lambda it: "db" not in it["message"])
        assert told["message"] == f"{CLOSED}log"
        await asked.tell(steps=[{"name": "db", "state": "Removed"}, {"name": "log", "state": "Removed"}])
        await caller.until(asked, lets_go)


async def test_a_teardown_that_the_manager_did_not_write_neither_opens_the_gate_nor_holds_it(asked: Asked) -> None:
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        enforced = await asked.add_on("enforced", "EnforceRemovePolicies")
        await asked.torn_down(phase="Complete", signed=False)
        closed = f"{CLOSED}ClusterSummary/{enforced['metadata']['name']}"
        await caller.until(asked, lambda it: it["message"] == closed)
        # The caches know of the record by now, too: the answer stays what it was.
        if caches := caller.caches:
            await eventually(lambda: caches.teardowns.cache.by("uid", asked.uid), "a cached record")
        assert (await caller.ask(asked))["message"] == closed
        await asked.tell(phase="Held")
        await asked.without(enforced)
        await caller.until(asked, lets_go)


async def test_without_a_key_to_verify_records_by_every_cluster_is_kept(asked: Asked) -> None:
    metadata = {"name": "unwind-record-key", "namespace": asked.namespace}
    made = await asked.client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        told = await caller.ask(asked)
        assert told["retryAfterSeconds"] == 1
        assert "cannot read the keys that verify Teardowns from the API server" in told["message"]
        await asked.client.delete(SECRETS, "unwind-record-key", uid=made["metadata"]["uid"], namespace=asked.namespace)
        await caller.until(asked, lets_go)


@pytest.mark.parametrize("effort", ["", "Enforce"])
async def test_an_inventory_whose_summary_is_gone_keeps_its_cluster(asked: Asked, effort: str) -> None:
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        await asked.leave_behind(asked.namespace, effort="Try")
        await asked.leave_behind(asked.namespace, effort=effort)
        told = await caller.ask(asked)
        assert told["retryAfterSeconds"] == 1
        assert told["message"].count("ClusterSummary/vanished") == 1


@pytest.mark.parametrize("effort", ["Try", "Leave"])
async def test_an_inventory_that_was_not_enforced_does_not(asked: Asked, effort: str) -> None:
    async with gate(asked.client, asked.client, asked.namespace) as caller:
        await asked.leave_behind(asked.namespace, effort=effort)
        assert lets_go(await caller.ask(asked))


async def test_rules_that_do_not_load_do_not_block_a_cluster_on_which_nothing_is_enforced(asked: Asked) -> None:
    client = asked.client
    async with gate(client, client, asked.namespace, plugins=[unloadable()]) as caller:
        await asked.torn_down(("web", "Try", "Removing"), ("log", "Leave", "Waiting"))
        await caller.until(asked, lets_go)
        # What is not known is on the record, in an Event on the Cluster, and in the ledger.
        record = await client.get(TEARDOWNS, asked.uid, type=Teardown)
        said = find(record.status.conditions, "NotVerified")
        assert said
        assert (said.status, said.reason, said.message) == ("True", "NotLoaded", NOT_LOADED)
        [line] = (await ledger.read_ledger(client, asked.uid, None)).not_verified
        assert (line.target.uid, line.reason, line.message) == (asked.uid, "NotLoaded", NOT_LOADED)

        async def reported() -> bool:
            return any(
                (event["regarding"]["uid"], event["reason"], event["note"]) == (asked.uid, "NotVerified", NOT_LOADED)
                for event in await client.list(EVENTS, namespace=asked.namespace)
            )

        await eventually(reported, "an Event")


async def test_rules_that_do_not_load_do_not_block_a_cluster_without_a_record(asked: Asked) -> None:
    async with gate(asked.client, asked.client, asked.namespace, plugins=[unloadable()]) as caller:
        await asked.add_on("web", "RemovePolicies")
        assert lets_go(await caller.ask(asked))


async def test_rules_that_do_not_load_block_a_cluster_with_an_enforced_add_on(asked: Asked) -> None:
    async with gate(asked.client, asked.client, asked.namespace, plugins=[unloadable()]) as caller:
        await asked.torn_down(("db", "Enforce", "Removed"), ("web", "Try", "Removed"))
        told = await caller.until(asked, lambda it: it["message"] == NOT_LOADED)
        assert told["retryAfterSeconds"] == 10


@pytest.mark.parametrize("effort", ["Try", "Enforce"])
async def test_a_frozen_plan_opens_the_gate_without_another_read_only_if_nothing_is_enforced(
    plane: Plane, asked: Asked, effort: str
) -> None:
    connection = plane.management.client.connection
    async with Proxy(connection.server) as proxy:
        through = msgspec.structs.replace(connection, server=proxy.url)
        async with Client(through) as reading, gate(reading, asked.client, asked.namespace) as caller:
            await asked.torn_down(("web", effort, "Removed"))
            await caller.until(asked, lets_go)
            proxy.hold()
            told = await caller.ask(asked, waits="2s")
            if effort == "Try":
                assert lets_go(told)
            else:
                assert (told["message"], told["retryAfterSeconds"]) == (
                    f"{CLOSED}cannot read Teardown {asked.uid}: the API server timed out; Cluster API asks again",
                    1,
                )
            proxy.resume()


async def test_caches_that_lag_behind_open_nothing(plane: Plane, asked: Asked) -> None:
    connection = plane.management.client.connection
    async with Proxy(connection.server) as proxy:
        lagging = msgspec.structs.replace(connection, server=proxy.url)
        async with Client(lagging) as following, gate(asked.client, following, asked.namespace) as caller:
            assert lets_go(await caller.ask(asked))
            proxy.hold()
            enforced = await asked.add_on("late", "EnforceRemovePolicies")
            told = await caller.ask(asked)
            assert (told["message"], told["retryAfterSeconds"]) == (
                f"{CLOSED}ClusterSummary/{enforced['metadata']['name']}",
                1,
            )
            await asked.torn_down(("db", "Enforce", "Removing"))
            await asked.without(enforced)
            told = await caller.ask(asked)
            assert (told["message"], told["retryAfterSeconds"]) == (f"{CLOSED}db", 1)
            await asked.tell(phase="Complete")
            assert lets_go(await caller.ask(asked))


async def test_an_api_server_that_does_not_answer_opens_nothing(plane: Plane, asked: Asked) -> None:
    connection = plane.management.client.connection
    async with Proxy(connection.server) as proxy:
        through = msgspec.structs.replace(connection, server=proxy.url)
        async with Client(through) as reading, gate(reading, asked.client, asked.namespace) as caller:
            assert lets_go(await caller.ask(asked))
            proxy.hold()
            told = await caller.ask(asked, waits="1s")
            assert (told["message"], told["retryAfterSeconds"]) == (
                f"{CLOSED}cannot read Teardown {asked.uid}: the API server timed out; Cluster API asks again",
                1,
            )
            proxy.resume()
            proxy.close()
            told = await caller.ask(asked)
            assert (told["message"], told["retryAfterSeconds"]) == (
                f"{CLOSED}cannot read Teardown {asked.uid} from the API server; see the log of the Unwind manager",
                1,
            )
            proxy.reopen()
            await caller.until(asked, lets_go)
