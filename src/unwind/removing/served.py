"""How a member serves the objects of an inventory now: whatever it did when they were written down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.api.resources import API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS
from unwind.kube.errors import NotFoundError
from unwind.removing.order import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.api.resources import Resource
    from unwind.fleet.member import Member
    from unwind.kube.discovery import Kind
    from unwind.removing.items import Item


class Served:
    """What a member serves, by kind: among ten thousand objects nobody goes through a list for each."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kinds: Sequence[Kind] = ()
        """As the member's discovery has them: shared by all removals, which have few kinds each."""
        self._versions: dict[tuple[str, str], dict[str, Resource]] = {}
        """Of the kinds that were asked for."""
        self._gone: set[tuple[str, str]] = set()
        self._asking = asyncio.Lock()

    async def resource(self, item: Item, *, anew: bool = False) -> Resource | None:
        """The resource in the version that is recorded, or in the one that is served instead; None if its CRD is gone,
        and with it all that there was of it. `anew`: there is reason to doubt what was known before."""
        it = item.entry.object
        kind = (it.group, it.kind)
        if not anew and (found := self._find(kind, it.version)):
            return found
        async with self._asking:  # many may want to know the same: one asks
            # What was recorded before the kind went cannot have come back with it.
            if kind in self._gone:
                return None
            for again in (True,) if anew else (False, True):
                self._take(await self._member.discovery.kinds(anew=again))
                if found := self._find(kind, it.version):
                    return found
            if await self._is_gone(item.resource):
                self._gone.add(kind)
                return None
        # What there is of it is not known, and so it is not gone.
        return item.resource

    def _find(self, kind: tuple[str, str], version: str) -> Resource | None:
        if kind not in self._versions:
            found = self._versions[kind] = {}
            for one in self._kinds:  # in the server's order of preference
                it = one.resource
                if (it.group, it.kind) == kind:
                    found.setdefault(it.version, it)
        versions = self._versions[kind]
        return (versions.get(version) or next(iter(versions.values()))) if versions else None

    def _take(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._versions = {}

    async def _is_gone(self, recorded: Resource) -> bool:
        """Whether a kind that is not served does not exist any more, and is not merely out of sight for now."""
        if recorded.group in BUILT_IN:
            return False  # the API server's own: where it is switched off, its objects are still in the storage
        client = self._member.client
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{recorded.plural}.{recorded.group}")
        except NotFoundError:
            pass
        else:
            return False
        # Another server may have it, and be away.
        services = [one["spec"] for one in await client.list(API_SERVICES)]
        if any(spec.get("group") == recorded.group and spec.get("service") for spec in services):
            return False
        await self._member.verify()  # an absence counts only from the cluster that it is told of
        return True
