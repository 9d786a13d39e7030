"""Commands that read an archive: no cluster is needed, and files that are no documents are named and skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import msgspec
import pytest

from tests.unit.cli.program import run
from tests.unit.teardown.archived_teardowns import block, inventory, teardown
from unwind.api.unwind import Phase
from unwind.teardown.archive_directory import ArchiveDirectory
from unwind.teardown.archive_documents import archived

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def archive(tmp_path: Path) -> str:
    directory = ArchiveDirectory(tmp_path)
    directory.write(archived(teardown(), [inventory()], more=[block("orders", 5, 45)]))
    directory.write(archived(teardown(uid="t-2", phase=Phase.COMPLETE, name="stage"), ()))
    (tmp_path / "notes\x1b[2J.txt").write_text("not ours")
    return str(tmp_path)


def test_status_shows_the_finished_teardowns(archive: str) -> None:
    told = run("status", "--archive", archive, KUBECONFIG="/nowhere")
    assert told.returncode == 0
    assert [line.split()[:3] for line in told.stdout.splitlines()[1:3]] == [
        ["Cluster", "fleet/prod", "Released"],
        ["Cluster", "fleet/stage", "Complete"],
    ]
    assert told.stderr.startswith("skipped notes [2J.txt: not an archived Teardown: JSON is malformed")
    one = run("status", "fleet/prod", "--archive", archive, "-o", "json")
    [item] = msgspec.json.decode(one.stdout)["items"]
    assert (item["kind"], item["metadata"]["uid"], item["status"]["phase"]) == ("Teardown", "t-1", "Released")
    assert "released by ann (Forced): no backup any more" in run("status", "prod", "--archive", archive).stdout


def test_the_timeline_of_an_archive_has_what_status_had_no_longer(archive: str) -> None:
    told = run("status", "prod", "--archive", archive, "--timeline")
    assert "PersistentVolumeClaim shop/orders: it waits" in told.stdout
    drawn = run("status", "prod", "--archive", archive, "--timeline", "-o", "svg")
    ET.fromstring(drawn.stdout)  # noqa: S314 - our own
    [chart] = msgspec.json.decode(run("status", "prod", "--archive", archive, "--timeline", "-o", "json").stdout)
    assert chart["criticalPath"] == ["web"]


def test_the_ledger_of_an_archive_is_that_of_a_cluster(archive: str) -> None:
    told = run("ledger", "--archive", archive)
    assert (
        "Cluster fleet/prod was released by ann on 2026-01-01 at 00:00 UTC (Forced): no backup any more" in told.stdout
    )
    assert "PersistentVolumeClaim shop/data" in told.stdout
    whole = msgspec.json.decode(run("ledger", "prod", "--archive", archive, "--costs", "-o", "json").stdout)
    [row] = whole["left"]
    assert (row["object"]["name"], row["costs"], row["by"]) == ("data", "PersistentVolumeClaim", "ann")
    assert "No objects were left behind of 'stage'" in run("ledger", "stage", "--archive", archive).stderr


@pytest.mark.parametrize("command", ["status", "ledger"])
def test_a_missing_archive_and_options_of_a_cluster_are_errors(command: str, archive: str, tmp_path: Path) -> None:
    told = run(command, "--archive", str(tmp_path / "missing"))
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith(f"unwind: cannot read the archive {tmp_path}/missing: No such file or directory; ")
    told = run(command, "--archive", archive, "--context", "prod")
    assert (told.returncode, told.stderr) == (2, "unwind: --context cannot be used with --archive; omit one of them\n")


def test_nothing_found_is_told_as_for_a_cluster(archive: str, tmp_path: Path) -> None:
    told = run("status", "nobody", "--archive", archive)
    assert told.returncode == 1
    assert "unwind: no teardown of 'nobody' found" in told.stderr
    (tmp_path / "empty").mkdir()
    told = run("status", "--archive", str(tmp_path / "empty"))
    assert (told.returncode, told.stderr) == (0, "No teardowns found.\n")
