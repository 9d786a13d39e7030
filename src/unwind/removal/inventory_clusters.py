"""The cluster of an Inventory: the member, or the management cluster for Local objects."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.resources import NAMESPACES
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from unwind.api.unwind import Inventory
    from unwind.members.member import Member
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget


def by_place(chunks: Iterable[Inventory]) -> list[list[Inventory]]:
    """The Inventories, grouped by cluster."""
    places: dict[str, list[Inventory]] = {}
    for chunk in chunks:
        places.setdefault(chunk.spec.member.system_uid, []).append(chunk)
    return list(places.values())


@asynccontextmanager
async def member_of(fleet: Members, chunk: Inventory, target: ClusterTarget | None) -> AsyncIterator[Member]:
    """A connection to the cluster of an Inventory. Raises if it is unreachable, or is another cluster than recorded."""
    where = chunk.spec.member
    if where.object.kind == NAMESPACES.kind:
        async with fleet.management() as member:
            if member.system_uid != where.system_uid:
                raise UnwindError(
                    "cannot remove objects with deploymentType Local: they are on another management cluster"
                    f" ({where.system_uid})",
                    remedy=f"remove them there, then delete Inventory {chunk.metadata.name}",
                )
            yield member
    elif target is None or target.ref.uid != where.object.uid:
        raise UnwindError(
            f"cannot reach {where.object}: it was deleted",
            remedy=f"delete Inventory {chunk.metadata.name} if the cluster is gone",
        )
    else:
        async with fleet.member(target, system_uid=where.system_uid) as member:
            yield member
