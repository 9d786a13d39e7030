"""The running teardowns of a controller: each runs in its own task, in the controller's task group."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from unwind import logs
from unwind.kube import fencing
from unwind.kube.fencing import Drain, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unwind.api.unwind import Teardown
    from unwind.kube.decoding import Key
    from unwind.kube.informers import Informer
    from unwind.members.targets import ClusterTarget

log = logs.get(__name__)

_RETRY_AFTER = 5.0


class Runnable(Protocol):
    """A teardown that can be run, and restarted at any moment."""

    @property
    def target(self) -> ClusterTarget:
        """The target of the teardown."""

    @property
    def teardown(self) -> Teardown:
        """The Teardown with its latest status."""

    async def run(self) -> None:
        """Run the teardown to its end."""


C = TypeVar("C", bound=Runnable)


class RunningTeardowns(Generic[C]):
    """The running teardowns of one controller, by the keys of their targets."""

    def __init__(self, teardowns: Informer[Teardown], *, again: Callable[[Key, float], None]) -> None:
        """`again`: requeues a target after this many seconds."""
        self._teardowns = teardowns
        self._again = again
        self._runners: dict[Key, C] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._drains: dict[Key, Drain] = {}
        self._group: asyncio.TaskGroup | None = None

    def belong_to(self, group: asyncio.TaskGroup) -> None:
        """Create the tasks in this group."""
        self._group = group

    def __contains__(self, key: object) -> bool:
        return key in self._runners

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._runners))

    def get(self, key: Key) -> C | None:
        return self._runners.get(key)

    def begin(self, key: Key, runner: C) -> None:
        """Run a teardown in a task."""
        assert self._group  # noqa: S101 - no teardown starts before the controller runs
        self._runners[key] = runner
        self._drains[key] = drain = Drain()
        self._tasks[key] = self._group.create_task(self._run(key, runner), context=drain.context())

    def stop(self, key: Key) -> None:
        """Cancel a teardown that another replica owns now. A restart resumes from the state in the API server."""
        if task := self._tasks.get(key):
            task.cancel()

    async def drained(self, key: Key) -> None:
        """Stop a teardown when none of its writes is on its way: after that, no DELETE of it arrives any more."""
        if drain := self._drains.get(key):
            await drain.stop()
        await self.stopped(key)

    async def stopped(self, key: Key) -> None:
        """Cancel a teardown, and return when its task has ended and writes nothing more."""
        runner, task = self._runners.get(key), self._tasks.get(key)
        if runner is None or task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        self._teardowns.take(runner.teardown)

    async def _run(self, key: Key, runner: C) -> None:
        log.info("teardown started", target=str(runner.target.ref), teardown=runner.teardown.metadata.name)
        again = 0.0
        try:
            async with fencing.scope():
                await runner.run()
            # The next reconcile has to see the end, or it would start the teardown again and report it twice.
            self._teardowns.take(runner.teardown)
        except FencedError:
            log.info("teardown stopped, shard was lost", target=str(key))
        except Exception:
            # A bug in one teardown must not stop the others. The retry resumes from the state in the API server.
            log.exception("teardown failed, will retry", target=str(key))
            again = _RETRY_AFTER
        finally:
            self._runners.pop(key, None)
            self._tasks.pop(key, None)
            self._drains.pop(key, None)
        self._again(key, again)
