"""Managers that are killed at every write while a cluster is deleted, on the real Cluster API."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.e2e.gated_clusters import ON_MEMBERS, lead_to
from tests.plane.support.killed_managers import Killer, Managers, killed_user, progress_signature
from unwind.api.rights import HOME
from unwind.local.paths import Port
from unwind.testing.managers import manager_user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from tests.e2e.gated_clusters import GatedCluster, GateScene
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.local.audit_log import AuditEvent

_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
# What every manager writes to be one at all, and what it only tells people.
_NOT_COUNTED = ("leases", "events")

Write = tuple[str, ...]
"""Method, resource, namespace, name and subresource. An object that is created has no name yet."""


class KilledManagers:
    """Managers that are killed while a cluster of this scene is deleted."""

    def __init__(self, scene: GateScene, killer: Killer, way: ClusterConnection) -> None:
        """`way`: to the member, by way of what kills them."""
        self.scene = scene
        self.killer = killer
        self.user = killed_user(scene.namespace)
        """The manager, on the member."""
        self._way = way
        self._since = ""

    async def arm(self, cluster: GatedCluster) -> None:
        """From now on, managers are killed at every write. They reach the cluster by another way."""
        await lead_to(self.scene.client, self.scene.namespace, cluster.name, self._way)
        await self.killer.managers.kill()
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.killer.armed = True

    def check(self, title: str) -> set[Write]:
        """The writes at which managers were killed. By the audit logs there was no other one, to either cluster."""
        self.killer.armed = False
        self.killer.report(title)
        written, hit = self._written(), {_write(method, path) for method, path, _ in self.killer.killed}
        assert written <= hit, written - hit
        return hit

    def _written(self) -> set[Write]:
        ground = self.scene.ground
        own = manager_user(HOME)
        found = {*_writes(ground.management.audit.entries(user=own), self._since)}
        # Others have the same user there.
        there = (it for it in ground.member.audit.entries(user=self.user) if it.user_agent == ON_MEMBERS)
        return found | {*_writes(there, self._since)}


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
async def killed_managers(
    scene: GateScene, tmp_path: Path, *, programs: Path | None = None
) -> AsyncIterator[KilledManagers]:
    """Managers that follow each other. They are killed at their writes as soon as they are armed. `programs`: a
    directory with programs that they run."""
    ground, port = scene.ground, Port()
    address = f"127.0.0.1:{port}"
    managers = Managers(tmp_path / "kubeconfig", HOME, tmp_path / "manager.log", serving=address, programs=programs)
    killer = Killer(managers, before=True, twice=True, tell_apart=progress_signature)
    killer.armed = False
    ground.balancer.add(address)
    try:
        async with (
            # Cluster API and deployers go the same way.
            killer.intercepted(
                ground.client, ground.member, user=killed_user(scene.namespace), user_agent=ON_MEMBERS
            ) as way,
            managers.following(ground.client),
        ):
            yield KilledManagers(scene, killer, way)
    finally:
        ground.balancer.remove(address)
        port.release()
