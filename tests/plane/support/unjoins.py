"""What the tests of unjoining are made of: a joined member with Works on it, and the controllers that look after it."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tests.plane.support import karmada_members, profiles
from tests.plane.support.controllers import controller_deps, removal_deps, running_components
from unwind.addons.caches import AddonCaches
from unwind.addons.step_source import SummarySteps
from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.meta import find
from unwind.api.names import DEPENDS_ON_ANNOTATION, KARMADA_CLUSTER_NAMESPACE, Finalizer
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.unwind import INVENTORIES, TEARDOWNS, EntryState, Inventory, Phase, Teardown
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.errors import UnwindError
from unwind.inventory.inventories import Inventories
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.cluster_controller import ClusterController
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.karmada.work_controller import WorkController
from unwind.kube.events import Recorder
from unwind.kube.object_watch import until, until_absent
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal_records import WithdrawalRecords
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.meta import Condition
    from unwind.api.unwind import LedgerNote
    from unwind.clock import Clock
    from unwind.deleters.registry import Plugin
    from unwind.kube.client import Client, Object
    from unwind.kube.fencing import ShardOwner
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

MEMBER = "member-1"


@asynccontextmanager
async def controllers(
    client: Client,
    namespace: str,
    *,
    clock: Clock | None = None,
    best_effort: float = 60.0,
    owner: ShardOwner | None = None,
    plugins: tuple[Plugin, ...] = (),
) -> AsyncIterator[Clock]:
    """All that has to do with members, as long as the context lasts. `namespace`: where the inventories are."""
    clock = clock or StillClock()
    async with manager_client(client, namespace) as own:
        caches, members = AddonCaches(own, clock=clock), KarmadaCaches(own, clock=clock)
        secrets = caches.sources[SECRETS.kind]
        recorder = Recorder(own, instance="test")
        async with removal_deps(own, namespace, clock=clock, best_effort=best_effort, plugins=plugins) as deps:
            shared = controller_deps(own, owner=owner, recorder=recorder, clock=clock)
            probing = ClusterController(shared, members, secrets, deps.members)
            unjoining = UnjoinController(shared, members, caches.teardowns, secrets, deps)
            sources = (SummarySteps(own, caches),)
            keys = RecordKeys(own, namespace=namespace)
            records = WithdrawalRecords(shared, caches, deps, keys=keys)
            parts = (
                caches,
                members,
                recorder,
                probing,
                records,
                WorkController(shared, members, secrets, deps, records=records),
                # It must not meddle with members: their Teardowns are others'.
                ClusterTeardownController(shared, caches, deps, sources=sources),
                unjoining,
            )
            async with running_components(parts):
                yield clock


class UnjoinScene(profiles.MemberConfigMaps, karmada_members.Member):
    """A member with Works on it. Their objects are in a namespace of the member called like ours on this side."""

    namespace = ""
    uid = ""

    @classmethod
    async def of(cls, member: karmada_members.Member, namespace: str) -> Self:
        it = cls(member.client, member.cluster, member.name, member.joined)
        it.namespace = namespace
        it.uid = (await it.get()).metadata.uid
        return it

    @property
    def member(self) -> LocalCluster:  # type: ignore[override]
        return self.cluster

    @property
    def inventories(self) -> Inventories:
        return Inventories(self.client, namespace=self.namespace)

    async def delete_blocked(self) -> None:
        """Delete the member while an object of its only Work, web-1, has a finalizer."""
        await self.put("web")
        await self.deployed("web")
        await self.block("web-1")
        await self.delete()
        await self.says("UnjoinFailed", "web-1")

    async def unjoin(self) -> None:
        """Delete the member, which takes all its objects with it."""
        await self.delete()
        assert (await self.gone()).phase is Phase.COMPLETE
        assert await self.on_member() == {}

    async def until_work_let_go(self, name: str) -> None:
        """Return when Unwind's finalizer is not on the Work any more."""

        def let_go(work: Object | None) -> bool:
            return work is None or Finalizer.WORK not in (work["metadata"].get("finalizers") or ())

        await until(self.client, WORKS, name, let_go, "let go", namespace=self.execution)

    async def put(self, name: str, *, objects: int = 2, depends_on: tuple[str, ...] = (), **spec: Any) -> None:
        """A Work of so many ConfigMaps, called after it."""
        maps = [profiles.config_map(self.namespace, f"{name}-{number}") for number in range(objects)]
        await self.work(name, *maps, **spec)
        if depends_on:
            patch = {"metadata": {"annotations": {DEPENDS_ON_ANNOTATION: ", ".join(depends_on)}}}
            await self.client.patch(WORKS, name, patch, namespace=self.execution)

    async def deployed(self, *names: str) -> None:
        """Return when these Works are on the member, and that is written down."""
        for name in names:
            await until(
                self.client,
                INVENTORIES,
                f"{await self.work_uid(name)}-0",
                lambda it: it is not None and _confirmed(msgspec.convert(it, Inventory)),
                "confirmed",
                namespace=self.namespace,
            )

    async def work_uid(self, name: str) -> str:
        return (await self.client.get(WORKS, name, namespace=self.execution, type=Work)).metadata.uid

    async def change(self, body: Object, *, by: str = "unwind") -> None:
        await self.client.patch(CLUSTERS, self.name, body, field_manager=by)

    async def annotate(self, annotations: dict[str, str], *, by: str = "unwind") -> None:
        await self.change({"metadata": {"annotations": annotations}}, by=by)

    async def says(self, condition: str, *parts: str) -> Condition:
        """What the Cluster says of this, as soon as it says all of it."""

        def holds(it: Cluster) -> bool:
            said = find(it.status.conditions, condition)
            return said is not None and said.status == "True" and all(part in said.message for part in parts)

        try:
            found = await self.until(holds, f"{condition}: {parts}")
        except UnwindError as error:
            raise AssertionError(f"{error}; {(await self.record()).status}") from error
        said = find(found.status.conditions, condition)
        assert said
        return said

    async def gone(self) -> Teardown:
        """Return when the member is unjoined, with nothing of it left on this side but the record."""
        await until_absent(self.client, CLUSTERS, self.name)
        return await self.record()

    async def nothing_left(self) -> None:
        """That nothing that stood for it is left on this side."""
        await until_absent(self.client, SECRETS, self.name, namespace=KARMADA_CLUSTER_NAMESPACE)
        assert (await self.client.sighting(NAMESPACES, self.execution, uid="")).absent
        assert await self.client.list(WORKS, namespace=self.execution) == []

    async def record(self) -> Teardown:
        return await self.client.get(TEARDOWNS, self.uid, type=Teardown)

    async def teardown(self, state: Callable[[Teardown], bool], called: str) -> Teardown:
        found = await until(
            self.client,
            TEARDOWNS,
            self.uid,
            lambda it: it is not None and state(msgspec.convert(it, Teardown)),
            called,
        )
        return msgspec.convert(found, Teardown)

    async def accounts(self) -> list[Inventory]:
        return await self.inventories.on(self.uid)

    async def ledger(self) -> dict[str, LedgerNote]:
        """What was left, by name."""
        return {
            entry.object.name: entry.ledger
            for chunk in await self.accounts()
            for entry in chunk.spec.entries.values()
            if entry.ledger
        }

    async def lead_to(self, server: str, *, token: str | None = None, authority: bytes | None = None) -> None:
        """Have the Cluster lead somewhere else."""
        await self.change({"spec": {"apiEndpoint": server}})
        data = {
            key: base64.b64encode(value).decode()
            for key, value in (("token", token.encode() if token else None), ("caBundle", authority))
            if value is not None
        }
        if data:
            await self.client.patch(SECRETS, self.name, {"data": data}, namespace=KARMADA_CLUSTER_NAMESPACE)


def _confirmed(chunk: Inventory) -> bool:
    entries = chunk.spec.entries.values()
    return bool(entries) and all(entry.state == EntryState.CONFIRMED for entry in entries)


@asynccontextmanager
async def scene(
    plane: Plane, namespace: str, *, home: Client | None = None, **options: Any
) -> AsyncIterator[UnjoinScene]:
    """A member that is joined for one test. `home`: another control plane than the first, with all that it needs."""
    cluster, client = plane.members[MEMBER], home or plane.management.client
    if home is None:
        await karmada_members.install(client)
    await cluster.create_namespace(namespace)
    async with karmada_members.joined(client, cluster, **options) as member:
        it = await UnjoinScene.of(member, namespace)
        try:
            yield it
        finally:
            await it.unblock(*(await it.on_member()))


@asynccontextmanager
async def behind_proxy(it: UnjoinScene, *, clock: Clock) -> AsyncIterator[Proxy]:
    """The proxy that controllers reach the member through, with the objects of the Work `web` on it."""
    async with Proxy(it.cluster.server) as proxy:
        await it.lead_to(proxy.url)
        async with controllers(it.client, it.namespace, clock=clock):
            await it.put("web")
            await it.deployed("web")
            yield proxy
