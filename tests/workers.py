"""How many test workers this machine can run side by side. Each has a control plane of its own, and often a second."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Tests wait for more than half of their time, for example for the namespace controller.
_PER_CORE = 2
_MEMORY = 3 * 2**30
# A plane with a member, nodes and Cluster API has 21: six for each API server, three for each controller manager.
# The local control planes that some tests start have up to 27.
_INOTIFY_INSTANCES = 48
_INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
# Memory limits of a container: cgroup v2, cgroup v1.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def workers(*, cores: int, memory: int, inotify_instances: int) -> int:
    """The number of workers for so many cores, bytes of memory and inotify instances that are free."""
    return max(1, min(cores * _PER_CORE, memory // _MEMORY, inotify_instances // _INOTIFY_INSTANCES))


def workers_here() -> int:
    """The number of workers for what is free on this machine now."""
    return workers(
        cores=len(os.sched_getaffinity(0)),
        memory=_free_memory(),
        inotify_instances=int(_INOTIFY_LIMIT.read_text()) - _used_inotify_instances(),
    )


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    [free] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    # cgroup v2 writes "max" where there is no limit.
    limits = [text for path in _MEMORY_LIMITS if path.exists() and (text := path.read_text().strip()).isdigit()]
    return min([free, *map(int, limits)])


def _used_inotify_instances() -> int:
    """Those of this user. The limit is one for all processes of a user."""
    used = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is not ours
            if process.stat().st_uid == os.getuid():
                used += sum(_is_inotify(descriptor) for descriptor in (process / "fd").iterdir())
    return used


def _is_inotify(descriptor: Path) -> bool:
    with suppress(FileNotFoundError):
        return str(descriptor.readlink()) == "anon_inode:inotify"
    return False
