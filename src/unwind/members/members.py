"""Open connections to members, shared by all users of a member."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

import msgspec

from unwind.api.meta import ObjectRef, named_ref
from unwind.api.resources import NAMESPACES
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.errors import UnwindError
from unwind.kube import fencing
from unwind.kube.client import Client
from unwind.kube.errors import AnotherClusterError, ApiError, UnreachableError
from unwind.members import credentials
from unwind.members.member import RECENT, Member, unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from unwind.clock import Clock, Timer
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.members.targets import ClusterTarget

# Add-ons come in bursts, one ClusterSummary after the other: a member that is idle now is soon needed again.
LINGER = 30.0
# The key of the management cluster; no digest equals it.
_HOME = ""
_SHUTTING_DOWN = "cannot connect to the cluster: this process is shutting down"


class _Shared:
    """One open member, and its number of users."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.member: Member | None = None
        self.error: Exception | None = None
        self.tried = asyncio.Event()
        self.over = asyncio.Event()
        self.users = 0
        self.outdated = False
        self.lingering: Timer | None = None

    async def opened(self) -> Member:
        await self.tried.wait()
        if self.member is None:
            raise self.error or UnreachableError(_SHUTTING_DOWN)
        return self.member


class Members:
    """Opens members and closes them; use it as an async context manager.

    One is enough for a process. A user gives a member back when it leaves `member`, also if it fails or is cancelled.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock = SYSTEM,
        troubled: Callable[[Exception], None] = lambda _: None,
        observe: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        """`client`: of the management cluster. `troubled` is called with errors of members' watches."""
        self._client = client
        self._clock = clock
        self._troubled = troubled
        self._observe = observe
        self._reading: SingleFlight[tuple[ClusterConnection, str]] = SingleFlight()
        self._group = asyncio.TaskGroup()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._expected: set[str] = set()
        """The uids of targets that are being connected to in the background."""
        self._shared: dict[str, _Shared] = {}
        """By connection: a cluster is opened and watched once, whatever objects represent it."""
        self._ways: dict[str, str] = {}
        """The last known connection of each target, by its uid."""
        self._read: dict[str, tuple[float, ClusterConnection, str]] = {}
        """When that was read, and the connection itself; kept while it is open."""
        self._rereads: Counter[str] = Counter()
        """How often the credentials of a target were outdated, by its uid."""

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._closing = True
        for shared in self._shared.values():
            if shared.lingering:
                shared.lingering.cancel()
        for task in self._tasks:
            task.cancel()
        # An exception of the body is raised as it is, and not in a group.
        await self._group.__aexit__(None, None, None)

    @property
    def open(self) -> int:
        """Number of open members."""
        return len(self._shared)

    @asynccontextmanager
    async def member(self, target: ClusterTarget, *, system_uid: str = "") -> AsyncIterator[Member]:
        """The member of a target, verified to answer.

        `system_uid`: its identity when something was deployed on it. Raises UnreachableError if it is unreachable, or
        if
        another cluster answers at its address; the message says which.
        """
        if target.pull_mode:
            raise UnreachableError(
                f"cannot connect to {target}: it is in pull mode",
                remedy="Unwind needs push mode: unjoin it, and join it again with `unwind join`",
            )
        way, key = await self._way(target)
        async with self._using(key, lambda: self._connect(target, way), target.ref) as member:
            if system_uid and member.system_uid != system_uid:
                raise AnotherClusterError(f"the address of {target}", found=member.system_uid, expected=system_uid)
            yield member if member.ref == target.ref else member.standing_for(target.ref)

    async def _way(self, target: ClusterTarget) -> tuple[ClusterConnection, str]:
        """Its connection, and the key of it. Read each time unless it was read a moment ago: a rotated Secret is a new
        connection, and the old credentials may be revoked."""
        # One read serves concurrent callers.
        key = target.ref.uid, target.home, target.secret
        return self._recent_way(target) or await self._reading.ask(key, lambda: self._read_way(target))

    def _recent_way(self, target: ClusterTarget) -> tuple[ClusterConnection, str] | None:
        uid = target.ref.uid
        last = self._read.get(uid)
        recent = last and self._clock.monotonic() - last[0] < RECENT and self._ways.get(uid) == last[2]
        return last[1:] if last and recent else None

    async def _read_way(self, target: ClusterTarget) -> tuple[ClusterConnection, str]:
        if recent := self._recent_way(target):
            return recent  # it was read while this call waited for its turn
        uid = target.ref.uid
        while True:
            now, rereads = self._clock.monotonic(), self._rereads[uid]
            way = credentials.connection(target, await credentials.read_secret(self._client, target))
            if self._rereads[uid] == rereads:
                break  # otherwise, the Secret has changed since this read began
        key = _digest(way)
        self._outdate(uid, key)
        self._read[uid] = (now, way, key)
        return way, key

    def expect(self, target: ClusterTarget) -> None:
        """Connect to a member in the background, because it is used in a moment. Errors are raised when it is used."""
        uid = target.ref.uid
        if uid not in self._expected and not self._closing:
            self._expected.add(uid)
            # Without the fence of the caller, as others use the connection, too.
            task = fencing.unfenced().run(self._group.create_task, self._meet(target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _meet(self, target: ClusterTarget) -> None:
        try:
            with suppress(Exception):  # it is raised again when the member is used
                async with self.member(target):
                    pass
        finally:
            self._expected.discard(target.ref.uid)

    def reread(self, uid: str) -> None:
        """Read the credentials of a target again on the next use, although they were read a moment ago: its Secret has
        changed."""
        self._rereads[uid] += 1
        self._read.pop(uid, None)

    @asynccontextmanager
    async def management(self) -> AsyncIterator[Member]:
        """The management cluster itself, as a member: `Local` manifests are deployed there."""
        async with self._using(_HOME, self._at_home) as member:
            yield member

    @asynccontextmanager
    async def _using(
        self,
        way: str,
        connect: Callable[[], AbstractAsyncContextManager[Member]],
        ref: ObjectRef | None = None,
    ) -> AsyncIterator[Member]:
        if self._closing:
            raise UnreachableError(_SHUTTING_DOWN)
        shared = self._shared.get(way)
        fresh = shared is None
        if shared is None:
            shared = self._shared[way] = _Shared(way)
            # Without the fence of the first user: others use the member after that user has lost its shard.
            fencing.unfenced().run(self._start, shared, connect)
        shared.users += 1
        if shared.lingering:
            shared.lingering.cancel()
            shared.lingering = None
        try:
            member = await shared.opened()
            if not fresh:
                await self._verify(member, shared, ref or member.ref)
            yield member
        finally:
            shared.users -= 1
            self._left(shared)

    def _start(self, shared: _Shared, connect: Callable[[], AbstractAsyncContextManager[Member]]) -> None:
        task = self._group.create_task(self._keep(shared, connect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _verify(self, member: Member, shared: _Shared, ref: ObjectRef) -> None:
        """Check that a member that has been open for a while still answers, and is still the same cluster."""
        try:
            await member.verify(within=RECENT)
        except (ApiError, UnreachableError) as error:
            # The next user must check the identity again.
            shared.outdated = True
            self._forget(shared)
            raise unreachable(ref, error) from error

    def _left(self, shared: _Shared) -> None:
        if shared.users or shared.over.is_set():
            return
        if shared.outdated:
            shared.over.set()
        else:
            shared.lingering = self._clock.call_later(LINGER, lambda: self._close(shared))

    def _close(self, shared: _Shared) -> None:
        self._forget(shared)  # at once: it must not be found while it closes
        shared.over.set()

    def _forget(self, shared: _Shared) -> None:
        if self._shared.get(shared.way) is shared:
            del self._shared[shared.way]
            for uid in [uid for uid, way in self._ways.items() if way == shared.way]:
                del self._ways[uid]
                self._read.pop(uid, None)

    def _outdate(self, uid: str, way: str) -> None:
        """The Secret may contain another connection than before: close the old one as soon as it is unused, unless
        another target still uses it."""
        before, self._ways[uid] = self._ways.get(uid), way
        shared = self._shared.get(before) if before and before != way else None
        if shared is None or before in self._ways.values():
            return
        self._forget(shared)
        shared.outdated = True
        if shared.lingering:
            shared.lingering.cancel()
            shared.lingering = None
        self._left(shared)

    async def _keep(self, shared: _Shared, connect: Callable[[], AbstractAsyncContextManager[Member]]) -> None:
        """Keep a member open. Runs in its own task, because its watches belong to the task that opened them, and the
        first user may leave first."""
        try:
            async with connect() as member:
                shared.member = member
                shared.tried.set()
                await shared.over.wait()
        except Exception as error:  # noqa: BLE001 - it is raised where the member is waited for
            if shared.member is None:
                shared.error = error
            else:
                self._troubled(error)
        finally:
            self._close(shared)
            shared.tried.set()

    @asynccontextmanager
    async def _connect(self, target: ClusterTarget, way: ClusterConnection) -> AsyncIterator[Member]:
        async with Client(way, observe=self._observe) as client:
            try:
                system_uid = await client.cluster_uid()
            except UnwindError as error:
                raise unreachable(target.ref, error) from error
            # From now on only this cluster is accepted, whatever else is behind that address.
            client.pin(system_uid)
            member = Member(
                target.ref, client, system_uid=system_uid, answered=True, clock=self._clock, troubled=self._troubled
            )
            async with member:
                yield member

    @asynccontextmanager
    async def _at_home(self) -> AsyncIterator[Member]:
        uid = await self._client.cluster_uid()
        # No object represents the management cluster, only its identity.
        ref = named_ref(NAMESPACES, "kube-system", uid=uid)
        member = Member(ref, self._client, system_uid=uid, answered=True, clock=self._clock, troubled=self._troubled)
        async with member:
            yield member


def _digest(way: ClusterConnection) -> str:
    """A key of a connection: address, CA and credentials."""
    return hashlib.sha256(msgspec.json.encode(way, order="sorted")).hexdigest()
