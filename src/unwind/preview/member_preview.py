"""Reads from a member for a preview: custom resources of CRDs, cloud resources, claims, protection. Only reads."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, STATEFUL_SETS, Resource
from unwind.api.unwind import Entry
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item
from unwind.kube import decoding
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members import contents
from unwind.members.contents import Content
from unwind.preview import cloud_resources, expected_refusals
from unwind.preview.cloud_resources import CloudResources
from unwind.protection.deleter import ProtectedObject, look
from unwind.removal import volume_claims

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget


_CONTAINERS = (NAMESPACES.kind, CUSTOM_RESOURCE_DEFINITIONS.kind)


class MemberPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a member."""

    resources: dict[str, int] = {}
    """The number of custom resources of each CRD, by its name."""
    cloud: CloudResources = CloudResources()
    claims: tuple[Entry, ...] = ()
    """Claims of StatefulSets that are not in an Inventory yet."""
    protected: tuple[ProtectedObject, ...] = ()
    """Objects that may not be deleted."""
    unseen: str = ""
    """Why it could not be read; empty if it was."""

    def claims_of(self, entries: Iterable[Entry]) -> list[Entry]:
        """The claims of the StatefulSets in these entries."""
        sets = {
            (entry.object.namespace, f"{STATEFUL_SETS.kind} {entry.object.name}")
            for entry in entries
            if entry.object.kind == STATEFUL_SETS.kind
        }
        return [claim for claim in self.claims if (claim.object.namespace, claim.source) in sets]


async def look_at(
    fleet: Members,
    target: ClusterTarget,
    entries: Sequence[Entry],
    *,
    emptied: Iterable[Entry] = (),
    along: Iterable[Entry] = (),
) -> MemberPreview:
    """The preview of these entries on a member. An unreachable member is reported and is no error. `emptied`: entries
    of StatefulSets whose claims are deleted. `along`: entries whose foreign content is deleted along with them."""
    if not entries:
        return MemberPreview()
    try:
        async with fleet.member(target) as member:
            seen = await _seen(member, entries, {entry.object.uid for entry in emptied})
            protected = await _protected(member, target.ref, entries, along)
            return msgspec.structs.replace(seen, protected=tuple(protected))
    except UnwindError as error:
        return MemberPreview(unseen=str(error))


async def _seen(member: Member, entries: Sequence[Entry], emptied: Collection[str]) -> MemberPreview:
    refs = [entry.object for entry in entries]
    known = {ref.uid for ref in refs}
    resources = {}
    made: list[Entry] = []
    for ref in refs:
        try:
            if (ref.group, ref.kind) == (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind):
                found = await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, ref.name)
                if resource := contents.defined_by(found):
                    resources[ref.name] = len(await contents.of_kind(member.client, resource))
            elif (ref.group, ref.kind) == (STATEFUL_SETS.group, STATEFUL_SETS.kind):
                found = await member.client.get(STATEFUL_SETS, ref.name, namespace=ref.namespace)
                policy = VolumePolicy.DELETE if ref.uid in emptied else VolumePolicy.RETAIN
                of_set = await volume_claims.of_set(member, found, order=0, policy=policy)
                made += [item for item in of_set if item.object.uid not in known]
        except NotFoundError:
            continue  # already deleted
    cloud = await cloud_resources.look(member, [*refs, *(entry.object for entry in made if not entry.kept)])
    return MemberPreview(resources=resources, cloud=cloud, claims=tuple(made))


async def _protected(
    member: Member, cluster: ObjectRef, entries: Sequence[Entry], along: Iterable[Entry]
) -> list[ProtectedObject]:
    """The objects that may not be deleted."""
    found = await expected_refusals.protected(member, await _labelled(member, entries), cluster=cluster)
    known = {item.object.uid for item in found}
    for entry in along:
        ref = entry.object
        if ref.kind in _CONTAINERS and ref.uid not in known:
            held = await look(member.client, Item("", "", entry).resource, ref, cluster=cluster)
            found += [held] if held else []
    return found


async def _labelled(member: Member, entries: Iterable[Entry]) -> list[Content]:
    """The objects with the protection label: few have it, so they are listed by it."""
    kinds = {
        Resource(it.group, it.version, entry.resource, it.kind, namespaced=bool(it.namespace))
        for entry in entries
        for it in (entry.object,)
    }
    uids = {entry.object.uid for entry in entries}
    found: list[Content] = []
    for resource in sorted(kinds, key=lambda one: (one.group, one.plural, one.version)):
        view = decoding.metadata(resource)
        pages = member.client.pages(resource, labels=DELETE_PROTECTION_LABEL, accept=view.accept_list)
        try:
            async with aclosing(pages):
                async for page in pages:
                    found += [Content(resource, view.decode(item)) for item in page.items or ()]
        except ApiError as error:
            if error.code != 404:
                raise
            continue  # a version that is not served any more: the removal finds the served one
    return [content for content in found if content.metadata.uid in uids]
