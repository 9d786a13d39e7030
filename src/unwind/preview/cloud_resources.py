"""Cloud resources of a deletion: load balancers and volumes that are deleted, or stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SERVICES
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.client import Object
    from unwind.members.member import Member


class BoundVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that a claim is bound to."""

    name: str
    claim: ObjectRef
    size: str = ""
    goes: bool
    """Whether its reclaim policy is Delete. If not, it stays and may cost money."""


class CloudResources(msgspec.Struct, frozen=True, kw_only=True):
    """The cloud resources of objects that are deleted."""

    balancers: frozenset[str] = frozenset()
    """Services of type LoadBalancer, by uid."""
    volumes: tuple[BoundVolume, ...] = ()


async def look(member: Member, refs: Iterable[ObjectRef]) -> CloudResources:
    """The cloud resources of these objects. Reads Services, claims and volumes from the member."""
    services: dict[str, dict[str, ObjectRef]] = {}
    claims: dict[str, dict[str, ObjectRef]] = {}
    for ref in refs:
        for resource, found in ((SERVICES, services), (PERSISTENT_VOLUME_CLAIMS, claims)):
            if (ref.group, ref.kind) == (resource.group, resource.kind):
                found.setdefault(ref.namespace, {})[ref.uid] = ref
    balancers = [
        service["metadata"]["uid"]
        for namespace, wanted in services.items()
        for service in await member.client.list(SERVICES, namespace=namespace)
        if service["metadata"]["uid"] in wanted and service["spec"].get("type") == "LoadBalancer"
    ]
    volumes = []
    for namespace, wanted in claims.items():
        for one in await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=namespace):
            claim = wanted.get(one["metadata"]["uid"])
            if claim and (volume := await _volume(member, one, claim)):
                volumes.append(volume)
    return CloudResources(
        balancers=frozenset(balancers), volumes=tuple(sorted(volumes, key=lambda volume: volume.name))
    )


async def _volume(member: Member, claim: Object, ref: ObjectRef) -> BoundVolume | None:
    name = claim["spec"].get("volumeName")
    if not name:
        return None
    try:
        found = await member.client.get(PERSISTENT_VOLUMES, name)
    except NotFoundError:
        return None
    spec = found["spec"]
    size = (spec.get("capacity") or {}).get("storage", "")
    return BoundVolume(name=name, claim=ref, size=size, goes=spec.get("persistentVolumeReclaimPolicy") == "Delete")
