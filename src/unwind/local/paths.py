"""Cache and state directories, and checks of free disk space."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Mapping


_GIB = 1 << 30
_MIB = 1 << 20


def cache_dir() -> Path:
    """The directory of built binaries and build logs. Need not exist yet."""
    return _directory("UNWIND_CACHE_DIR", xdg="XDG_CACHE_HOME", fallback=".cache")


def state_dir() -> Path:
    """The directory of data, certificates and logs of control planes. Need not exist yet."""
    return _directory("UNWIND_STATE_DIR", xdg="XDG_STATE_HOME", fallback=".local/state")


def require_room(directory: Path, bytes_needed: int, purpose: str, remedy: str) -> None:
    """Raise UnwindError if the disk of a directory, which need not exist yet, has less free space."""
    free = free_bytes(directory)
    if free < bytes_needed:
        raise UnwindError(
            f"not enough disk space in {directory} {purpose}: {size(bytes_needed)} needed, {size(free)} free",
            remedy=remedy,
        )


def require_room_for_each(needs: Mapping[Path, int], purpose: str, remedy: str) -> None:
    """Raise UnwindError if a directory has too little disk space. Directories on one disk share it."""
    disks: dict[int, list[Path]] = {}
    for directory in needs:
        disks.setdefault(_existing(directory).stat().st_dev, []).append(directory)
    for directories in disks.values():
        require_room(directories[0], sum(needs[directory] for directory in directories), purpose, remedy)


def free_bytes(directory: Path) -> int:
    """The free bytes for this user."""
    return shutil.disk_usage(_existing(directory)).free


def size(count: int) -> str:
    """A size in MiB or GiB."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def _directory(variable: str, *, xdg: str, fallback: str) -> Path:
    if own := os.environ.get(variable):
        # Absolute, because started processes have other working directories.
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get(xdg, ""))
    if base.is_absolute():  # the XDG specification requires to ignore relative paths
        return base / "unwind"
    try:
        return Path.home() / fallback / "unwind"
    except RuntimeError as error:
        raise UnwindError("cannot find the home directory of this user", remedy=f"set {variable}") from error


# Reserved loopback ports.


class Port:
    """A free loopback port, reserved until it is released.

    The socket is bound and never listens, so that it gets no connection, and it shares the port with a program that
    binds it with SO_REUSEPORT (as Kubernetes' programs can) or SO_REUSEADDR (as every Go program does). No other
    program is given the port meanwhile, not even while that program restarts.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()

    def __str__(self) -> str:
        return str(self.number)
