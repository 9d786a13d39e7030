"""A blocked event loop is named and fails liveness."""

from __future__ import annotations

import asyncio
import sys
import time
from types import ModuleType

import pytest

from tests.eventually import eventually
from unwind.manager.watchdog import Watchdog, responsible_module


def module(name: str, source: str) -> ModuleType:
    made = ModuleType(name)
    exec(source, made.__dict__)  # noqa: S102 - its frames must belong to a module of this name
    return made


async def test_liveness_fails_after_a_long_block_and_recovers_when_the_loop_runs_again() -> None:
    watchdog = Watchdog(interval=0.02, report_after=0.1, fail_after=0.3, recover_after=0.5)
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0.1)
    assert watchdog.failure == ""
    slow = module("slow_plugin", "import time\ndef block(seconds): time.sleep(seconds)")
    slow.block(1.0)  # on the loop
    assert "slow_plugin" in watchdog.failure or "test_watchdog" in watchdog.failure
    await eventually(lambda: not watchdog.failure, "the recovery", within=10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_short_block_does_not_fail_liveness() -> None:
    watchdog = Watchdog(interval=0.02, report_after=0.1, fail_after=30.0)
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0.05)
    time.sleep(0.5)  # noqa: ASYNC251 - that is what is tested
    assert watchdog.failure == ""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_innermost_frame_of_a_plugin_is_responsible() -> None:
    plugin = module("bucket_deleters", "def call(back): return back()")
    helper = module("helper_library", "import sys\ndef look(): return sys._getframe()")
    frame = plugin.call(helper.look)
    assert responsible_module(frame, frozenset({"bucket_deleters"})) == "bucket_deleters"
    assert responsible_module(frame, frozenset()) == "helper_library"
    assert responsible_module(None, frozenset()) == ""
    assert sys.stdlib_module_names
