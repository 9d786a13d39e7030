"""The manager killed at each of its writes while handles of deployers go: order, ledger and absence are the same."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pytest
import pytest_asyncio

from tests.companion_fixtures import flux_on
from tests.plane.support.cluster_teardowns import MEMBER, TeardownScene, scene
from tests.plane.support.flux_handles import FluxScene
from tests.plane.support.flux_sources import FluxSources, artifacts
from tests.plane.support.helm_release_proxies import Proxies
from tests.plane.support.killed_handles import (
    FluxReleases,
    Handles,
    Kustomizations,
    MemberKustomizations,
    NestedKustomizations,
    OrderedFluxReleases,
    ReleaseProxies,
    Releases,
    SingleReleaseProxy,
    SuspendedKustomizations,
)
from tests.plane.support.killed_managers import Killer, Managers, detailed_signature, killed_user
from tests.plane.support.objects import teardown_policy
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES
from unwind.api.meta import ObjectMeta, is_true, ref_of
from unwind.api.names import REQUEST_PREFIX, ConditionType, Finalizer
from unwind.api.policies import TEARDOWN_POLICIES, TeardownPolicy
from unwind.api.resources import SECRETS
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Inventory, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube.errors import NotFoundError
from unwind.local import build, companions, tools
from unwind.server.manager_names import MANAGER
from unwind.teardown.requests import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.plane.support.flux_sources import ArtifactServer
    from unwind.kube.client import Client
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LABEL = "killed.example.dev/cluster"
STUCK = 90.0
"""Seconds without another write."""
_WRITES = ("create", "update", "patch", "delete", "deletecollection")


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def deployers(plane: Plane) -> AsyncIterator[None]:
    """Flux and CAAPH on the management cluster, and Flux on the member."""
    async with flux_on(plane.management, plane.members[MEMBER]), companions.running(tools.CAAPH, plane.management):
        yield


class Stage:
    """Handles for one cluster, and managers that are killed."""

    def __init__(self, cluster: TeardownScene, handles: Handles, killer: Killer) -> None:
        self.cluster = cluster
        self.handles = handles
        self.killer = killer
        self.user = killed_user(cluster.namespace)
        """On the member, if it writes there."""
        self.uids: dict[str, str] = {}
        self.teardown = cluster.uid
        """The name of the Teardown."""

    async def deploy(self) -> None:
        await self.handles.deploy()
        self.uids = {meta["name"]: meta["uid"] for meta in await self.found()}

    async def found(self) -> list[Any]:
        """The metadata of the handles that are there."""
        it = self.handles
        listed = await it.place.client.list(it.resource, namespace=it.namespace) if it.resource else []
        return [item["metadata"] for item in listed]

    async def until(self, state: Callable[[], Awaitable[bool]]) -> None:
        """Return when it is so. A manager that was killed is followed by another one."""
        began, kills = SYSTEM.monotonic(), 0

        async def reached() -> bool:
            nonlocal began, kills
            if kills != len(self.killer.killed):
                began, kills = SYSTEM.monotonic(), len(self.killer.killed)
            assert SYSTEM.monotonic() - began < STUCK, await self._progress()
            return await state()

        await self.killer.managers.until(reached, self.cluster.client)

    async def _progress(self) -> str:
        found = await self.cluster.client.list(TEARDOWNS)
        return str([item.get("status") for item in found if item["metadata"]["name"] == self.teardown])

    async def select(self) -> None:
        """Write a policy that selects the cluster, and wait until it has."""
        cluster, source = self.cluster, self.handles.source
        patch = {"metadata": {"labels": {LABEL: cluster.name}}}
        await cluster.client.patch(CLUSTERS, cluster.name, patch, namespace=cluster.namespace)
        selector = {"selector": {"namespaces": [cluster.on_member], "names": ["*"]}} if source == "Helm" else {}
        enforced = {"kind": source, "effort": "Enforce", "suspended": self.handles.suspended, **selector}
        policy = teardown_policy(cluster.name, {LABEL: cluster.name}, enforced)
        await cluster.client.create(TEARDOWN_POLICIES, policy)
        await self.until(self._selected)

    async def _selected(self) -> bool:
        """Whether the policy has selected the cluster, and all that belongs to it is held."""
        cluster = self.cluster
        policy = await cluster.client.get(TEARDOWN_POLICIES, cluster.name, type=TeardownPolicy)
        held = [(await cluster.secret())["metadata"]]
        if self.handles.place is cluster.management:
            held += await self.found()
        return policy.status.selected == 1 and all(Finalizer.HANDLE in (it.get("finalizers") or ()) for it in held)

    async def request(self, name: str) -> None:
        """Request the deletion of a handle."""
        resource, client = self.handles.resource, self.cluster.client
        assert resource
        found = await client.get(resource, name, namespace=self.handles.namespace)
        ref = ref_of(resource, msgspec.convert(found["metadata"], ObjectMeta))
        await request(client, ref, plural=resource.plural, now=SYSTEM.now())
        self.teardown = f"{REQUEST_PREFIX}{ref.uid}"

    async def _finished(self) -> bool:
        with suppress(NotFoundError):
            return msgspec.convert(await self.cluster.client.get(TEARDOWNS, self.teardown), Teardown).finished
        return False

    async def done(self) -> bool:
        """Whether all is over; the gate is opened when it may be."""
        if not await self._finished():
            return False
        if self.teardown == self.cluster.uid:
            with suppress(NotFoundError):  # it is gone already
                await self.cluster.let_go()
        if await self.found():
            return False
        with suppress(NotFoundError):
            finalizers = (await self.cluster.secret())["metadata"].get("finalizers") or ()
            return not {Finalizer.CREDENTIALS.value, Finalizer.HANDLE.value} & set(finalizers)
        return True

    async def check(self, *order: str) -> None:
        """`order`: the handles, in the order in which they go."""
        cluster, handles = self.cluster, self.handles
        teardown = msgspec.convert(await cluster.client.get(TEARDOWNS, self.teardown), Teardown)
        assert (teardown.phase, teardown.status.left) == (Phase.COMPLETE, len(handles.kept))
        assert await cluster.objects() == handles.kept
        found = msgspec.convert(await cluster.client.list(INVENTORIES, namespace=cluster.namespace), list[Inventory])
        left = {entry.object.name for chunk in found for entry in chunk.spec.entries.values() if entry.ledger}
        assert left == handles.kept
        times = [cluster.deleted().index(name) for name in handles.objects]
        assert times == sorted(times)
        # Each handle was deleted once, by its uid, and in order.
        sent = [
            item
            for item in handles.place.audit.deletions(
                resource=handles.resource.plural if handles.resource else "none", namespace=handles.namespace
            )
            if item.username in (self.user, f"system:serviceaccount:{cluster.namespace}:{MANAGER}")
        ]
        assert [(item.object_ref.name, item.uid) for item in sent] == [(name, self.uids[name]) for name in order]

    def written_on_member(self) -> set[tuple[str, str]]:
        """The verbs and resources of the manager's writes in the namespace of the member."""
        entries = self.cluster.member.audit.entries(verbs=_WRITES, namespace=self.cluster.on_member)
        return {
            (entry.verb, entry.object_ref.resource)
            for entry in entries
            # Beside a deployer, the manager has the user of that, and the user agent of this test.
            if (entry.username == self.user if self.handles.intercepted else entry.user_agent == "unwind")
            and entry.object_ref.resource != "namespaces"
        }

    def killed(self) -> set[tuple[str, str]]:
        """At which requests it was killed."""
        found = self.killer.killed
        self.killer.report()
        return {(method, path.split("/")[-1]) for method, path, _ in found}


class Grounds(Protocol):
    """Makes stages."""

    def __call__(self, made: str, *, before: bool | None) -> Any: ...


@pytest_asyncio.fixture(loop_scope="session")
async def staged(plane: Plane, namespace: str, repository: ChartRepository, tmp_path: Path) -> Grounds:
    """Stages by the name of the class of their handles."""
    helm = (await build.ensure([tools.HELM]))["helm"].path

    def handles_of(made: str, cluster: TeardownScene, server: ArtifactServer) -> Handles:
        if made == "Releases":
            return Releases(cluster, repository, helm)
        if made in ("ReleaseProxies", "SingleReleaseProxy"):
            return {"ReleaseProxies": ReleaseProxies, "SingleReleaseProxy": SingleReleaseProxy}[made](
                cluster, repository
            )
        it = FluxScene(cluster, FluxSources(cluster.client, namespace, server))
        kinds = (
            Kustomizations,
            MemberKustomizations,
            SuspendedKustomizations,
            NestedKustomizations,
            FluxReleases,
            OrderedFluxReleases,
        )
        return next(kind for kind in kinds if kind.__name__ == made)(it)

    @asynccontextmanager
    async def stage(made: str, *, before: bool | None) -> AsyncIterator[Stage]:
        managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log", programs=helm.parent)
        killer = Killer(managers, before=before, tell_apart=detailed_signature)
        cluster = await scene(plane, namespace)
        async with (
            artifacts() as server,
            killer.intercepted(plane.management.client, cluster.member) as way,
        ):
            it = Stage(cluster, handles_of(made, cluster, server), killer)
            if it.handles.intercepted:
                await cluster.lead_to(way)
            try:
                yield it
            finally:
                await managers.kill()
                await _clear(cluster.client, cluster)

    return stage


async def _clear(client: Client, cluster: TeardownScene) -> None:
    for policy in await client.list(TEARDOWN_POLICIES):
        meta = policy["metadata"]
        if meta["name"] == cluster.name:
            await client.delete(TEARDOWN_POLICIES, meta["name"], uid=meta["uid"])
    await Proxies(client, None, namespace=cluster.namespace, on_member="").clear()  # type: ignore[arg-type]


async def _torn_down(stage: Stage) -> None:
    await stage.deploy()
    await stage.select()
    await stage.cluster.delete()
    await stage.until(stage.done)
    await stage.killer.managers.kill()


def _finalizers_of(stage: Stage, name: str) -> set[bool]:
    """Whether it was killed when the finalizer was added to a handle, and when it was removed from it."""
    killed = stage.killer.killed
    finalizers = [fields for _, path, fields in killed if path.endswith(f"/{name}") and "finalizers" in fields]
    return {Finalizer.HANDLE.value in fields for fields in finalizers}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("made", ["Kustomizations", "MemberKustomizations"])
async def test_a_manager_that_is_killed_at_every_write_brings_the_teardown_of_handles_to_its_end(
    staged: Grounds, made: str, before: bool
) -> None:
    async with staged(made, before=before) as stage:
        await _torn_down(stage)
        await stage.check("apps", "base")
        written = stage.written_on_member()
        assert {resource for _, resource in written} <= ({"kustomizations"} if stage.handles.intercepted else set())
        assert {verb for verb, _ in written} <= {"patch", "delete"}
        # It was there at all that matters: the snapshots, the plan, and each handle.
        kinds = stage.killed()
        assert {("POST", "teardowns"), ("POST", "inventories")} <= kinds
        assert {("DELETE", "apps"), ("DELETE", "base"), ("PATCH", "apps"), ("PATCH", "base")} <= kinds
        assert _finalizers_of(stage, "apps") == {True, False}


async def test_a_manager_that_is_killed_at_every_write_brings_the_teardown_of_helm_releases_of_flux_to_its_end(
    staged: Grounds,
) -> None:
    async with staged("OrderedFluxReleases", before=None) as stage:
        await _torn_down(stage)
        await stage.check("apps", "base")
        assert stage.written_on_member() == set()
        kinds = stage.killed()
        assert {("POST", "teardowns"), ("POST", "inventories")} <= kinds
        for name in ("apps", "base"):
            assert {("DELETE", name), ("PATCH", name)} <= kinds
            assert _finalizers_of(stage, name) == {True, False}


async def test_a_manager_that_is_killed_at_every_write_verifies_a_handle_that_was_deleted_before_the_teardown_began(
    staged: Grounds,
) -> None:
    async with staged("FluxReleases", before=None) as stage:
        await stage.deploy()
        await stage.select()
        await stage.killer.managers.kill()
        client, namespace = stage.cluster.client, stage.handles.namespace
        await client.delete(HELM_RELEASES, "apps", uid=stage.uids["apps"], namespace=namespace)
        await stage.cluster.delete()
        await stage.until(stage.done)
        await stage.killer.managers.kill()
        teardown = msgspec.convert(await client.get(TEARDOWNS, stage.teardown), Teardown)
        assert is_true(teardown.status.conditions, ConditionType.ORDER_LOST)
        await stage.check()
        assert stage.written_on_member() == set()
        assert {("POST", "teardowns"), ("POST", "inventories")} <= stage.killed()


async def test_a_manager_that_is_killed_at_every_write_removes_what_suspended_handles_deployed(
    staged: Grounds,
) -> None:
    async with staged("SuspendedKustomizations", before=None) as stage:
        await _torn_down(stage)
        await stage.check("apps", "base")
        written = stage.written_on_member()
        assert {resource for _, resource in written} == {"kustomizations", "configmaps"}
        assert {verb for verb, _ in written} <= {"patch", "delete"}
        kinds = stage.killed()
        assert {("DELETE", name) for name in ("apps", "base", "apps-0", "base-0")} <= kinds
        assert _finalizers_of(stage, "apps") == {True, False}


async def test_a_manager_that_is_killed_at_every_write_brings_the_teardown_of_release_proxies_to_its_end(
    staged: Grounds,
) -> None:
    async with staged("ReleaseProxies", before=None) as stage:
        await _torn_down(stage)
        names = sorted(stage.uids)  # CAAPH adds a suffix
        await stage.check(*names)
        assert stage.written_on_member() == set()
        kinds = stage.killed()
        assert {("POST", "teardowns"), ("POST", "inventories")} <= kinds
        for name in names:
            assert {("DELETE", name), ("PATCH", name)} <= kinds
            assert _finalizers_of(stage, name) == {True, False}


async def test_a_manager_that_is_killed_at_every_write_of_its_own_and_of_helm_brings_releases_to_their_end(
    staged: Grounds,
) -> None:
    async with staged("Releases", before=None) as stage:
        await _torn_down(stage)
        await stage.check()
        assert await stage.cluster.member.client.list(SECRETS, namespace=stage.cluster.on_member) == []
        written = stage.written_on_member()
        assert "create" not in {verb for verb, _ in written}
        assert {resource for _, resource in written} <= {"configmaps", "secrets"}
        kinds = stage.killed()
        assert {("POST", "teardowns"), ("POST", "inventories")} <= kinds
        assert {("DELETE", f"{name}-settings") for name in ("apps", "base")} <= kinds
        assert {("DELETE", f"sh.helm.release.v1.{name}.v1") for name in ("apps", "base")} <= kinds


@pytest.mark.parametrize(
    ("made", "target", "order", "before"),
    [
        # What it deploys on the management cluster is verified with the rights of the manager.
        ("NestedKustomizations", "fleet", ("apps", "fleet"), False),
        ("FluxReleases", "apps", ("apps",), None),
        ("SingleReleaseProxy", "apps", ("apps",), None),
    ],
)
async def test_a_manager_that_is_killed_at_every_write_brings_the_requested_deletion_of_a_handle_to_its_end(
    staged: Grounds, made: str, target: str, order: tuple[str, ...], before: bool | None
) -> None:
    async with staged(made, before=before) as stage:
        await stage.deploy()
        await stage.request(target)
        await stage.until(stage.done)
        await stage.killer.managers.kill()
        await stage.check(*order)
        assert stage.written_on_member() == set()
        kinds = stage.killed()
        assert ("POST", "inventories") in kinds
        for name in order:
            assert {("DELETE", name), ("PATCH", name)} <= kinds
            assert _finalizers_of(stage, name) == {True, False}
        await stage.cluster.delete()
        await stage.cluster.let_go()
