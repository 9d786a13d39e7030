"""The manager killed at every write of a deletion, with each gate, on the real Cluster API: only the time changes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.cluster_costs import FEATURES, GATES, CostScene
from tests.e2e.gated_clusters import ON_MEMBERS, grounds, new_namespace
from tests.eventually import eventually
from tests.plane.support.killed_managers import Killer, Managers, killed_user, progress_signature
from unwind.api.capi import CLUSTERS
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Gate, Phase
from unwind.kube.errors import NotFoundError
from unwind.local import companions, tools
from unwind.local.paths import Port
from unwind.testing.managers import manager_user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from tests.e2e.gated_clusters import GatedCluster, Ground
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.audit_log import AuditEvent

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
# What every manager writes to be one at all, and what it only tells people.
_NOT_COUNTED = ("leases", "events")
_LONG = 600.0

Write = tuple[str, ...]
"""Method, resource, namespace, name and subresource. An object that is created has no name yet."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane with Cluster API, the controller of KubeadmControlPlanes, and a cloud; and no manager."""
    async with (
        grounds(features=FEATURES, cloud=True) as ground,
        companions.running(tools.KUBEADM_CONTROL_PLANE, ground.management),
    ):
        yield ground


class Stage:
    """Managers that are killed while a cluster with costs is deleted."""

    def __init__(self, scene: CostScene, killer: Killer) -> None:
        self.scene = scene
        self.killer = killer
        self.user = killed_user(scene.namespace)
        """The manager, on the member."""
        self.since = ""

    async def redirect(self, way: ClusterConnection) -> None:
        """Lead the managers to come to the member by this way."""
        await self.scene.lead_to(way)
        await self.killer.managers.kill()

    def arm(self) -> None:
        self.since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.killer.armed = True

    async def over(self, cluster: GatedCluster) -> bool:
        """Whether there is nothing left to write."""
        scene = self.scene
        clusters = await scene.client.list(CLUSTERS, namespace=scene.namespace)
        if clusters or await scene.client.list(CLUSTER_SUMMARIES, namespace=scene.namespace):
            return False
        policy = await scene.client.get(TEARDOWN_POLICIES, scene.namespace)
        try:
            teardown = await scene.client.get(TEARDOWNS, cluster.uid)
        except NotFoundError:
            return False
        ended = (teardown.get("status") or {}).get("phase") == Phase.COMPLETE
        return ended and not (policy.get("status") or {}).get("clusters")

    def written(self) -> set[Write]:
        """What the API servers have written for managers, by their audit logs."""
        ground = self.scene.ground
        own = manager_user(HOME)
        found = {*_writes(ground.management.audit.entries(user=own), self.since)}
        # Cluster API has the same user there.
        there = (it for it in ground.member.audit.entries(user=self.user) if it.user_agent == ON_MEMBERS)
        return found | {*_writes(there, self.since)}

    def hit(self) -> set[Write]:
        """At what managers were killed."""
        return {_write(method, path) for method, path, _ in self.killer.killed}


def _writes(entries: Iterable[AuditEvent], since: str) -> Iterable[Write]:
    for entry in entries:
        ref = entry.object_ref
        if entry.verb in _METHODS and entry.request_received_timestamp > since and ref.resource not in _NOT_COUNTED:
            method = _METHODS[entry.verb]
            yield method, ref.resource, ref.namespace, "" if method == "POST" else ref.name, ref.subresource


def _write(method: str, path: str) -> Write:
    """The write to a path of the API: /api/v1/… or /apis/GROUP/VERSION/…"""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    return method, resource, namespace, name, subresource


@asynccontextmanager
async def staged(scene: CostScene, tmp_path: Path) -> AsyncIterator[tuple[Stage, ClusterConnection]]:
    """Managers that follow each other, and their new way to the member."""
    ground, port = scene.ground, Port()
    address = f"127.0.0.1:{port}"
    managers = Managers(tmp_path / "kubeconfig", HOME, tmp_path / "manager.log", serving=address)
    killer = Killer(managers, before=True, twice=True, tell_apart=progress_signature)
    killer.armed = False
    stage = Stage(scene, killer)
    ground.balancer.add(address)
    try:
        async with (
            # Cluster API goes the same way.
            killer.intercepted(ground.client, ground.member, user=stage.user, user_agent=ON_MEMBERS) as way,
            managers.following(ground.client),
        ):
            yield stage, way
    finally:
        ground.balancer.remove(address)
        port.release()


@pytest.mark.parametrize("gate", GATES)
async def test_a_manager_that_is_killed_at_every_write_deletes_keeps_and_waits_for_the_same(
    ground: Ground, gate: Gate, tmp_path: Path
) -> None:
    scene = CostScene(ground, new_namespace(), gate)
    async with staged(scene, tmp_path) as (stage, way), scene.running():
        await ground.until_discovered()
        await scene.profiles()
        cluster = await scene.costly_cluster()
        await scene.make_costs(tmp_path)
        deployed = {one["metadata"]["uid"] for one in (await scene.on_member()).values()}
        await stage.redirect(way)
        stage.arm()
        if gate is Gate.MACHINES:
            await scene.grow()
        await scene.delete()
        await eventually(lambda: stage.over(cluster), "the end of the deletion", within=_LONG)
        stage.killer.armed = False
        await scene.check(await cluster.teardown())
        written, hit = stage.written(), stage.hit()
        stage.killer.report(f"{gate.value}: ")
        # By the audit logs there was no other write, to either cluster.
        assert written <= hit, written - hit
        # Nothing but what kubectl made and profiles deployed was deleted on the cluster, and each once.
        sent = [it for it in ground.member.audit.deletions() if it.username == stage.user]
        crds = [it for it in sent if it.object_ref.resource == "customresourcedefinitions"]
        assert sorted(it.uid for it in sent if it not in crds) == sorted({*scene.uids, *deployed})
        assert [it.object_ref.name for it in crds] == [f"{scene.kind.plural}.{scene.kind.group}"]
        assert {("POST", "teardowns", "", "", ""), ("POST", "inventories", HOME, "", "")} <= hit
