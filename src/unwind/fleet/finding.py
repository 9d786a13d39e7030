"""Which cluster a person means by its name, and what stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.errors import UnwindError
from unwind.fleet import targets
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery

_KINDS: tuple[Resource, ...] = (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS)


def anchor(resource: Resource, obj: Object) -> Anchor:
    """What an object of one of these kinds stands for (pure)."""
    if resource.group == capi.CLUSTERS.group:
        return targets.of_capi(_read(obj, capi.Cluster))
    if resource.group == sveltos.SVELTOS_CLUSTERS.group:
        return targets.of_sveltos(_read(obj, sveltos.SveltosCluster))
    return targets.of_karmada(_read(obj, karmada.Cluster))


async def anchor_of(client: Client, discovery: Discovery, ref: ObjectRef) -> Anchor:
    """What stands for a member, read now. Raises UnwindError if it is gone, or another has its name."""
    if not any((one.group, one.kind) == (ref.group, ref.kind) for one in _KINDS):
        raise UnwindError(f"{ref} stands for no cluster")
    resource = await discovery.resource(ref.kind, group=ref.group)
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        raise UnwindError(f"{ref} is not there any more, so nobody knows the way to that cluster") from None
    if ref.uid and found["metadata"]["uid"] != ref.uid:
        raise UnwindError(f"{ref} is another one by now")
    return anchor(resource, found)


async def called(client: Client, discovery: Discovery, text: str) -> Anchor:
    """The cluster that a person calls NAME, or NAMESPACE/NAME: of Cluster API, of Sveltos or of Karmada.

    Raises UnwindError if there is none, or more than one.
    """
    namespace, slash, name = text.rpartition("/")
    served = {(one.resource.group, one.resource.kind) for one in await discovery.kinds()}
    found: list[Anchor] = []
    for one in _KINDS:
        if (one.group, one.kind) not in served or (slash and not one.namespaced):
            continue
        resource = await discovery.resource(one.kind, group=one.group)
        objects = await client.list(resource, namespace=namespace or None, fields=f"metadata.name={name}")
        found += [anchor(resource, it) for it in objects]
    if not found:
        raise UnwindError(f"there is no cluster {text}", remedy="write NAME, or NAMESPACE/NAME")
    if len(found) > 1:
        several = ", ".join(f"{one} ({one.ref.group})" for one in found)
        raise UnwindError(f"{text} may mean {several}", remedy="write NAMESPACE/NAME")
    return found[0]


def _read(obj: Object, type_: type[Any]) -> Any:
    return msgspec.convert(obj, type_)
