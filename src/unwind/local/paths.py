"""Where Unwind keeps what it builds and what it runs, and whether there is room for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB = 1 << 30
_MIB = 1 << 20


def cache_dir() -> Path:
    """What can be built again: binaries and their logs. Need not exist yet."""
    return _directory("UNWIND_CACHE_DIR", xdg="XDG_CACHE_HOME", fallback=".cache")


def state_dir() -> Path:
    """What runs now: data, certificates and logs of control planes. Need not exist yet."""
    return _directory("UNWIND_STATE_DIR", xdg="XDG_STATE_HOME", fallback=".local/state")


def require_room(directory: Path, bytes_needed: int, purpose: str, remedy: str) -> None:
    """Raise if the file system of a directory, which need not exist yet, has less room than that."""
    free = free_bytes(directory)
    if free < bytes_needed:
        raise UnwindError(
            f"not enough room in {directory} {purpose}: {size(bytes_needed)} needed, {size(free)} free",
            remedy=remedy,
        )


def require_room_for_each(needs: Mapping[Path, int], purpose: str, remedy: str) -> None:
    """Raise if one of several directories has less room than it needs. Those on one disk share it."""
    disks: dict[int, list[Path]] = {}
    for directory in needs:
        disks.setdefault(_existing(directory).stat().st_dev, []).append(directory)
    for directories in disks.values():
        require_room(directories[0], sum(needs[directory] for directory in directories), purpose, remedy)


def free_bytes(directory: Path) -> int:
    """What this user may still write there."""
    return shutil.disk_usage(_existing(directory)).free


def size(count: int) -> str:
    """Bytes, as a person reads them."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def _directory(variable: str, *, xdg: str, fallback: str) -> Path:
    if own := os.environ.get(variable):
        # Programs we start work in other directories: what they are told must not depend on ours.
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get(xdg, ""))
    if base.is_absolute():  # the XDG specification has relative ones ignored
        return base / "unwind"
    try:
        return Path.home() / fallback / "unwind"
    except RuntimeError as error:
        raise UnwindError("this user has no home directory", remedy=f"set {variable}") from error
