"""Forecasts which objects go, stay or would refuse deletion, by the rules that the removal applies. Only reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from unwind.api import capi, karmada, sveltos, unwind
from unwind.api.annotation_values import DeletePolicy, VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS
from unwind.api.unwind import Entry, EntryState
from unwind.concurrency import gather_limited
from unwind.deleters import builtin
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item
from unwind.members import contents
from unwind.members.contents import Content
from unwind.protection.deleter import labelled, protected_object
from unwind.protection.namespace_cache import UNFINISHED
from unwind.removal import volume_claims
from unwind.removal.deletion_scope import DeletionScope, Told, is_a, ref_to
from unwind.removal.foreign_content import foreign_message, is_container, is_lease, is_left_over, lease_holder, sort
from unwind.removal.step_reader import Served
from unwind.removal.takeovers import taken_over_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.api.resources import Resource
    from unwind.kube.decoding import Metadata
    from unwind.members.member import Member
    from unwind.protection.deleter import ProtectedObject

_AT_ONCE = 8
_REFUSALS_AT_ONCE = 16
# Namespaces of Kubernetes itself
_SYSTEM = ("default", "kube-system", "kube-public", "kube-node-lease")
# Kinds that are deleted directly: their own controllers delete their dependents.
CLUSTERS = (capi.CLUSTERS, sveltos.SVELTOS_CLUSTERS, karmada.CLUSTERS)
PROFILES = (sveltos.CLUSTER_PROFILES, sveltos.PROFILES)


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that removes objects from one cluster."""

    owner: str
    """The uid of the owner of its objects."""
    entries: tuple[Entry, ...]
    """The objects that are not removed yet."""
    wave: int = 1
    later: frozenset[str] = frozenset()
    """The owners of the steps that it depends on: their objects are removed after this step."""
    take_along: bool = False
    tried: bool = False
    """Whether the target does not wait for it. Then protected objects stay."""
    volumes: VolumePolicy = VolumePolicy.RETAIN
    """The policy for claims of its StatefulSets."""


class ForecastFate(Enum):
    """What happens to an object."""

    GOES = "goes"
    STAYS = "stays"
    ABSENT = "absent"
    """It does not exist, so nothing happens."""


class ObjectForecast(msgspec.Struct, frozen=True):
    """An object of a step, and what happens to it."""

    entry: Entry
    fate: ForecastFate
    why: str = ""
    """Why it stays."""


class HeldContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a Namespace or CRD."""

    content: tuple[Content, ...] = ()
    kinds: frozenset[tuple[str, str]] = frozenset()
    """The kinds of which `content` has every object."""
    holders: Mapping[str, str | None] = {}
    """The holders of Leases in it, by the uid of the Lease."""
    counted: frozenset[str] = frozenset()
    """The uids of the objects in it that `Cascading` counts: active Pods and bound claims, or custom resources."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the objects of a plan on one cluster."""

    steps: Mapping[str, tuple[ObjectForecast, ...]] = {}
    """By the uid of the owner."""
    along: tuple[ObjectRef, ...] = ()
    """Foreign objects that are deleted with the Namespace that contains them (take-along)."""
    warnings: tuple[str, ...] = ()


async def forecast(
    member: Member,
    steps: Sequence[PlannedStep],
    *,
    spared: Mapping[str, str] = MappingProxyType({}),
    cascading: Mapping[str, str] = MappingProxyType({}),
) -> Forecast:
    """The forecast for these steps. `spared`: why protected objects stay, by uid. `cascading`: why Namespaces and CRDs
    stay if they still contain objects then, by uid. Raises if the objects cannot be read; a Namespace or CRD whose
    content cannot be read is assumed to go, with a warning."""
    found = await _read(member, [entry for step in steps for entry in step.entries])
    first = plain_forecast(steps, found, spared)
    held: dict[str, HeldContent] = {}
    warnings: list[str] = []
    for item in [item for some in first.values() for item in some]:
        if item.fate is ForecastFate.GOES and is_container(item.entry.object):
            try:
                ref = item.entry.object
                held[ref.uid] = await _held(member, ref, counting=ref.uid in cascading)
            except UnwindError as error:
                warnings.append(
                    f"cannot list what {item.entry.object} contains, so the preview shows it as deleted: {error};"
                    " retry, or look at its content with kubectl"
                )
    made = with_containers(steps, first, held, cascading)
    return msgspec.structs.replace(made, warnings=tuple(warnings))


def plain_forecast(
    steps: Iterable[PlannedStep],
    found: Mapping[tuple[str, str, str, str], Metadata],
    spared: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[ObjectForecast, ...]]:
    """What happens to each object, regardless of what Namespaces and CRDs contain (pure).

    `found`: the objects that exist, by group, kind, namespace and name. Namespaces of the objects are among them.
    """
    return {
        step.owner: _with_claims_of_kept_sets(
            [
                fate(
                    entry,
                    found.get((it.group, it.kind, it.namespace, it.name)),
                    owner=step.owner,
                    namespace=found.get((NAMESPACES.group, NAMESPACES.kind, "", it.namespace)),
                    spared=spared.get(it.uid, ""),
                )
                for entry in step.entries
                for it in (entry.object,)
            ]
        )
        for step in steps
    }


def _with_claims_of_kept_sets(some: Collection[ObjectForecast]) -> tuple[ObjectForecast, ...]:
    kept = [item.entry.object for item in some if item.fate is ForecastFate.STAYS]
    staying = volume_claims.of_kept_sets([item.entry for item in some if item.fate is ForecastFate.GOES], kept)
    return tuple(
        ObjectForecast(item.entry, ForecastFate.STAYS, f"{item.entry.source} stays and uses it")
        if item.entry.object.uid in staying
        else item
        for item in some
    )


def fate(
    entry: Entry, found: Metadata | None, *, owner: str, namespace: Metadata | None, spared: str = ""
) -> ObjectForecast:
    """What happens to one object, regardless of its content (pure). `found`: the object of this name. `spared`: why it
    stays, if its protection keeps it."""
    if found is None:
        return ObjectForecast(entry, ForecastFate.ABSENT)
    labels, annotations = found.labels or {}, found.annotations or {}
    if entry.state == EntryState.INTENDED and not entry.adopted:
        # Only an object with our label was created for this entry.
        if labels.get(OWNER_LABEL) != owner:
            return ObjectForecast(entry, ForecastFate.ABSENT)
        entry = msgspec.structs.replace(entry, object=msgspec.structs.replace(entry.object, uid=found.uid))
    elif entry.object.uid and found.uid != entry.object.uid:
        return ObjectForecast(entry, ForecastFate.ABSENT)
    if entry.kept or entry.adopted:
        return ObjectForecast(entry, ForecastFate.STAYS, why_kept(entry))
    if by := taken_over_by(labels, annotations, {owner}):
        return ObjectForecast(entry, ForecastFate.STAYS, f"taken over by {by}")
    around = namespace.annotations or {} if namespace else None
    ruling = builtin.effective_policy(annotations, namespace=around)
    if isinstance(ruling.policy, Unknown):
        return ObjectForecast(
            entry, ForecastFate.STAYS, f"its deletion is blocked: policy {ruling.policy} (set by {ruling.by})"
        )
    if ruling.policy is not DeletePolicy.MANAGE:
        return ObjectForecast(entry, ForecastFate.STAYS, f"its policy is {ruling.policy} (set by {ruling.by})")
    if spared:
        return ObjectForecast(entry, ForecastFate.STAYS, spared)
    return ObjectForecast(entry, ForecastFate.GOES)


def why_kept(entry: Entry) -> str:
    """Why an object that is marked as kept or adopted stays (pure)."""
    return (
        volume_claims.why_retained(entry)
        if volume_claims.is_retained(entry)
        else "it existed before, or is marked as kept"
    )


def with_containers(
    steps: Iterable[PlannedStep],
    first: Mapping[str, tuple[ObjectForecast, ...]],
    held: Mapping[str, HeldContent],
    cascading: Mapping[str, str] = MappingProxyType({}),
) -> Forecast:
    """The forecast, given the content of Namespaces and CRDs by their uid (pure). `first`: see `plain`. `cascading`:
    see `forecast`."""
    fates = {owner: list(some) for owner, some in first.items()}
    gone = {owner: {item.entry.object.uid: item.entry.object for item in _going(some)} for owner, some in fates.items()}
    along: dict[str, ObjectRef] = {}
    for step in sorted(steps, key=lambda step: step.wave):
        for kind in (CUSTOM_RESOURCE_DEFINITIONS.kind, NAMESPACES.kind):
            for number, item in enumerate(fates[step.owner]):
                ref = item.entry.object
                if item.fate is not ForecastFate.GOES or ref.uid not in held or ref.kind != kind:
                    continue
                # Objects of steps that are removed later still exist.
                removed = {
                    uid: one for owner, those in gone.items() if owner not in step.later for uid, one in those.items()
                }
                staying = foreign(held[ref.uid], removed, own=gone[step.owner])
                counted = any(content.metadata.uid in held[ref.uid].counted for content in staying)
                why = cascading.get(ref.uid, "") if counted else ""
                if step.take_along and not why:
                    gone[step.owner] |= {content.metadata.uid: ref_to(content) for content in staying}
                    if kind == NAMESPACES.kind:
                        along |= {content.metadata.uid: ref_to(content) for content in staying}
                elif staying:
                    fates[step.owner][number] = ObjectForecast(
                        item.entry, ForecastFate.STAYS, why or foreign_message(staying)
                    )
                    del gone[step.owner][ref.uid]
    # What a Namespace takes along is deleted, whatever its own policy is.
    final = {
        owner: tuple(
            ObjectForecast(item.entry, ForecastFate.GOES) if item.entry.object.uid in along else item for item in some
        )
        for owner, some in fates.items()
    }
    named = {item.entry.object.uid for some in final.values() for item in some}
    return Forecast(steps=final, along=tuple(ref for uid, ref in along.items() if uid not in named))


def foreign(held: HeldContent, removed: Mapping[str, ObjectRef], *, own: Mapping[str, ObjectRef]) -> list[Content]:
    """The content that keeps a Namespace or CRD (pure). `removed`: the objects that are gone before. `own`: those of
    them that its own step removes."""
    staying = sort(held.content, removed=removed, kinds=held.kinds).staying
    return [
        content
        for content in staying
        if not is_left_over(content, held.holders.get(content.metadata.uid, ""), own.values())
    ]


def _going(some: Iterable[ObjectForecast]) -> list[ObjectForecast]:
    return [item for item in some if item.fate is ForecastFate.GOES]


async def _read(member: Member, entries: Collection[Entry]) -> dict[tuple[str, str, str, str], Metadata]:
    """The objects that exist of the kinds and in the namespaces of these, and all Namespaces."""
    served = Served(member)
    found: dict[tuple[str, str, str, str], Metadata] = {}

    async def look(resource: Resource, namespace: str) -> None:
        for content in await contents.of_kind(member.client, resource, namespace=namespace or None):
            it = content.metadata
            found[resource.group, resource.kind, it.namespace, it.name] = it

    places = {(entry.object.group, entry.object.kind, entry.object.namespace): entry for entry in entries}
    wanted: set[tuple[Resource, str]] = {(NAMESPACES, "")}
    for (_, _, namespace), entry in places.items():
        if resource := await served.resource(Item("", "", entry)):
            wanted.add((resource, namespace))
    await gather_limited((look(*pair) for pair in wanted), limit=_AT_ONCE)
    return found


async def _held(member: Member, ref: ObjectRef, *, counting: bool) -> HeldContent:
    """The content of a Namespace or CRD. `counting`: also which of it `Cascading` counts."""
    if ref.kind == NAMESPACES.kind:
        everything = await contents.in_namespace(member.client, member.discovery, ref.name)
        served = [kind.resource for kind in await member.discovery.kinds()]
        kinds = frozenset((item.group, item.kind) for item in served if item.namespaced)
        holders = {
            content.metadata.uid: await lease_holder(member.client, content)
            for content in everything
            if is_lease(content)
        }
        counted = await _counted(member, ref.name) if counting else frozenset[str]()
        return HeldContent(content=tuple(everything), kinds=kinds, holders=holders, counted=counted)
    resource = contents.defined_by(await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, ref.name))
    if resource is None:
        raise UnwindError(
            f"cannot list the custom resources of {ref}: it serves no version",
            remedy="set served to true for one of its spec.versions",
        )
    found = await contents.of_kind(member.client, resource)
    live = [content.metadata.uid for content in found if not content.metadata.deletion_timestamp]
    return HeldContent(content=tuple(found), counted=frozenset(live))


async def _counted(member: Member, namespace: str) -> frozenset[str]:
    """The uids of the active Pods and bound claims in a namespace."""
    pods = await member.client.list(PODS, namespace=namespace, fields=UNFINISHED)
    claims = await member.client.list(PERSISTENT_VOLUME_CLAIMS, namespace=namespace)
    bound = [claim for claim in claims if (claim.get("status") or {}).get("phase") == "Bound"]
    return frozenset(
        item["metadata"]["uid"] for item in (*pods, *bound) if not item["metadata"].get("deletionTimestamp")
    )


async def refusals(member: Member, blast: DeletionScope, *, home: str) -> tuple[Told, ...]:
    """Each object that would refuse deletion, and why; if there is one, nothing is deleted. `home`: Unwind's own
    namespace."""
    found = await protected_objects(member, blast.going)
    # These are deleted by the garbage collector, with their owners.
    found += await protected_objects(member, blast.along, by_controller=True)
    return (*out_of_bounds(blast, home=home), *blast.held, *(Told(it.object, it.why, it.reason) for it in found))


async def protected_objects(
    member: Member, some: Iterable[Content], *, cluster: ObjectRef | None = None, by_controller: bool = False
) -> list[ProtectedObject]:
    """The objects that are protected by their label, by the same rules as in the deleter chain. `cluster`: the object
    that represents the member; None for the management cluster."""
    found: dict[str, ProtectedObject] = {}
    some = [
        content for content in some if labelled(content.metadata.labels) and not content.metadata.deletion_timestamp
    ]

    async def check(one: Content) -> None:
        if held := await protected_object(
            member.client, one.resource, ref_to(one), cluster=cluster, by_controller=by_controller
        ):
            found[one.metadata.uid] = held

    await gather_limited((check(item) for item in some), limit=_REFUSALS_AT_ONCE)
    return [found[item.metadata.uid] for item in some if item.metadata.uid in found]


def out_of_bounds(blast: DeletionScope, *, home: str) -> list[Told]:
    """The objects that are never deleted on request, or not in this way (pure)."""
    target = blast.target
    ref = ref_to(target)
    why = ""
    if is_a(target, NAMESPACES) and ref.name in _SYSTEM:
        why = "it is a system namespace of Kubernetes, which is never deleted"
    elif is_a(target, NAMESPACES) and ref.name == home:
        why = "it is Unwind's own namespace; use `unwind uninstall`"
    elif ref.group == unwind.GROUP or (is_a(target, CUSTOM_RESOURCE_DEFINITIONS) and _of_ours(ref.name)):
        why = "it is one of Unwind's own records of deletions; use `unwind cancel`, or `unwind uninstall`"
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
