"""Informers: keep a cache in sync with the server by list and watch, without gaps or duplicates."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from unwind import logs
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.clock import SYSTEM
from unwind.concurrency import run_all
from unwind.kube import decoding
from unwind.kube.cache import Cache, Change, Store
from unwind.kube.client import SILENCE
from unwind.kube.decoding import Stamp
from unwind.kube.errors import ApiError, ExpiredError, UnreachableError, UnreadableError, error_of
from unwind.kube.resource_versions import is_newer
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Key, Metadata, View
    from unwind.kube.metrics import Metrics


log = logs.get(__name__)

T = TypeVar("T")
R = TypeVar("R")

# The server ends a watch after a while of our choosing, so that not all of them reconnect at once.
_WATCH_SECONDS = (240, 480)
_RETRY = Backoff(first=0.2, limit=30.0)
# A watch that ends sooner counts as a failure: a server may accept every watch and end each of them at once.
_STEADY = 10.0
# After so many failures in a row, the resourceVersion itself may be the reason.
_STUBBORN = 3
# Limit of one watch before the list is read again: an endless stream of new objects would fill the memory.
_MOST_WATCHED = 1 << 30
# While a kind is not served, its CRD is watched; this is how long that is relied upon.
_UNSERVED = 60.0
# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Bookmark(msgspec.Struct):
    metadata: _Version


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode
_bookmark = msgspec.json.Decoder(_Bookmark).decode


class Informer(Generic[T]):
    """Keeps a cache of one resource and calls handlers on changes.

    Handlers are called in the order of the events, immediately, and must not wait: they add keys to a queue.
    """

    def __init__(
        self,
        client: Client,
        view: View[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
        into: Store[T] | None = None,
        silence: float = SILENCE,
        clock: Clock = SYSTEM,
        troubled: Callable[[Exception], None] = lambda _: None,
        confirm: Callable[[], Awaitable[None]] | None = None,
        listed: Callable[[], None] = lambda: None,
        optional: bool = False,
    ) -> None:
        """`troubled` is called on every failure to follow the server; the informer retries by itself.

        `confirm` is called after each list, before any of it is used: it raises if another cluster answers. Watch
        events need no such check, because no other cluster has an object with that uid. `listed` is called when a list
        is complete.

        `labels` and `fields` select objects: an object that is no longer in the cache need not be gone then. `into`
        stores the objects instead of the cache, for callers that keep less of them.

        `optional`: the kind has a CRD that may not be installed. That is no failure: the informer waits for the CRD.
        """
        self.view = view
        self.cache: Cache[T] = Cache(view.stamp, indexes=indexes)
        self.store: Store[T] = self.cache if into is None else into
        self._client = client
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._silence = silence
        self._clock = clock
        self._troubled = troubled
        self._confirm = confirm
        self._listed = listed
        self._optional = optional
        self.awaits_crd = False
        """Whether it waits for the CRD of an optional kind."""
        self.lists = 0
        """The number of lists started."""
        self.broken: dict[Key, str] = {}
        """Objects that cannot be decoded, and why. The cache has their last state that could be: code that decides by
        it must treat them neither as gone nor as unchanged."""
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._version = ""
        self._broke = False
        self._synced = asyncio.Event()
        self._failures = 0
        self._heard = float("-inf")
        self._chance = JITTER

    @property
    def synced(self) -> bool:
        """Whether the cache has been complete at some moment and follows the server since.

        It is False while the kind is not served: the cache is then the last known state, and no basis for a positive
        answer.
        """
        return self._synced.is_set()

    @property
    def age(self) -> float:
        """Seconds since the last sign of life of the server; infinite if there was none."""
        return self._clock.monotonic() - self._heard

    async def until_synced(self) -> None:
        await self._synced.wait()

    def take(self, obj: T) -> None:
        """Store the response of our own write, so that the next one need not wait for the watch."""
        # Only if the watch is not ahead: otherwise it has reported this state, and maybe later ones, such as the
        # object's deletion.
        if is_newer(self.view.stamp(obj).version, than=self._version):
            self._tell(self.store.put(obj))

    def subscribe(self, handler: Callable[[Change[T]], None]) -> None:
        """Call this function on every change from now on, and first for the existing objects."""
        for key in list(self.store.keys()):
            handler(Change(key, None, self.store.get(key)))
        self._handlers.append(handler)

    async def run(self) -> None:
        """Follow the server until cancelled. Every failure is retried, with back-off."""
        while True:
            began = self._clock.monotonic()
            try:
                if self._version and self._broke:
                    await self._compare_version()
                if not self._version:
                    await self._list()
                await self._watch()
            except ExpiredError:
                # The server has compacted the events since then: a new list has their result.
                self._version = ""
            except (ApiError, UnreachableError) as error:
                await self._recover(error, began)
                continue
            if self._clock.monotonic() - began >= _STEADY:
                self._failures = 0
            else:
                await self._back_off(at_once=True)

    async def _list(self) -> None:
        client, view = self._client, self.view
        seen: dict[Key, None] = {}
        unconfirmed: list[T] = []
        version = ""
        self.lists += 1
        pages = client.pages(
            view.resource,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            accept=view.accept_list,
            ahead=True,
        )
        async with aclosing(pages):
            async for page in pages:
                version = page.metadata.resource_version
                if not version:
                    raise UnreadableError(f"cannot list {view.resource.plural}: the list has no resourceVersion")
                for item in page.items or ():
                    obj = self._decode(item)
                    if isinstance(obj, Stamp):
                        seen[obj.key] = None
                        continue
                    seen[view.stamp(obj).key] = None
                    if self._confirm:
                        unconfirmed.append(obj)
                    else:
                        self._tell(self.store.put(obj))
        if self._confirm:
            await self._confirm()
            for obj in unconfirmed:
                self._tell(self.store.put(obj))
        # An object that is missing from a consistent list is absent (docs/architecture.md, Verified absence).
        for key in [key for key in self.store.keys() if key not in seen]:  # noqa: SIM118 - a cache is no dict
            self._tell(self.store.drop(key))
        self.broken = {key: why for key, why in self.broken.items() if key in seen}
        self._version = version
        self._heard = self._clock.monotonic()
        self.awaits_crd = False
        self._synced.set()
        self._listed()

    async def _compare_version(self) -> None:
        """Forget our resourceVersion if the server has not reached it: its etcd was restored from a backup.

        The API server does not answer a watch from the future, not even with bookmarks (seen on 1.36.3). The cache
        would keep the state from before the restore. The API server is restarted for a restore, so this is checked
        when a connection broke.
        """
        pages = self._client.pages(
            self.view.resource,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            limit=1,
            accept=self.view.accept_list,
        )
        async with aclosing(pages):
            page = await anext(pages)
        if is_newer(self._version, than=page.metadata.resource_version):
            self._version = ""
        self._broke = False

    async def _watch(self) -> None:
        view, came = self.view, 0
        batches = self._client.watch_lines(
            view.resource,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            since=self._version,
            bookmarks=True,
            seconds=self._chance.randint(*_WATCH_SECONDS),
            accept=view.accept_watch,
            silence=self._silence,
        )
        async with aclosing(batches):
            async for lines in batches:
                self._heard = self._clock.monotonic()
                for line in lines:
                    self._take(_read(_event, line))
                    came += len(line)
                if came > _MOST_WATCHED:
                    self._version = ""
                    return

    def _take(self, event: _Event) -> None:
        view = self.view
        if event.type == "BOOKMARK":
            self._version = _read(_bookmark, event.object).metadata.resource_version or self._version
            return
        if event.type == "ERROR":
            raise error_of(None, bytes(event.object), request=f"watch {view.resource.plural}")
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise UnreadableError(f"cannot watch {view.resource.plural}: unknown event type {event.type[:40]!r}")
        obj = self._decode(event.object)
        stamp = obj if isinstance(obj, Stamp) else view.stamp(obj)
        if not (stamp.uid and stamp.version and stamp.key.name):
            raise UnreadableError(f"cannot watch {view.resource.plural}: an object has no uid or resourceVersion")
        if event.type == "DELETED":
            self.broken.pop(stamp.key, None)
            self._tell(self.store.drop(stamp.key, uid=stamp.uid))
        elif not isinstance(obj, Stamp) and not self._taken(stamp):
            self._tell(self.store.put(obj))
        self._version = stamp.version

    def _decode(self, body: msgspec.Raw) -> T | Stamp:
        """The object; or only its identity if the rest cannot be decoded. One invalid object must not stop the
        informer."""
        try:
            obj = _read(self.view.decode, body)
        except _InvalidError as error:
            stamp = _read(decoding.stamp_of, body)
            if stamp.key not in self.broken:
                self._troubled(error)
            self.broken[stamp.key] = str(error)
            return stamp
        if self.broken:
            self.broken.pop(self.view.stamp(obj).key, None)
        return obj

    def _taken(self, stamp: Stamp) -> bool:
        """Whether a later state of this object is already stored, because we wrote it."""
        held = self.store.get(stamp.key)
        if held is None:
            return False
        _, uid, version = self.view.stamp(held)
        return uid == stamp.uid and is_newer(version, than=stamp.version)

    def _tell(self, changes: list[Change[T]]) -> None:
        for change in changes:
            for handler in self._handlers:
                handler(change)

    async def _recover(self, error: ApiError | UnreachableError, began: float) -> None:
        unserved = isinstance(error, ApiError) and error.code == _NOT_SERVED
        if unserved and self._optional and self._failures < _STUBBORN:
            if not self.awaits_crd:
                resource = self.view.resource
                log.info("kind not installed, waiting for its CRD", kind=resource.kind, api=resource.api_version)
            self.awaits_crd = True
        else:
            self._troubled(error)
        self._broke = self._broke or isinstance(error, UnreachableError)
        if self._clock.monotonic() - began >= _STEADY:
            self._failures = 0
        if unserved:
            self._synced.clear()
            self._version = ""
            waiting = self._clock.monotonic()
            await self._until_served()
            if self._clock.monotonic() - waiting >= _STEADY:
                self._failures = 0
        elif isinstance(error, UnreadableError) or (
            isinstance(error, ApiError) and (error.code not in (429, 500, 502, 503) or self._failures >= _STUBBORN)
        ):
            # It does not accept our resourceVersion (it may be newer than all that it has), or sends no events: list
            # again. Servers differ in what they return for a version that they cannot read.
            self._version = ""
        await self._back_off()

    async def _back_off(self, *, at_once: bool = False) -> None:
        """Wait before the next try. `at_once`: the first retry in a row does not wait."""
        self._failures += 1
        if self._failures > 1 or not at_once:
            await self._clock.sleep(_RETRY.after(self._failures, self._chance))

    async def _until_served(self) -> None:
        """Wait for the kind's CRD. A kind that may have none (an aggregated API) is retried after a while."""
        resource = self.view.resource
        name = f"{resource.plural}.{resource.group}"
        try:
            async with asyncio.timeout(None if self._optional else _UNSERVED):
                events = self._client.watch(CUSTOM_RESOURCE_DEFINITIONS, name=name, bookmarks=True)
                async with aclosing(events):
                    async for event in events:
                        if event.type != "DELETED" and _serves(event.object, resource.version):
                            return
        except (TimeoutError, ApiError, UnreachableError, LookupError, TypeError, AttributeError):
            return  # the list is retried, whatever the reason was


class _InvalidError(UnreadableError):
    """It is valid JSON of an unexpected type."""


def _read(decode: Callable[[Any], R], body: bytes | msgspec.Raw) -> R:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise _InvalidError(str(error), remedy="") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(body)[:60].decode(errors="replace")
        raise UnreadableError(f"the response of the API server is not JSON ({error}): {shown!r}") from error


def _serves(definition: Object, version: str) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    established = any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
    return established and any(item["name"] == version and item["served"] for item in definition["spec"]["versions"])


# Kinds that are followed together: who is told when one of them is known, and which cannot be followed.


class SharedInformer(Informer[T]):
    """An informer that each of its users runs: one of them follows the server, and the next one takes over if that one
    ends."""

    def __init__(self, client: Client, view: View[T], *, clock: Clock = SYSTEM) -> None:
        super().__init__(client, view, clock=clock, troubled=self._report, listed=self._report_listed)
        self._troubled_users: list[Callable[[Exception], None]] = []
        self._listed_users: list[Callable[[], None]] = []
        self._turn = asyncio.Lock()

    def add_user(self, troubled: Callable[[Exception], None], listed: Callable[[], None]) -> None:
        """Call these functions as well, on failures and when a list is complete."""
        self._troubled_users.append(troubled)
        self._listed_users.append(listed)

    async def run(self) -> None:
        async with self._turn:
            await super().run()

    def _report(self, error: Exception) -> None:
        for troubled in self._troubled_users:
            troubled(error)

    def _report_listed(self) -> None:
        for listed in self._listed_users:
            listed()


class InformerFactory:
    """Informers of the metadata of a cluster's objects, one for each resource: all users of a resource share one list
    and one watch."""

    def __init__(self, client: Client, *, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[Resource, SharedInformer[Metadata]] = {}

    def metadata(
        self, resource: Resource, *, troubled: Callable[[Exception], None], listed: Callable[[], None] = lambda: None
    ) -> Informer[Metadata]:
        """The informer of a resource, without selectors. The caller runs it, as every other user does."""
        informer = self._informers.get(resource)
        if informer is None:
            informer = SharedInformer(self._client, decoding.metadata(resource), clock=self._clock)
            self._informers[resource] = informer
        informer.add_user(troubled, listed)
        return informer


class InformerSet:
    """What several informers have in common."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []
        self._troubles: dict[str, str] = {}
        """Kinds, by their plural, that cannot be followed, and why."""

    @property
    def ready(self) -> bool:
        """Whether the caches are synced. A kind that is not served, or is forbidden, does not delay the others."""
        return all(
            informer.synced or informer.awaits_crd or informer.view.resource.plural in self._troubles
            for informer in self._informers()
        )

    def observe(self, metrics: Metrics) -> None:
        """Report the informers in these metrics."""
        for informer in self._informers():
            metrics.informer(informer)

    async def run(self) -> None:
        """Watch until cancelled."""
        await run_all(*self._informers())

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Call `listed` when a cache has been synced."""
        self._told.append(listed)

    @property
    def settled(self) -> bool:
        """Whether all caches are synced. No object may be considered absent before that."""
        return all(informer.synced for informer in self._informers())

    def _informers(self) -> list[Informer[Any]]:
        """The informers of the set."""
        raise NotImplementedError

    def _informer(
        self,
        client: Client,
        view: View[T],
        clock: Clock,
        *,
        namespace: str | None = None,
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
        optional: bool = False,
    ) -> Informer[T]:
        """An informer of the set."""
        return Informer(
            client,
            view,
            namespace=namespace,
            indexes=indexes,
            clock=clock,
            troubled=self._troubled(view.resource),
            listed=self._listed,
            optional=optional,
        )

    def _listed(self) -> None:
        for told in self._told:
            told()

    def _troubled(self, resource: Resource) -> Callable[[Exception], None]:
        def troubled(error: Exception) -> None:
            if self._troubles.get(resource.plural) != str(error):
                log.warning("watch failed, will retry", kind=resource.kind, api=resource.api_version, why=str(error))
            self._troubles[resource.plural] = str(error)

        return troubled
