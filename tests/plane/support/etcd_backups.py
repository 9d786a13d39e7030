"""Backup and restore of the etcd of a plane, as an administrator does it: API servers stopped, data replaced."""

from __future__ import annotations

import asyncio
import shutil
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.plane import Plane


async def back_up(plane: Plane, to: Path) -> None:
    """Copy the data of etcd while it is stopped. The API servers wait for it."""
    assert plane.etcd
    await plane.etcd.stop(signal.SIGTERM)
    await asyncio.to_thread(shutil.copytree, plane.directory / "etcd", to)
    await plane.etcd.start()


async def restore(plane: Plane, backup: Path) -> None:
    """Replace the data of etcd by the backup. resourceVersions go back to what they were then."""
    assert plane.etcd
    for cluster in plane.clusters():
        for daemon in reversed(cluster.daemons):
            await daemon.stop()
    await plane.etcd.stop()
    await asyncio.to_thread(shutil.rmtree, plane.directory / "etcd")
    await asyncio.to_thread(shutil.copytree, backup, plane.directory / "etcd")
    await plane.etcd.start()
    for cluster in plane.clusters():
        for daemon in cluster.daemons:
            await daemon.start()
