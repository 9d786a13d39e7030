"""Building the binaries that are found nowhere: once, whoever asks, and never half.

Go's own caches carry an interrupted build over to the next one; what is here only has to leave nothing behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.errors import UnwindError
from unwind.local import golang, tools
from unwind.local.paths import cache_dir, existing, require_room
from unwind.local.tools import Condition, Found, Module, Origin, Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

_LOCK_POLL = 0.2
# Measured over Kubernetes on linux/amd64, rounded up: a package compiled takes this much in Go's build cache, and
# again in its scratch directory until the build is over; a binary is there twice while it is being linked.
_PACKAGE_BYTES = 1_200_000
_BINARY_BYTES = 120 << 20
_MAKE_ROOM = "free some, or set UNWIND_CACHE_DIR, GOCACHE and GOMODCACHE to directories on another disk"


class Progress(Protocol):
    """Told what goes on; it only shows it."""

    def found(self, found: Found) -> None:
        """It need not be built."""

    def mending(self, name: str, condition: Condition) -> None:
        """Something in the cache is not whole, and is made again."""

    def waiting(self, module: str, pid: int | None) -> None:
        """Another process builds it. Its number is not known in the moment when it begins."""

    def downloading(self, name: str, what: str, count: int) -> None:
        """Sources are on their way: the latest of them, and how many there were. Nobody knows how many will be."""

    def building(self, name: str, done: int, total: int) -> None:
        """So many of the packages that have to be compiled are. At the end comes the linker, which says nothing."""

    def built(self, found: Found, seconds: float) -> None:
        """It is there."""


class Silence:
    """Progress that nobody watches."""

    def found(self, found: Found) -> None: ...
    def mending(self, name: str, condition: Condition) -> None: ...
    def waiting(self, module: str, pid: int | None) -> None: ...
    def downloading(self, name: str, what: str, count: int) -> None: ...
    def building(self, name: str, done: int, total: int) -> None: ...
    def built(self, found: Found, seconds: float) -> None: ...


SILENCE = Silence()


async def ensure(wanted: Iterable[Tool], progress: Progress = SILENCE) -> dict[str, Found]:
    """Have these tools and their assets, by name. What is not found is built, and only that."""
    wanted = list(dict.fromkeys(wanted))
    found = {tool.name: have for tool in wanted if (have := tools.find(tool))}
    for have in found.values():
        progress.found(have)
    lacking = [tool for tool in wanted if tool.name not in found or _lacks_assets(tool)]
    if lacking:
        try:
            with _cancelled_by_sigterm():
                go = await asyncio.to_thread(golang.find_go)
                for module, group in groupby(
                    sorted(lacking, key=_order(lacking)), key=lambda tool: tool.module
                ):
                    found |= await _ensure_module(module, list(group), go=go, progress=progress)
        except OSError as error:
            raise UnwindError(
                f"cannot build into {cache_dir()}: {error.strerror} ({error.filename})", remedy=_MAKE_ROOM
            ) from error
    return {tool.name: found[tool.name] for tool in wanted}


async def _ensure_module(
    module: Module, lacking: Sequence[Tool], *, go: Path, progress: Progress
) -> dict[str, Found]:
    shelf = module.shelf
    shelf.mkdir(parents=True, exist_ok=True)
    async with _locked(shelf / "lock", lambda pid: progress.waiting(module.name, pid)):
        with _scratch(shelf) as scratch:
            found = {}
            for tool in lacking:
                run = _Run(go, tool, scratch, progress)
                # Looked for again: whoever had the lock before us may have built it.
                if have := tools.find(tool):
                    found[tool.name] = have
                else:
                    found[tool.name] = await _build(run)
                if _lacks_assets(tool):
                    await _fetch_assets(run)
            return found


class _Run:
    """Go at work on one tool: all it says goes to a log."""

    def __init__(self, go: Path, tool: Tool, scratch: Path, progress: Progress) -> None:
        self.tool = tool
        self.module = tool.module
        self.scratch = scratch
        self.progress = progress
        self.log = tool.module.shelf / f"{tool.name}.log"
        self._go = go
        self._downloads = 0

    async def go(self, *arguments: str, heard: Callable[[str], None] = lambda _: None) -> str:
        said: list[str] = []
        with self.log.open("a", buffering=1) as log:
            log.write(f"$ go {' '.join(arguments)}\n")

            def hear(line: str) -> None:
                log.write(f"{line}\n")
                said.append(line)
                if line.startswith("go: downloading "):
                    self._downloads += 1
                    self.progress.downloading(self.tool.name, line.split(" ", 2)[2], self._downloads)
                heard(line)

            ended = await golang.run(
                [self._go, *arguments],
                directory=self.module.directory,
                environment=golang.settings(scratch=self.scratch),
                heard=hear,
            )
        if ended.code:
            raise UnwindError(
                f"{self.tool.name} could not be built, Go says: {golang.last_words(said)} (log: {self.log})",
                remedy=golang.hint(said),
            )
        return ended.output


async def _build(run: _Run) -> Found:
    began = time.monotonic()
    tool, name = run.tool, run.tool.name
    target = tools.binary_path(tool)
    run.log.unlink(missing_ok=True)
    _say_if_mending(run, target)
    caches = [Path(line) for line in (await run.go("env", "GOCACHE", "GOMODCACHE")).split()]
    await asyncio.to_thread(_require_room, tool, *caches, packages=None)

    # With the flags of the build, "stale" is what Go's build cache has not got.
    listing = await run.go(
        "list", "-deps", *tool.module.flags, "-f", "{{.Stale}} {{.ImportPath}}", tool.package
    )
    stale = {path for line in listing.splitlines() for state, path in [line.split(" ", 1)] if state == "true"}
    await asyncio.to_thread(_require_room, tool, *caches, packages=len(stale))

    compiled: set[str] = set()

    def heard(line: str) -> None:
        if line in stale:
            compiled.add(line)
            run.progress.building(name, len(compiled), len(stale))

    run.progress.building(name, 0, len(stale))
    output = run.scratch / name
    await run.go("build", "-v", *tool.module.flags, "-o", str(output), tool.package, heard=heard)
    await asyncio.to_thread(_shelve, output, target)
    found = Found(name, target, Origin.BUILT)
    run.progress.built(found, time.monotonic() - began)
    return found


async def _fetch_assets(run: _Run) -> None:
    tool, source = run.tool, run.module.source
    target = tools.assets_path(tool)
    _say_if_mending(run, target)
    await run.go("mod", "download", "-json", source)
    described = msgspec.json.decode(await run.go("list", "-m", "-mod=readonly", "-json=Dir", source))
    gathered = run.scratch / target.name
    gathered.mkdir()
    for pattern in tool.assets:
        files = sorted(Path(described["Dir"]).glob(pattern))
        if not files:
            raise UnwindError(f"{source} {run.module.version} holds no {pattern}, which {tool.name} needs")
        for file in files:
            shutil.copyfile(file, gathered / file.name)
    await asyncio.to_thread(_shelve, gathered, target)


def _say_if_mending(run: _Run, target: Path) -> None:
    if (condition := tools.condition(target)) not in (Condition.WHOLE, Condition.ABSENT):
        run.progress.mending(target.name, condition)


def _lacks_assets(tool: Tool) -> bool:
    return bool(tool.assets) and tools.condition(tools.assets_path(tool)) is not Condition.WHOLE


def _shelve(made: Path, target: Path) -> None:
    """Put what was made into the cache; only the record, which comes last, makes it count."""
    digest = hashlib.sha256()
    for file in tools.contents(made):
        with file.open("r+b") as content:
            digest.update(content.read())
            os.fsync(content)
    record = tools.Record(size=tools.size_of(made), sha256=digest.hexdigest())
    tools.record_path(target).unlink(missing_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    made.replace(target)
    draft = tools.record_path(made)
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(tools.record_path(target))


def _require_room(tool: Tool, build_cache: Path, sources: Path, *, packages: int | None) -> None:
    """Check the room for compiling so many packages; None before that is known, when it may be all of them."""
    module = tool.module
    needs = {module.shelf: 2 * _BINARY_BYTES}
    if packages is None:
        if not module.sources_bytes or (sources / f"{module.source}@{module.version}").is_dir():
            return
        needs[sources] = module.sources_bytes
        packages = module.packages
    needs[build_cache] = packages * _PACKAGE_BYTES
    needs[module.shelf] += packages * _PACKAGE_BYTES
    by_disk: dict[int, list[Path]] = {}
    for directory in needs:
        by_disk.setdefault(existing(directory).stat().st_dev, []).append(directory)
    for directories in by_disk.values():
        total = sum(needs[directory] for directory in directories)
        require_room(directories[0], total, f"to build {tool.name}", _MAKE_ROOM)


@asynccontextmanager
async def _locked(path: Path, waiting: Callable[[int | None], None]) -> AsyncIterator[None]:
    # Never removed: a lock on a file that is gone keeps nobody out. The kernel lets go of it when we die.
    with path.open("a+") as lock:
        told: list[int | None] = []
        while not _try_lock(lock.fileno()):
            lock.seek(0)
            holder = int(lock.read() or 0) or None
            if holder not in told:
                told.append(holder)
                waiting(holder)
            await asyncio.sleep(_LOCK_POLL)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _scratch(shelf: Path) -> Iterator[Path]:
    """A directory for this build alone. Under the lock, others are what killed builds left."""
    for leftover in shelf.glob(".building-*"):
        # A compiler that outlives its Go for a moment may still write there: then it goes the next time.
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=shelf))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Clean up before a SIGTERM that nobody else handles ends this process."""
    task = asyncio.current_task()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not task or not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()
    came = threading.Event()

    def cancel() -> None:
        came.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        if came.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


def _order(lacking: Sequence[Tool]) -> Callable[[Tool], int]:
    """Tools of one module together, modules in the order in which they were asked for."""
    modules = list(dict.fromkeys(tool.module for tool in lacking))
    return lambda tool: modules.index(tool.module)
