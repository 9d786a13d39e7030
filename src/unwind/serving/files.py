"""Certificates in files that somebody else renews: they are read again when they change."""

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
    """Files that belong together, and what to do with what is in them."""

    option: str
    paths: tuple[Path, ...]
    use: Callable[[Sequence[bytes]], Awaitable[None]]
    """Raises ValueError if it cannot be used."""


class Files:
    """Looks at files every now and then, and hands on what has changed.

    They are looked at, not subscribed to: a mounted Secret is exchanged by a symbolic link two directories up, which
    no notification for the file tells.
    """

    name = "files"
    ready = True

    def __init__(self, watched: Sequence[Watched], *, interval: float = 1.0) -> None:
        self._watched = watched
        self._interval = interval
        # Whoever read them at the start did so a while ago: the first look hands on what is there.
        self._seen: list[Signature] = [() for _ in watched]

    async def run(self) -> None:
        while True:
            for number, one in enumerate(self._watched):
                seen = await asyncio.to_thread(_signature, one.paths)
                if seen != self._seen[number]:
                    # Noted before it is read: what changes in between is seen the next time.
                    self._seen[number] = seen
                    await self._hand_on(one)
            await asyncio.sleep(self._interval)

    async def _hand_on(self, watched: Watched) -> None:
        about = ", ".join(str(path) for path in watched.paths)
        try:
            await watched.use(await asyncio.to_thread(read, watched.paths, option=watched.option))
        except (UnwindError, ValueError) as error:
            # A certificate and its key are written one after the other, so the first look may find them at odds.
            log.warning("new files cannot be used, the old ones are kept", files=about, why=str(error))
        else:
            log.info("files are used", files=about)


def read(paths: Sequence[Path], *, option: str) -> list[bytes]:
    """What is in the files. Raises UnwindError."""
    contents = []
    for path in paths:
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise UnwindError(f"{path} cannot be read ({error.strerror})", remedy=f"check {option}") from error
    return contents


def _signature(paths: Sequence[Path]) -> Signature:
    """Another one when a file is written or exchanged."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - follows the links, which is what is exchanged
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
