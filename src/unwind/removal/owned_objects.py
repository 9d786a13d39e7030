"""What removed objects own: it must be absent, too (docs/architecture.md, Verified absence)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleters.outcomes import Again
from unwind.kube.watches import Subscription
from unwind.members import contents

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.members.contents import Content
    from unwind.members.member import Member


# Several things that are waited for together.


class Several(Subscription):
    """Happens when all of its parts have: a thousand objects that go are not looked through again after each."""

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
# How many are waited for at once. What is gone by then is not looked for one by one.
_AT_ONCE = 100
# Only an insurance: what is waited for is told by the watches.
_LOOK_AGAIN = 600.0


async def until_gone(member: Member, uids: Collection[str], namespaces: Collection[str]) -> None:
    """Return if nothing belongs any more to the objects that had these uids; raise Again while something does.

    `namespaces`: where they were. What an object of the whole cluster owned (its namespace is "") may be anywhere.
    The garbage collector takes it, and the API server says nothing of that to whoever waits for the owner.
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
    told = f"{contents.named(left, shown=_SHOWN)} still belong to what was removed"
    several = Several()
    try:
        for content in left[:_AT_ONCE]:
            it = content.metadata
            absence = await member.watches.absence(content.resource, name=it.name, uid=it.uid, namespace=it.namespace)
            several.add(absence)
            if absence.seen is None and not absence.happened:
                # It was gone before the watch was asked, or the watch is behind: only the server knows.
                seen = await member.client.sighting(
                    content.resource, it.name, uid=it.uid, namespace=it.namespace or None, cluster=member.system_uid
                )
                if seen.absent:
                    absence.tell()
    except BaseException:
        several.close()
        raise
    raise Again(told, until=several, after=_LOOK_AGAIN)
