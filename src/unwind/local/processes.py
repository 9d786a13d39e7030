"""Supervised child processes: log files, readiness, restarts and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.subprocesses import die_with_parent, until_ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path


_READY_POLL = 0.02
_RESTART_DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


class ProcessId(msgspec.Struct, frozen=True):
    """A process, distinguished from a later one with the same pid."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process with this pid; None if there is none."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - Path costs as much as the read
                fields = stat.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, started = fields[0], int(fields[19])
        return None if state in (b"Z", b"X") else cls(pid=pid, started=started)

    @property
    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    @property
    def resident_bytes(self) -> int:
        """Resident memory; pages that several processes share count for each of them."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:  # noqa: PTH123
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0

    def send(self, sign: signal.Signals) -> bool:
        """Signal this process; False if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # The pidfd pins the process, so the check cannot race with a reused pid.
            if not self.alive:
                return False
            signal.pidfd_send_signal(fd, sign)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    async def ended(self) -> None:
        """Return when it is gone. The process need not be our child."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                await until_ended(fd)
        finally:
            os.close(fd)


class Daemon:
    """A long-running process of the plane, restarted with backoff when it exits.

    Start it from a thread that lives as long as the process: the kernel kills it with that thread.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], Awaitable[bool]],
        directory: Path,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self.restarts = 0
        self._ready = ready
        self._directory = directory
        self._changed = changed
        self._popen: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def process(self) -> ProcessId | None:
        """The current process."""
        return ProcessId.of(self._popen.pid) if self._popen else None

    async def start(self, *, within: float = 60.0) -> None:
        """Start it and return when it is ready; on failure it is stopped."""
        self._spawn()
        try:
            await self._until_ready(within=within)
        except BaseException:
            await self.stop()
            raise
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def _until_ready(self, *, within: float) -> None:
        # Readiness is polled, because there is no event for it.
        deadline = time.monotonic() + within
        while not await self._ready():
            if self.process is None:
                raise DiedEarlyError(self)
            if time.monotonic() > deadline:
                raise UnwindError(
                    f"timed out after {within:.0f}s waiting for {self.name} to be ready",
                    remedy=f"see {self.log} (last line: {self.last_words()})",
                )
            await asyncio.sleep(_READY_POLL)

    async def stop(self, sign: signal.Signals = signal.SIGKILL) -> None:
        """Stop it and return when it is gone.

        By default with SIGKILL: the data is deleted with the plane, so there is nothing to flush.
        """
        if self._keeper:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self._popen and self._popen.poll() is None:
            self._popen.send_signal(sign)
            await self._exit()
        self._popen = None

    def last_words(self) -> str:
        """The last meaningful line of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 8192))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return "(no output)"
        telling = [line for line in lines if line.startswith(("E", "F", "Error", "error", "panic", "{"))]
        return next(reversed(telling or [line for line in lines if line.strip()]), "(no output)").strip()

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                # A separate session: Ctrl-C is handled by us, and we stop the components in order.
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls prctl, which takes no lock
            )
        self._changed()

    async def _exit(self) -> None:
        assert self._popen  # noqa: S101 - for the type checker
        process = self.process
        if process:
            await process.ended()
        self._popen.wait()  # already exited: this only reaps it

    async def _keep(self) -> None:
        while True:
            began = time.monotonic()
            await self._exit()
            if time.monotonic() - began > 60:
                self.restarts = 0
            delay = _RESTART_DELAYS[min(self.restarts, len(_RESTART_DELAYS) - 1)]
            self.restarts += 1
            self._changed()
            await asyncio.sleep(delay)
            self._spawn()


class DiedEarlyError(UnwindError):
    """A process exited before it was ready."""

    def __init__(self, daemon: Daemon) -> None:
        self.words = daemon.last_words()
        super().__init__(
            f"{daemon.name} ({daemon.argv[0]}) exited before it was ready",
            remedy=f"see {daemon.log} (last line: {self.words})",
        )


# Health checks of local components.


async def well(url: str, *, authority: bytes | None = None) -> bool:
    """Whether a health endpoint answers 200; False also if there is no answer."""
    parts = urlsplit(url)
    connection = ClusterConnection(server=f"{parts.scheme}://{parts.netloc}", authority=authority)
    async with Client(connection) as client:
        return await client.healthy(parts.path)
