"""The base of controllers: a work queue whose reconciler is fenced, measured, and logged when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from unwind import logs
from unwind.clock import SYSTEM, Clock
from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.events import Recorder
from unwind.kube.fencing import Fences, ShardOwner
from unwind.kube.metrics import Metrics
from unwind.kube.workqueue import Backoff, Queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

K = TypeVar("K", bound="Hashable")


def fenced_queue(
    name: str,
    reconcile: Callable[[K], Awaitable[float | None]],
    shard: Callable[[K], str | None],
    shared: ControllerDeps,
    *,
    failed: Callable[[K, Exception], object],
    group: Callable[[K], Hashable] = lambda _: None,
    per_group: int = 8,
    backoff: Backoff = Backoff(),  # noqa: B008 - frozen
) -> Queue[K]:
    """A queue whose reconciler writes only while this replica owns the `shard` of a key. `name`: of the controller, in
    metrics."""
    queue: Queue[K] = Queue(
        shared.metrics.timed(name, Fences(shared.owner).around(reconcile, shard)),
        group=group,
        per_group=per_group,
        backoff=backoff,
        clock=shared.clock,
        failed=failed,
    )
    shared.metrics.queue(name, queue)
    return queue


class ControllerDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What all controllers of a manager share."""

    client: Client
    owner: ShardOwner
    metrics: Metrics
    recorder: Recorder
    clock: Clock = SYSTEM


class Caches(Protocol):
    """The caches that a controller reads."""

    @property
    def ready(self) -> bool:
        """Whether they are synced, or cannot be."""

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Call `listed` when a cache has been synced."""


class Controller(Generic[K]):
    """Reconciles keys. All keys are enqueued when a cache has been synced, and when the shards of this replica
    change."""

    name: ClassVar[str]
    """Its name in `/readyz` and in metrics."""
    name_in_metrics: ClassVar[str] = ""
    """If it is another one."""

    def __init__(self, shared: ControllerDeps, caches: Caches, *, per_group: int = 8) -> None:
        """`per_group`: the number of concurrent reconciles in a group."""
        self._client = shared.client
        self._caches = caches
        self._owner = shared.owner
        self._recorder = shared.recorder
        self._clock = shared.clock
        self._queue: Queue[K] = fenced_queue(
            self.name_in_metrics or self.name,
            self._reconcile,
            self._shard,
            shared,
            failed=self._failed,
            group=self._group,
            per_group=per_group,
        )
        caches.subscribe(self._enqueue_all)
        shared.owner.subscribe(self._enqueue_all)  # after the fences: what is lost ends first

    @property
    def ready(self) -> bool:
        return self._caches.ready

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await self._queue.run()

    async def _reconcile(self, key: K) -> float | None:
        """Reconcile a key. Returns after how many seconds to requeue it, or None."""
        raise NotImplementedError

    def _enqueue_all(self) -> None:
        """Enqueue all keys."""
        raise NotImplementedError

    def _shard(self, key: K) -> str | None:
        """The key that decides which replica may write; None if nothing may be written."""
        return str(key)

    def _group(self, key: K) -> Hashable:
        """Keys of the same group share workers. By default, each key is a group."""
        return key

    def _describe(self, key: Any) -> dict[str, str]:
        """The log fields that name a key."""
        return {"object": str(key)}

    def _failed(self, key: Any, error: Exception) -> None:
        log = logs.get(type(self).__module__)
        why = str(error) or type(error).__name__
        # The traceback of an error that is not expected: it is a bug.
        known = isinstance(error, UnwindError)
        log.warning("reconcile failed, will retry", **self._describe(key), why=why, exc_info=None if known else error)
