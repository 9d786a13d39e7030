"""The directory of a plane belongs to one process at a time, and is cleared of what killed ones left."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from unwind.errors import UnwindError
from unwind.local.home import Home, PlaneRecord, RecordedProcess, Shape, sweep
from unwind.local.processes import ProcessId

if TYPE_CHECKING:
    from pathlib import Path

DEAD = ProcessId(pid=1, started=1)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNWIND_STATE_DIR", str(tmp_path))
    return tmp_path


def record(
    name: str, *, supervisor: ProcessId = DEAD, ephemeral: bool = False, process: ProcessId | None = None
) -> PlaneRecord:
    return PlaneRecord(
        name=name,
        phase="Ready",
        shape=Shape(),
        supervisor=supervisor,
        since=0.0,
        ephemeral=ephemeral,
        processes=[RecordedProcess(name="etcd", process=process, restarts=0, log="")],
    )


def ignore(_: str) -> None: ...


@pytest.mark.parametrize("name", ["", "A", "a_b", "../a", "a/b", "-a", "a-", "x" * 41, ".", "ä"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UnwindError, match="invalid control plane name"):
        Home(name)


def test_only_one_can_hold_it() -> None:
    first, second = Home("a"), Home("a")
    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()
    second.release()


def test_a_removed_home_can_be_taken_by_the_next() -> None:
    first, second = Home("a"), Home("a")
    assert first.take()
    first.remove()
    assert not first.directory.exists()
    assert second.take()
    assert second.in_use
    second.remove()


def test_what_is_up_cannot_be_claimed_and_the_error_names_its_process() -> None:
    holder = Home("a")
    holder.claim(announce=ignore)
    holder.write(record("a", supervisor=ProcessId(pid=4711, started=1)))
    with pytest.raises(UnwindError, match=r"is already running \(process 4711\).*unwind local down --name a"):
        Home("a").claim(announce=ignore)
    holder.release()


def test_claiming_clears_away_what_a_killed_run_left_and_says_so() -> None:
    killed = Home("a")
    killed.take()
    killed.write(record("a"))
    (killed.directory / "etcd").mkdir()
    (killed.directory / "etcd" / "data").write_text("old")
    killed.release()

    said: list[str] = []
    home = Home("a").claim(announce=said.append)
    assert said == ["cleaned up after a killed run of control plane 'a'"]
    assert [entry.name for entry in home.directory.iterdir()] == ["lock"]
    home.release()


def test_what_still_runs_of_a_killed_plane_is_ended() -> None:
    survivor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = ProcessId.of(survivor.pid)
    home = Home("a")
    home.take()
    home.write(record("a", process=process))
    home.remove()
    assert survivor.wait(timeout=10) == -9


def test_a_process_that_only_has_the_number_of_one_of_ours_is_left_alone() -> None:
    own = ProcessId.of(os.getpid())
    assert own
    impostor = ProcessId(pid=own.pid, started=own.started - 1)
    home = Home("a")
    home.take()
    home.write(record("a", process=impostor))
    home.remove()  # we are still here


def test_a_record_that_was_damaged_reads_as_none() -> None:
    home = Home("a")
    home.take()
    (home.directory / "plane.json").write_text('{"name": "a", "ph')
    assert home.read() is None
    home.remove()


def test_only_passing_planes_of_dead_processes_are_swept() -> None:
    own = ProcessId.of(os.getpid())
    assert own
    for name, supervisor, ephemeral in (("dead", DEAD, True), ("alive", own, True), ("named", DEAD, False)):
        home = Home(name)
        home.take()
        home.write(record(name, supervisor=supervisor, ephemeral=ephemeral))
        home.release()
    assert sweep() == ["dead"]
    assert [home.name for home in Home.all()] == ["alive", "named"]
