"""Programs that we start: ready or told why not, kept running, ended for sure."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually, eventually_sync
from unwind.errors import UnwindError
from unwind.local.processes import Daemon, DiedEarlyError, ProcessId

if TYPE_CHECKING:
    from pathlib import Path


def daemon(directory: Path, script: str, ready_file: str = "ready") -> Daemon:
    async def ready() -> bool:
        return (directory / ready_file).exists()

    return Daemon("it", ["/bin/sh", "-c", script], log=directory / "it.log", ready=ready, directory=directory)


async def test_a_daemon_has_started_when_it_is_ready(tmp_path: Path) -> None:
    it = daemon(tmp_path, "touch ready; exec sleep 60")
    await it.start()
    assert (tmp_path / "ready").exists()
    assert it.process
    await it.stop()


async def test_a_stopped_daemon_is_gone_and_stays_so(tmp_path: Path) -> None:
    it = daemon(tmp_path, "touch ready; exec sleep 60")
    await it.start()
    process = it.process
    assert process
    await it.stop()
    assert not process.alive
    assert it.process is None
    await it.start()
    assert it.process not in (None, process)
    await it.stop()


async def test_a_daemon_that_ends_before_it_is_ready_is_told_with_its_last_word(tmp_path: Path) -> None:
    with pytest.raises(DiedEarlyError) as failure:
        await daemon(tmp_path, "echo first; echo 'Error: no such flag'; echo; exit 3").start()
    assert "Error: no such flag" in str(failure.value)
    assert str(tmp_path / "it.log") in str(failure.value)


async def test_a_daemon_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    it = daemon(tmp_path, "exec sleep 60")
    with pytest.raises(UnwindError, match="timed out after"):
        await it.start(within=0.1)
    assert it.process is None


async def test_a_daemon_that_ends_by_itself_is_started_again(tmp_path: Path) -> None:
    it = daemon(tmp_path, "touch ready; exec sleep 60")
    await it.start()
    first = it.process
    assert first
    assert first.send(signal.SIGKILL)
    await eventually(lambda: it.process not in (None, first), "another process", within=30)
    assert it.restarts == 1
    await it.stop()


def test_a_daemon_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
import asyncio, pathlib, signal, os
from unwind.local.processes import Daemon
async def main():
    async def ready(): return True
    it = Daemon("it", ["/bin/sleep", "60"], log=pathlib.Path({str(tmp_path)!r}) / "log", ready=ready,
                directory=pathlib.Path({str(tmp_path)!r}))
    await it.start()
    print(it.process.pid, it.process.started, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    pid, started = map(int, killed.stdout.split())
    orphan = ProcessId(pid=pid, started=started)
    eventually_sync(lambda: not orphan.alive, "the end of the orphan", within=10)


def test_a_process_is_not_taken_for_another_one_with_its_number() -> None:
    own = ProcessId.of(os.getpid())
    assert own
    assert own.alive
    impostor = ProcessId(pid=own.pid, started=own.started - 1)
    assert not impostor.alive
    assert not impostor.send(signal.SIGKILL), "we would not be here to see it"


async def test_the_end_of_a_process_that_is_not_ours_can_be_waited_for() -> None:
    shell = await asyncio.create_subprocess_shell("sleep 0.2 & echo $!", stdout=subprocess.PIPE)
    output, _ = await shell.communicate()
    process = ProcessId.of(int(output))
    if process:  # it may have ended meanwhile
        await process.ended()
        assert not process.alive
