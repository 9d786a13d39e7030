"""Processes that die on purpose: work that is abandoned where it has suspended for the n-th time."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from unwind.deleting.outcomes import Again

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import TracebackType

T = TypeVar("T")

_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("unwind_life", default=None)


class Place(msgspec.Struct, frozen=True):
    """A line that something had come to."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Died(Exception):  # noqa: N818 - it is what was wanted
    """The process has died."""


class Life:
    """One life of a process. All that is done in it, its tasks included, stops in the moment it dies.

    Nothing is raised in what is abandoned, because a process that is killed runs no `except` and no `finally`: it stays
    as it was until the life is left (`async with`), and only then is it cleared away.
    """

    def __init__(self, *, dies_at: int | None = None) -> None:
        """`dies_at`: the suspension that it does not wake up from, counted over everything in it."""
        self.dead = False
        self.suspensions = 0
        self.places: tuple[Place, ...] = ()
        """Where it was when it died, the innermost last."""
        self._left = False
        self._dies_at = dies_at
        self._died: asyncio.Future[None]
        self._tasks: list[asyncio.Task[Any]] = []
        self._works: list[Coroutine[Any, Any, Any]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._died = loop.create_future()
        self._before = loop.get_task_factory()
        # What is done side by side dies as well, so every task of this life has to be one that can be stopped.
        loop.set_task_factory(self._task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().set_task_factory(self._before)
        self._left = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for work in self._works:
            _clear_away(work)

    async def live(self, work: Coroutine[Any, Any, T], *, within: float) -> T:
        """Do the work. Raises Died if that was the end, TimeoutError if it stands still for so many seconds."""
        surroundings = contextvars.copy_context()
        surroundings.run(_LIFE.set, self)
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work, context=surroundings)
        either: set[asyncio.Future[Any]] = {task, self._died}
        await asyncio.wait(either, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if self.dead:
            raise Died
        if not task.done():
            self.places = places(work)
            raise TimeoutError
        return task.result()

    def suspended(self, work: Coroutine[Any, Any, Any]) -> None:
        """Count it; this may have been the last time."""
        self.suspensions += 1
        if self.suspensions == self._dies_at:
            self.dead = True
            self.places = places(work)
            self._died.set_result(None)

    def lie(self) -> Generator[Any, Any, None]:
        """Do nothing any more, until the life is left."""
        while not self._left:
            try:
                yield from asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                # Either the life is left, or it was a time limit that was set in it, which nobody is there to notice.
                continue
        raise asyncio.CancelledError

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **more: Any
    ) -> asyncio.Task[T]:
        context: contextvars.Context | None = more.get("context")
        ours = (context.get(_LIFE) if context is not None else _LIFE.get()) is self
        if not ours or not inspect.iscoroutine(work):
            return asyncio.Task(work, loop=loop, **more)
        task = asyncio.Task(_drive(self, work), loop=loop, **more)
        self._tasks.append(task)
        self._works.append(work)
        return task


async def _drive(life: Life, work: Coroutine[Any, Any, T]) -> T:
    result: T = await _Driven(life, work)
    return result


def _clear_away(work: Coroutine[Any, Any, Any]) -> None:
    """Let go of what was abandoned, and what it held open."""
    # `close` alone does not get into an async generator that is being awaited: it would be left as it is, running.
    # Whatever it raises on its way out, nobody is there to hear it; if it awaits something, nobody does that any more.
    with suppress(Exception, asyncio.CancelledError, Again, StopIteration):
        work.throw(asyncio.CancelledError())
    with suppress(RuntimeError):
        work.close()


class _Driven:
    """Steps a coroutine as a task would, as long as the life lasts."""

    def __init__(self, life: Life, work: Coroutine[Any, Any, Any]) -> None:
        self._life = life
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            if self._life.dead:
                # Another task of this life has died meanwhile.
                yield from self._life.lie()
            try:
                awaited = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                return end.value
            self._life.suspended(self._work)
            if self._life.dead:
                if awaited is not None:
                    # It was about to be waited for, and is not: others may.
                    awaited._asyncio_future_blocking = False  # noqa: SLF001 - the protocol between futures and tasks
                yield from self._life.lie()
            try:
                yield awaited
                thrown = None
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
                thrown = error


def places(work: Any) -> tuple[Place, ...]:
    """Where something that is suspended has come to, the innermost last."""
    found = []
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            found.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        work = _awaited_by(work)
    return tuple(found)


def _awaited_by(work: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(work, attribute):
            return getattr(work, attribute)
    return None
