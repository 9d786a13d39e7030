"""Caches of the Pods, PersistentVolumeClaims and protected objects in each namespace."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, PERSISTENT_VOLUME_CLAIMS, PODS, Resource
from unwind.clock import SYSTEM
from unwind.kube import decoding
from unwind.kube.client import SILENCE
from unwind.kube.decoding import Key, Stamp, View
from unwind.kube.informers import Informer, InformerFactory
from unwind.kube.served_versions import ServedVersions
from unwind.protection import object_fields
from unwind.protection.protected_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.metrics import Metrics
    from unwind.protection.object_fields import LabelledObject
    from unwind.protection.protected_kinds import ProtectedKind


UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""A field selector for Pods that are not finished. So the server sends only metadata, and reports a Pod that finishes
as DELETED."""

log = logs.get(__name__)


class Counted(msgspec.Struct, frozen=True, gc=False):
    """A Pod or PersistentVolumeClaim, and whether it counts."""

    namespace: str
    name: str
    uid: str
    version: str
    counts: bool


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_pod = msgspec.json.Decoder(_Pod).decode
_claim = msgspec.json.Decoder(_Claim).decode


def _decode_pod(body: msgspec.Raw) -> Counted:
    return _counted(_pod(body).metadata, counts=True)


def _decode_claim(body: msgspec.Raw) -> Counted:
    claim = _claim(body)
    return _counted(claim.metadata, counts=claim.status.phase == "Bound")


def _counted(meta: _Metadata, *, counts: bool) -> Counted:
    going = meta.deletion_timestamp is not None
    return Counted(sys.intern(meta.namespace), meta.name, meta.uid, meta.resource_version, counts and not going)


def _stamp(one: Counted) -> Stamp:
    return Stamp(Key(one.namespace, one.name), one.uid, one.version)


_METADATA = decoding.metadata(PODS)
ACTIVE_PODS: View[Counted] = View(PODS, _decode_pod, _stamp, _METADATA.accept_list, _METADATA.accept_watch)
"""Listed with the field selector above."""
BOUND_CLAIMS: View[Counted] = View(PERSISTENT_VOLUME_CLAIMS, _decode_claim, _stamp)


class Tally:
    """The names of the objects that count, by namespace; nothing else is kept.

    A watch is ordered, so that a name stands for one object at a time, and the uid is not needed. With 50,000 Pods this
    takes about 120 bytes each.
    """

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return sum(len(names) for names in self._names.values())

    def count(self, namespace: str) -> int:
        """The number that counts in a namespace, in constant time."""
        return len(self._names.get(namespace, ()))

    def get(self, key: Key) -> Counted | None:
        """None: the objects are not kept."""
        return None

    def keys(self) -> Iterator[Key]:
        return (Key(namespace, name) for namespace, names in self._names.items() for name in names)

    def put(self, obj: Counted) -> list[Change[Counted]]:
        """Add or remove the object."""
        if not obj.counts:
            return self.drop(Key(obj.namespace, obj.name))
        self._names.setdefault(obj.namespace, set()).add(obj.name)
        return []

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[Counted]]:
        """Remove the object."""
        if names := self._names.get(key.namespace):
            names.discard(key.name)
            if not names:
                del self._names[key.namespace]
        return []


class PodAndClaimCounts:
    """Active Pods and bound claims of the whole cluster."""

    def __init__(
        self, client: Client, *, clock: Clock, troubled: Callable[[Resource], Callable[[Exception], None]]
    ) -> None:
        self._pods, self._claims = Tally(), Tally()
        self._of_pods: Informer[Counted] = Informer(
            client, ACTIVE_PODS, fields=UNFINISHED, into=self._pods, clock=clock, troubled=troubled(PODS)
        )
        self._of_claims: Informer[Counted] = Informer(
            client, BOUND_CLAIMS, into=self._claims, clock=clock, troubled=troubled(PERSISTENT_VOLUME_CLAIMS)
        )

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self._of_pods, self._of_claims)

    def pods(self, namespace: str) -> int:
        """The cached number of active Pods; 0 also if unknown."""
        return self._pods.count(namespace) if is_current(self._of_pods) else 0

    def claims(self, namespace: str) -> int:
        """The cached number of bound claims; 0 also if unknown."""
        return self._claims.count(namespace) if is_current(self._of_claims) else 0


def is_current(informer: Informer[Any]) -> bool:
    """Whether a cache is good enough for a denial: it is synced, and its watch is alive.

    A denial from a broken watch could block a deletion that nothing depends on any more.
    """
    return informer.synced and informer.age < SILENCE


# Protected objects in namespaces, of the countable kinds: for a denial without a read

FEW = 5
"""How many protected objects a denial names."""
LABELLED = DELETE_PROTECTION_LABEL
"""A selector for the label with any value."""

# Built-in API groups, which are always served.
_BUILT_IN = frozenset({"", "apps", "batch", "networking.k8s.io"})


def resources(kind: ProtectedKind) -> list[Resource]:
    """The resources of a kind in its versions, the newest first."""
    return [kind.served(version) for version in reversed(kind.versions)]


def labelled_view(kind: ProtectedKind, resource: Resource) -> View[LabelledObject]:
    """The view that decodes labelled objects of a kind. Metadata only where the content does not matter, such as for
    Secrets."""

    def decode(body: msgspec.Raw) -> LabelledObject:
        try:
            return object_fields.read_subject(body, kind, version=resource.version)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error

    def stamp(found: LabelledObject) -> Stamp:
        return Stamp(Key(sys.intern(found.ref.namespace), found.ref.name), found.ref.uid, found.version)

    if kind.count:
        return View(resource, decode, stamp)
    partial = decoding.metadata(resource)
    return View(resource, decode, stamp, partial.accept_list, partial.accept_watch)


class ProtectedObjects:
    """The labelled objects of every namespaced kind with its own policy."""

    def __init__(
        self,
        client: Client,
        *,
        informers: InformerFactory,
        clock: Clock,
        troubled: Callable[[Resource], Callable[[Exception], None]],
    ) -> None:
        self._client = client
        self._clock = clock
        self._troubled = troubled
        self._informers: dict[ProtectedKind, Informer[LabelledObject]] = {}
        self._crds = informers.metadata(CUSTOM_RESOURCE_DEFINITIONS, troubled=troubled(CUSTOM_RESOURCE_DEFINITIONS))
        self._versions: list[ServedVersions] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._following: dict[ProtectedKind, asyncio.Task[None]] = {}
        for kind in KINDS:
            if not kind.namespaced:
                continue
            if kind.group in _BUILT_IN:
                self._follow(kind, resources(kind)[0])
            else:
                self._versions.append(self._versions_of(kind))

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self._crds, *self._informers.values())

    def inside(self, namespace: str) -> tuple[ObjectRef, ...]:
        """Some of the objects there that could not be deleted, from the cache."""
        found: list[ObjectRef] = []
        for informer in self._informers.values():
            if informer.cache.count("guarded", namespace) and is_current(informer):
                found += [item.ref for item in informer.cache.by("guarded", namespace, limit=FEW - len(found))]
                if len(found) == FEW:
                    break
        return tuple(found)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._crds.run())
            for kind, informer in self._informers.items():
                self._following[kind] = tasks.create_task(informer.run())
            for versions in self._versions:
                tasks.create_task(versions.run())

    def _follow(self, kind: ProtectedKind, resource: Resource) -> Informer[LabelledObject]:
        informer = self._informers[kind] = Informer(
            self._client,
            labelled_view(kind, resource),
            labels=LABELLED,
            indexes={"guarded": _guarded},
            clock=self._clock,
            troubled=self._troubled(resource),
        )
        return informer

    def _versions_of(self, kind: ProtectedKind) -> ServedVersions:
        known = resources(kind)
        return ServedVersions(
            self._client,
            known,
            clock=self._clock,
            troubled=self._troubled(known[0]),
            found=lambda served: self._found(kind, served),
            crds=self._crds,
        )

    def _found(self, kind: ProtectedKind, served: Resource | None) -> None:
        held = self._informers.get(kind)
        if (held.view.resource if held else None) != served:
            if following := self._following.pop(kind, None):
                following.cancel()
            # The objects of a kind that is no longer served are gone with it.
            self._informers.pop(kind, None)
            if served:
                informer = self._follow(kind, served)
                assert self._tasks  # noqa: S101 - told by one of its tasks
                self._following[kind] = self._tasks.create_task(informer.run())


def _guarded(found: LabelledObject) -> Iterator[str]:
    if found.guarded:
        yield found.ref.namespace


class ProtectionCaches:
    """The caches of the webhook, as one component."""

    name = "protection's caches"

    def __init__(self, client: Client, *, informers: InformerFactory | None = None, clock: Clock = SYSTEM) -> None:
        """`informers`: those that the process shares."""
        informers = informers or InformerFactory(client, clock=clock)
        self._troubles: dict[Resource, str] = {}
        self.counts = PodAndClaimCounts(client, clock=clock, troubled=self._troubled)
        self.guards = ProtectedObjects(client, informers=informers, clock=clock, troubled=self._troubled)

    @property
    def ready(self) -> bool:
        """Whether the caches are synced. A kind that is forbidden does not delay the others."""
        return all(informer.synced or informer.view.resource in self._troubles for informer in self._informers())

    def observe(self, metrics: Metrics) -> None:
        """Report the informers in these metrics."""
        for informer in self.counts.informers:
            metrics.informer(informer)

    @property
    def synced(self) -> bool:
        """Whether all caches are synced."""
        return all(informer.synced for informer in self._informers())

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.guards.run())
            for informer in self.counts.informers:
                tasks.create_task(informer.run())

    def _informers(self) -> tuple[Informer[Any], ...]:
        return (*self.counts.informers, *self.guards.informers)

    def _troubled(self, resource: Resource) -> Callable[[Exception], None]:
        def troubled(error: Exception) -> None:
            if self._troubles.get(resource) != str(error):
                log.warning("watch failed, will retry", kind=resource.kind, api=resource.api_version, why=str(error))
            self._troubles[resource] = str(error)

        return troubled
