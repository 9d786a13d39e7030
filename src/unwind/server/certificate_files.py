"""Reload certificate files when they change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from unwind import logs
from unwind.errors import UnwindError

log = logs.get(__name__)

Signature = tuple[tuple[int, int, int], ...]


class Watched(msgspec.Struct, frozen=True):
    """Files that belong together, and the function that uses their contents."""

    option: str
    paths: tuple[Path, ...]
    use: Callable[[Sequence[bytes]], Awaitable[None]]
    """Raises ValueError if the contents are invalid."""


class CertificateFiles:
    """Polls files and passes on changed contents.

    Polled, because a mounted Secret is replaced by a symbolic link two directories up, which a file notification does
    not report.
    """

    name = "files"
    ready = True

    def __init__(self, watched: Sequence[Watched], *, interval: float = 1.0) -> None:
        self._watched = watched
        self._interval = interval
        # The files may have changed since they were read at startup: the first poll always passes them on.
        self._seen: list[Signature] = [() for _ in watched]

    async def run(self) -> None:
        while True:
            for number, one in enumerate(self._watched):
                seen = await asyncio.to_thread(_signature, one.paths)
                if seen != self._seen[number]:
                    # Recorded before reading, so that a change in between is seen by the next poll.
                    self._seen[number] = seen
                    await self._hand_on(one)
            await asyncio.sleep(self._interval)

    async def _hand_on(self, watched: Watched) -> None:
        about = ", ".join(str(path) for path in watched.paths)
        try:
            await watched.use(await asyncio.to_thread(read, watched.paths, option=watched.option))
        except (UnwindError, ValueError) as error:
            # Certificate and key are written one after the other, so a poll may find a mismatch.
            log.warning("file reload failed, keeping the previous content", files=about, why=str(error))
        else:
            log.info("files reloaded", files=about)


def read(paths: Sequence[Path], *, option: str) -> list[bytes]:
    """The contents of the files. Raises UnwindError."""
    contents = []
    for path in paths:
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise UnwindError(f"cannot read {path}: {error.strerror}", remedy=f"check {option}") from error
    return contents


def _signature(paths: Sequence[Path]) -> Signature:
    """A value that changes when a file is written or replaced."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - follows the links, which is what is exchanged
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
