"""Dependents of removed objects: they must be absent, too (docs/architecture.md, Verified absence)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleters.outcomes import Again
from unwind.kube.watches import Subscription
from unwind.members import contents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.members.contents import Content
    from unwind.members.member import Member


# Several subscriptions that are waited for together.


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
# How many objects are waited for at once.
_AT_ONCE = 100
# Only a fallback: watches report the changes that are waited for.
_LOOK_AGAIN = 600.0


async def until_gone(member: Member, uids: Collection[str], namespaces: Collection[str]) -> None:
    """Return if the objects that had these uids have no dependents left; raise Again while they do.

    `namespaces`: their namespaces. Dependents of a cluster-scoped object (namespace "") may be in any namespace. The
    garbage collector deletes dependents, and no event about the owner tells when that is done.
    """
    for namespace in [""] if "" in namespaces else sorted(namespaces):
        if namespace:
            everything = await contents.in_namespace(member.client, member.discovery, namespace)
        else:
            everything = await contents.in_cluster(member.client, member.discovery)
        left = contents.descendants(everything, uids)
        if left:
            await _wait_for(member, left)


async def _wait_for(member: Member, left: list[Content]) -> None:
    message = f"waiting for the garbage collector to delete dependents: {contents.named(left, shown=_SHOWN)}"
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
