"""What is in a namespace or of a CRD just now, read from the server: no yes is built on a cache (DESIGN, rule 4)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import Resource
from unwind.concurrency import side_by_side
from unwind.controllers.protecting.counting import ACTIVE_PODS, BOUND_CLAIMS, UNFINISHED
from unwind.controllers.protecting.guarding import FEW, LABELLED, view
from unwind.errors import UnwindError
from unwind.kube import views
from unwind.protecting import kinds
from unwind.protecting.kinds import Kind
from unwind.protecting.rules import Contents

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from unwind.controllers.protecting.counting import Counted
    from unwind.controllers.protecting.subjects import Defined, Found
    from unwind.kube.answers import Page
    from unwind.kube.client import Client
    from unwind.kube.views import Metadata, View

    Read = Callable[[], Awaitable[None]]

_LATE = "the API server did not answer in time"
# One namespace is asked about at many places; others have questions, too.
_AT_ONCE = 8


class _Seen:
    """What was found so far: whatever else fails, it was found."""

    def __init__(self) -> None:
        self.pods = self.claims = self.resources = 0
        self.guarded: list[ObjectRef] = []
        self.failed = ""

    def contents(self) -> Contents:
        # Who finds a reason for a no does not have to know everything.
        enough = self.pods or self.claims or self.resources
        return Contents(
            pods=self.pods,
            claims=self.claims,
            resources=self.resources,
            protected=tuple(self.guarded[:FEW]),
            failed="" if enough else self.failed,
        )


class Looking:
    """Reads it within a time."""

    def __init__(
        self,
        client: Client,
        served: Callable[[], Awaitable[list[View[Found]]]],
        *,
        groups: Collection[str] | None = None,
    ) -> None:
        """`served`: how the labelled objects of each kind are asked for. `groups`: the API groups whose objects may be
        read, besides those of the kinds that can be protected; None for all."""
        self._client = client
        self._served = served
        self._groups = groups

    async def in_namespace(self, name: str, *, counting: bool, within: float) -> Contents:
        """What is in a namespace. `counting`: whether that is what it goes by; what is protected counts always."""
        seen = _Seen()

        async def pods() -> None:
            seen.pods = await self._count(ACTIVE_PODS, name, UNFINISHED)

        async def claims() -> None:
            seen.claims = await self._count(BOUND_CLAIMS, name)

        async def guarded() -> None:
            lists = [partial(self._guarded, one, seen, name) for one in await self._served()]
            await self._each(seen, lists)

        reads = [pods, claims] if counting else []
        await self._all(seen, [*reads, guarded], within)
        return seen.contents()

    async def of_definition(self, defined: Defined, *, counting: bool, within: float) -> Contents:
        """What there is of a CRD."""
        known = kinds.of(defined.group, defined.kind)
        if known is None and self._groups is not None and defined.group not in self._groups:
            return Contents(failed=f"the API group {defined.group} is not among those that may be read")
        if not defined.versions:
            return Contents(failed="none of its versions is served, so nobody can tell what there is of it")
        version = defined.versions[0]
        resource = Resource(defined.group, version, defined.plural, defined.kind, namespaced=defined.namespaced)
        # Whoever labels a resource of any kind means it, though only a deletion of its CRD is refused then.
        kind = known or Kind(
            group=defined.group,
            plural=defined.plural,
            kind=defined.kind,
            versions=(version,),
            namespaced=defined.namespaced,
        )
        seen = _Seen()

        async def count() -> None:
            seen.resources = await self._resources(views.metadata(resource))

        reads = [count] if counting else []
        await self._all(seen, [*reads, partial(self._guarded, view(kind, resource), seen)], within)
        return seen.contents()

    async def _all(self, seen: _Seen, reads: Sequence[Read], within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self._each(seen, reads)
        except TimeoutError:
            seen.failed = seen.failed or _LATE

    async def _each(self, seen: _Seen, reads: Sequence[Read]) -> None:
        """Side by side; one that fails keeps no other from finding something."""

        async def trying(read: Read) -> None:
            try:
                await read()
            except UnwindError as error:
                seen.failed = seen.failed or str(error)

        await side_by_side((trying(read) for read in reads), limit=_AT_ONCE)

    async def _count(self, what: View[Counted], namespace: str, fields: str = "") -> int:
        """How many count, on the first page that has any."""
        pages = self._client.pages(what.resource, namespace=namespace, fields=fields, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                if count := sum(_counts(what, item) for item in page.items or ()):
                    return count
        return 0

    async def _resources(self, what: View[Metadata]) -> int:
        """How many are not being deleted; beyond the first page that has one, as many as there are."""
        pages = self._client.pages(what.resource, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                if count := _staying(what, page):
                    return count + page.metadata.remaining_item_count
        return 0

    async def _guarded(self, what: View[Found], seen: _Seen, namespace: str | None = None) -> None:
        """Find labelled objects that could not be deleted by themselves, until there are enough to name."""
        pages = self._client.pages(what.resource, namespace=namespace, labels=LABELLED, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                for item in page.items or ():
                    if len(seen.guarded) >= FEW:
                        return
                    if ref := _guarded_one(what, item):
                        seen.guarded.append(ref)


def _counts(what: View[Counted], item: msgspec.Raw) -> bool:
    try:
        return what.decode(item).counts
    except msgspec.ValidationError:
        return True  # what cannot be read is there all the same


def _staying(what: View[Metadata], page: Page) -> int:
    count = 0
    for item in page.items or ():
        try:
            count += what.decode(item).deletion_timestamp is None
        except msgspec.ValidationError:
            count += 1  # as above
    return count


def _guarded_one(what: View[Found], item: msgspec.Raw) -> ObjectRef | None:
    try:
        found = what.decode(item)
    except msgspec.ValidationError:
        key, uid, _ = views.stamp_of(item)
        it = what.resource
        return ObjectRef(
            group=it.group, version=it.version, kind=it.kind, namespace=key.namespace, name=key.name, uid=uid
        )
    return found.ref if found.guarded else None
