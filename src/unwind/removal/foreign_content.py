"""Content of removed objects: dependents must be absent, too; a Namespace or CRD with objects of others is kept.

docs/architecture.md has the rules: Verified absence, and Only our own objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import OWNER_LABEL, Reason
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, LEASES, NAMESPACES
from unwind.deleters.outcomes import Again, Kept, PermanentError
from unwind.deleters.registration import LATE, Kinds, Registration
from unwind.kube.errors import NotFoundError
from unwind.kube.watches import Subscription
from unwind.members import contents
from unwind.members.contents import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.inventory.inventories import Item
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery
    from unwind.members.member import Member

# Several subscriptions that are waited for together.
_AT_ONCE = 100
# Only a fallback: watches report the changes that are waited for.
_LOOK_AGAIN = 600.0


class Several(Subscription):
    """Fires when all of its parts have fired: a thousand objects are not checked again after each deletion."""

    def __init__(self, parts: Iterable[Subscription] = ()) -> None:
        self._parts = list(parts)

    def add(self, part: Subscription) -> None:
        self._parts.append(part)

    @property
    def happened(self) -> bool:
        return all(part.happened for part in self._parts)

    @property
    def lost(self) -> bool:
        return any(part.lost for part in self._parts)

    async def wait(self) -> None:
        for part in self._parts:
            await part.wait()

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def tell(self) -> None:
        for part in self._parts:
            part.tell()


_SHOWN = 3


async def until_dependents_gone(member: Member, uids: Collection[str], namespaces: Collection[str]) -> None:
    """Return if the objects that had these uids have no dependents left; raise Again while they do.

    `namespaces`: their namespaces. Dependents of a cluster-scoped object (namespace "") may be in any namespace. The
    garbage collector deletes dependents, and no event about the owner tells when that is done.
    """
    for namespace in [""] if "" in namespaces else sorted(namespaces):
        if namespace:
            everything = await contents.in_namespace(member.client, member.discovery, namespace)
        else:
            everything = await contents.cluster_contents(member.client, member.discovery)
        left = contents.descendants(everything, uids)
        if left:
            await _wait_for(member, left)


async def _wait_for(member: Member, left: list[Content]) -> None:
    message = f"waiting for the garbage collector to delete dependents: {contents.first_names(left, shown=_SHOWN)}"
    raise Again(message, until=await absences(member, left), after=_LOOK_AGAIN)


async def absences(member: Member, left: list[Content]) -> Several:
    """The absence of these objects, of many only the first."""
    several = Several()
    try:
        for content in left[:_AT_ONCE]:
            metadata = content.metadata
            name, uid, namespace = metadata.name, metadata.uid, metadata.namespace
            absence = await member.watches.absence(content.resource, name=name, uid=uid, namespace=namespace)
            several.add(absence)
            if absence.seen is None and not absence.happened:
                # It was gone before the watch started, or the watch is behind: ask the server.
                seen = await member.client.sighting(
                    content.resource, name, uid=uid, namespace=namespace or None, cluster=member.system_uid
                )
                if seen.absent:
                    absence.tell()
    except BaseException:
        several.close()
        raise
    return several


class Sorted(msgspec.Struct, frozen=True):
    """The content of a Namespace or CRD, by what happens to it."""

    going: tuple[Content, ...]
    """Objects that are being deleted or will be: the removal waits for them."""
    staying: tuple[Content, ...]
    """Foreign objects that would be destroyed."""


def sort(
    held: Collection[Content],
    *,
    removed: Mapping[str, ObjectRef],
    going: Collection[str] = (),
    kinds: Collection[tuple[str, str]] = (),
) -> Sorted:
    """Sort the content. Dependents of removed objects are in neither part: the garbage collector deletes them. One that
    another object owns as well is not deleted, so it stays.

    `removed`: by uid. `going`: the owners whose objects are removed at the same time. `kinds`: the kinds of which
    `held` contains every object.
    """
    belongings = {item.metadata.uid for item in contents.belongings(held, removed, kinds=kinds)}
    services = {(ref.namespace, ref.name) for ref in removed.values() if (ref.group, ref.kind) == ("", "Service")}
    rest = [
        content
        for content in held
        if content.metadata.uid not in belongings
        and content.metadata.uid not in removed
        and not contents.made_by_the_server(content)
        and not follows(content, removed, services)
    ]
    leaving = {
        item.metadata.uid
        for item in rest
        if item.metadata.deletion_timestamp or (item.metadata.labels or {}).get(OWNER_LABEL) in going
    }
    leaving |= {orphan.metadata.uid for orphan in contents.orphans(held, kinds)}
    gone = {*removed, *belongings, *leaving}
    leaving |= {item.metadata.uid for item in contents.belongings(held, gone, kinds=kinds)}
    return Sorted(
        tuple(item for item in rest if item.metadata.uid in leaving),
        tuple(item for item in rest if item.metadata.uid not in leaving),
    )


def follows(one: Content, removed: Mapping[str, ObjectRef], services: Collection[tuple[str, str]]) -> bool:
    """Whether a Kubernetes controller deletes this object after a removed object, without an owner reference."""
    metadata, kind = one.metadata, (one.resource.group, one.resource.kind)
    if kind == ("", "Endpoints"):
        return (metadata.namespace, metadata.name) in services
    account = (metadata.annotations or {}).get("kubernetes.io/service-account.uid", "")
    return kind == ("", "Secret") and account in removed


def foreign_message(staying: Collection[Content]) -> str:
    """Why a Namespace or CRD with this content is kept. Dependents of named objects are not named (pure)."""
    owned = contents.descendants(staying, [item.metadata.uid for item in staying])
    return f"it has foreign content: {contents.first_names([item for item in staying if item not in owned])}"


def is_container(ref: ObjectRef) -> bool:
    """Whether this is a Namespace or a CRD (pure)."""
    return (ref.group, ref.kind) in (
        (resource.group, resource.kind) for resource in (NAMESPACES, CUSTOM_RESOURCE_DEFINITIONS)
    )


async def held_by(
    client: Client,
    discovery: Discovery,
    ref: ObjectRef,
    obj: Object,
    *,
    removed: Mapping[str, ObjectRef],
    going: Collection[str],
) -> Sorted:
    """The content of a Namespace or CRD. `removed`, `going`: see `sort`. Raises if the content cannot be read."""
    if ref.kind == NAMESPACES.kind:
        everything = await contents.in_namespace(client, discovery, ref.name)
        served = [kind.resource for kind in await discovery.kinds()]
        kinds = {(item.group, item.kind) for item in served if item.namespaced}
        return sort(everything, removed=removed, going=going, kinds=kinds)
    resource = contents.defined_by(obj)
    if resource is None:
        raise PermanentError(
            f"cannot list the custom resources of {ref}: it serves no version",
            remedy="set served to true for one of its spec.versions",
        )
    return sort(await contents.of_kind(client, resource), removed=removed, going=going)


async def foreign_names(member: Member, item: Item, *, removed: Mapping[str, ObjectRef], going: Collection[str]) -> str:
    """The foreign content of the Namespace or CRD in an entry, as text; empty if the entry is of another kind, or the
    object is absent."""
    ref, client = item.entry.object, member.client
    if not is_container(ref):
        return ""
    try:
        found = await client.get(item.resource, ref.name)
    except NotFoundError:
        return ""
    if found["metadata"]["uid"] != ref.uid:
        return ""
    held = await held_by(client, member.discovery, ref, found, removed=removed, going=going)
    return contents.first_names(held.staying)


class ForeignContent:
    """Keeps Namespaces and CRDs with foreign content."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        removed: Mapping[str, ObjectRef],
        going: Callable[[], Collection[str]],
        take_along: bool = False,
    ) -> None:
        """`removed`: the objects that this step has removed, by uid. `going`: the owners whose objects are removed at
        the same time and are waited for. `take_along`: delete foreign content, too."""
        self._discovery = discovery
        self._removed = removed
        self._going = going
        self._take_along = take_along
        self._waiting: dict[str, Several] = {}
        self._looks = 0
        """How often `going` has changed."""

    def registration(self) -> Registration:
        return Registration(
            name="keep-foreign",
            kinds=(Kinds("v1", "Namespace"), Kinds("apiextensions.k8s.io/v1", "CustomResourceDefinition")),
            delete=self.delete,
            order=LATE,
            about="Keep a Namespace or CRD with foreign content, and name that content.",
        )

    def look_again(self) -> None:
        """`going` has changed: check again, because what is waited for may never come."""
        self._looks += 1
        for item in self._waiting.values():
            item.tell()

    async def delete(self, ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        self._waiting.pop(ctx.ref.uid, None)
        if ctx.absent or obj["metadata"].get("deletionTimestamp") or self._take_along:
            return await next(ctx, obj)
        looks = self._looks
        held = await held_by(ctx.client, self._discovery, ctx.ref, obj, removed=self._removed, going=self._going())
        staying = await _not_left_over(ctx.client, held.staying, self._removed.values())
        if staying:
            message = foreign_message(staying)
            ctx.log.info("object kept", why=message)
            return Kept(Reason.FOREIGN_CONTENT, f"{message}; it is left in place with it", by="unwind")
        if held.going:
            await self._wait_for(ctx, held.going, looks)
        return await next(ctx, obj)

    async def _wait_for(self, ctx: DeleteContext, held: Collection[Content], looks: int) -> None:
        """Retry when all of them have changed or are gone, which may have happened before the watch started. `looks`:
        the value of `_looks` before `going` was read."""
        several = Several()
        try:
            for content in list(held)[:_AT_ONCE]:
                metadata = content.metadata
                changes = await ctx.watches.changes(content.resource, namespace=metadata.namespace, name=metadata.name)
                several.add(changes)
                if await _changed(ctx.client, content):
                    changes.tell()
        except BaseException:
            several.close()
            raise
        self._waiting[ctx.ref.uid] = several
        if self._looks != looks:
            several.tell()
        waited_for = f"{ctx.ref} waits for content that is being removed: {contents.first_names(held)}"
        raise Again(waited_for, until=several, after=_LOOK_AGAIN)


async def _changed(client: Client, one: Content) -> bool:
    try:
        found = await client.get(one.resource, one.metadata.name, namespace=one.metadata.namespace or None)
    except NotFoundError:
        return True
    return bool(found["metadata"]["resourceVersion"] != one.metadata.resource_version)


async def _not_left_over(client: Client, staying: Iterable[Content], removed: Collection[ObjectRef]) -> list[Content]:
    """Without the Leases of removed workloads."""
    workloads = any(ref.group == "apps" for ref in removed)
    return [
        content
        for content in staying
        if not (workloads and is_lease(content) and is_left_over(content, await lease_holder(client, content), removed))
    ]


def is_lease(content: Content) -> bool:
    return (content.resource.group, content.resource.kind) == (LEASES.group, LEASES.kind)


async def lease_holder(client: Client, content: Content) -> str | None:
    """The holder of a Lease; None if the Lease is gone."""
    try:
        lease = await client.get(LEASES, content.metadata.name, namespace=content.metadata.namespace)
    except NotFoundError:
        return None
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def is_left_over(content: Content, holder: str | None, removed: Collection[ObjectRef]) -> bool:
    """Whether this is the Lease of a removed workload, or one that is gone: nearly every operator has a Lease, and no
    controller deletes it (pure). The holder is the name of a Pod, which begins with the name of its workload."""
    if not is_lease(content):
        return False
    return holder is None or any(
        ref.group == "apps" and content.metadata.namespace == ref.namespace and holder.startswith(f"{ref.name}-")
        for ref in removed
    )
