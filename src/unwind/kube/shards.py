"""Shards: distributes clusters over the replicas of the manager with Leases.

There is a fixed set of shards, each with a Lease, spread evenly over the live replicas. Each replica also has a Lease
of its own. Leases cannot rule out two owners at once (docs/architecture.md, State in the API server): an owner
therefore stops acting well before its Lease expires, and its late writes are harmless.

The shards of a replica that was killed are free when its Leases expire. If its Pod proves that it has ended
(`terminated_pods`), another replica releases them at once.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.meta import ObjectMeta
from unwind.api.names import POD_UID_ANNOTATION, SPREAD_ANNOTATION, VERSION_ANNOTATION
from unwind.api.resources import LEASES
from unwind.clock import SYSTEM
from unwind.concurrency import gather_limited
from unwind.kube import decoding
from unwind.kube.client import DEADLINE
from unwind.kube.decoding import Key
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.kube.informers import Informer
from unwind.kube.terminated_pods import TerminatedPods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from unwind.clock import Clock
    from unwind.kube.client import Client, Object

log = logs.get(__name__)

SHARDS = 16
_SHARD = "unwind-shard-"
_REPLICA = "unwind-replica-"
REPLICA_LEASES, SHARD_LEASES = _REPLICA, _SHARD
"""Prefixes of the names of the Leases: the replicas' own ones, and those of the shards."""


class Timing(msgspec.Struct, frozen=True):
    """How long a Lease lasts, how often it is renewed, and after how long without a renewal its owner stops acting."""

    lasts: float = 15.0
    renew: float = 3.0
    acts: float = 10.0
    forgotten: float = 600.0
    """After so long without a renewal, the Lease of a replica is deleted."""
    steady: float = 30.0
    """So long after a replica has joined, shards are taken from others for it. In a rolling update, each replica that
    joins is followed by one that leaves: then every shard moves once, when its owner leaves."""


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct):
    """The relevant fields of a Lease."""

    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


def spread(replicas: Iterable[str], *, shards: int, held: Mapping[int, str], even: bool = True) -> dict[int, str]:
    """The replica of each shard. `held`: the current holders. Free shards go to the replicas that hold the fewest; if
    `even`, as few shards as possible move until all replicas have as many.

    It is the same for every replica that sees the same. While Leases change hands, replicas see different states, but
    none takes a shard that another one holds: each releases what it has too much, and takes what is free. The replica
    of a free shard does not depend on `even`, in which replicas may differ for a while: it would have no owner.
    """
    ordered = sorted(set(replicas))
    if not ordered:
        return {}
    mine: dict[str, list[int]] = {replica: [] for replica in ordered}
    free: list[int] = []
    for shard in range(shards):
        mine.get(held.get(shard, ""), free).append(shard)

    def load(replica: str) -> int:
        return len(mine[replica])

    for shard in free:
        mine[min(ordered, key=load)].append(shard)
    while even and load(most := max(ordered, key=load)) > load(fewest := min(ordered, key=load)) + 1:
        mine[fewest].append(mine[most].pop())
    return {shard: replica for replica, some in mine.items() for shard in some}


def spread_in_turn(replicas: Iterable[str], *, shards: int) -> dict[int, str]:
    """The replica of each shard as version 0.1.0 has it, regardless of the current holders."""
    ordered = sorted(set(replicas))
    return {shard: ordered[shard % len(ordered)] for shard in range(shards)} if ordered else {}


def shard_of(key: str, *, shards: int) -> int:
    """The shard of a key. The same in every process and release."""
    return zlib.crc32(key.encode()) % shards


class Shards:
    """The shards of this replica."""

    name = "shards"

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        identity: str,
        version: str = "",
        pod_uid: str = "",
        shards: int = SHARDS,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        clock: Clock = SYSTEM,
        changed: Callable[[], None] = lambda: None,
        troubled: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`changed` is called when this replica gains or loses a shard. `version`: shown to the other replicas.
        `pod_uid`: the Pod that this replica runs in; empty outside of one."""
        self.identity = identity
        self.version = version
        self.shards = shards
        self._client = client
        self._namespace = namespace
        self._timing = timing
        self._clock = clock
        self._told = [changed]
        self._troubled = troubled
        self._held: dict[int, float] = {}
        """Our shards, and when the last successful renewal was sent."""
        self._settling: dict[int, float] = {}
        """When the last possible write of a shard's former owner has ended, by our own clock."""
        self.drained = False
        """Whether no work is running for our shards any more: a released Lease then says that it is drained."""
        self._alive_before: set[str] = set()
        self._joined = 0.0
        """When a replica was last seen to join."""
        self._refused: set[int] = set()
        """Shards that a caller was told not to act for. Callers must be notified when they may."""
        self._leases = Informer(client, decoding.typed(LEASES, Lease), namespace=namespace, clock=clock)
        self._observed: dict[str, tuple[str, float]] = {}
        """When each Lease was last seen to be renewed, by our own clock: the clocks of others may be wrong."""
        self._wake = asyncio.Event()
        self._leases.subscribe(lambda _: self._wake.set())
        self._pods = TerminatedPods(client, namespace=namespace, own_uid=pod_uid, changed=self._wake.set, clock=clock)

    @property
    def ready(self) -> bool:
        """Whether this replica takes part: the others can see it."""
        return self._leases.synced and self._lease(_REPLICA + self.identity) is not None

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call this function when this replica gains or loses a shard."""
        self._told.append(changed)

    @property
    def owned(self) -> frozenset[int]:
        """The shards that this replica may act for now."""
        return frozenset(shard for shard in self._held if self._may_act(shard))

    def owns(self, key: str) -> bool:
        """Whether this replica may act for a key now; check again before every write."""
        return self._permits(shard_of(key, shards=self.shards))

    def unsettled(self, key: str) -> float:
        """Seconds for which a write of the former owner of a key's shard may still arrive."""
        settled = self._settling.get(shard_of(key, shards=self.shards))
        return 0.0 if settled is None else max(0.0, settled - self._clock.monotonic())

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader."""
        return self._permits(0)

    async def run(self) -> None:
        """Take part until cancelled; then release everything, so that others need not wait."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._leases.run())
                if self._pods.own_uid:
                    group.create_task(self._pods.run())
                await self._leases.until_synced()
                while True:
                    taking = group.create_task(self._round())
                    try:
                        await asyncio.shield(taking)
                    except asyncio.CancelledError:
                        # Requests in flight may still succeed: wait for the responses, which does not take long, to
                        # know what to release.
                        await taking
                        raise
                    await self._pause()
        finally:
            self._held.clear()
            await asyncio.shield(self._leave())

    def _permits(self, shard: int) -> bool:
        may = self._may_act(shard)
        if not may:
            self._refused.add(shard)
        return may

    def _may_act(self, shard: int) -> bool:
        renewed = self._held.get(shard)
        return renewed is not None and self._clock.monotonic() - renewed < self._timing.acts

    async def _pause(self) -> None:
        """Wait until a Lease changes, or until it is time to renew."""
        timer = self._clock.call_later(self._timing.renew, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()

    async def _round(self) -> None:
        # Not what is held: a shard that we stopped acting for, and that is renewed below, is gained anew.
        before = self.owned
        self._observe()
        ended = self._ended()
        alive = self._alive().difference(_identity(lease) for lease in ended)
        if alive - self._alive_before:
            self._joined = self._clock.monotonic()
        self._alive_before = alive
        wanted = {shard for shard, replica in self._spread(alive).items() if replica == self.identity}
        try:
            # No write may take so long that the other Leases expire behind it. But a slow API server answers late: a
            # write that is given up has been sent for nothing, and only what is answered counts as a renewal.
            async with asyncio.timeout(self._timing.acts / 2):
                if self._due(_REPLICA + self.identity):
                    await self._write(_REPLICA + self.identity, self._lease(_REPLICA + self.identity))
                for lease in ended:
                    await self._release_for(lease)
                await gather_limited(
                    (self._settle(shard, wanted=shard in wanted) for shard in range(self.shards)), limit=self.shards
                )
                if self._may_act(0):
                    await self._forget_the_dead()
        except (TimeoutError, ApiError, UnreachableError) as error:
            # A Lease that could not be renewed expires by itself.
            self._troubled(error)
        expired = [shard for shard in self._held if not self._may_act(shard)]
        for shard in expired:
            del self._held[shard]
        if expired:
            log.warning(
                "shards lost",
                shards=len(expired),
                why="their Leases were not renewed in time",
                remedy="none if it is rare, a replica acquires them again; otherwise check the CPU limit of the manager"
                " and the latency of the API server",
            )
        owned = self.owned
        # A shard may also have expired in the middle of this, and have been renewed at the end of it.
        refused, self._refused = owned & self._refused, self._refused - owned
        if owned != before or refused:
            for changed in self._told:
                changed()

    def _spread(self, alive: set[str]) -> dict[int, str]:
        """The replica of each shard. All replicas must use the same rule: a shard that each of them leaves to another
        one would have no owner."""
        names = (_REPLICA + identity for identity in alive if identity != self.identity)
        leases = [lease for name in names if (lease := self._lease(name))]
        if not all(SPREAD_ANNOTATION in lease.metadata.annotations for lease in leases):
            return spread_in_turn(alive, shards=self.shards)
        held = {
            shard: lease.spec.holder_identity or ""
            for shard in range(self.shards)
            if (lease := self._lease(_name(shard)))
        }
        even = self._clock.monotonic() - self._joined >= self._timing.steady
        return spread(alive, shards=self.shards, held=held, even=even)

    async def _forget_the_dead(self) -> None:
        """Delete the Leases of killed replicas, whose names are never used again."""
        now = self._clock.monotonic()
        for lease in list(self._leases.cache):
            name = lease.metadata.name
            # A Lease that appeared in the middle of this round was not observed yet.
            _, seen = self._observed.get(name, ("", now))
            if name.startswith(_REPLICA) and now - seen > self._timing.forgotten:
                with suppress(NotFoundError, ConflictError):
                    await self._client.delete(LEASES, name, uid=lease.metadata.uid, namespace=self._namespace)

    def _ended(self) -> list[Lease]:
        """The Leases of other replicas whose Pods prove that they have ended."""
        return [
            lease
            for lease in self._leases.cache
            if lease.metadata.name.startswith(_REPLICA)
            and _identity(lease) != self.identity
            and self._pods.ended(lease.metadata.annotations.get(POD_UID_ANNOTATION, ""))
        ]

    async def _release_for(self, replica: Lease) -> None:
        """Release the shards of a replica that has ended, as it would have done itself. Its last requests may still be
        on their way, so the shards are not released as drained."""
        identity = _identity(replica)
        held = [lease for lease in self._leases.cache if lease.spec.holder_identity == identity]
        shards = [lease for lease in held if lease.metadata.name.startswith(_SHARD)]
        if shards:
            log.info("releasing shards of a terminated replica", replica=identity, shards=len(shards))
        await gather_limited(
            (self._write(lease.metadata.name, lease, holder="") for lease in shards), limit=self.shards
        )
        # Last: as long as it exists, every replica with the evidence does the same.
        with suppress(NotFoundError, ConflictError):
            await self._client.delete(
                LEASES, replica.metadata.name, uid=replica.metadata.uid, namespace=self._namespace
            )

    async def _settle(self, shard: int, *, wanted: bool) -> None:
        name = _name(shard)
        lease = self._lease(name)
        ours = lease is not None and lease.spec.holder_identity == self.identity
        if ours and wanted:
            if self._due(name) or shard not in self._held:
                await self._hold(shard, lease)
        elif ours:
            # First stop acting, then release.
            self._held.pop(shard, None)
            await self._write(name, lease, holder="")
        else:
            self._held.pop(shard, None)
            if wanted and (lease is None or self._free(lease)):
                await self._hold(shard, lease)

    async def _hold(self, shard: int, lease: Lease | None) -> None:
        sent = self._clock.monotonic()
        settled = self._settled(lease)
        if await self._write(_name(shard), lease):
            self._held[shard] = sent
            if settled is not None:
                self._settling[shard] = settled
        # Otherwise the Lease was changed, perhaps by a write of our own whose answer did not come: the next round sees
        # it. If the shard is ours, no other replica can have taken it while we may act.

    def _settled(self, lease: Lease | None) -> float | None:
        """When the last possible write of a Lease's former holder has ended; None if there was none, or it was drained.
        It stops sending before its Lease expires, and no request outlives its deadline."""
        if lease is None or lease.spec.holder_identity == self.identity or not lease.spec.renew_time:
            return None
        _, renewed = self._observed.get(lease.metadata.name, ("", self._clock.monotonic()))
        return renewed + self._timing.lasts + DEADLINE

    async def _write(self, name: str, lease: Lease | None, *, holder: str | None = None, drained: bool = False) -> bool:
        """Write the current state of a Lease; False if another replica was faster."""
        sent = self._clock.monotonic()
        holder = self.identity if holder is None else holder
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        renewed = None if drained else now
        spec: Object = {
            "holderIdentity": holder,
            "renewTime": renewed,
            "leaseDurationSeconds": round(self._timing.lasts),
        }
        try:
            if lease is None:
                body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
                metadata: Object = {"name": name, "namespace": self._namespace}
                if name == _REPLICA + self.identity:
                    annotations = {
                        VERSION_ANNOTATION: self.version,
                        POD_UID_ANNOTATION: self._pods.own_uid,
                        SPREAD_ANNOTATION: "keep",
                    }
                    metadata["annotations"] = {key: value for key, value in annotations.items() if value}
                written = await self._client.create(LEASES, body | {"metadata": metadata, "spec": spec})
            else:
                if lease.spec.holder_identity != holder:
                    spec |= {"acquireTime": now, "leaseTransitions": (lease.spec.lease_transitions or 0) + 1}
                metadata = {"resourceVersion": lease.metadata.resource_version}
                written = await self._client.patch(
                    LEASES, name, {"metadata": metadata, "spec": spec}, namespace=self._namespace
                )
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return False
        # Stored at once, not only when the watch reports it: the next write needs its version.
        self._leases.take(msgspec.convert(written, Lease))
        self._observed[name] = (renewed or "", sent)
        return True

    async def _leave(self) -> None:
        try:
            # Read, not remembered: a write that timed out for us may have succeeded.
            found = [msgspec.convert(obj, Lease) for obj in await self._client.list(LEASES, namespace=self._namespace)]
            ours = {lease.metadata.name: lease for lease in found if lease.spec.holder_identity == self.identity}
            # First: as long as it exists, the others leave free shards to us.
            if own := ours.pop(_REPLICA + self.identity, None):
                await self._client.delete(LEASES, own.metadata.name, uid=own.metadata.uid, namespace=self._namespace)
            await gather_limited(
                (self._write(name, lease, holder="", drained=self.drained) for name, lease in ours.items()),
                limit=self.shards,
            )
        except (ApiError, UnreachableError) as error:
            self._troubled(error)  # then they expire

    def _lease(self, name: str) -> Lease | None:
        return self._leases.cache.get(Key(self._namespace, name))

    def _observe(self) -> None:
        now = self._clock.monotonic()
        for lease in self._leases.cache:
            name, renewed = lease.metadata.name, lease.spec.renew_time or ""
            if self._observed.get(name, ("", 0.0))[0] != renewed:
                self._observed[name] = (renewed, now)

    def _fresh(self, name: str) -> bool:
        return name in self._observed and self._clock.monotonic() - self._observed[name][1] < self._timing.lasts

    def _due(self, name: str) -> bool:
        return (
            name not in self._observed
            or self._lease(name) is None
            or self._clock.monotonic() - self._observed[name][1] >= self._timing.renew * 0.9
        )

    def _free(self, lease: Lease) -> bool:
        return not lease.spec.holder_identity or not self._fresh(lease.metadata.name)

    def _alive(self) -> set[str]:
        names = (lease.metadata.name for lease in self._leases.cache)
        others = {name.removeprefix(_REPLICA) for name in names if name.startswith(_REPLICA) and self._fresh(name)}
        return others | {self.identity}


def _identity(lease: Lease) -> str:
    """The identity of the replica that a Lease belongs to."""
    return lease.metadata.name.removeprefix(_REPLICA)


def _name(shard: int) -> str:
    return f"{_SHARD}{shard:02}"
