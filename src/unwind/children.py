"""What this process starts: it ends with us, however we end, and its own end is an event."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: between fork and exec nothing may be imported or allocated that takes a lock.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; for use as `preexec_fn`.

    It holds when the parent gets SIGKILL, which no handler of ours would see.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_with_parent(sign: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process, which is running already, a signal when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, sign, 0, 0, 0)


async def until_ended(pidfd: int) -> None:
    """Return when the process behind this descriptor has ended. It need not be our child; the descriptor stays open."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)


async def until_child_ended(pid: int) -> None:
    """Return when our child has ended. Nobody has collected it yet, so its number is still its own."""
    descriptor = os.pidfd_open(pid)
    try:
        await until_ended(descriptor)
    finally:
        os.close(descriptor)
