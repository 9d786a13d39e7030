"""The scope of a deletion: what is deleted with an object, and what stays. Only reads from the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeletePolicy, VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import OWNER_LABEL, SVELTOS_OWNER_ANNOTATION, Reason
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, STATEFUL_SETS, Resource
from unwind.api.unwind import Entry, EntryState, LedgerNote
from unwind.deleters import builtin
from unwind.deleters.kubernetes_end import propagation
from unwind.errors import UnwindError
from unwind.kube.decoding import Metadata
from unwind.kube.errors import NotFoundError
from unwind.members import contents
from unwind.members.contents import Content
from unwind.removal import volume_claims
from unwind.removal.foreign_content import follows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from unwind.kube.client import Object
    from unwind.members.member import Member


class AnotherError(UnwindError):
    """The object of this name has another uid than the requested one."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object and a reason."""

    object: ObjectRef
    why: str
    reason: Reason | None = None
    """The same as a CamelCase word, for an object that may not be deleted."""


class DeletionScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of one object deletes, and what stays."""

    target: Content
    going: tuple[Content, ...]
    """The objects that Unwind deletes and enters in the inventory: the content of the target, and the target."""
    along: tuple[Content, ...] = ()
    """The objects that the garbage collector or another controller deletes with them."""
    staying: tuple[Told, ...] = ()
    """Content or dependents of the target that are not deleted."""
    retained: tuple[Entry, ...] = ()
    """Claims of StatefulSets that stay, as inventory entries; they are in `staying`, too."""
    kept: tuple[Entry, ...] = ()
    """Content that stays by its policy, as inventory entries with the ledger note; it is in `staying`, too."""
    held: tuple[Told, ...] = ()
    """The target, if its policy or owner label keeps it, and objects whose policy is unknown."""

    @property
    def everything(self) -> tuple[Content, ...]:
        return (*self.going, *self.along)

    @property
    def keeping(self) -> tuple[Told, ...]:
        """The content that stays in the target and so keeps it, if that is a Namespace or CRD."""
        it = self.target
        if is_a(it, NAMESPACES):
            return tuple(told for told in self.staying if told.object.namespace == it.metadata.name)
        if is_a(it, CUSTOM_RESOURCE_DEFINITIONS):
            group = it.metadata.name.partition(".")[2]
            return tuple(told for told in self.staying if told.object.group == group)
        return ()

    @property
    def deleted(self) -> tuple[Content, ...]:
        """`everything`, without the target if it is kept."""
        kept = bool(self.keeping)
        return tuple(item for item in self.everything if not (kept and item is self.target))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """`going` as inventory entries, each with its uid."""
        return tuple(map(entry_of, self.going))


def is_a(content: Content, resource: Resource) -> bool:
    return (content.resource.group, content.resource.kind) == (resource.group, resource.kind)


def ref_to(content: Content) -> ObjectRef:
    return ref_of(content.resource, content.metadata)


def entry_of(content: Content) -> Entry:
    return Entry(object=ref_to(content), resource=content.resource.plural, state=EntryState.CONFIRMED.value)


async def scope_of(
    member: Member,
    resource: Resource,
    name: str,
    *,
    namespace: str = "",
    uid: str = "",
    volumes: VolumePolicy = VolumePolicy.RETAIN,
) -> DeletionScope:
    """The scope of the deletion of this object. Raises NotFoundError if it is absent, AnotherError if its uid differs.

    `volumes`: the policy for claims of deleted StatefulSets.

    Everything is read from the API server, and an unavailable API is an error: a partial scope is never returned.
    """
    found = await member.client.get(resource, name, namespace=namespace or None)
    target = Content(resource, msgspec.convert(found["metadata"], Metadata, strict=False))
    if uid and target.metadata.uid != uid:
        raise AnotherError(
            f"{target} was deleted and created again (uid {target.metadata.uid})", remedy="check it and request again"
        )
    if is_a(target, NAMESPACES):
        around = await contents.in_namespace(member.client, member.discovery, name)
        first = [item for item in around if not contents.made_by_the_server(item)]
        annotations = target.metadata.annotations or {}
    else:
        first = await _of_definition(member, found) if is_a(target, CUSTOM_RESOURCE_DEFINITIONS) else []
        around = await _around(member, [*first, target])
        annotations = await _namespace_annotations(member, namespace)
    divided = divide(target, first, around, namespace=annotations)
    sets = [item for item in divided.everything if is_a(item, STATEFUL_SETS)]
    of_sets = await _claims(member, sets, volumes)
    retained = [entry for entry in of_sets if entry.kept and entry.object.uid != target.metadata.uid]
    known = {item.metadata.uid for item in divided.everything}
    wanted = {entry.object.uid for entry in of_sets if not entry.kept} - known
    more = [item for item in around if item.metadata.uid in wanted]
    if more or retained:
        divided = divide(target, [*first, *more], around, namespace=annotations, retained=retained)
    return divided


def divide(
    target: Content,
    first: Sequence[Content],
    around: Iterable[Content],
    *,
    namespace: Mapping[str, str] | None = None,
    retained: Sequence[Entry] = (),
) -> DeletionScope:
    """The scope, computed from objects that were read (pure).

    `first`: the content of the target, such as all objects in a namespace. `around`: all objects that may be dependents
    of these. `namespace`: the annotations of their namespace. `retained`: claims of StatefulSets that stay.
    """
    around = list(around)
    there = {content.metadata.uid for content in (*around, *first)}
    staying = {entry.object.uid: volume_claims.why_retained(entry) for entry in retained if entry.object.uid in there}
    held: dict[str, tuple[str, Reason]] = {}
    kept: dict[str, LedgerNote] = {}
    for content in (*first, target):
        ruling = builtin.effective_policy(content.metadata.annotations or {}, namespace=namespace)
        if isinstance(ruling.policy, Unknown):
            held[content.metadata.uid] = f"its delete policy {ruling.policy} (set by {ruling.by})", Reason.UNKNOWN_VALUE
        elif ruling.policy is not DeletePolicy.MANAGE:
            message = f"its policy is {ruling.policy.value}"
            staying[content.metadata.uid] = f"{message} (set by {ruling.by})"
            kept[content.metadata.uid] = LedgerNote(
                reason=Reason.KEPT_BY_POLICY, message=f"{message}, so it is left in place", by=ruling.by
            )
        elif owner := _deployed_by(content):
            staying[content.metadata.uid] = f"{owner} manages it and would deploy it again"
    # If the target itself stays, nothing is deleted.
    if why := staying.pop(target.metadata.uid, ""):
        held[target.metadata.uid] = f"{why}; change that first", Reason.PROTECTED
    for content in contents.descendants(first, list(staying)):
        if content.metadata.uid != target.metadata.uid:
            staying.setdefault(content.metadata.uid, "its owner stays")
    candidates = {content.metadata.uid: content for content in (*first, target) if content.metadata.uid not in staying}
    everything = {content.metadata.uid: content for content in (*around, *first, target)}
    going = {
        uid: one
        for uid, one in candidates.items()
        if uid == target.metadata.uid or not _owners(one) or not _owners(one) <= candidates.keys()
    }
    gone = _with_dependents(going, everything, staying)
    # Objects in a cycle of owner references would wait for the garbage collector forever.
    for uid, one in candidates.items():
        if uid not in gone:
            going[uid] = one
            gone = _with_dependents(going, everything, staying)
    _drop_followers(going, gone)
    torn = {
        uid: one
        for uid, one in everything.items()
        if uid not in gone and uid not in staying and _owners(one) & gone.keys()
    }
    return DeletionScope(
        target=target,
        # The target is deleted last, regardless of the order of the others.
        going=(*(one for uid, one in going.items() if uid != target.metadata.uid), target),
        along=tuple(one for uid, one in gone.items() if uid not in going),
        staying=tuple(
            [Told(ref_to(everything[uid]), why) for uid, why in staying.items()]
            + [Told(ref_to(item), _other_owners(item, gone)) for item in torn.values()]
        ),
        retained=tuple(entry for entry in retained if entry.object.uid in staying),
        kept=tuple(
            msgspec.structs.replace(entry_of(everything[uid]), kept=True, ledger=note)
            for uid, note in kept.items()
            if uid in staying
        ),
        held=tuple(Told(ref_to(everything[uid]), why, reason) for uid, (why, reason) in held.items()),
    )


def _owners(one: Content) -> set[str]:
    return {owner.uid for owner in one.metadata.owner_references}


def _deployed_by(one: Content) -> str:
    """The owner that deployed the object, from its owner label and annotations; empty if it has none."""
    uid = (one.metadata.labels or {}).get(OWNER_LABEL, "")
    annotations = one.metadata.annotations or {}
    kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
    return uid and (f"{kind} {name}".strip() or f"the owner {uid}")


def _with_dependents(
    going: Mapping[str, Content], everything: Mapping[str, Content], staying: Collection[str]
) -> dict[str, Content]:
    """These, and all dependents that have no other owners, directly or indirectly."""
    children: dict[str, list[Content]] = {}
    for item in everything.values():
        for owner in _owners(item):
            children.setdefault(owner, []).append(item)
    gone = dict(going)
    waiting = list(going)
    for uid in waiting:  # it grows during the loop
        for child in children.get(uid, ()):
            its = child.metadata.uid
            # A dependent with another owner only loses this owner reference.
            if its not in gone and its not in staying and _owners(child) <= gone.keys():
                gone[its] = child
                waiting.append(its)
    return gone


def _drop_followers(going: dict[str, Content], gone: Mapping[str, Content]) -> None:
    """Drop objects that a Kubernetes controller deletes by itself, and would create again if they were deleted before
    the object they depend on."""
    refs = {uid: ref_to(one) for uid, one in gone.items()}
    services = {(ref.namespace, ref.name) for ref in refs.values() if (ref.group, ref.kind) == ("", "Service")}
    for uid in [uid for uid, one in going.items() if follows(one, refs, services)]:
        del going[uid]


def _other_owners(one: Content, gone: Mapping[str, Content]) -> str:
    others = [f"{owner.kind} {owner.name}" for owner in one.metadata.owner_references if owner.uid not in gone]
    return f"it is also owned by {', '.join(others)}"


async def _of_definition(member: Member, definition: Object) -> list[Content]:
    resource = contents.defined_by(definition)
    if resource is None:
        name = definition["metadata"]["name"]
        raise UnwindError(
            f"cannot list the custom resources of CustomResourceDefinition {name}: it serves no version",
            remedy="set served to true for one of its spec.versions",
        )
    return await contents.of_kind(member.client, resource)


async def _around(member: Member, owners: Sequence[Content]) -> list[Content]:
    """All objects that may be dependents of these: in their namespace, or in the cluster if they are cluster-scoped."""
    able = [content for content in owners if propagation(content.resource) == "Foreground"]
    places = {item.metadata.namespace for item in able}
    if not able:
        return []
    if len(places) == 1 and (place := places.pop()):
        return await contents.in_namespace(member.client, member.discovery, place)
    return await contents.cluster_contents(member.client, member.discovery)


async def _namespace_annotations(member: Member, namespace: str) -> dict[str, str]:
    if not namespace:
        return {}
    found = await member.client.get(NAMESPACES, namespace)
    annotations: dict[str, str] | None = found["metadata"].get("annotations")
    return annotations or {}


async def _claims(member: Member, sets: Iterable[Content], policy: VolumePolicy) -> list[Entry]:
    """The claims of StatefulSets; those that stay are `kept`."""
    found: list[Entry] = []
    for content in sets:
        try:
            stateful_set = await member.client.get(
                STATEFUL_SETS, content.metadata.name, namespace=content.metadata.namespace
            )
        except NotFoundError:
            continue  # deleted concurrently
        found += await volume_claims.of_set(member, stateful_set, order=0, policy=policy)
    return found
