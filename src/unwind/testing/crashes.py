"""Simulates process crashes: abandons work at its n-th suspension."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from unwind.deleters.outcomes import Again

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")

_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("unwind_life", default=None)


class CrashPoint(msgspec.Struct, frozen=True):
    """A line of code that was reached."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Died(Exception):  # noqa: N818 - it is what was wanted
    """The process has crashed."""


class Life:
    """One lifetime of a process. Everything that runs in it, including its tasks, stops at the moment of the crash.

    Nothing is raised in abandoned work, because a killed process runs no `except` and no `finally`: it stays suspended
    until the lifetime ends (`async with`), and is only then cleaned up.
    """

    def __init__(self, *, dies_at: int | None = None) -> None:
        """`dies_at`: the suspension that it does not resume from, counted over everything in it."""
        self.dead = False
        self.suspensions = 0
        self.places: tuple[CrashPoint, ...] = ()
        """Where it was when it crashed, the innermost frame last."""
        self._left = False
        self._dies_at = dies_at
        self._died: asyncio.Future[None]
        self._tasks: list[asyncio.Task[Any]] = []
        self._works: list[Coroutine[Any, Any, Any]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._died = loop.create_future()
        self._before = loop.get_task_factory()
        # Concurrent work crashes as well, so every task of this lifetime must be stoppable.
        loop.set_task_factory(self._task)
        return self

    async def __aexit__(self, *raised: object) -> None:
        asyncio.get_running_loop().set_task_factory(self._before)
        self._left = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for work in self._works:
            _clear_away(work)

    async def live(self, work: Coroutine[Any, Any, T], *, within: float) -> T:
        """Run the work. Raises Died if it crashed, TimeoutError if it makes no progress for so many seconds."""
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
        """Count a suspension; it may be the one to crash at."""
        self.suspensions += 1
        if self.suspensions == self._dies_at:
            self.dead = True
            self.places = places(work)
            self._died.set_result(None)

    def lie(self) -> Generator[Any, Any, None]:
        """Do nothing until the lifetime ends."""
        while not self._left:
            try:
                yield from asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                # Either the lifetime ends, or a timeout inside it has expired, which nothing observes any more.
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
    """Release abandoned work, and what it held open."""
    # `close` alone does not reach into an async generator that is being awaited: it would be left running. Errors on
    # its way out are dropped, and so is anything that it awaits.
    with suppress(Exception, asyncio.CancelledError, Again, StopIteration):
        work.throw(asyncio.CancelledError())
    with suppress(RuntimeError):
        work.close()


class _Driven:
    """Steps a coroutine like a task, as long as the lifetime lasts."""

    def __init__(self, life: Life, work: Coroutine[Any, Any, Any]) -> None:
        self._life = life
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            if self._life.dead:
                # Another task of this lifetime has crashed meanwhile.
                yield from self._life.lie()
            try:
                awaited = self._work.send(None) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                return end.value
            self._life.suspended(self._work)
            if self._life.dead:
                if awaited is not None:
                    # It was about to be awaited, and is not: others may await it.
                    awaited._asyncio_future_blocking = False  # noqa: SLF001 - the protocol between futures and tasks
                yield from self._life.lie()
            try:
                yield awaited
                thrown = None
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine
                thrown = error


def places(work: Any) -> tuple[CrashPoint, ...]:
    """Where suspended work is, the innermost frame last."""
    found = []
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            found.append(CrashPoint(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        work = _awaited_by(work)
    return tuple(found)


def _awaited_by(work: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if hasattr(work, attribute):
            return getattr(work, attribute)
    return None
