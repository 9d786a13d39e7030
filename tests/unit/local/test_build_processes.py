"""Builds that run side by side, are cancelled, interrupted or killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.local.workshop import Told, Workshop, in_background, read_until
from unwind.local import build, tools
from unwind.local.build import ensure
from unwind.local.tools import Origin


async def test_two_processes_that_start_at_once_build_once(shop: Workshop) -> None:
    shop.hang("until-told")
    first, second = [await shop.process() for _ in range(2)]
    said = [await process.stdout.readline() for process in (first, second) if process.stdout]
    builder, waiter = (first, second) if said[0] == b"building 0\n" else (second, first)
    # One is in the middle of its build when the other waits for it.
    await read_until(builder, b"building 1")
    if b"waiting small %d\n" % builder.pid not in said:
        await read_until(waiter, b"waiting small %d" % builder.pid)
    shop.go_on()
    for process in (builder, waiter):
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert out.splitlines()[-1] == str(shop.binary).encode()
    assert shop.builds() == 1


async def test_two_tasks_of_one_process_build_once(shop: Workshop) -> None:
    first, second = await asyncio.gather(ensure([shop.tool]), ensure([shop.tool]))
    assert {first["unwind-tiny"].origin, second["unwind-tiny"].origin} == {Origin.BUILT, Origin.CACHE}
    assert shop.builds() == 1


async def test_a_waiting_build_names_the_other_process_and_uses_its_result(shop: Workshop, tmp_path: Path) -> None:
    shop.lock.parent.mkdir(parents=True)
    told = Told()
    with shop.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        async with in_background(shop.tool, told) as build:
            await told.until("waiting", "small", 4711)
            tools.shelve(Path(shutil.copy("/bin/true", tmp_path / "made")), shop.binary)
            fcntl.flock(lock, fcntl.LOCK_UN)
            found = await build
    assert found["unwind-tiny"].origin is Origin.CACHE
    assert told.all("waiting") == [("small", 4711)]
    assert shop.builds() == 0


async def test_a_cancelled_build_leaves_nothing_behind_and_the_next_one_succeeds(shop: Workshop) -> None:
    shop.hang("with-a-child")
    told = Told()
    async with in_background(shop.tool, told) as build:
        await told.until("building", "unwind-tiny", 1)
        await shop.until_so_many_run(2)
        assert shop.scratch()
        build.cancel()
        with pytest.raises(asyncio.CancelledError):
            await build
    assert not shop.scratch()
    await shop.until_so_many_run(0)

    shop.go_on()
    await ensure([shop.tool])
    assert shop.runs().startswith("tiny")


async def test_a_cancellation_waits_for_what_is_written_under_the_lock() -> None:
    started, finish = threading.Event(), threading.Event()
    done: list[bool] = []

    def write() -> None:
        started.set()
        done.append(finish.wait())

    writing = asyncio.create_task(build._to_the_end(write))
    await asyncio.to_thread(started.wait)
    try:
        writing.cancel()
        for _ in range(5):  # turns of the loop, in which it could end
            await asyncio.sleep(0)
        assert not writing.done()
    finally:
        finish.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert done == [True]


async def test_an_interrupt_ends_the_build_and_leaves_nothing_behind(shop: Workshop) -> None:
    shop.hang("with-a-child")
    process = await shop.process()
    await read_until(process, b"building 1")
    await shop.until_so_many_run(2)
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == -signal.SIGINT
    assert not shop.scratch()
    await shop.until_so_many_run(0)


async def test_sigkill_leaves_no_go_process_and_the_next_build_cleans_up(shop: Workshop) -> None:
    shop.hang("alone")
    process = await shop.process()
    await read_until(process, b"building 1")
    await shop.until_so_many_run(1)
    process.kill()
    await process.communicate()
    await shop.until_so_many_run(0)

    leftover = shop.scratch()
    assert leftover
    shop.go_on()
    await ensure([shop.tool])
    assert not shop.scratch()
    assert shop.runs().startswith("tiny")


async def test_go_does_not_hold_the_lock(shop: Workshop) -> None:
    def holders(pids: list[int]) -> list[int]:
        found = []
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile: it holds nothing
                for fd in list(Path(f"/proc/{pid}/fd").iterdir()):
                    with suppress(FileNotFoundError):  # closed meanwhile
                        if fd.readlink() == shop.lock:
                            found.append(pid)
        return found

    shop.hang("with-a-child")
    told = Told()
    async with in_background(shop.tool, told):
        await told.until("building", "unwind-tiny", 1)
        await shop.until_so_many_run(2)
        assert holders([os.getpid()]) == [os.getpid()]
        assert holders(shop.running()) == []
