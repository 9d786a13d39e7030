"""Removes Unwind's labels and annotations from objects that stay: Leave, or released in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import MARKED_ANNOTATIONS, MARKED_LABELS, OWNER_LABEL
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import TransientError
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.removal.helm_release_removal import last_first
from unwind.removal.step_reader import Served

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.inventory.inventories import Item
    from unwind.members.member import Member
    from unwind.removal.helm_release_removal import Releases

# A busy object may have changed between read and write.
_TRIES = 4
_AT_ONCE = 16


async def unmark_all(member: Member, those: Iterable[Item], *, owner: str, releases: Releases | None = None) -> None:
    """Remove this owner's labels and annotations from objects and releases that stay."""
    some = list(those)
    await gather_limited((unmark(member, item, owner=owner) for item in some), limit=_AT_ONCE)
    if releases:
        for ref in last_first(releases, (item.entry for item in some)):
            await releases.leave(member, ref, owner=owner)


async def unmark(member: Member, item: Item, *, owner: str) -> None:
    """Remove this owner's labels and annotations from an object."""
    ref, resource = item.entry.object, item.resource
    marks: dict[str, Any] = {"labels": dict.fromkeys(MARKED_LABELS), "annotations": dict.fromkeys(MARKED_ANNOTATIONS)}
    tries = _TRIES
    while True:
        try:
            found = await member.client.get(resource, ref.name, namespace=ref.namespace or None)
            whose = (found["metadata"].get("labels") or {}).get(OWNER_LABEL)
            if ref.uid and found["metadata"]["uid"] != ref.uid:
                await _verify_absent(member, resource, ref)
            elif whose == owner or (whose is None and ref.uid):
                await member.client.revise(resource, found, {"metadata": marks})
        except ConflictError:
            tries -= 1
            if not tries:
                raise
            continue
        except NotFoundError:
            await _verify_absent(member, resource, ref)
        except ApiError as error:
            if error.code != 404 or resource is not item.resource:
                raise
            # Not served in the recorded version; perhaps in another one.
            served = await Served(member).resource(item, anew=True)
            if served is not None:
                resource = served
                continue
        return


async def _verify_absent(member: Member, resource: Resource, ref: ObjectRef) -> None:
    """Raise unless an object is absent from its cluster, or its name belongs to another object."""
    seen = await member.client.sighting(
        resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=member.system_uid
    )
    if not seen.absent:
        raise TransientError(f"cannot release {ref}: {seen.why}")
