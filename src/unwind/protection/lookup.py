"""The contents of a namespace or a CRD, read from the API server and not from a cache (docs/architecture.md,
Fresh reads open gates).

What cannot be listed is not taken for absent: it is told with the reason, and refuses the deletion.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.meta import ObjectRef
from unwind.api.resources import Resource
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError
from unwind.members import contents
from unwind.protection import kinds
from unwind.protection.namespace_cache import ACTIVE_PODS, BOUND_CLAIMS, FEW, LABELLED, UNFINISHED, view
from unwind.protection.rules import Contents

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata, View
    from unwind.kube.responses import Page
    from unwind.protection.namespace_cache import Counted
    from unwind.protection.subjects import Defined, LabelledObject

    Read = Callable[[], Awaitable[None]]

log = logs.get(__name__)

_LATE = "the API server did not answer in time; try again"
_LATE_OF_CRD = f"{_LATE}, or see whether its conversion webhook answers"
_UNSERVED = "none of its versions is served, so its resources cannot be listed; set served: true on one of its versions"
# One namespace is asked about at many places; others have questions, too.
_AT_ONCE = 16


class _Seen:
    """What was found so far: whatever else fails, it was found."""

    def __init__(self) -> None:
        self.pods = self.claims = self.resources = 0
        self.guarded: list[ObjectRef] = []
        self.failed = ""
        self.skipped = ""

    def fail(self, why: str) -> None:
        """Something could not be looked at; the first reason is told."""
        self.failed = self.failed or why

    def contents(self) -> Contents:
        # Who finds a reason for a no does not have to know everything.
        enough = self.pods or self.claims or self.resources
        return Contents(
            pods=self.pods,
            claims=self.claims,
            resources=self.resources,
            protected=tuple(self.guarded[:FEW]),
            failed="" if enough else self.failed,
            skipped=self.skipped,
        )


class ProtectionLookup:
    """Reads it within a time."""

    def __init__(self, client: Client, *, groups: Collection[str] | None = None) -> None:
        """`groups`: the API groups whose objects may be read, besides those of the kinds that can be counted; None for
        all."""
        self._client = client
        self._discovery = Discovery(client)
        self._groups = groups

    async def in_namespace(self, name: str, *, counting: bool, within: float) -> Contents:
        """What is in a namespace. `counting`: whether that is what it goes by; what is protected counts always."""
        seen = _Seen()

        async def pods() -> None:
            seen.pods = await self._count(ACTIVE_PODS, name, UNFINISHED)

        async def claims() -> None:
            seen.claims = await self._count(BOUND_CLAIMS, name)

        reads = [pods, claims] if counting else []
        await self._all(seen, [*reads, partial(self._guarded_in, name, seen)], within)
        return seen.contents()

    async def of_definition(self, defined: Defined, *, counting: bool, within: float) -> Contents:
        """What there is of a CRD."""
        if not defined.versions:
            return Contents(failed=_UNSERVED)
        resource = Resource(
            defined.group, defined.versions[0], defined.plural, defined.kind, namespaced=defined.namespaced
        )
        if not self._may_read(resource):
            said = f"the API group {defined.group} is not among those that may be read"
            return Contents(failed=f"{said}; add it to --authorized-groups of `unwind install` and `unwind run`")
        seen = _Seen()

        async def count() -> None:
            seen.resources = await self._resources(decoding.metadata(resource))

        reads = [count] if counting else []
        await self._all(seen, [*reads, partial(self._guarded, _labelled(resource), seen)], within, late=_LATE_OF_CRD)
        return seen.contents()

    async def _guarded_in(self, namespace: str, seen: _Seen) -> None:
        """Look for labelled objects of every namespaced kind that is served."""
        served = contents.listable(await self._discovery.kinds(anew=True), namespaced=True)
        if silent := await self._discovery.silent():
            seen.fail(f"{', '.join(silent)} does not answer; repair its server, or delete its APIService")
        skipped = sorted({item.group for item in served if not self._may_read(item)})
        if skipped:
            what = f"objects of the API groups {', '.join(skipped)} were not looked at (--authorized-groups)"
            seen.skipped = f"{what}: a protected one among them stays, and the namespace stays terminating"
        unserved: list[tuple[Resource, ApiError]] = []

        async def look(resource: Resource) -> None:
            try:
                await self._guarded(_labelled(resource), seen, namespace)
            except ApiError as error:
                if error.code != 404:
                    raise
                unserved.append((resource, error))

        await self._each(seen, [partial(look, item) for item in served if _can_hold(item) and self._may_read(item)])
        if unserved:
            # A CRD may have been deleted meanwhile, with all its resources.
            still = contents.listable(await self._discovery.kinds(anew=True), namespaced=True)
            there = {(item.group, item.plural) for item in still}
            for resource, error in unserved:
                if (resource.group, resource.plural) in there:
                    seen.fail(_told(error))

    def _may_read(self, resource: Resource) -> bool:
        known = kinds.of(resource.group, resource.kind)
        return self._groups is None or resource.group in self._groups or bool(known and not known.exempt)

    async def _all(self, seen: _Seen, reads: Sequence[Read], within: float, *, late: str = _LATE) -> None:
        try:
            async with asyncio.timeout(within):
                await self._each(seen, reads)
        except TimeoutError:
            seen.fail(late)

    async def _each(self, seen: _Seen, reads: Sequence[Read]) -> None:
        """Side by side; one that fails keeps no other from finding something."""

        async def trying(read: Read) -> None:
            try:
                await read()
            except UnwindError as error:
                seen.fail(_told(error))
            except Exception as error:
                # If it got out, the API server would let the DELETE pass.
                log.warning("look failed", why=repr(error), exc_info=True)
                seen.fail(f"{type(error).__name__}: {error}; the manager's log says more")

        await gather_limited((trying(read) for read in reads), limit=_AT_ONCE)

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

    async def _guarded(self, what: View[LabelledObject], seen: _Seen, namespace: str | None = None) -> None:
        """Find labelled objects that could not be deleted by themselves, until there are enough to name."""
        pages = self._client.pages(what.resource, namespace=namespace, labels=LABELLED, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                for item in page.items or ():
                    if len(seen.guarded) >= FEW:
                        return
                    if ref := _guarded_one(what, item):
                        seen.guarded.append(ref)


def _labelled(resource: Resource) -> View[LabelledObject]:
    """How labelled objects of a resource are read."""
    kind = kinds.of_any(
        resource.group,
        resource.kind,
        plural=resource.plural,
        version=resource.version,
        namespaced=resource.namespaced,
    )
    return view(kind, resource)


def _can_hold(resource: Resource) -> bool:
    known = kinds.of(resource.group, resource.kind)
    return known is None or not known.exempt


def _told(error: UnwindError) -> str:
    """Why a list failed, and what to do about it."""
    if isinstance(error, ApiError):
        match error.code:
            case 401 | 403:
                return f"{error}; give the manager the right to list it, as `unwind install` does"
            case 404:
                return f"{error}; it is not served: try again, or see to it that its version is served"
            case 503:
                return f"{error}; try again, or repair the server of this API"
    return f"{error}; try again"


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


def _guarded_one(what: View[LabelledObject], item: msgspec.Raw) -> ObjectRef | None:
    try:
        found = what.decode(item)
    except msgspec.ValidationError:
        key, uid, _ = decoding.stamp_of(item)
        it = what.resource
        return ObjectRef(
            group=it.group, version=it.version, kind=it.kind, namespace=key.namespace, name=key.name, uid=uid
        )
    return found.ref if found.guarded else None
