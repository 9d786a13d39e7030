"""Build missing binaries from Go modules: once across processes, and atomically; and all that a control plane needs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.errors import UnwindError
from unwind.local import golang, tools
from unwind.local.paths import cache_dir, require_room_for_each
from unwind.local.tools import Binary, CacheCondition, Module, Origin, Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from unwind.local.home import Shape

_LOCK_POLL = 0.2
# Measured for Kubernetes on linux/amd64: the size of a compiled package in Go's build cache, and again in the scratch
# directory until the build is finished. The binary exists twice while it is moved.
_PACKAGE_BYTES = 1_200_000
_BINARY_BYTES = 2 * (110 << 20)
_MAKE_ROOM = "free some disk space, or set UNWIND_CACHE_DIR, GOCACHE and GOMODCACHE to another disk"


class ProgressListener(Protocol):
    """Callbacks that show the progress of builds."""

    def found(self, found: Binary) -> None:
        """A binary exists and need not be built."""

    def mending(self, name: str, condition: CacheCondition) -> None:
        """A cache entry is incomplete and is rebuilt."""

    def waiting(self, module: str, pid: int | None) -> None:
        """Another process builds it; its pid may be unknown for a moment."""

    def downloading(self, name: str, what: str, count: int) -> None:
        """Sources are downloaded: the latest one, and the count so far. The total is unknown."""

    def building(self, name: str, done: int, total: int) -> None:
        """`done` of `total` packages are compiled. Linking follows the last."""

    def built(self, found: Binary, seconds: float) -> None:
        """A binary was built."""


class Silence:
    """Progress callbacks that show nothing."""

    def found(self, found: Binary) -> None: ...
    def mending(self, name: str, condition: CacheCondition) -> None: ...
    def waiting(self, module: str, pid: int | None) -> None: ...
    def downloading(self, name: str, what: str, count: int) -> None: ...
    def building(self, name: str, done: int, total: int) -> None: ...
    def built(self, found: Binary, seconds: float) -> None: ...


async def ensure(wanted: Iterable[Tool], progress: ProgressListener | None = None) -> dict[str, Binary]:
    """The tools by name, with their assets; those that are not found are built."""
    progress = progress or Silence()
    wanted = list(dict.fromkeys(wanted))
    found: dict[str, Binary] = {}
    lacking: dict[Module, list[Tool]] = {}
    for tool in wanted:
        have = tools.find_binary(tool)
        if have and not tools.lacks_assets(tool):
            found[tool.name] = have
            progress.found(have)
        else:
            lacking.setdefault(tool.module, []).append(tool)
    if lacking:
        try:
            go = await asyncio.to_thread(golang.find_go)
            for module, tools_of_it in lacking.items():
                found |= await _ensure_module(module, tools_of_it, go=go, progress=progress)
        except OSError as error:
            where = error.filename or cache_dir()
            raise UnwindError(f"cannot build into {where}: {error.strerror}", remedy=_MAKE_ROOM) from error
    return {tool.name: found[tool.name] for tool in wanted}


async def _ensure_module(
    module: Module, lacking: Sequence[Tool], *, go: Path, progress: ProgressListener
) -> dict[str, Binary]:
    shelf = module.shelf
    shelf.mkdir(parents=True, exist_ok=True)
    found = {}
    async with _locked(shelf / "lock", lambda pid: progress.waiting(module.name, pid)):
        with _scratch(shelf) as scratch:
            for tool in lacking:
                run = _Run(go, tool, scratch, progress)
                # Look again: the previous holder of the lock may have built it.
                if have := tools.find_binary(tool):
                    progress.found(have)
                else:
                    have = await _build(run)
                found[tool.name] = have
                if tools.lacks_assets(tool):
                    await _gather_assets(run)
    return found


class _Run:
    """Runs Go for one tool and logs its output."""

    def __init__(self, go: Path, tool: Tool, scratch: Path, progress: ProgressListener) -> None:
        self.tool = tool
        self.scratch = scratch
        self.progress = progress
        self.log = tool.module.shelf / f"{tool.name}.log"
        self._go = go
        self._downloads = 0

    async def go(self, *arguments: str, aim: str = "build", heard: Callable[[str], None] = lambda _: None) -> str:
        said: list[str] = []
        with self.log.open("a", buffering=1) as log:
            log.write(f"$ {self._go} {' '.join(arguments)}\n")

            def hear(line: str) -> None:
                log.write(f"{line}\n")
                said.append(line)
                if line.startswith("go: downloading "):
                    self._downloads += 1
                    self.progress.downloading(self.tool.name, line.split(" ", 2)[2], self._downloads)
                heard(line)

            ended = await golang.run_go(
                [self._go, *arguments],
                directory=self.tool.module.directory,
                environment=golang.settings(scratch=self.scratch),
                heard=hear,
            )
        if ended.code:
            raise UnwindError(
                f"cannot {aim} {self.tool.name}: {golang.last_words(said)} (log: {self.log})",
                remedy=golang.hint(said),
            )
        return ended.output

    def say_if_mending(self, target: Path) -> None:
        if (condition := tools.condition(target)) not in (CacheCondition.WHOLE, CacheCondition.ABSENT):
            self.progress.mending(target.name, condition)


async def _build(run: _Run) -> Binary:
    began = time.monotonic()
    tool, progress = run.tool, run.progress
    target = tools.binary_path(tool)
    run.say_if_mending(target)
    run.log.unlink(missing_ok=True)
    caches = [Path(line) for line in (await run.go("env", "GOCACHE", "GOMODCACHE")).splitlines()]
    _require_room(tool.module, tool.name, *caches, packages=None)

    # With the build's flags, "stale" packages are those that Go's build cache lacks.
    listing = await run.go(
        "list", "-deps", *tool.module.flags, "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", tool.package
    )
    stale = set(listing.split())
    _require_room(tool.module, tool.name, *caches, packages=len(stale))

    compiled: set[str] = set()

    def heard(line: str) -> None:
        if line in stale:
            compiled.add(line)
            progress.building(tool.name, len(compiled), len(stale))

    progress.building(tool.name, 0, len(stale))
    output = run.scratch / tool.name
    await run.go("build", "-v", *tool.module.flags, "-o", str(output), tool.package, heard=heard)
    await _to_the_end(tools.shelve, output, target)
    found = Binary(tool.name, target, Origin.BUILT)
    progress.built(found, time.monotonic() - began)
    return found


async def _gather_assets(run: _Run) -> None:
    module, target = run.tool.module, tools.assets_path(run.tool)
    run.say_if_mending(target)
    aim = "fetch the assets of"
    await run.go("mod", "download", module.source, aim=aim)
    answer = await run.go("list", "-m", "-mod=readonly", "-f", "{{.Dir}}", module.source, aim=aim)
    sources = [(Path(answer.strip()), pattern) for pattern in run.tool.assets]
    for other, pattern in run.tool.other_assets:
        downloaded = await run.go("mod", "download", "-json", other, aim=aim)
        sources.append((Path(msgspec.json.decode(downloaded, type=_Downloaded).Dir), pattern))
    await _to_the_end(_copy_assets, run.tool, sources, run.scratch / target.name)
    await _to_the_end(tools.shelve, run.scratch / target.name, target)


class _Downloaded(msgspec.Struct):
    """What `go mod download -json` prints about a module."""

    Dir: str


def _copy_assets(tool: Tool, sources: Sequence[tuple[Path, str]], target: Path) -> None:
    target.mkdir()
    for directory, pattern in sources:
        files = sorted(directory.glob(pattern))
        if not files:
            raise UnwindError(
                f"cannot fetch the assets of {tool.name}: no {pattern} in {directory}",
                remedy="run `go clean -modcache`, then `unwind local build`",
            )
        for file in files:
            shutil.copyfile(file, target / file.name)


def _require_room(module: Module, name: str, build_cache: Path, sources: Path, *, packages: int | None) -> None:
    """Check the disk space to compile `packages`; if unknown, for all packages if sources are missing."""
    needs = {build_cache: 0, sources: 0, module.shelf: _BINARY_BYTES}
    if packages is None:
        if (sources / f"{module.source}@{module.version}").is_dir():
            return
        needs[sources], packages = module.sources_bytes, module.packages
    needs[build_cache] += packages * _PACKAGE_BYTES
    needs[module.shelf] += packages * _PACKAGE_BYTES
    require_room_for_each(needs, f"to build {name}", _MAKE_ROOM)


async def _to_the_end(function: Callable[..., None], *arguments: object) -> None:
    """Run a function in a thread. Cancellation waits for it, because it works under our lock."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


@asynccontextmanager
async def _locked(path: Path, waiting: Callable[[int | None], None]) -> AsyncIterator[None]:
    # Never removed: a lock on a deleted file excludes no other process. The kernel releases it when we exit.
    with path.open("a+") as lock:
        told: set[int | None] = set()
        while not _try_lock(lock.fileno()):
            lock.seek(0)
            text = lock.read()
            holder = int(text) if text.isdecimal() else None
            if holder not in told:
                told.add(holder)
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
    """A private scratch directory. Under the lock, any other one is left over from a killed build."""
    for leftover in shelf.glob(".building-*"):
        # A compiler may outlive its Go process for a moment and still write there: then the next build removes it.
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=shelf))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Toolbox(msgspec.Struct, frozen=True):
    """The paths of binaries and their assets, by name.

    Plain text, because it is passed to the supervisor as JSON.
    """

    programs: dict[str, str]
    assets: dict[str, str]

    def program(self, tool: Tool) -> Path:
        return Path(self.programs[tool.name])

    def assets_of(self, tool: Tool) -> Path:
        return Path(self.assets[tool.name])


def needed(shape: Shape) -> list[Tool]:
    """The tools that a control plane of this shape runs."""
    needed = [tools.ETCD, tools.KUBE_APISERVER, tools.KUBE_CONTROLLER_MANAGER]
    if shape.nodes:
        needed += [tools.KUBE_SCHEDULER, tools.KWOK]
    if shape.capi:
        needed.append(tools.CLUSTER_API_MANAGER)
    if shape.helm:
        needed.append(tools.HELM)
    return tools.for_kubernetes(needed, shape.kubernetes)


async def equip(shape: Shape, progress: ProgressListener | None = None) -> Toolbox:
    """Find the tools for a control plane of this shape, and build those that are missing."""
    return await toolbox(needed(shape), progress)


async def toolbox(wanted: Sequence[Tool], progress: ProgressListener | None = None) -> Toolbox:
    """Find these tools, and build those that are missing."""
    found = await ensure(wanted, progress)
    return Toolbox(
        programs={name: str(tool.path) for name, tool in found.items()},
        assets={tool.name: str(tools.assets(tool)) for tool in wanted if tool.assets},
    )
