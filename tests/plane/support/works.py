"""Works on one namespace of a joined member."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support.controllers import controller_deps
from tests.plane.support.karmada_members import running
from tests.plane.support.objects import until_there
from tests.plane.support.profiles import config_map
from unwind.api.karmada import CLUSTERS, WORKS, Work
from unwind.api.meta import find
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.karmada.work_controller import WorkController
from unwind.kube import object_watch
from unwind.kube.decoding import Key
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal_records import WithdrawalRecords

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.plane.support.karmada_members import Member
    from unwind.addons.caches import AddonCaches
    from unwind.api.meta import Condition
    from unwind.api.resources import Resource
    from unwind.components import Component
    from unwind.deleters.registry import Plugin
    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.client import Client, Object
    from unwind.teardown.step_removers import RemovalDeps


class WorkSite:
    """A member, what Works put into one namespace of it, and where Unwind keeps its records."""

    def __init__(self, member: Member, home: str, there: str) -> None:
        self.member = member
        self.client = member.client
        self.home = home
        self.there = there

    @asynccontextmanager
    async def working(self, *, plugins: tuple[Plugin, ...] = ()) -> AsyncIterator[WorkController]:
        """The controllers run."""
        made: list[WorkController] = []

        def works(client: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
            shared, secrets = controller_deps(client, clock=deps.clock), addons.sources[SECRETS.kind]
            made.append(WorkController(shared, caches, secrets, deps, records=kept[0]))
            return made[0]

        kept: list[WithdrawalRecords] = []

        def records(client: Client, caches: KarmadaCaches, addons: AddonCaches, deps: RemovalDeps) -> Component:
            del caches
            shared, keys = controller_deps(client, clock=deps.clock), RecordKeys(client, namespace=self.home)
            kept.append(WithdrawalRecords(shared, addons, deps, keys=keys))
            return kept[0]

        async with running(self.client, records, works, namespace=self.home, plugins=plugins):
            yield made[0]

    async def until_idle(
        self, works: WorkController, name: str, holds: Callable[[Work], bool] = lambda _: True
    ) -> None:
        """Return when the controller knows a Work like this, and has nothing left to do."""

        def idle() -> bool:
            known = works._caches.works.cache.get(Key(self.member.execution, name))
            busy = works._queue.depth + works._queue.working
            return bool(works._caches.settled and known and holds(known) and not busy)

        await eventually(idle, f"an idle controller with Work {name}")

    async def lead_to(self, endpoint: str) -> None:
        await self.client.patch(CLUSTERS, self.member.name, {"spec": {"apiEndpoint": endpoint}})

    def map(self, name: str, **data: str) -> Object:
        return config_map(self.there, name, **(data or {"made": "by a Work"}))

    async def work(self, name: str, *manifests: Object, annotations: dict[str, str] | None = None, **spec: Any) -> Work:
        body = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {"name": name, "namespace": self.member.execution, "annotations": annotations or {}},
            "spec": {"workload": {"manifests": list(manifests)}, **spec},
        }
        return msgspec.convert(await self.client.create(WORKS, body), Work)

    async def edit(self, name: str, **spec: Any) -> None:
        await self.client.patch(WORKS, name, {"spec": spec}, namespace=self.member.execution)

    async def hold(self, name: str, *manifests: Object) -> None:
        """Have a Work hold these, and nothing else."""
        await self.edit(name, workload={"manifests": list(manifests)})

    async def delete(self, *names: str) -> None:
        for name in names:
            found = await self.client.get(WORKS, name, namespace=self.member.execution)
            await self.client.delete(WORKS, name, uid=found["metadata"]["uid"], namespace=self.member.execution)

    async def until(self, name: str, holds: Callable[[Work], bool], called: str = "as it should be") -> Work:
        found = await object_watch.until(
            self.client,
            WORKS,
            name,
            lambda it: it is not None and holds(msgspec.convert(it, Work)),
            called,
            namespace=self.member.execution,
            within=60,
        )
        return msgspec.convert(found, Work)

    async def until_applied(self, *names: str) -> None:
        for name in names:
            await self.until(name, applied, "Applied")

    async def until_gone(self, *names: str) -> None:
        for name in names:
            await object_watch.until_absent(self.client, WORKS, name, namespace=self.member.execution, within=60)

    async def until_there(
        self, name: str, holds: Callable[[Object], bool] = lambda _: True, resource: Resource = CONFIG_MAPS
    ) -> Object:
        return await until_there(self.member.cluster.client, resource, name, holds, namespace=self.there)

    async def until_not_there(self, name: str) -> None:
        await object_watch.until_absent(self.member.cluster.client, CONFIG_MAPS, name, namespace=self.there, within=60)

    async def get(self, name: str) -> Object:
        return await self.member.cluster.client.get(CONFIG_MAPS, name, namespace=self.there)

    async def put(self, name: str, patch: Object) -> Object:
        """Change an object on the member, as somebody else does."""
        return await self.member.cluster.client.patch(
            CONFIG_MAPS, name, patch, namespace=self.there, field_manager="somebody"
        )

    async def make(self, name: str, **data: str) -> Object:
        """An object of somebody else's."""
        return await self.member.cluster.client.create(CONFIG_MAPS, self.map(name, **data), field_manager="somebody")

    async def drop(self, name: str) -> None:
        """Delete an object on the member, as somebody does who does not know whose it is."""
        uid = (await self.get(name))["metadata"]["uid"]
        await self.member.cluster.client.delete(CONFIG_MAPS, name, uid=uid, namespace=self.there)

    async def inventory(self, uid: str) -> list[Inventory]:
        found = await self.client.list(INVENTORIES, namespace=self.home, labels=f"{OWNER_LABEL}={uid}")
        return msgspec.convert(found, list[Inventory])

    async def ledger(self, uid: str) -> dict[str, str]:
        """What is left of a Work's objects, and by what reason."""
        return {
            entry.object.name: entry.ledger.reason
            for chunk in await self.inventory(uid)
            for entry in chunk.spec.entries.values()
            if entry.ledger
        }

    def deleted(self, *names: str) -> list[str]:
        """Of these, those whose deletion the member accepted, in order."""
        found = self.member.cluster.audit.deletions(resource="configmaps", namespace=self.there)
        return [item.object_ref.name for item in found if item.object_ref.name in names]


def said(work: Work, type_: str) -> Condition | None:
    return find(work.status.conditions, type_)


def message(work: Work, type_: str = "Applied") -> str:
    found = said(work, type_)
    return found.message if found else ""


def applied(work: Work) -> bool:
    """All of it, as it is now."""
    found = said(work, "Applied")
    return found is not None and found.status == "True" and found.observed_generation == work.metadata.generation


def failed(work: Work) -> bool:
    found = said(work, "Applied")
    return found is not None and found.status == "False"
