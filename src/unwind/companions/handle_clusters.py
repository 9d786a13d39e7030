"""The clusters of the handles of a requested deletion: what each is on, and what it deployed on.

They are found from the records, because a handle may be gone while its objects are not.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.resources import NAMESPACES
from unwind.companions.handle_remover import HandlePlaces
from unwind.kube.errors import AnotherClusterError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Inventory, MemberRef, Teardown
    from unwind.companions.handle_scopes import HandleReader
    from unwind.kube.client import Object
    from unwind.members.member import Member
    from unwind.teardown.step_removers import RemovalDeps


class HandleClusters:
    """Connects to the clusters of the handles in the plan of one request."""

    def __init__(self, deps: RemovalDeps, teardown: Teardown, reader: HandleReader) -> None:
        self._deps = deps
        self._teardown = teardown
        self._reader = reader

    @asynccontextmanager
    async def connect(self, handle: ObjectRef, chunks: Sequence[Inventory]) -> AsyncIterator[HandlePlaces]:
        """The clusters of a handle. `chunks`: its Inventories."""
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(self._deps.members.management())
            place = home
            if handle.uid != self._teardown.spec.target.uid and (above := await self.record_of(handle)):
                place = await self._open(stack, home, home, None, above)
            found = await self.read(place, handle)
            recorded = chunks[0].spec.member if chunks else None
            yield HandlePlaces(await self._open(stack, home, place, found, recorded), place)

    async def record_of(self, handle: ObjectRef) -> MemberRef | None:
        """The cluster that a nested handle is on, from the record of what deployed it."""
        for chunk in await self.chunks():
            if any(entry.object.uid == handle.uid for entry in chunk.spec.entries.values()):
                return chunk.spec.member
        return None

    async def read(self, place: Member, handle: ObjectRef) -> Object | None:
        """The handle, read from the cluster that it is on; None if it is gone."""
        resource = self._reader.companion.resource(handle)
        try:
            found = await place.client.get(resource, handle.name, namespace=handle.namespace)
        except NotFoundError:
            return None
        return found if found["metadata"]["uid"] == handle.uid else None

    async def chunks(self) -> list[Inventory]:
        """The Inventories of all handles in the plan."""
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        return await self._deps.inventories.owned(step.object.uid for step in steps)

    async def _open(
        self, stack: AsyncExitStack, home: Member, place: Member, handle: Object | None, where: MemberRef | None
    ) -> Member:
        """The cluster that `where` records; without a record, the one that the handle deploys on."""
        if where and where.object.kind == NAMESPACES.kind:
            if where.system_uid != home.system_uid:
                raise AnotherClusterError("the management cluster", found=home.system_uid, expected=where.system_uid)
            return home
        if where and where.system_uid == place.system_uid:
            return place
        target = await self._reader.target(handle, where.object if where else None, place)
        if target is None:
            return place
        system_uid = where.system_uid if where else ""
        return await stack.enter_async_context(self._deps.members.member(target, system_uid=system_uid))
