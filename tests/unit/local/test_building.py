from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import pytest

from unwind.errors import UnwindError
from unwind.local import building, golang, tools
from unwind.local.building import Silence, ensure
from unwind.local.tools import Binary, CacheCondition, Module, Origin, Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as in shutil

MAIN = 'package main\n\nvar version string\n\nfunc main() { println("tiny", version, "%s") }\n'

# Stands in front of the real Go: keeps a list of what was asked of it, and can be told to hang in a build.
GO = """\
#!/bin/sh
echo "$@" >> {here}/asked
if [ "$1" = build ] && [ -e {here}/hang ]; then
    echo half > "$GOTMPDIR/half-made"
    echo example.com/tiny >&2
    case $(cat {here}/hang) in
    alone) exec sleep 3600 ;;
    with-a-child) sleep 3600 & wait ;;
    until-told) while [ -e {here}/hang ]; do sleep 0.05; done ;;
    esac
fi
exec {go} "$@"
"""

# What another process does: it says what it is told, and the path at the end.
PROCESS = """\
import asyncio, sys
from pathlib import Path
from unwind.local.building import Silence, ensure
from unwind.local.tools import Module, Tool

class Aloud(Silence):
    def waiting(self, module, pid):
        print("waiting", module, pid, flush=True)
    def building(self, name, done, total):
        print("building", done, flush=True)

stamp = "-X main.version={version}"
module = Module(name="small", source="example.com/tiny", directory=Path(sys.argv[1]), ldflags=stamp)
tool = Tool(name="unwind-tiny", module=module, package="example.com/tiny")
print(asyncio.run(ensure([tool], Aloud()))["unwind-tiny"].path, flush=True)
"""


class Told(Silence):
    """Remembers what it was told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self._changed = asyncio.Event()

    def __getattribute__(self, name: str) -> object:
        if name not in ("found", "mending", "waiting", "downloading", "building", "built"):
            return super().__getattribute__(name)

        def tell(*values: object) -> None:
            self.events.append((name, *values))
            self._changed.set()

        return tell

    def all(self, name: str) -> list[tuple[object, ...]]:
        return [event[1:] for event in self.events if event[0] == name]

    async def until(self, name: str, *values: object) -> None:
        while (name, *values) not in [event[: len(values) + 1] for event in self.events]:
            self._changed.clear()
            await self._changed.wait()


class Workshop:
    """A tiny Go module, and a Go that can be watched."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.directory = here / "module"
        self.source = self.directory / "tiny"
        self.source.mkdir(parents=True)
        # Of another test it would be in Go's build cache already: the path makes each source another one.
        (self.source / "main.go").write_text(MAIN % here)
        (self.source / "go.mod").write_text("module example.com/tiny\n\ngo 1.26.0\n")
        (self.source / "a.yaml").write_text("a: b\n")
        (self.source / "b.yaml").write_text("b: c\n")
        (self.directory / "go.mod").write_text(
            "module unwind.test/small\n\ngo 1.26.0\n\ntool example.com/tiny\n\n"
            "require example.com/tiny v1.2.3\n\nreplace example.com/tiny => ./tiny\n"
        )
        (self.directory / "go.sum").write_text("")
        self.module = Module(
            name="small",
            source="example.com/tiny",
            directory=self.directory,
            ldflags="-X main.version={version}",
        )
        self.tool = Tool(name="unwind-tiny", module=self.module, package="example.com/tiny")
        self.with_assets = msgspec.structs.replace(self.tool, assets=("*.yaml",))
        self.binary = tools.binary_path(self.tool)
        self.lock = self.module.shelf / "lock"
        self.processes: list[asyncio.subprocess.Process] = []

    def builds(self) -> int:
        asked = self.here / "asked"
        return sum(line.startswith("build ") for line in asked.read_text().splitlines()) if asked.exists() else 0

    def hang(self, how: Literal["alone", "with-a-child", "until-told"]) -> None:
        """Have Go hang in its next builds."""
        (self.here / "hang").write_text(how)

    def go_on(self) -> None:
        (self.here / "hang").unlink()

    def running(self) -> list[int]:
        """The processes of Go that work here."""
        mark = f"GOTMPDIR={self.here}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    async def until_so_many_run(self, count: int) -> None:
        while len(self.running()) != count:  # nobody tells of processes that are not our children
            await asyncio.sleep(0.02)

    def scratch(self) -> list[Path]:
        return list(self.module.shelf.glob(".building-*"))

    def runs(self) -> str:
        return subprocess.run([self.binary], capture_output=True, text=True, check=True).stderr

    async def process(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROCESS,
            str(self.directory),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workshop]:
    go = golang.find_go()
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("UNWIND_UNWIND_TINY", raising=False)
    wrapper = tmp_path / "bin" / "go"
    wrapper.parent.mkdir()
    wrapper.write_text(GO.format(here=tmp_path, go=go))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    shop = Workshop(tmp_path)
    yield shop
    # Of a test that failed: builders first, so that none goes on when its Go is ended.
    left = [process for process in shop.processes if process.returncode is None]
    for process in left:
        process.kill()
    for pid in shop.running():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in left:
        await process.communicate()


@asynccontextmanager
async def in_background(tool: Tool, told: Told) -> AsyncIterator[asyncio.Task[dict[str, Binary]]]:
    build = asyncio.create_task(ensure([tool], told))
    try:
        yield build
    finally:
        build.cancel()
        await asyncio.wait([build])


async def read_until(process: asyncio.subprocess.Process, wanted: bytes) -> None:
    assert process.stdout
    while (line := await process.stdout.readline()).strip() != wanted:
        assert line, await process.communicate()


async def test_what_is_missing_is_built_and_runs(shop: Workshop) -> None:
    told = Told()
    found = await ensure([shop.tool], told)
    assert found == {"unwind-tiny": Binary("unwind-tiny", shop.binary, Origin.BUILT)}
    assert shop.runs().startswith("tiny v1.2.3 ")
    assert [event[0] for event in told.events] == ["building", "building", "built"]
    assert told.all("building") == [("unwind-tiny", 0, 1), ("unwind-tiny", 1, 1)]
    assert shop.lock.read_text() == ""


async def test_the_second_time_nothing_is_built(shop: Workshop) -> None:
    await ensure([shop.tool])
    asked = (shop.here / "asked").read_text()
    told = Told()
    found = await ensure([shop.tool], told)
    assert found["unwind-tiny"].origin is Origin.CACHE
    assert told.events == [("found", found["unwind-tiny"])]
    assert (shop.here / "asked").read_text() == asked


async def test_only_what_is_asked_for_and_missing_is_built(shop: Workshop, tmp_path: Path) -> None:
    other = msgspec.structs.replace(shop.tool, name="unwind-other")
    third = msgspec.structs.replace(shop.tool, name="unwind-third")
    on_path = shutil.copy("/bin/true", tmp_path / "bin" / "unwind-other")
    found = await ensure([shop.tool, other])
    assert shop.builds() == 1
    assert found["unwind-other"] == Binary("unwind-other", Path(on_path), Origin.PATH)
    assert tools.find(third) is None


async def test_a_tool_asked_for_twice_is_built_once(shop: Workshop) -> None:
    assert list(await ensure([shop.tool, shop.tool])) == ["unwind-tiny"]
    assert shop.builds() == 1


async def test_a_binary_that_was_cut_short_is_noticed_told_and_built_again(shop: Workshop) -> None:
    await ensure([shop.tool])
    with shop.binary.open("r+b") as binary:
        binary.truncate(1000)
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("mending") == [("unwind-tiny", CacheCondition.OTHER_SIZE)]
    assert shop.builds() == 2
    assert shop.runs().startswith("tiny")


async def test_a_binary_without_its_record_is_noticed_told_and_built_again(shop: Workshop) -> None:
    await ensure([shop.tool])
    tools.record_path(shop.binary).unlink()
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("mending") == [("unwind-tiny", CacheCondition.UNRECORDED)]
    assert shop.builds() == 2
    assert tools.condition(shop.binary) is CacheCondition.WHOLE


async def test_two_processes_that_start_at_once_build_once(shop: Workshop) -> None:
    shop.hang("until-told")
    first, second = [await shop.process() for _ in range(2)]
    said = [await process.stdout.readline() for process in (first, second) if process.stdout]
    builder, waiter = (first, second) if said[0] == b"building 0\n" else (second, first)
    # One is in the middle of its build when the other waits for it.
    await read_until(builder, b"building 1")
    if b"waiting small %d\n" % builder.pid not in said:
        await read_until(waiter, b"waiting small %d" % builder.pid)
    shop.go_on()
    for process in (builder, waiter):
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert out.splitlines()[-1] == str(shop.binary).encode()
    assert shop.builds() == 1


async def test_two_tasks_of_one_process_build_once(shop: Workshop) -> None:
    first, second = await asyncio.gather(ensure([shop.tool]), ensure([shop.tool]))
    assert {first["unwind-tiny"].origin, second["unwind-tiny"].origin} == {Origin.BUILT, Origin.CACHE}
    assert shop.builds() == 1


async def test_who_waits_says_for_whom_and_then_takes_what_was_built(shop: Workshop, tmp_path: Path) -> None:
    shop.lock.parent.mkdir(parents=True)
    told = Told()
    with shop.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        async with in_background(shop.tool, told) as build:
            await told.until("waiting", "small", 4711)
            tools.shelve(Path(shutil.copy("/bin/true", tmp_path / "made")), shop.binary)
            fcntl.flock(lock, fcntl.LOCK_UN)
            found = await build
    assert found["unwind-tiny"].origin is Origin.CACHE
    assert told.all("waiting") == [("small", 4711)]
    assert shop.builds() == 0


async def test_a_cancelled_build_leaves_nothing_behind_and_the_next_one_succeeds(shop: Workshop) -> None:
    shop.hang("with-a-child")
    told = Told()
    async with in_background(shop.tool, told) as build:
        await told.until("building", "unwind-tiny", 1)
        await shop.until_so_many_run(2)
        assert shop.scratch()
        build.cancel()
        with pytest.raises(asyncio.CancelledError):
            await build
    assert not shop.scratch()
    await shop.until_so_many_run(0)

    shop.go_on()
    await ensure([shop.tool])
    assert shop.runs().startswith("tiny")


async def test_a_cancellation_waits_for_what_is_written_under_the_lock() -> None:
    started, finish = threading.Event(), threading.Event()
    done: list[bool] = []

    def write() -> None:
        started.set()
        done.append(finish.wait())

    writing = asyncio.create_task(building._to_the_end(write))
    await asyncio.to_thread(started.wait)
    try:
        writing.cancel()
        for _ in range(5):  # turns of the loop, in which it could end
            await asyncio.sleep(0)
        assert not writing.done()
    finally:
        finish.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert done == [True]


async def test_an_interrupt_ends_the_build_and_leaves_nothing_behind(shop: Workshop) -> None:
    shop.hang("with-a-child")
    process = await shop.process()
    await read_until(process, b"building 1")
    await shop.until_so_many_run(2)
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == -signal.SIGINT
    assert not shop.scratch()
    await shop.until_so_many_run(0)


async def test_sigkill_leaves_no_go_and_its_leftovers_go_with_the_next_build(shop: Workshop) -> None:
    shop.hang("alone")
    process = await shop.process()
    await read_until(process, b"building 1")
    await shop.until_so_many_run(1)
    process.kill()
    await process.communicate()
    await shop.until_so_many_run(0)

    leftover = shop.scratch()
    assert leftover
    shop.go_on()
    await ensure([shop.tool])
    assert not shop.scratch()
    assert shop.runs().startswith("tiny")


async def test_go_does_not_hold_the_lock(shop: Workshop) -> None:
    def holders(pids: list[int]) -> list[int]:
        found = []
        for pid in pids:
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    if fd.readlink() == shop.lock:
                        found.append(pid)
        return found

    shop.hang("with-a-child")
    told = Told()
    async with in_background(shop.tool, told):
        await told.until("building", "unwind-tiny", 1)
        await shop.until_so_many_run(2)
        assert holders([os.getpid()]) == [os.getpid()]
        assert holders(shop.running()) == []


async def test_a_failed_build_is_one_line_that_names_the_tool_the_reason_and_the_log(shop: Workshop) -> None:
    (shop.source / "main.go").write_text("package main\n\nfunc main() { missing() }\n")
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    line = str(caught.value)
    log = shop.module.shelf / "unwind-tiny.log"
    assert line.startswith("cannot build unwind-tiny: ")
    assert "main.go:3:15: undefined: missing" in line
    assert str(log) in line
    assert "\n" not in line
    assert "undefined: missing" in log.read_text()
    assert not shop.scratch()
    assert tools.find(shop.tool) is None


async def test_settings_of_the_user_do_not_spoil_the_build(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"GOOS": "plan9", "GOFLAGS": "-mod=vendor", "GO111MODULE": "off"}.items():
        monkeypatch.setenv(variable, value)
    await ensure([shop.tool])
    assert shop.runs().startswith("tiny")


async def test_assets_come_with_the_tool_and_only_once(shop: Workshop) -> None:
    await ensure([shop.with_assets])
    assert {file.name: file.read_text() for file in tools.assets(shop.with_assets).iterdir()} == {
        "a.yaml": "a: b\n",
        "b.yaml": "b: c\n",
    }
    asked = (shop.here / "asked").read_text()
    await ensure([shop.with_assets])
    assert (shop.here / "asked").read_text() == asked


async def test_a_binary_on_the_path_gets_its_assets_without_a_build(shop: Workshop, tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / "bin" / "unwind-tiny")
    found = await ensure([shop.with_assets])
    assert found["unwind-tiny"].origin is Origin.PATH
    assert len(list(tools.assets(shop.with_assets).iterdir())) == 2
    assert shop.builds() == 0


async def test_assets_that_were_cut_short_are_noticed_told_and_made_again(shop: Workshop) -> None:
    await ensure([shop.with_assets])
    (tools.assets(shop.with_assets) / "a.yaml").write_text("")
    told = Told()
    await ensure([shop.with_assets], told)
    assert told.all("mending") == [("unwind-tiny.assets", CacheCondition.OTHER_SIZE)]
    assert (tools.assets(shop.with_assets) / "a.yaml").read_text() == "a: b\n"
    assert shop.builds() == 1


async def test_assets_that_the_sources_lack_are_an_error_that_names_them(shop: Workshop) -> None:
    with pytest.raises(UnwindError, match=r"assets of unwind-tiny: no \*\.toml"):
        await ensure([msgspec.structs.replace(shop.tool, assets=("*.toml",))])


class Proxied:
    """The tiny tool needs a module that comes from a proxy: at first from a directory."""

    def __init__(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        versions = shop.here / "proxy" / "example.com" / "dep" / "@v"
        versions.mkdir(parents=True)
        go_mod = "module example.com/dep\n\ngo 1.26.0\n"
        (versions / "v1.0.0.info").write_text('{"Version": "v1.0.0"}')
        (versions / "v1.0.0.mod").write_text(go_mod)
        with zipfile.ZipFile(versions / "v1.0.0.zip", "w") as packed:
            packed.writestr("example.com/dep@v1.0.0/go.mod", go_mod)
            packed.writestr(
                "example.com/dep@v1.0.0/dep.go", f"package dep\n\nconst Name = {str(shop.here)!r}\n".replace("'", '"')
            )
        (shop.source / "main.go").write_text(
            'package main\n\nimport "example.com/dep"\n\nfunc main() { println("tiny", dep.Name) }\n'
        )
        with (shop.source / "go.mod").open("a") as text:
            text.write("\nrequire example.com/dep v1.0.0\n")
        self.settings = {
            "GOPROXY": f"file://{shop.here}/proxy",
            "GONOSUMDB": "*",
            "GOMODCACHE": str(shop.here / "sources"),
        }
        for variable, value in self.settings.items():
            monkeypatch.setenv(variable, value)
        go = golang.find_go()
        subprocess.run(
            [go, "mod", "tidy"], cwd=shop.directory, env=os.environ | golang.settings(), check=True, capture_output=True
        )
        subprocess.run([go, "clean", "-modcache"], cwd=shop.directory, env=os.environ | golang.settings(), check=True)
        # go.mod and go.sum are others now, and so is the place in the cache.
        shop.binary = tools.binary_path(shop.tool)


async def test_sources_that_have_to_come_first_are_told_as_they_come(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("downloading") == [("unwind-tiny", "example.com/dep v1.0.0", 1)]
    assert told.all("building")[-1] == ("unwind-tiny", 2, 2)
    assert shop.runs().startswith("tiny")


async def test_a_proxy_that_cannot_be_reached_is_told_with_what_to_do(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    assert "connection refused" in caught.value.what
    assert "set GOPROXY" in caught.value.remedy
    assert "\n" not in str(caught.value)


async def test_assets_come_from_the_proxy_where_the_binary_was_on_the_path(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    shutil.copy("/bin/true", shop.here / "bin" / "unwind-tiny")
    tool = Tool(
        name="unwind-tiny",
        module=msgspec.structs.replace(shop.module, source="example.com/dep"),
        package="example.com/tiny",
        assets=("*.go",),
    )
    proxy = os.environ["GOPROXY"]
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    with pytest.raises(UnwindError, match=r"cannot fetch the assets of unwind-tiny.* connection refused"):
        await ensure([tool])
    monkeypatch.setenv("GOPROXY", proxy)
    await ensure([tool])
    assert [file.name for file in tools.assets(tool).iterdir()] == ["dep.go"]


async def test_without_room_nothing_is_built_and_the_error_says_what_to_do(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 100 << 20))
    with pytest.raises(
        UnwindError, match=r"not enough disk space in .* to build unwind-tiny: .* 100 MiB free"
    ) as caught:
        await ensure([shop.tool])
    assert "UNWIND_CACHE_DIR" in caught.value.remedy
    assert shop.builds() == 0


async def test_room_for_the_sources_and_all_packages_is_asked_before_anything_is_downloaded(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    large = msgspec.structs.replace(shop.module, sources_bytes=1 << 30, packages=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 5 << 30))
    told = Told()
    with pytest.raises(UnwindError, match=r"5\.7 GiB needed, 5\.0 GiB free"):
        await ensure([msgspec.structs.replace(shop.tool, module=large)], told)
    assert told.events == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", where],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", where], check=True)


async def test_a_real_disk_that_is_too_small_is_noticed_beforehand(
    shop: Workshop, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(small_disk))
    with pytest.raises(UnwindError, match=rf"not enough disk space in {small_disk}.* 4 MiB free"):
        await ensure([shop.tool])
    assert shop.builds() == 0


async def test_a_real_disk_that_fills_up_during_the_build_is_told_and_leaves_room_as_before(
    shop: Workshop, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(small_disk))
    monkeypatch.setattr(building, "_require_room", lambda *_, **__: None)
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    before = shutil.disk_usage(small_disk).free
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    assert "no space left on device" in caught.value.what
    assert "the disk is full" in caught.value.remedy
    assert before - shutil.disk_usage(small_disk).free < 64 << 10  # the log and the lock


async def test_a_cache_that_is_a_file_is_told_in_one_line(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UnwindError, match=r"cannot build into .*file.*: Not a directory"):
        await ensure([shop.tool])
