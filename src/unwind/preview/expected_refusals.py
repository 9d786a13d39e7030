"""Predicts which objects would refuse deletion, before anything is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api import capi, karmada, sveltos, unwind
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.members import contents
from unwind.protection import kinds, rules
from unwind.protection.rules import Contents, Denied, Subject
from unwind.removal.deletion_scope import DeletionScope, Told, is_a, ref_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.client import Object
    from unwind.members.contents import Content
    from unwind.members.member import Member

_AT_ONCE = 16
# Namespaces of Kubernetes itself
_SYSTEM = ("default", "kube-system", "kube-public", "kube-node-lease")
# Kinds that are deleted directly: their own controllers delete their dependents.
CLUSTERS = (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS)
PROFILES = (sveltos.CLUSTER_PROFILES, sveltos.PROFILES)


async def refusals(member: Member, blast: DeletionScope, *, home: str) -> tuple[Told, ...]:
    """Each object that would refuse deletion, and why; if there is one, nothing is deleted. `home`: Unwind's own
    namespace."""
    return (*out_of_bounds(blast, home=home), *blast.held, *await protected(member, blast.everything))


async def protected(member: Member, some: Iterable[Content]) -> list[Told]:
    """The objects that are protected by their label, with the message of a denial."""
    labelled = [content for content in some if _labelled(content) and not content.metadata.deletion_timestamp]
    found: dict[str, Told] = {}

    async def look(one: Content) -> None:
        if denied := await _denied(member, one):
            found[one.metadata.uid] = Told(ref_to(one), denied.message)

    await gather_limited((look(item) for item in labelled), limit=_AT_ONCE)
    return [found[item.metadata.uid] for item in labelled if item.metadata.uid in found]


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


def _labelled(one: Content) -> bool:
    return DELETE_PROTECTION_LABEL in (one.metadata.labels or {})


async def _denied(member: Member, one: Content) -> Denied | None:
    it = one.resource
    kind = kinds.of_any(it.group, it.kind, plural=it.plural, version=it.version, namespaced=it.namespaced)
    label = (one.metadata.labels or {})[DELETE_PROTECTION_LABEL]
    count = None
    if kind.count:
        try:
            obj = await member.client.get(one.resource, one.metadata.name, namespace=one.metadata.namespace or None)
            count = kind.count.of(obj)
        except NotFoundError:
            return None  # deleted meanwhile
        except ValueError:
            pass  # unreadable, which the rule handles
    # Objects with a controller are deleted with their owners by the garbage collector.
    controlled = any(owner.controller for owner in one.metadata.owner_references)
    subject = Subject(kind=kind, label=label, count=count, controlled=controlled, by_controller=True)
    verdict = rules.by_itself(subject)
    if verdict is False:
        verdict = rules.with_contents(subject, await _held_by(member, one))
    return verdict if isinstance(verdict, Denied) else None


async def _held_by(member: Member, one: Content) -> Contents:
    """The objects that block the deletion of a namespace or CRD with Cascading."""
    try:
        if is_a(one, NAMESPACES):
            name = one.metadata.name
            pods = [pod for pod in await member.client.list(PODS, namespace=name) if _active(pod)]
            bound = [it for it in await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=name) if _bound(it)]
            return Contents(pods=len(pods), claims=len(bound))
        definition = await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, one.metadata.name)
        resource = contents.defined_by(definition)
        if resource is None:
            return Contents(failed="no version is served")
        there = await contents.of_kind(member.client, resource)
        return Contents(resources=sum(not it.metadata.deletion_timestamp for it in there))
    except UnwindError as error:
        return Contents(failed=str(error))


def _active(pod: Object) -> bool:
    phase = pod.get("status", {}).get("phase")
    return not pod["metadata"].get("deletionTimestamp") and phase not in ("Succeeded", "Failed")


def _bound(claim: Object) -> bool:
    return not claim["metadata"].get("deletionTimestamp") and claim.get("status", {}).get("phase") == "Bound"
