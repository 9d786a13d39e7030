"""Runs `unwind run` on this machine for the demo."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from unwind.errors import UnwindError
from unwind.subprocesses import die_with_parent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_LISTENS_WITHIN = 90.0
_LOOK_AGAIN = 0.1


@asynccontextmanager
async def running_manager(
    kubeconfig: Path, log: Path, *, listen: str, environment: dict[str, str] | None = None
) -> AsyncIterator[None]:
    """Run the manager until the end of the block. `log`: the file for its output."""
    variables = {
        "UNWIND_LISTEN": listen,
        "UNWIND_METRICS_LISTEN": "127.0.0.1:0",
        "UNWIND_LOG_FORMAT": "json",
        **(environment or {}),
    }
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", "from unwind.cli import main; main()", "run", "--kubeconfig", str(kubeconfig)),
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
        )
    try:
        await _until_listening(process, listen, log)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until_listening(process: asyncio.subprocess.Process, listen: str, log: Path) -> None:
    host, _, port = listen.rpartition(":")
    ends = time.monotonic() + _LISTENS_WITHIN
    while time.monotonic() < ends:
        if process.returncode is not None:
            said = (await asyncio.to_thread(log.read_text)).strip().splitlines()
            raise UnwindError(f"the manager exited ({said[-1] if said else 'no output'})", remedy=f"see {log}")
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(_LOOK_AGAIN)
    raise UnwindError(f"timed out after {_LISTENS_WITHIN:.0f}s waiting for the manager to listen", remedy=f"see {log}")
