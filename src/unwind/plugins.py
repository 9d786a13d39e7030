"""Plugins: select installed plugin packages, and contain the errors of their code."""

from __future__ import annotations

import asyncio
import functools
import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from importlib.metadata import EntryPoint

P = ParamSpec("P")
T = TypeVar("T")
# A line of a package's metadata: "azure-core>=1.36; extra == 'azure'". Lines with more conditions do not match.
_OF_EXTRA = re.compile(r"""(?P<name>[\w.-]+)[^;]*;\s*extra\s*==\s*['"](?P<extra>[\w.-]+)['"]\s*""")


def missing_libraries(point: EntryPoint) -> list[str]:
    """The libraries that an entry point's extras require and that are not installed.

    `"example.dev/v1/Bucket" = "buckets [cloud]"` names the extra `cloud` of its package.
    """
    lines = (point.dist.requires if point.dist else None) or []
    required = [found["name"] for found in map(_OF_EXTRA.fullmatch, lines) if found and found["extra"] in point.extras]
    return [name for name in required if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


class TaskCancellation:
    """Distinguishes a cancellation of the current task from a CancelledError that plugin code raised itself.

    Create it before the code runs, in the same task.
    """

    def __init__(self) -> None:
        self._task = _current_task()
        self._before = self._task.cancelling() if self._task else 0

    def check(self, error: BaseException | None = None) -> None:
        """Raise if the task is being cancelled or its coroutine closed, even if the code swallowed that.

        If this returns, a CancelledError or GeneratorExit is an ordinary error of the code.
        """
        if _current_task() is not self._task:
            # The coroutine was abandoned and is closed by the garbage collector or a test: nothing may be awaited.
            raise error or GeneratorExit
        if self._task and self._task.cancelling() > self._before:
            if isinstance(error, asyncio.CancelledError):
                raise error
            raise asyncio.CancelledError from error


def contained(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The function in a separate task, so that it cannot cancel the caller's task."""

    @functools.wraps(work)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T | _Raised:
            try:
                return await work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - as a result: SystemExit in a task leaves the event loop
                return _Raised(error)

        result = await asyncio.create_task(run())
        if isinstance(result, _Raised):
            raise result.error
        return result

    return call


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """All leaf errors of an exception group; the error itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for exception in error.exceptions:
            yield from leaves(exception)
    else:
        yield error


def error_message(error: BaseException) -> str:
    """The message of an error; the name of its type if there is none, or if str() fails."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the method may be of another package
        text = ""
    if isinstance(error, Exception) and text:
        return text
    # str(SystemExit(1)) is "1", which explains nothing.
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no loop is running
