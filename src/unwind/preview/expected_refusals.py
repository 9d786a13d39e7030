"""Predicts which objects would refuse deletion, before anything is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import capi, karmada, sveltos, unwind
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.concurrency import gather_limited
from unwind.protection.deleter import labelled, look
from unwind.removal.deletion_scope import DeletionScope, Told, is_a, ref_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import ObjectRef
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.protection.deleter import ProtectedObject

_AT_ONCE = 16
# Namespaces of Kubernetes itself
_SYSTEM = ("default", "kube-system", "kube-public", "kube-node-lease")
# Kinds that are deleted directly: their own controllers delete their dependents.
CLUSTERS = (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS)
PROFILES = (sveltos.CLUSTER_PROFILES, sveltos.PROFILES)


async def refusals(member: Member, blast: DeletionScope, *, home: str) -> tuple[Told, ...]:
    """Each object that would refuse deletion, and why; if there is one, nothing is deleted. `home`: Unwind's own
    namespace."""
    found = await protected(member, blast.going)
    # These are deleted by the garbage collector, with their owners.
    found += await protected(member, blast.along, by_controller=True)
    return (*out_of_bounds(blast, home=home), *blast.held, *(Told(it.object, it.why) for it in found))


async def protected(
    member: Member, some: Iterable[Content], *, cluster: ObjectRef | None = None, by_controller: bool = False
) -> list[ProtectedObject]:
    """The objects that are protected by their label, by the same rules as in the deleter chain. `cluster`: the object
    that represents the member; None for the management cluster."""
    found: dict[str, ProtectedObject] = {}
    some = [
        content for content in some if labelled(content.metadata.labels) and not content.metadata.deletion_timestamp
    ]

    async def check(one: Content) -> None:
        if held := await look(member.client, one.resource, ref_to(one), cluster=cluster, by_controller=by_controller):
            found[one.metadata.uid] = held

    await gather_limited((check(item) for item in some), limit=_AT_ONCE)
    return [found[item.metadata.uid] for item in some if item.metadata.uid in found]


def out_of_bounds(blast: DeletionScope, *, home: str) -> list[Told]:
    """The objects that are never deleted on request, or not in this way (pure)."""
    target = blast.target
    ref = ref_to(target)
    why = ""
    if is_a(target, NAMESPACES) and ref.name in _SYSTEM:
        why = "it is a system namespace of Kubernetes"
    elif is_a(target, NAMESPACES) and ref.name == home:
        why = "it is Unwind's own namespace; use `unwind uninstall`"
    elif ref.group == unwind.GROUP or (is_a(target, CUSTOM_RESOURCE_DEFINITIONS) and _of_ours(ref.name)):
        why = "it is one of Unwind's own records of deletions"
    elif any(is_a(target, cluster) for cluster in (*CLUSTERS, *PROFILES)):
        why = f"a {ref.kind} must be deleted directly; its own controllers delete its dependents"
    found = [Told(ref, why)] if why else []
    inside = [item for item in blast.everything if item is not target and any(is_a(item, kind) for kind in CLUSTERS)]
    return found + [
        Told(ref_to(item), f"a cluster depends on it; delete {item} first, which removes its add-ons")
        for item in inside
    ]


def _of_ours(definition: str) -> bool:
    return definition.partition(".")[2] == unwind.GROUP
