"""Where what a summary put somewhere is: on its member, or for what is Local on the management cluster."""

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
    """The chunks of each cluster together."""
    places: dict[str, list[Inventory]] = {}
    for chunk in chunks:
        places.setdefault(chunk.spec.member.system_uid, []).append(chunk)
    return list(places.values())


@asynccontextmanager
async def member_of(fleet: Members, chunk: Inventory, target: ClusterTarget | None) -> AsyncIterator[Member]:
    """The cluster that a chunk is about. Raises if it cannot be reached, or is not the one that it was."""
    where = chunk.spec.member
    if where.object.kind == NAMESPACES.kind:
        async with fleet.management() as member:
            if member.system_uid != where.system_uid:
                raise UnwindError(f"what is Local was put on another management cluster ({where.system_uid})")
            yield member
    elif target is None or target.ref.uid != where.object.uid:
        raise UnwindError(f"{where.object} is not there any more", remedy="delete the inventory if it is gone")
    else:
        async with fleet.member(target, system_uid=where.system_uid) as member:
            yield member
