"""The manager killed at each of its writes while it puts Works on a member, changes them there and takes them back."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support import karmada_members
from tests.plane.support.karmada_members import joined
from tests.plane.support.killed_managers import Killer, Managers
from tests.plane.support.profiles import config_map
from unwind.api.karmada import WORKS, Work
from unwind.api.meta import find
from unwind.api.names import DEPENDS_ON_ANNOTATION, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import INVENTORIES
from unwind.kube.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.plane.support.karmada_members import Member
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

ABOUT = ("/works/", "/inventories", "/configmaps")


class Stage:
    """A member with Works, and managers that are killed."""

    def __init__(self, member: Member, killer: Killer) -> None:
        self.member = member
        self.killer = killer
        self.namespace = killer.managers.namespace

    def maps(self, *names: str) -> list[Object]:
        return [config_map(self.namespace, name) for name in names]

    async def works(self) -> list[Work]:
        return msgspec.convert(await self.member.client.list(WORKS, namespace=self.member.execution), list[Work])

    async def there(self) -> dict[str, Object]:
        found = await self.member.cluster.client.list(CONFIG_MAPS, namespace=self.namespace, labels=OWNER_LABEL)
        return {item["metadata"]["name"]: item for item in found}

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Have managers live and die until it is so."""
        await self.killer.managers.until(holds, self.member.client)


def applied(work: Work) -> bool:
    found = find(work.status.conditions, "Applied")
    return bool(found and found.status == "True" and found.observed_generation == work.metadata.generation)


@asynccontextmanager
async def staged(plane: Plane, namespace: str, tmp_path: Path, *, before: bool) -> AsyncIterator[Stage]:
    client, cluster = plane.management.client, plane.members["member-1"]
    await karmada_members.install(client)
    await cluster.create_namespace(namespace)
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    killer = Killer(managers, before=before)

    async def let_pass(method: str, path: str, body: bytes) -> None:
        # What comes before the first manager is the join. Each kill takes a while: only what this is about counts.
        if managers.process and any(item in path for item in ABOUT):
            await killer.before(method, path, body)

    async with (
        killer.intercepted(client, cluster, before=let_pass) as way,
        Client(way) as via,
        joined(client, cluster, via=via) as member,
    ):
        try:
            yield Stage(member, killer)
        finally:
            await managers.kill()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_manager_that_is_killed_at_every_write_puts_works_there_and_takes_them_back(
    plane: Plane, namespace: str, tmp_path: Path, before: bool
) -> None:
    async with staged(plane, namespace, tmp_path, before=before) as stage:
        member = stage.member
        foreign = await member.cluster.client.create(CONFIG_MAPS, config_map(namespace, "foreign"))
        await member.work("base", *stage.maps("base-a", "base-b"))
        await member.work("top", *stage.maps("top-a"))
        needs = {"metadata": {"annotations": {DEPENDS_ON_ANNOTATION: "base"}}}
        await member.client.patch(WORKS, "top", needs, namespace=member.execution)

        async def all_applied() -> bool:
            return all(applied(work) for work in await stage.works())

        await stage.until(all_applied)
        first = await stage.there()
        assert set(first) == {"base-a", "base-b", "top-a"}
        manifests = stage.maps("base-b", "base-c")
        await member.client.patch(
            WORKS, "base", {"spec": {"workload": {"manifests": manifests}}}, namespace=member.execution
        )

        async def pruned() -> bool:
            return await all_applied() and set(await stage.there()) == {"base-b", "base-c", "top-a"}

        await stage.until(pruned)
        uids = {one["metadata"]["uid"]: name for name, one in (first | await stage.there()).items()}
        for work in await stage.works():
            name, uid = work.metadata.name, work.metadata.uid
            await member.client.delete(WORKS, name, uid=uid, namespace=member.execution)

        async def gone() -> bool:
            # The account of what was there goes before the Work does.
            return not await stage.works()

        await stage.until(gone)
        await stage.killer.managers.kill()
        assert await stage.there() == {}
        assert await member.client.list(INVENTORIES, namespace=namespace) == []
        left = await member.cluster.client.get(CONFIG_MAPS, "foreign", namespace=namespace)
        assert left["metadata"]["uid"] == foreign["metadata"]["uid"]
        sent = member.cluster.audit.deletions(resource="configmaps", namespace=namespace)
        # Each of ours, once, by its uid; in the right order, and nothing else.
        assert {item.uid: item.object_ref.name for item in sent} == uids
        assert len(sent) == len(uids)
        names = [item.object_ref.name for item in sent]
        assert names[0] == "base-a"
        assert names[1] == "top-a", "what needs the other goes first"
        stage.killer.report()
        kinds = {(method, path.rpartition("/")[2]) for method, path, _ in stage.killer.killed}
        assert {("POST", "inventories"), ("POST", "configmaps")} <= kinds
        assert {name for method, name in kinds if method == "DELETE"} >= set(uids.values())
