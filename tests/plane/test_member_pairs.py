"""A Cluster of Cluster API that is also a Karmada member: its deletion waits for the member's Required Works."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import karmada_members
from tests.plane.support.cluster_teardowns import CapiCluster
from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from tests.plane.support.unjoins import UnjoinScene
from unwind.addons.caches import AddonCaches
from unwind.addons.step_source import SummarySteps
from unwind.api import capi
from unwind.api.karmada import CLUSTERS, WORKS, Cluster, RemoveStrategy
from unwind.api.meta import is_true
from unwind.api.names import CAPI_CLUSTER_ANNOTATION
from unwind.api.resources import SECRETS
from unwind.api.unwind import Phase
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.clock import SYSTEM
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.cluster_pairs import PairController
from unwind.karmada.member_gate_source import MemberGateSource
from unwind.karmada.member_step_source import MemberSteps
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.karmada.work_controller import WorkController
from unwind.kube.discovery import Named
from unwind.kube.errors import AnotherClusterError
from unwind.kube.events import EVENTS, Recorder
from unwind.kube.object_watch import until, until_absent
from unwind.members import targets
from unwind.preview import cluster_preview
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed, GateOpen
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal_records import WithdrawalRecords
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.clock import Clock
    from unwind.components import Component
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.deletion_gate import Verdict
    from unwind.teardown.step_removers import RemovalDeps

REQUIRED = RemoveStrategy.REQUIRED


class PairScene(UnjoinScene):
    """A member that is also a Cluster of Cluster API."""

    capi: CapiCluster

    async def paired(self) -> str:
        """The recorded pair, as soon as there is one."""
        found = await until(
            self.client,
            CLUSTERS,
            self.name,
            lambda it: it is not None and CAPI_CLUSTER_ANNOTATION in (it["metadata"].get("annotations") or {}),
            "paired",
        )
        assert found
        return str(found["metadata"]["annotations"][CAPI_CLUSTER_ANNOTATION])

    async def verdict(self) -> Verdict:
        """What the gate says without a Teardown."""
        target = targets.of_gone(targets.capi_ref(self.capi.namespace, self.capi.name, self.capi.uid))
        holders, lost = await MemberGateSource(self.client).read(target)
        return deletion_gate.of_summaries(self.capi.uid, holders, lost)


@asynccontextmanager
async def controllers(
    client: Client,
    namespace: str,
    *,
    pairs: bool = True,
    clock: Clock = SYSTEM,
    counted: list[CountedMembers] | None = None,
) -> AsyncIterator[None]:
    """The controllers of members, and those of deleted Clusters. `namespace`: where the inventories are. `clock`: of
    the pairs. `counted`: gets what their controller asks members by."""
    recorders: list[Recorder] = []
    withdrawals: list[WithdrawalRecords] = []

    def withdrawing(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        keys = RecordKeys(own, namespace=namespace)
        withdrawals.append(WithdrawalRecords(controller_deps(own, clock=deps.clock), addons, deps, keys=keys))
        return withdrawals[0]

    def pairing(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        recorders.append(Recorder(own, instance="test"))
        secrets, members = addons.sources[SECRETS.kind], CountedMembers(deps.members)
        if counted is not None:
            counted.append(members)
        shared = controller_deps(own, recorder=recorders[0], clock=clock)
        return PairController(shared, caches, addons.clusters, secrets, cast("Members", members))

    def reporting(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        return recorders[0]

    def works(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        secrets, records = addons.sources[SECRETS.kind], withdrawals[0]
        return WorkController(controller_deps(own, clock=deps.clock), caches, secrets, deps, records=records)

    def unjoining(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        secrets = addons.sources[SECRETS.kind]
        return UnjoinController(controller_deps(own, clock=deps.clock), caches, addons.teardowns, secrets, deps)

    def teardowns(own: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
        sources = (SummarySteps(own, addons), MemberSteps(own, caches, deps.inventories))
        return ClusterTeardownController(controller_deps(own, clock=deps.clock), addons, deps, sources=sources)

    more = (pairing, reporting) if pairs else ()
    async with karmada_members.running(client, *more, withdrawing, works, unjoining, teardowns, namespace=namespace):
        yield


@asynccontextmanager
async def scene(plane: Plane, cluster: LocalCluster, namespace: str, **wish: Any) -> AsyncIterator[PairScene]:
    client = plane.management.client
    await karmada_members.install(client)
    await cluster.create_namespace(namespace)
    async with karmada_members.joined(client, cluster, **wish) as member:
        it = await PairScene.of(member, namespace)
        it.capi = await capi_cluster(client, cluster, namespace)
        yield it
        await it.capi.let_go()


async def capi_cluster(client: Client, cluster: LocalCluster, namespace: str) -> CapiCluster:
    """A Cluster of Cluster API with its own credentials for a cluster."""
    made = CapiCluster(client, namespace)
    await made.create()
    await made.lead_to(cluster.client.connection)
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def required(plane: Plane, module_member: LocalCluster, namespace: str) -> AsyncIterator[PairScene]:
    async with scene(plane, module_member, namespace, remove_strategy=REQUIRED) as it:
        yield it


async def test_the_deletion_of_a_cluster_waits_until_its_member_is_unjoined(required: PairScene) -> None:
    it = required
    async with controllers(it.client, it.namespace):
        await it.put("web")
        await it.deployed("web")
        assert await it.paired() == f"{it.capi.namespace}/{it.capi.name}/{it.capi.uid}"
        closed = await it.verdict()
        assert isinstance(closed, GateClosed)
        assert closed.message.endswith(f"Member/{it.name}")
        named = Named(resource=capi.CLUSTERS, namespace=it.capi.namespace, name=it.capi.name)
        foreseen = await cluster_preview.foresee(it.client, named, home=it.namespace)
        assert any(
            f"waits for 1 Works; unjoin the member: unwind unjoin {it.name}" in warning for warning in foreseen.warnings
        )

        await it.capi.delete()
        held = await it.capi.teardown(lambda one: one.phase is Phase.HELD and bool(one.status.blockers), "held")
        [blocker] = held.status.blockers
        assert (blocker.object.kind, blocker.object.name) == ("Work", "web")
        assert blocker.message.endswith(f"unjoin the member: unwind unjoin {it.name}")
        assert isinstance(deletion_gate.of_teardown(it.capi.uid, held), GateClosed)
        assert it.deleted() == [], "it only waits"

        await it.delete()
        await until_absent(it.client, CLUSTERS, it.name)
        done = await it.capi.ended()
        assert done.phase is Phase.COMPLETE
        assert isinstance(deletion_gate.of_teardown(it.capi.uid, done), GateOpen)
    assert sorted(it.deleted()) == ["web-0", "web-1"]


async def test_works_that_are_deleted_or_preserve_their_objects_do_not_hold_any_more(required: PairScene) -> None:
    it = required
    async with controllers(it.client, it.namespace):
        await it.put("web")
        await it.put("kept", preserveResourcesOnDeletion=True)
        await it.deployed("web", "kept")
        await it.paired()
        await it.capi.delete()
        await it.capi.teardown(lambda one: one.phase is Phase.HELD and bool(one.status.blockers), "held")
        work = await it.client.get(WORKS, "web", namespace=it.execution)
        await it.client.delete(WORKS, "web", uid=work["metadata"]["uid"], namespace=it.execution)
        assert (await it.capi.ended()).phase is Phase.COMPLETE
    assert sorted(it.deleted()) == ["web-0", "web-1"]


async def test_a_pair_that_was_not_known_before_the_deletion_began_holds_nothing(required: PairScene) -> None:
    it = required
    async with controllers(it.client, it.namespace, pairs=False):
        await it.put("web")
        await it.deployed("web")
        await it.capi.delete()
        assert (await it.capi.ended()).phase is Phase.COMPLETE
    async with controllers(it.client, it.namespace):
        await it.until(lambda one: any(item.type == "Ready" for item in one.status.conditions), "probed")
        # Another cluster would be paired by now.
        other = await capi_cluster(it.client, it.cluster, it.namespace)
        assert await it.paired() == f"{other.namespace}/{other.name}/{other.uid}"
        await other.let_go()


async def test_needless_is_not_held(plane: Plane, module_member: LocalCluster, namespace: str) -> None:
    async with scene(plane, module_member, namespace) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        await it.paired()
        assert isinstance(await it.verdict(), GateOpen)
        await it.capi.delete()
        assert (await it.capi.ended()).phase is Phase.COMPLETE
        assert it.deleted() == []


class RefusingMembers:
    """The members, and which of them were refused because another cluster answered."""

    def __init__(self, members: Members) -> None:
        self.refused: Counter[str] = Counter()
        self._members = members
        self.reread = members.reread

    @asynccontextmanager
    async def member(self, target: ClusterTarget, *, system_uid: str = "") -> AsyncIterator[Member]:
        try:
            async with self._members.member(target, system_uid=system_uid) as member:
                yield member
        except AnotherClusterError:
            self.refused[target.ref.name] += 1
            raise


@asynccontextmanager
async def only_pairs(client: Client, namespace: str) -> AsyncIterator[tuple[RefusingMembers, StillClock]]:
    """Only the controller of pairs, so that the status of members stays as it is."""
    clock = StillClock()
    async with manager_client(client, namespace) as own, removal_deps(own, namespace, clock=clock) as deps:
        addons, caches, members = AddonCaches(own), KarmadaCaches(own), RefusingMembers(deps.members)
        shared, secrets = controller_deps(own, clock=clock), addons.sources[SECRETS.kind]
        pairs = PairController(shared, caches, addons.clusters, secrets, cast("Members", members))
        async with running_components((addons, caches, pairs)):
            yield members, clock


async def way(member: karmada_members.Member) -> tuple[str, Object]:
    """The address of a member, and the data of its Secret."""
    cluster = await member.get()
    assert cluster.spec.secret_ref
    secret = await member.client.get(SECRETS, cluster.spec.secret_ref.name, namespace=cluster.spec.secret_ref.namespace)
    return cluster.spec.api_endpoint, secret["data"]


async def go(member: karmada_members.Member, to: tuple[str, Object]) -> None:
    """Have the credentials of a member lead somewhere else."""
    ref = (await member.get()).spec.secret_ref
    assert ref
    await member.client.patch(SECRETS, ref.name, {"data": to[1]}, namespace=ref.namespace)
    await member.client.patch(CLUSTERS, member.name, {"spec": {"apiEndpoint": to[0]}})


async def test_a_member_whose_own_credentials_lead_to_another_cluster_is_not_paired(
    plane: Plane, required: PairScene
) -> None:
    it = required
    async with karmada_members.joined(it.client, plane.members["member-1"]) as other:
        async with controllers(it.client, it.namespace, pairs=False):
            await it.until(lambda one: is_true(one.status.conditions, "Ready"), "ready")
        # It still claims the identity of the Cluster, and was Ready a moment ago.
        right, wrong = await way(it), await way(other)
        await go(it, wrong)
        async with only_pairs(it.client, it.namespace) as (members, clock):
            await eventually(lambda: members.refused[it.name] == 1, "refused")
            clock.advance(60)
            await eventually(lambda: members.refused[it.name] == 2, "refused again")
        found = await it.client.get(CLUSTERS, it.name, type=Cluster)
        assert CAPI_CLUSTER_ANNOTATION not in found.metadata.annotations
        await go(it, right)
        async with only_pairs(it.client, it.namespace):
            assert await it.paired() == f"{it.capi.namespace}/{it.capi.name}/{it.capi.uid}"


async def test_every_cluster_that_claims_the_identity_of_a_member_is_held_and_an_event_names_them(
    required: PairScene,
) -> None:
    it = required
    async with controllers(it.client, it.namespace):
        first = await it.paired()
        other = await capi_cluster(it.client, it.cluster, it.namespace)
        both = sorted([first, f"{other.namespace}/{other.name}/{other.uid}"])
        await it.until(lambda one: one.metadata.annotations[CAPI_CLUSTER_ANNOTATION] == ",".join(both), "paired twice")

        async def reported() -> bool:
            found = await it.client.list(EVENTS, namespace="default")
            return any(
                event["regarding"].get("uid") == it.uid
                and event["reason"] == "AmbiguousPair"
                and other.name in event["note"]
                for event in found
            )

        await eventually(reported, "an Event")
        for cluster in (it.capi, other):
            target = targets.of_gone(targets.capi_ref(cluster.namespace, cluster.name, cluster.uid))
            assert (await MemberGateSource(it.client).read(target))[0]
        # A Cluster that is gone is no pair any more.
        await other.delete()
        await other.go()
        await it.change({"metadata": {"labels": {"look": "again"}}})
    async with controllers(it.client, it.namespace):
        await it.until(lambda one: one.metadata.annotations[CAPI_CLUSTER_ANNOTATION] == first, "paired once")


class CountedMembers:
    """The members, and which of them were asked who they are."""

    def __init__(self, members: Members) -> None:
        self.asked: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0
        self._members = members
        self.reread = members.reread

    @asynccontextmanager
    async def member(self, target: ClusterTarget, *, system_uid: str = "") -> AsyncIterator[Member]:
        unknown = not system_uid
        self.asked[target.ref.name] += unknown
        self.at_once += unknown
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async with self._members.member(target, system_uid=system_uid) as member:
                yield member
        finally:
            self.at_once -= unknown


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a server that answers nothing, and an event after which it closes all connections."""
    released, accepted = asyncio.Event(), set[asyncio.Task[None]]()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        accepted.add(task)
        await released.wait()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        try:
            yield "https://{}:{}".format(*server.sockets[0].getsockname()), released
        finally:
            released.set()
            await asyncio.gather(*accepted)


async def test_clusters_are_asked_for_their_identity_once_a_few_at_a_time_and_only_if_there_is_a_member(
    plane: Plane, module_member: LocalCluster, namespace: str
) -> None:
    client, silent, counted = plane.management.client, list[CapiCluster](), list[CountedMembers]()
    await karmada_members.install(client)
    async with silent_server() as (address, released), AsyncExitStack() as stack:
        for number in range(12):
            silent.append(CapiCluster(client, namespace))
            await silent[-1].create()
            # Each at an address of its own: Clusters with the same credentials share a connection.
            elsewhere = msgspec.structs.replace(module_member.client.connection, server=f"{address}/{number}")
            await silent[-1].lead_to(elsewhere)
        # No clock: a Cluster that does not answer is asked again after a time that does not come.
        await stack.enter_async_context(controllers(client, namespace, clock=StillClock(), counted=counted))
        it = await stack.enter_async_context(scene(plane, module_member, namespace, remove_strategy=REQUIRED))
        [members] = counted
        await eventually(lambda: members.at_once == 8, "eight at once")
        released.set()
        assert await it.paired() == f"{it.capi.namespace}/{it.capi.name}/{it.capi.uid}"
        await eventually(lambda: members.at_once == 0, "all were asked")
        # Another Cluster does not cause the others to be asked again.
        other = await capi_cluster(client, module_member, namespace)
        await it.until(lambda one: other.uid in one.metadata.annotations[CAPI_CLUSTER_ANNOTATION], "paired twice")
        assert {members.asked[one.name] for one in silent} == {1}
        assert members.most_at_once == 8
        for one in (*silent, other):
            await one.delete()
            await one.let_go()


async def test_clusters_are_not_asked_for_their_identity_without_a_member(plane: Plane, namespace: str) -> None:
    client, counted = plane.management.client, list[CountedMembers]()
    await karmada_members.install(client)
    one = await capi_cluster(client, plane.members["member-1"], namespace)
    async with controllers(client, namespace, counted=counted):
        await one.delete()
        await one.ended()  # all caches are synced by now
        await one.let_go()
    assert counted[0].asked == {}


async def test_without_karmada_nothing_is_held(module_member: LocalCluster) -> None:
    target = targets.of_gone(targets.capi_ref("default", "prod", "u-1"))
    assert await MemberGateSource(module_member.client).read(target) == ([], [])
