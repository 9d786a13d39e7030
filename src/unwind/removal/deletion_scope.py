"""What goes when an object is deleted, and what of it stays: looked up in its cluster, where nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeletePolicy, VolumePolicy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import OWNER_LABEL, SVELTOS_OWNER_ANNOTATION
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, STATEFUL_SETS, Resource
from unwind.api.unwind import Entry, EntryState
from unwind.deleters import builtin
from unwind.deleters.kubernetes import propagation
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
    """What has this name is not what was asked for."""


class Told(msgspec.Struct, frozen=True):
    """An object, and what there is to say of it."""

    object: ObjectRef
    why: str


class DeletionScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of one object comes to."""

    target: Content
    going: tuple[Content, ...]
    """What is deleted one by one, and is entered in the inventory: what the target holds, and the target."""
    along: tuple[Content, ...] = ()
    """What goes with these: it belongs to them, so that the garbage collector takes it, or another controller does."""
    staying: tuple[Told, ...] = ()
    """What is in it or belongs to it, and is not deleted."""
    retained: tuple[Entry, ...] = ()
    """Claims of StatefulSets that stay, as an inventory has them; they are among what is staying, too."""
    held: tuple[Told, ...] = ()
    """What is not to go, as its annotations or its mark say: the target; or what says a word that is not known."""

    @property
    def everything(self) -> tuple[Content, ...]:
        return (*self.going, *self.along)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What goes, as an inventory has it: each with its uid."""
        return tuple(map(entry_of, self.going))


def is_a(content: Content, resource: Resource) -> bool:
    return (content.resource.group, content.resource.kind) == (resource.group, resource.kind)


def ref_to(content: Content) -> ObjectRef:
    resource, it = content.resource, content.metadata
    return ObjectRef(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        namespace=it.namespace,
        name=it.name,
        uid=it.uid,
    )


def entry_of(content: Content) -> Entry:
    return Entry(object=ref_to(content), resource=content.resource.plural, state=EntryState.CONFIRMED.value)


async def look(
    member: Member,
    resource: Resource,
    name: str,
    *,
    namespace: str = "",
    uid: str = "",
    volumes: VolumePolicy = VolumePolicy.RETAIN,
) -> DeletionScope:
    """What goes if this object is deleted. Raises NotFoundError if it is not there, AnotherError if it has another uid.

    `volumes`: what becomes of the claims of StatefulSets that go.

    All of it is read from the server, and what does not answer is an error: half of what goes is no answer.
    """
    found = await member.client.get(resource, name, namespace=namespace or None)
    target = Content(resource, msgspec.convert(found["metadata"], Metadata, strict=False))
    if uid and target.metadata.uid != uid:
        raise AnotherError(f"{target} is another one by now", remedy="look at it, and ask again")
    if is_a(target, NAMESPACES):
        around = await contents.in_namespace(member.client, member.discovery, name)
        first = [item for item in around if not contents.made_by_the_server(item)]
        said = target.metadata.annotations or {}
    else:
        first = await _of_definition(member, found) if is_a(target, CUSTOM_RESOURCE_DEFINITIONS) else []
        around = await _around(member, [*first, target])
        said = await _said_by_namespace(member, namespace)
    divided = divide(target, first, around, namespace=said)
    sets = [item for item in divided.everything if is_a(item, STATEFUL_SETS)]
    of_sets = await _claims(member, sets, volumes)
    retained = [entry for entry in of_sets if entry.kept and entry.object.uid != target.metadata.uid]
    known = {item.metadata.uid for item in divided.everything}
    wanted = {entry.object.uid for entry in of_sets if not entry.kept} - known
    more = [item for item in around if item.metadata.uid in wanted]
    if more or retained:
        divided = divide(target, [*first, *more], around, namespace=said, retained=retained)
    return divided


def divide(
    target: Content,
    first: Sequence[Content],
    around: Iterable[Content],
    *,
    namespace: Mapping[str, str] | None = None,
    retained: Sequence[Entry] = (),
) -> DeletionScope:
    """Tell apart what becomes of what (pure).

    `first`: what the target holds, such as all that is in a namespace. `around`: everything that may belong to these.
    `namespace`: the annotations of the namespace that they are in. `retained`: claims of StatefulSets that stay.
    """
    around = list(around)
    there = {content.metadata.uid for content in (*around, *first)}
    staying = {entry.object.uid: volume_claims.why_retained(entry) for entry in retained if entry.object.uid in there}
    held: dict[str, str] = {}
    for one in (*first, target):
        ruling = builtin.effective_policy(one.metadata.annotations or {}, namespace=namespace)
        if isinstance(ruling.policy, Unknown):
            held[one.metadata.uid] = f"the policy {ruling.policy}, said by {ruling.by}"
        elif ruling.policy is not DeletePolicy.MANAGE:
            staying[one.metadata.uid] = f"its policy is {ruling.policy.value}, said by {ruling.by}"
        elif owner := _marked(one):
            staying[one.metadata.uid] = f"{owner} has put it there, and would again"
    # Where it is the target, there is nothing to be done at all.
    if why := staying.pop(target.metadata.uid, ""):
        held[target.metadata.uid] = why
    for one in contents.descendants(first, list(staying)):
        if one.metadata.uid != target.metadata.uid:
            staying.setdefault(one.metadata.uid, "it belongs to what stays")
    candidates = {content.metadata.uid: content for content in (*first, target) if content.metadata.uid not in staying}
    everything = {content.metadata.uid: content for content in (*around, *first, target)}
    going = {
        uid: one
        for uid, one in candidates.items()
        if uid == target.metadata.uid or not _owners(one) or not _owners(one) <= candidates.keys()
    }
    gone = _with_belongings(going, everything, staying)
    # What belongs to itself by way of others would wait for the garbage collector for ever.
    for uid, one in candidates.items():
        if uid not in gone:
            going[uid] = one
            gone = _with_belongings(going, everything, staying)
    _let_follow(going, gone)
    torn = {
        uid: one
        for uid, one in everything.items()
        if uid not in gone and uid not in staying and _owners(one) & gone.keys()
    }
    return DeletionScope(
        target=target,
        # The target goes last, whatever the order of the others.
        going=(*(one for uid, one in going.items() if uid != target.metadata.uid), target),
        along=tuple(one for uid, one in gone.items() if uid not in going),
        staying=tuple(
            [Told(ref_to(everything[uid]), why) for uid, why in staying.items()]
            + [Told(ref_to(item), _torn(item, gone)) for item in torn.values()]
        ),
        retained=tuple(entry for entry in retained if entry.object.uid in staying),
        held=tuple(Told(ref_to(everything[uid]), why) for uid, why in held.items()),
    )


def _owners(one: Content) -> set[str]:
    return {owner.uid for owner in one.metadata.owner_references}


def _marked(one: Content) -> str:
    """Who has deployed it, if it carries the mark of that."""
    uid = (one.metadata.labels or {}).get(OWNER_LABEL, "")
    annotations = one.metadata.annotations or {}
    kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
    return uid and (f"{kind} {name}".strip() or f"the owner {uid}")


def _with_belongings(
    going: Mapping[str, Content], everything: Mapping[str, Content], staying: Collection[str]
) -> dict[str, Content]:
    """These, and what belongs to nobody but them, by however many steps."""
    children: dict[str, list[Content]] = {}
    for item in everything.values():
        for owner in _owners(item):
            children.setdefault(owner, []).append(item)
    gone = dict(going)
    waiting = list(going)
    for uid in waiting:  # it grows while it is read
        for child in children.get(uid, ()):
            its = child.metadata.uid
            # What has another owner loses only the reference to this one.
            if its not in gone and its not in staying and _owners(child) <= gone.keys():
                gone[its] = child
                waiting.append(its)
    return gone


def _let_follow(going: dict[str, Content], gone: Mapping[str, Content]) -> None:
    """Leave those out that a controller of Kubernetes takes away by itself, and would make anew if it were deleted
    before what it is about."""
    refs = {uid: ref_to(one) for uid, one in gone.items()}
    services = {(ref.namespace, ref.name) for ref in refs.values() if (ref.group, ref.kind) == ("", "Service")}
    for uid in [uid for uid, one in going.items() if follows(one, refs, services)]:
        del going[uid]


def _torn(one: Content, gone: Mapping[str, Content]) -> str:
    others = [f"{owner.kind} {owner.name}" for owner in one.metadata.owner_references if owner.uid not in gone]
    return f"it belongs to {', '.join(others)} as well"


async def _of_definition(member: Member, definition: Object) -> list[Content]:
    resource = contents.defined_by(definition)
    if resource is None:
        name = definition["metadata"]["name"]
        raise UnwindError(f"CustomResourceDefinition {name} serves no version, so nobody knows what there is of it")
    return await contents.of_kind(member.client, resource)


async def _around(member: Member, owners: Sequence[Content]) -> list[Content]:
    """Everything that may belong to these: it is where they are, or anywhere if they are of the whole cluster."""
    able = [content for content in owners if propagation(content.resource) == "Foreground"]
    places = {item.metadata.namespace for item in able}
    if not able:
        return []
    if len(places) == 1 and (place := places.pop()):
        return await contents.in_namespace(member.client, member.discovery, place)
    return await contents.in_cluster(member.client, member.discovery)


async def _said_by_namespace(member: Member, namespace: str) -> dict[str, str]:
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
            it = await member.client.get(STATEFUL_SETS, content.metadata.name, namespace=content.metadata.namespace)
        except NotFoundError:
            continue  # it went while it was looked at
        found += await volume_claims.of_set(member, it, order=0, policy=policy)
    return found
