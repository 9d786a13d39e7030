"""A tiny Go module and a Go program that can be watched, for the tests of building."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from collections import namedtuple
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tests.eventually import eventually
from unwind.local import golang, tools
from unwind.local.build import Silence, ensure
from unwind.local.tools import Binary, Module, Tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


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
from unwind.local.build import Silence, ensure
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
        await eventually(lambda: len(self.running()) == count, f"{count} processes")

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
