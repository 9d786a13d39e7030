"""Teardowns under way: each is carried out in a task of its own, which belongs to its controller."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from unwind import logs
from unwind.kube import fencing
from unwind.kube.fencing import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unwind.api.unwind import Teardown
    from unwind.kube.decoding import Key
    from unwind.kube.informers import Informer
    from unwind.members.targets import ClusterTarget

log = logs.get(__name__)

_BREATHE = 5.0


class Runnable(Protocol):
    """A teardown that can be carried out, and begun again at any moment."""

    @property
    def target(self) -> ClusterTarget:
        """What is taken apart."""

    @property
    def teardown(self) -> Teardown:
        """The record, as far as it has come."""

    async def run(self) -> None:
        """Carry it out to its end."""


C = TypeVar("C", bound=Runnable)


class RunningTeardowns(Generic[C]):
    """The teardowns that one controller carries out, by where their targets are."""

    def __init__(self, teardowns: Informer[Teardown], *, again: Callable[[Key, float], None]) -> None:
        """`again` is told that a target is to be looked at once more, in so many seconds."""
        self._teardowns = teardowns
        self._again = again
        self._carried: dict[Key, C] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def belong_to(self, group: asyncio.TaskGroup) -> None:
        """Have their tasks end with the others of this group."""
        self._group = group

    def __contains__(self, key: object) -> bool:
        return key in self._carried

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._carried))

    def get(self, key: Key) -> C | None:
        return self._carried.get(key)

    def begin(self, key: Key, it: C) -> None:
        """Have it carried out."""
        assert self._group  # noqa: S101 - nothing is begun before the controller runs
        self._carried[key] = it
        self._tasks[key] = self._group.create_task(self._carry(key, it))

    def stop(self, key: Key) -> None:
        """Do no more for it: it is somebody else's now. What was done is seen when it is begun again."""
        if task := self._tasks.get(key):
            task.cancel()

    async def stopped(self, key: Key) -> None:
        """Stop it, and return when its task has ended and writes nothing any more."""
        carried, task = self._carried.get(key), self._tasks.get(key)
        if carried is None or task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        self._teardowns.take(carried.teardown)

    async def _carry(self, key: Key, it: C) -> None:
        log.info("teardown begins", cluster=str(it.target.ref), teardown=it.teardown.metadata.name)
        again = 0.0
        try:
            async with fencing.scope():
                await it.run()
            # Whoever looks next has to see the end: it would be begun again, and told anew.
            self._teardowns.take(it.teardown)
        except FencedError:
            log.info("teardown stopped, its shard was lost", cluster=str(key))
        except Exception:
            # A mistake of ours in one teardown must not end the others; what it did is seen again.
            log.exception("a teardown broke off", cluster=str(key))
            again = _BREATHE
        finally:
            self._carried.pop(key, None)
            self._tasks.pop(key, None)
        self._again(key, again)
