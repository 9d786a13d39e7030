"""The command line in processes of their own, forked from one that has the modules loaded: most of a start is imports.

A command as a program takes 0.7 to 1.2 CPU seconds. On a busy machine it ended after 1.9 to 4.6 s, and forked
after 0.2 to 0.4 s.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

import unwind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.context import ForkServerProcess

UNWIND = Path(sys.executable).with_name("unwind")
"""The program itself."""


def _preloaded() -> list[str]:
    """Everything except what looks at its environment or its standard streams while it is imported."""
    home = Path(unwind.__file__).parent
    modules = sorted(".".join(path.relative_to(home.parent).with_suffix("").parts) for path in home.rglob("*.py"))
    ours = [module for module in modules if not module.startswith(("unwind.cli", "unwind.dashboard", "unwind.testing"))]
    return [*ours, "cyclopts", "rich.console", "rich.live", "rich.table", "tests.forked_commands"]


FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(_preloaded())
# A process is asked for its exit code once: `start` asks the others for theirs, perhaps in another thread.
_lock = threading.Lock()


def run(
    *arguments: str, env: Mapping[str, str], beside: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command. `env`: all of its variables. `beside`: a directory with further packages."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _started(arguments, env, out.fileno(), err.fileno(), beside=beside)
        late = not wait([process.sentinel], timeout)
        if late:
            process.kill()
        code = _joined(process)
        said = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    if late:
        raise subprocess.TimeoutExpired(["unwind", *arguments], timeout, *said)
    return subprocess.CompletedProcess(arguments, code, *said)


async def run_off_loop(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command while the event loop goes on."""
    return await asyncio.to_thread(run, *arguments, env=env)


class ForkedProcess:
    """A command that goes on, as asyncio's processes: with what it prints as a stream."""

    def __init__(self, process: ForkServerProcess, stderr: asyncio.StreamReader) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._process = process
        self._ended = asyncio.ensure_future(self._end())

    @classmethod
    async def start(cls, *arguments: str, env: Mapping[str, str]) -> ForkedProcess:
        reading, writing = os.pipe()
        try:
            process = await asyncio.to_thread(_started, arguments, env, writing, writing)
        finally:
            os.close(writing)
        stderr = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(reading, "rb"))
        return cls(process, stderr)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def _end(self) -> int:
        ended = asyncio.Event()
        loop, sentinel = asyncio.get_running_loop(), self._process.sentinel
        loop.add_reader(sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(sentinel)
        self.returncode = await asyncio.to_thread(_joined, self._process)
        return self.returncode


def _started(
    arguments: Sequence[str], env: Mapping[str, str], out: int, err: int, *, beside: Path | None = None
) -> ForkServerProcess:
    """Start a command that writes into these files."""
    # A connection is what can be handed over to the new process.
    streams = tuple(Connection(os.dup(descriptor), readable=False) for descriptor in (out, err))
    process = FORK.Process(target=_main, args=(arguments, dict(env), streams, str(beside or "")), daemon=True)
    with _lock:
        process.start()
    for stream in streams:
        stream.close()
    return process


def _joined(process: ForkServerProcess) -> int:
    """The exit code of a process that has ended, or was killed."""
    with _lock:
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def _main(arguments: Sequence[str], env: dict[str, str], streams: Sequence[Connection], beside: str) -> None:
    for descriptor, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["unwind", *arguments]
    if beside:
        sys.path.insert(0, beside)
    from unwind.cli import main  # noqa: PLC0415 - in the new process

    main()
