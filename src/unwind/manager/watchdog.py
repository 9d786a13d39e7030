"""Watchdog of the event loop, in a separate thread: logs the code that blocks the loop, and fails liveness.

A plugin that calls `time.sleep`, or computes for a minute, blocks everything else in the process: lease renewals,
watches, hook responses. None of them can report the cause.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from unwind import logs
from unwind.capi.hook_registry import GROUP as HOOKS
from unwind.deleters.registry import GROUP as DELETERS

if TYPE_CHECKING:
    from types import FrameType

log = logs.get(__name__)

_FRAMES = 15


class Watchdog:
    """A component that reports when the event loop is blocked."""

    name = "watchdog"
    ready = True

    def __init__(
        self, *, interval: float = 1.0, report_after: float = 5.0, fail_after: float = 30.0, recover_after: float = 60.0
    ) -> None:
        """In seconds: the check interval; how long a loop is blocked until it is logged, and until liveness fails; and
        how long it must run until liveness recovers. A blocked loop answers no probe anyway, but one that is blocked
        repeatedly must not pass a probe in between."""
        self._interval = interval
        self._report_after = report_after
        self._fail_after = fail_after
        self._recover_after = recover_after
        self._beats = 0
        self._thread = 0
        self._stop = threading.Event()
        self._failed_at: float | None = None
        self._why = ""

    @property
    def failure(self) -> str:
        """Why the process is not live; empty if it is."""
        failed_at = self._failed_at
        recovered = failed_at is None or time.monotonic() - failed_at > self._recover_after
        return "" if recovered else self._why

    async def run(self) -> None:
        """Watch the loop that this runs on, until cancelled."""
        self._thread = threading.get_ident()
        watching = threading.Thread(target=self._watch, name="unwind-watchdog", daemon=True)
        watching.start()
        try:
            while True:
                self._beats += 1
                await asyncio.sleep(self._interval)
        finally:
            self._stop.set()

    def _watch(self) -> None:
        seen, blocked, reported, looked_at = -1, 0.0, False, time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            # A pause of the whole process, such as SIGSTOP, also stops this thread and is not counted.
            passed, looked_at = min(now - looked_at, 2 * self._interval), now
            if self._beats != seen:
                seen, blocked, reported = self._beats, 0.0, False
                continue
            blocked += passed
            if blocked >= self._report_after and not reported:
                reported = True
                self._report(blocked)
            if blocked >= self._fail_after:
                self._failed_at = now

    def _report(self, blocked: float) -> None:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - documented, and the only way to a thread's stack
        module = responsible_module(frame, plugin_packages())
        remedy = "fix or uninstall this package, or report a bug if it is unwind"
        self._why = f"the event loop was blocked by {module or 'unknown code'}; {remedy}"
        stack = "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame else ""
        log.error(
            "event loop blocked",
            module=module,
            seconds=round(blocked),
            remedy=remedy,
            stack=stack,
        )


def plugin_packages() -> frozenset[str]:
    """The packages whose deleters or hook rules run in this process."""
    points = (*entry_points(group=DELETERS), *entry_points(group=HOOKS))
    return frozenset(point.module.partition(".")[0] for point in points) - {"unwind"}


def responsible_module(frame: FrameType | None, plugins: frozenset[str]) -> str:
    """The module of the innermost frame that is in a plugin; if there is none, of the innermost frame outside Python's
    standard library."""
    names = []
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    of_plugins = [name for name in names if name.partition(".")[0] in plugins]
    of_others = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
    return next(iter((*of_plugins, *of_others)), "")
