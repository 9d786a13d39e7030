"""A member and the manifest sources for it: what the tests of add-ons deploy, prune and remove."""

from __future__ import annotations

import base64
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import yaml

from unwind.addons import policy_refs
from unwind.api.annotation_values import VolumePolicy
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import HOME
from unwind.api.sveltos import PolicyRef
from unwind.deleters.builtin import BUILTIN
from unwind.deploy.deployment import deploy
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.deploy.prune import Prunes, prune
from unwind.deploy.reports import ObjectOutcome
from unwind.inventory.inventories import Inventories
from unwind.members.member import Member
from unwind.members.targets import ClusterTarget
from unwind.removal.removal import Removal
from unwind.teardown.step_removers import RemovalDeps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.deploy.manifest_sources import ManifestSource
    from unwind.deploy.reports import DeploymentReport, ObjectResult
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane
    from unwind.members.members import Members


CREATED, UPDATED, UNCHANGED = ObjectOutcome.CREATED, ObjectOutcome.UPDATED, ObjectOutcome.UNCHANGED
CONFLICT, FAILED = ObjectOutcome.CONFLICT, ObjectOutcome.FAILED


class AddonSite:
    """A member, a namespace of it, and a namespace with sources on the management cluster."""

    def __init__(self, plane: Plane, namespace: str, member: Member, own: Client) -> None:
        """`own`: the manager's client."""
        self.plane = plane
        self.namespace = namespace
        """Of the same name on both."""
        self.member = member
        self.there = member.client
        self.here = plane.management.client
        self.own = own
        self.inventories = Inventories(own, namespace=HOME)

    def owner(self, name: str = "base", **more: Any) -> DeploymentOwner:
        summary = ObjectRef(
            group="config.projectsveltos.io",
            version="v1beta1",
            kind="ClusterSummary",
            namespace=self.namespace,
            name=f"{name}-capi-prod",
            uid=str(uuid.uuid4()),
        )
        profile = ObjectRef(group="config.projectsveltos.io", version="v1beta1", kind="ClusterProfile", name=name)
        return DeploymentOwner(object=summary, profile=profile, **more)

    async def source(self, name: str, *manifests: Object, secret: bool = False) -> PolicyRef:
        text = "\n---\n".join(yaml.safe_dump(obj) for obj in manifests)
        return await self.text(name, {"all.yaml": text}, secret=secret)

    async def text(self, name: str, data: Mapping[str, str], *, secret: bool = False) -> PolicyRef:
        resource = SECRETS if secret else CONFIG_MAPS
        held = {key: base64.b64encode(one.encode()).decode() for key, one in data.items()} if secret else dict(data)
        body = {
            "apiVersion": "v1",
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "data": held,
        }
        await self.here.apply(resource, body, field_manager="test")
        return PolicyRef(kind=resource.kind, name=name)

    async def read(self, *refs: PolicyRef) -> list[ManifestSource]:
        return await policy_refs.read_sources(self.own, refs, namespace=self.namespace)

    async def deploy(self, owner: DeploymentOwner, *refs: PolicyRef, **more: Any) -> DeploymentReport:
        return await deploy(self.member, self.inventories, owner, await self.read(*refs), **more)

    async def prune(self, owner: DeploymentOwner, report: DeploymentReport) -> list[str]:
        return [f"{item.object.name} {item.outcome}" for item in await self.pruned(owner, report)]

    async def pruned(
        self,
        owner: DeploymentOwner,
        report: DeploymentReport,
        *,
        member: Member | None = None,
        volumes: VolumePolicy = VolumePolicy.RETAIN,
    ) -> list[ObjectResult]:
        """Prune on a member, by default the one of this site."""
        where = member or self.member
        deps = RemovalDeps(members=cast("Members", OneMember(where)), inventories=self.inventories, deleters=BUILTIN)
        reached = ClusterTarget(ref=where.ref, secret="")
        return await prune(Prunes(owner.object, "step", reached, deps, volumes=lambda: volumes), where, report)

    async def entries(self, owner: DeploymentOwner) -> dict[str, Any]:
        chunks = await self.inventories.of(owner.uid)
        return {entry.object.name: entry for chunk in chunks for entry in chunk.spec.entries.values()}

    async def remove(self, owner: DeploymentOwner) -> None:
        chunks = await self.inventories.sealed(owner.uid, "t")
        removal = Removal(self.member, self.inventories, chunks, deleters=BUILTIN, teardown="t")
        await removal.run()

    async def get(self, name: str) -> Object:
        return await self.there.get(CONFIG_MAPS, name, namespace=self.namespace)

    async def put(self, name: str, **more: Any) -> Object:
        return await self.there.create(CONFIG_MAPS, self.config_map(name, **more))

    def config_map(self, name: str, *, data: Mapping[str, str] | None = None, **metadata: Any) -> Object:
        metadata = {"name": name, "namespace": self.namespace, **metadata}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data or {"a": "1"})}


class OneMember:
    """Members that all are the same one."""

    def __init__(self, it: Member) -> None:
        self._it = it

    @asynccontextmanager
    async def member(self, *_: object, **__: object) -> AsyncIterator[Member]:
        yield self._it

    @asynccontextmanager
    async def management(self) -> AsyncIterator[Member]:
        yield self._it


def outcomes(report: DeploymentReport) -> dict[str, ObjectOutcome]:
    return {result.object.name: result.outcome for result in report.results}


def message(report: DeploymentReport, name: str) -> str:
    return next(result.message for result in report.results if result.object.name == name)


def target(namespace: str) -> ObjectRef:
    return ObjectRef(
        group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace=namespace, name="prod", uid=namespace
    )


def writes(cluster: LocalCluster, namespace: str) -> int:
    verbs = ("create", "update", "patch", "delete")
    ours = "unwind"
    return sum(entry.user_agent == ours for entry in cluster.audit.entries(verbs=verbs, namespace=namespace))


def inventory_writes(site: AddonSite, owner: DeploymentOwner) -> int:
    entries = site.plane.management.audit.entries(verbs=("create", "patch", "update"), resource="inventories")
    return sum(owner.uid in entry.object_ref.name for entry in entries)


@asynccontextmanager
async def member_by(site: AddonSite, client: Client) -> AsyncIterator[Member]:
    async with client, Member(site.member.ref, client, system_uid=site.member.system_uid) as member:
        yield member
