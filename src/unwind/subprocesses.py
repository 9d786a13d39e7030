"""Child processes: tie their lifetime to ours, and wait for their end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: between fork and exec, nothing that takes a lock may be imported or allocated.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends; for use as `preexec_fn`.

    Works even if the parent gets SIGKILL, which no handler could see.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_with_parent(sign: signal.Signals = signal.SIGTERM) -> None:
    """Make the kernel send a signal to this running process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, sign, 0, 0, 0)


async def until_ended(pidfd: int) -> None:
    """Return when the process of this pidfd has ended. It need not be our child; the descriptor stays open."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)


async def until_child_ended(pid: int) -> None:
    """Return when our child has ended. It is not reaped yet, so its pid cannot be reused."""
    descriptor = os.pidfd_open(pid)
    try:
        await until_ended(descriptor)
    finally:
        os.close(descriptor)
