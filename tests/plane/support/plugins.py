"""Plugins, as a package with an entry point leaves them behind when it is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# An external system whose resources are the files of a directory, for Buckets of example.dev. `delete` follows.
FILE_STORE = """
import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from unwind import Again, Gone, TransientError, deleter
from unwind.deleters.registration import External, Kinds
from unwind.kube.absence import Presence, Sighting

STORE = Path(os.environ["STORE"])


class Files:
    name = "files"
    clients = ()

    async def delete(self, ctx, obj):
        return await delete_file(ctx, STORE / ctx.ref.name)

    async def sighting(self, ctx, obj):
        there = (STORE / ctx.ref.name).exists()
        return Sighting(Presence.PRESENT if there else Presence.ABSENT, "the directory")


@asynccontextmanager
async def opened(client):
    yield Files()


files = External(name="files", kinds=(Kinds("example.dev/*", "Bucket"),), open=opened)
"""


def install_bucket_plugin(folder: Path, module: str, source: str) -> dict[str, str]:
    """Install a plugin with `delete_file` in its source; the variables of a manager that finds it, and its store."""
    store = folder / "store"
    store.mkdir()
    (folder / f"{module}.py").write_text(FILE_STORE + source)
    found = install_package(folder, module, f"[unwind.deleters]\nexample.dev/*/Bucket = {module}\n")
    return {**found, "STORE": str(store)}


def install_package(folder: Path, module: str, entry_points: str) -> dict[str, str]:
    """Install a package with these entry points; the variables of a manager that finds it."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    # Beside what this process has: the manager is of the same version as what was installed.
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
