"""The directory of a local control plane: lock, record and cleanup."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import time
from typing import TYPE_CHECKING, Self

import msgspec

from unwind.errors import UnwindError, UsageError
from unwind.local.paths import state_dir
from unwind.local.processes import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The requested components of a control plane."""

    members: int = 0
    nodes: bool = False
    helm: bool = False
    capi: bool = False
    cloud: bool = False
    cloud_delay: float = 3.0
    image: str = ""
    """An OCI archive; Pods of this image run as processes."""
    kubernetes: str = ""
    """The minor version of Kubernetes; empty: see `tools.for_kubernetes`."""

    @property
    def parts(self) -> list[str]:
        """The optional components, by their names in --with."""
        return [part for part in ("nodes", "helm", "capi", "cloud") if getattr(self, part)]


class RecordedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a control plane; it has no pid while it waits for a restart."""

    name: str
    cluster: str = ""
    process: ProcessId | None
    restarts: int
    log: str


class RecordedCluster(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    server: str
    kubeconfig: str
    audit_log: str


class PlaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded state of a control plane."""

    name: str
    phase: str
    shape: Shape
    supervisor: ProcessId
    since: float
    ephemeral: bool = False
    clusters: list[RecordedCluster] = []
    processes: list[RecordedProcess] = []
    load_balancers: list[str] = []


class Home:
    """The directory of a named control plane."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"invalid control plane name {name!r}",
                remedy="use up to 40 lower-case letters, digits and dashes, a letter or digit first and last",
            )
        self.name = name
        self.directory = _planes() / name
        self._record = self.directory / "plane.json"
        self._held: int | None = None

    @classmethod
    def all(cls) -> Iterator[Self]:
        """Every control plane with a directory, running or not."""
        planes = _planes()
        if planes.is_dir():
            for entry in sorted(planes.iterdir()):
                if entry.is_dir() and _NAME.fullmatch(entry.name):
                    yield cls(entry.name)

    def claim(self, *, announce: Callable[[str], None]) -> Self:
        """Lock the directory for a new control plane, and clean up after a killed run."""
        if not self.take():
            record = self.read()
            pid = f" (process {record.supervisor.pid})" if record else ""
            raise UnwindError(
                f"control plane {self.name!r} is already running{pid}",
                remedy=f"use it, stop it with `unwind local down --name {self.name}`, or choose another --name",
            )
        if any(entry.name != "lock" for entry in self.directory.iterdir()):
            self.clear()
            announce(f"cleaned up after a killed run of control plane {self.name!r}")
        return self

    def take(self) -> bool:
        """Create the directory if missing, and lock it; False while another process holds the lock.

        The lock is held until this process ends, in any way, or the directory is removed.
        """
        while True:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self.directory / "lock"
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed between the two lines above
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            # The previous holder may have removed the directory while we opened the file: then this lock is on a file
            # that no other process will ever see.
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                self._held = descriptor
                return True
            os.close(descriptor)

    @property
    def in_use(self) -> bool:
        """Whether a process holds the lock."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read(self) -> PlaneRecord | None:
        """The last record; None if there is none that can be read."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=PlaneRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write(self, record: PlaneRecord) -> None:
        fresh = self._record.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(record))
        fresh.replace(self._record)

    def clear(self) -> None:
        """Clean up the locked directory after a killed run, and kill its remaining processes."""
        record = self.read()
        if record:
            for recorded in record.processes:
                end(recorded.process)
        for entry in self.directory.iterdir():
            if entry.name == "lock":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Remove the locked directory, and release the lock."""
        self.clear()
        # The lock is released last: until then, no other process can use the directory.
        shutil.rmtree(self.directory)
        self.release()

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def sweep() -> list[str]:
    """Clean up after killed temporary control planes; returns their names."""
    swept = []
    for home in Home.all():
        record = home.read()
        if record and record.ephemeral and not record.supervisor.alive and home.take():
            home.remove()
            swept.append(home.name)
    return swept


def end(process: ProcessId | None, *, within: float = 5.0) -> None:
    """Kill this process, if it still runs, and return when it is gone."""
    if process and process.send(signal.SIGKILL):
        deadline = time.monotonic() + within
        while process.alive and time.monotonic() < deadline:
            time.sleep(0.01)


def _planes() -> Path:
    return state_dir() / "local"
