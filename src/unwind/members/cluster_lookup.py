"""Finds the cluster that a user names, and the object that represents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members import targets

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery
    from unwind.members.targets import ClusterTarget

_KINDS: tuple[Resource, ...] = (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS)


def anchor(resource: Resource, obj: Object) -> ClusterTarget:
    """The anchor of an object of one of these kinds (pure)."""
    if resource.group == capi.CLUSTERS.group:
        return targets.of_capi(_read(obj, capi.Cluster))
    if resource.group == sveltos.SVELTOS_CLUSTERS.group:
        return targets.of_sveltos(_read(obj, sveltos.SveltosCluster))
    return targets.of_karmada(_read(obj, karmada.Cluster))


async def anchor_of(client: Client, discovery: Discovery, ref: ObjectRef) -> ClusterTarget:
    """The anchor of a member, read now. Raises UnwindError if its object is gone, or was replaced by another of that
    name."""
    if not any((resource.group, resource.kind) == (ref.group, ref.kind) for resource in _KINDS):
        raise UnwindError(
            f"cannot connect to {ref}: it does not represent a cluster",
            remedy="name a Cluster of Cluster API or Karmada, or a SveltosCluster",
        )
    resource = await discovery.resource(ref.kind, group=ref.group)
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        raise UnwindError(
            f"cannot connect to the cluster of {ref}: the object no longer exists",
            remedy="see `unwind ledger` for what was left on it",
        ) from None
    if ref.uid and found["metadata"]["uid"] != ref.uid:
        raise UnwindError(
            f"cannot connect to the cluster of {ref}: the object was replaced by another one with this name",
            remedy="see `unwind ledger` for what was left on the cluster of the first one",
        )
    return anchor(resource, found)


async def find_cluster(client: Client, discovery: Discovery, text: str) -> ClusterTarget:
    """The cluster with this NAME or NAMESPACE/NAME: of Cluster API, of Sveltos or of Karmada.

    Raises UnwindError if there is none, or more than one.
    """
    namespace, slash, name = text.rpartition("/")
    served = {(kind.resource.group, kind.resource.kind) for kind in await discovery.kinds()}
    found: list[ClusterTarget] = []
    for item in _KINDS:
        if (item.group, item.kind) not in served or (slash and not item.namespaced):
            continue
        resource = await discovery.resource(item.kind, group=item.group)
        objects = await client.list(resource, namespace=namespace or None, fields=f"metadata.name={name}")
        found += [anchor(resource, it) for it in objects]
    if not found:
        raise UnwindError(f"cluster {text!r} not found", remedy="use NAME or NAMESPACE/NAME")
    if len(found) > 1:
        several = ", ".join(f"{target} ({target.ref.group})" for target in found)
        raise UnwindError(f"{text!r} is ambiguous: {several}", remedy="use NAMESPACE/NAME")
    return found[0]


async def every_cluster(client: Client, discovery: Discovery) -> tuple[list[ClusterTarget], list[str]]:
    """All clusters that objects here represent, and what could not be read: kinds that must not be listed, and objects
    that cannot be decoded."""
    found: list[ClusterTarget] = []
    unread: list[str] = []
    served = {(kind.resource.group, kind.resource.kind): kind.resource for kind in reversed(await discovery.kinds())}
    for item in _KINDS:
        resource = served.get((item.group, item.kind))
        if resource is None:
            continue
        try:
            objects = await client.list(resource)
        except ApiError as error:
            unread.append(f"cannot list {resource.plural}.{resource.group}: {error.status.message}")
            continue
        for it in objects:
            try:
                found.append(anchor(resource, it))
            except msgspec.ValidationError as error:
                unread.append(f"cannot read {resource.kind} {it['metadata']['name']}: {error}")
    return sorted(found, key=str), unread


def _read(obj: Object, type_: type[Any]) -> Any:
    return msgspec.convert(obj, type_)
