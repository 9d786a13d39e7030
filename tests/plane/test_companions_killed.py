"""The manager killed at each of its writes while Flux takes a cluster apart: order, ledger and absence are the same."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.cluster_teardowns import MEMBER
from tests.plane.support.flux_handles import FluxScene, flux_scene
from tests.plane.support.killed_managers import Killer, Managers, detailed_signature
from unwind.api.capi import CLUSTERS
from unwind.api.flux import KUSTOMIZATIONS
from unwind.api.names import Finalizer
from unwind.api.policies import TEARDOWN_POLICIES, TeardownPolicy
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Inventory, Phase, Teardown
from unwind.kube.errors import NotFoundError
from unwind.local import companions, tools
from unwind.local.cluster import ALL_RIGHTS
from unwind.server.manager_names import MANAGER
from unwind.testing.managers import manager_connection
from unwind.testing.proxy import Interceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.plane.support.flux_sources import FluxSources
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LABEL = "killed.example.dev/cluster"
KEPT = {"annotations": {"kustomize.toolkit.fluxcd.io/prune": "disabled"}}
_WRITES = ("create", "update", "patch", "delete", "deletecollection")


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def flux(plane: Plane) -> AsyncIterator[None]:
    """Flux on the management cluster, and on the member."""
    async with (
        companions.running(tools.KUSTOMIZE_CONTROLLER, plane.management),
        companions.running(tools.KUSTOMIZE_CONTROLLER, plane.members[MEMBER]),
    ):
        yield


class Stage:
    """A cluster with two Kustomizations, and a manager that is killed."""

    def __init__(self, it: FluxScene, managers: Managers, killer: Killer, *, on_member: bool) -> None:
        self.it = it
        self.managers = managers
        self.killer = killer
        self.user = f"killed-{it.cluster.namespace}"
        """On the member, if the handles are there."""
        self.handles: FluxSources = it.on_member() if on_member else it.sources
        self._on_member = on_member

    async def deploy(self) -> None:
        it, handles = self.it, self.handles
        secret = "" if self._on_member else it.secret
        await handles.kustomization("base", [it.config_map("base-0")], secret=secret)
        apps = [it.config_map("apps-0"), it.config_map("apps-1", **KEPT)]
        await handles.kustomization("apps", apps, secret=secret, depends_on=["base"])
        await handles.until_ready("base", "apps")

    async def select(self) -> None:
        """Write a policy that selects the cluster."""
        cluster = self.it.cluster
        patch = {"metadata": {"labels": {LABEL: cluster.name}}}
        await cluster.client.patch(CLUSTERS, cluster.name, patch, namespace=cluster.namespace)
        spec = {
            "clusterSelector": {"matchLabels": {LABEL: cluster.name}},
            "sources": [{"kind": "Flux", "effort": "Enforce"}],
        }
        policy = {"apiVersion": TEARDOWN_POLICIES.api_version, "kind": TEARDOWN_POLICIES.kind, "spec": spec}
        await cluster.client.create(TEARDOWN_POLICIES, policy | {"metadata": {"name": cluster.name}})

    async def until(self, state: Callable[[], Awaitable[bool]]) -> None:
        """Return when it is so. A manager that was killed is followed by another one."""
        while not await state():
            if not self.managers.alive:
                await self.managers.restart(self.it.client)
            await asyncio.sleep(0.05)

    async def selected(self) -> bool:
        """Whether the policy has selected the cluster, and all that belongs to it is held."""
        cluster = self.it.cluster
        policy = await cluster.client.get(TEARDOWN_POLICIES, cluster.name, type=TeardownPolicy)
        held = [await cluster.secret()]
        if not self._on_member:
            held += await cluster.client.list(KUSTOMIZATIONS, namespace=cluster.namespace)
        return policy.status.selected == 1 and all(map(_is_held, held))

    async def done(self) -> bool:
        """Whether all is over; the gate is opened when it may be."""
        cluster = self.it.cluster
        try:
            teardown = msgspec.convert(await cluster.client.get(TEARDOWNS, cluster.uid), Teardown)
        except NotFoundError:
            return False
        if not teardown.finished:
            return False
        with suppress(NotFoundError):  # it is gone already
            await cluster.let_go()
        if await self.handles.client.list(KUSTOMIZATIONS, namespace=self.handles.namespace):
            return False
        with suppress(NotFoundError):
            finalizers = (await cluster.secret())["metadata"].get("finalizers") or ()
            return not {Finalizer.CREDENTIALS.value, Finalizer.HANDLE.value} & set(finalizers)
        return True

    async def check(self, uids: dict[str, str]) -> None:
        cluster = self.it.cluster
        teardown = msgspec.convert(await cluster.client.get(TEARDOWNS, cluster.uid), Teardown)
        assert (teardown.phase, teardown.status.left) == (Phase.COMPLETE, 1)
        assert await cluster.objects() == {"apps-1"}
        found = msgspec.convert(await cluster.client.list(INVENTORIES, namespace=cluster.namespace), list[Inventory])
        left = {entry.object.name for chunk in found for entry in chunk.spec.entries.values() if entry.ledger}
        assert left == {"apps-1"}
        order = cluster.deleted()
        assert order.index("apps-0") < order.index("base-0")
        # Each handle was deleted once, by its uid, and in order.
        place = cluster.member if self._on_member else cluster.management
        sent = [
            item
            for item in place.audit.deletions(resource="kustomizations", namespace=self.handles.namespace)
            if item.username in (self.user, f"system:serviceaccount:{cluster.namespace}:{MANAGER}")
        ]
        assert [(item.object_ref.name, item.uid) for item in sent] == [("apps", uids["apps"]), ("base", uids["base"])]
        written = [
            (entry.verb, entry.object_ref.resource)
            for entry in cluster.member.audit.entries(verbs=_WRITES, namespace=cluster.on_member)
            # Beside Flux, the manager has the user of Flux, and the user agent of this test.
            if (entry.username == self.user if self._on_member else entry.user_agent == "unwind")
            and entry.object_ref.resource != "namespaces"
        ]
        assert {resource for _, resource in written} <= ({"kustomizations"} if self._on_member else set())
        assert {verb for verb, _ in written} <= {"patch", "delete"}


def _is_held(found: Object) -> bool:
    return Finalizer.HANDLE.value in (found["metadata"].get("finalizers") or ())


@asynccontextmanager
async def staged(
    plane: Plane, namespace: str, tmp_path: Path, *, before: bool, on_member: bool
) -> AsyncIterator[Stage]:
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    killer = Killer(managers, before=before, tell_apart=detailed_signature)
    async with flux_scene(plane, namespace) as it, AsyncExitStack() as stack:
        stage = Stage(it, managers, killer, on_member=on_member)
        home = await manager_connection(plane.management.client, namespace)
        ways = [home, it.cluster.member.connection(stage.user, groups=ALL_RIGHTS)] if on_member else [home]
        through = [
            (await stack.enter_async_context(Interceptor(way, before=killer.before, after=killer.after))).connection
            for way in ways
        ]
        managers.go_by(through[0])
        if on_member:
            await it.cluster.lead_to(through[1])
        try:
            yield stage
        except BaseException:
            managers.tell()
            raise
        finally:
            await managers.kill()
            for policy in await it.client.list(TEARDOWN_POLICIES):
                meta = policy["metadata"]
                if meta["name"] == it.cluster.name:
                    await it.client.delete(TEARDOWN_POLICIES, meta["name"], uid=meta["uid"])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("on_member", [False, True], ids=["hub", "member"])
async def test_a_manager_that_is_killed_at_every_write_brings_the_teardown_of_handles_to_its_end(
    plane: Plane, namespace: str, tmp_path: Path, before: bool, on_member: bool
) -> None:
    async with staged(plane, namespace, tmp_path, before=before, on_member=on_member) as stage:
        handles = stage.handles
        await stage.deploy()
        found = await handles.client.list(KUSTOMIZATIONS, namespace=handles.namespace)
        uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}
        await stage.select()
        await stage.until(stage.selected)
        await stage.it.cluster.delete()
        await stage.until(stage.done)
        await stage.managers.kill()
        await stage.check(uids)
        killed = stage.killer.killed
        print(f"{len(killed)} kills {'before' if before else 'after'}:")
        for item in killed:
            print("  ", *item)
        # It was there at all that matters: the snapshots, the plan, and each handle.
        kinds = {(method, path.split("/")[-1]) for method, path, _ in killed}
        assert {("POST", "teardowns"), ("POST", "inventories")} <= kinds
        assert {("DELETE", "apps"), ("DELETE", "base"), ("PATCH", "apps"), ("PATCH", "base")} <= kinds
        # Also when the finalizer was added to a handle, and when it was removed from it.
        finalizers = [fields for _, path, fields in killed if path.endswith("/apps") and "finalizers" in fields]
        assert {Finalizer.HANDLE.value in fields for fields in finalizers} == {True, False}
