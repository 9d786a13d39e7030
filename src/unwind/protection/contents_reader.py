"""Reads the contents of a namespace or a CRD from the API server, not from a cache (docs/architecture.md, Fresh reads
open gates).

A failed list is not absence: the failure is reported with its reason, and refuses the deletion.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.meta import ObjectRef, named_ref
from unwind.api.resources import Resource
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError
from unwind.members import contents
from unwind.protection import protected_kinds
from unwind.protection.namespace_cache import ACTIVE_PODS, BOUND_CLAIMS, FEW, LABELLED, UNFINISHED, labelled_view
from unwind.protection.rules import Contents

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata, Page, View
    from unwind.protection.namespace_cache import Counted
    from unwind.protection.object_fields import Defined, LabelledObject

    Read = Callable[[], Awaitable[None]]

log = logs.get(__name__)

_LATE = "the API server timed out; retry"
_LATE_OF_CRD = f"{_LATE}, or check the conversion webhook of the CRD"
_UNSERVED = (
    "no version of the CRD is served, so its resources cannot be listed; set served: true on one of its versions"
)
# Limit of concurrent lists per lookup, to leave room for others.
_AT_ONCE = 16


class _Seen:
    """What was found so far, even if other reads fail."""

    def __init__(self) -> None:
        self.pods = self.claims = self.resources = 0
        self.guarded: list[ObjectRef] = []
        self.failed = ""
        self.skipped = ""

    def fail(self, why: str) -> None:
        """Record that a read failed; the first reason is reported."""
        self.failed = self.failed or why

    def contents(self) -> Contents:
        # One reason for a denial is enough: stop early.
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
    """Reads contents within a timeout."""

    def __init__(self, client: Client, *, groups: Collection[str] | None = None) -> None:
        """`groups`: the API groups whose objects may be read, in addition to those of countable kinds; None for all."""
        self._client = client
        self._discovery = Discovery(client)
        self._groups = groups

    async def in_namespace(self, name: str, *, counting: bool, within: float) -> Contents:
        """The contents of a namespace. `counting`: whether Pods and claims count; protected objects always do."""
        seen = _Seen()

        async def pods() -> None:
            seen.pods = await self._count(ACTIVE_PODS, name, UNFINISHED)

        async def claims() -> None:
            seen.claims = await self._count(BOUND_CLAIMS, name)

        reads = [pods, claims] if counting else []
        await self._all(seen, [*reads, partial(self._guarded_in, name, seen)], within)
        return seen.contents()

    async def of_definition(self, defined: Defined, *, counting: bool, within: float) -> Contents:
        """The custom resources of a CRD."""
        if not defined.versions:
            return Contents(failed=_UNSERVED)
        resource = Resource(
            defined.group, defined.versions[0], defined.plural, defined.kind, namespaced=defined.namespaced
        )
        if not self._may_read(resource):
            said = f"the manager may not read the API group {defined.group}"
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
            seen.fail(f"{', '.join(silent)} does not respond; repair its server or delete its APIService")
        skipped = sorted({item.group for item in served if not self._may_read(item)})
        if skipped:
            seen.skipped = (
                f"objects of the API groups {', '.join(skipped)} were not checked: if one of them is protected, it"
                " stays, and the namespace stays Terminating; to have them checked, add the groups to"
                " --authorized-groups of `unwind install` and `unwind run`"
            )
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
            # The CRD may have been deleted meanwhile, with all its resources.
            still = contents.listable(await self._discovery.kinds(anew=True), namespaced=True)
            there = {(item.group, item.plural) for item in still}
            for resource, error in unserved:
                if (resource.group, resource.plural) in there:
                    seen.fail(_told(error))

    def _may_read(self, resource: Resource) -> bool:
        known = protected_kinds.kind_of(resource.group, resource.kind)
        return self._groups is None or resource.group in self._groups or bool(known and not known.exempt)

    async def _all(self, seen: _Seen, reads: Sequence[Read], within: float, *, late: str = _LATE) -> None:
        try:
            async with asyncio.timeout(within):
                await self._each(seen, reads)
        except TimeoutError:
            seen.fail(late)

    async def _each(self, seen: _Seen, reads: Sequence[Read]) -> None:
        """Run the reads concurrently; a failure does not stop the others."""

        async def trying(read: Read) -> None:
            try:
                await read()
            except UnwindError as error:
                seen.fail(_told(error))
            except Exception as error:
                # If it propagated, the API server would allow the DELETE.
                log.warning("lookup failed", why=repr(error), exc_info=True)
                seen.fail(f"{type(error).__name__}: {error}; see the log of the manager")

        await gather_limited((trying(read) for read in reads), limit=_AT_ONCE)

    async def _count(self, what: View[Counted], namespace: str, fields: str = "") -> int:
        """The count of the first page that has any."""
        pages = self._client.pages(what.resource, namespace=namespace, fields=fields, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                if count := sum(_counts(what, item) for item in page.items or ()):
                    return count
        return 0

    async def _resources(self, what: View[Metadata]) -> int:
        """The number that is not being deleted; after the first page with one, the server's estimate."""
        pages = self._client.pages(what.resource, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                if count := _staying(what, page):
                    return count + page.metadata.remaining_item_count
        return 0

    async def _guarded(self, what: View[LabelledObject], seen: _Seen, namespace: str | None = None) -> None:
        """Find labelled objects that could not be deleted, until there are enough to name."""
        pages = self._client.pages(what.resource, namespace=namespace, labels=LABELLED, accept=what.accept_list)
        async with aclosing(pages):
            async for page in pages:
                for item in page.items or ():
                    if len(seen.guarded) >= FEW:
                        return
                    if ref := _guarded_one(what, item):
                        seen.guarded.append(ref)


def _labelled(resource: Resource) -> View[LabelledObject]:
    """The view that decodes labelled objects of a resource."""
    kind = protected_kinds.of_any(
        resource.group,
        resource.kind,
        plural=resource.plural,
        version=resource.version,
        namespaced=resource.namespaced,
    )
    return labelled_view(kind, resource)


def _can_hold(resource: Resource) -> bool:
    known = protected_kinds.kind_of(resource.group, resource.kind)
    return known is None or not known.exempt


def _told(error: UnwindError) -> str:
    """Why a list failed, and what to do about it."""
    if isinstance(error, ApiError):
        match error.code:
            case 401 | 403:
                return f"{error}; grant the manager permission to list it: run `unwind install`"
            case 404:
                return f"{error}; its kind is not served: retry, or set served: true for a version of its CRD"
            case 503:
                return f"{error}; retry, or repair the server of this API"
    return f"{error}; retry"


def _counts(what: View[Counted], item: msgspec.Raw) -> bool:
    try:
        return what.decode(item).counts
    except msgspec.ValidationError:
        return True  # unreadable is not absent


def _staying(what: View[Metadata], page: Page) -> int:
    count = 0
    for item in page.items or ():
        try:
            count += what.decode(item).deletion_timestamp is None
        except msgspec.ValidationError:
            count += 1  # unreadable is not absent
    return count


def _guarded_one(what: View[LabelledObject], item: msgspec.Raw) -> ObjectRef | None:
    try:
        found = what.decode(item)
    except msgspec.ValidationError:
        key, uid, _ = decoding.stamp_of(item)
        return named_ref(what.resource, key.name, namespace=key.namespace, uid=uid)
    return found.ref if found.guarded else None
