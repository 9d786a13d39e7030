"""The directory of an archive: written as a whole, once, and read without trust."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.teardown.archived_teardowns import block, inventory, teardown
from unwind.teardown.archive_directory import ArchiveDirectory, ArchiveError, ArchiveOptionError, SkippedFile
from unwind.teardown.archive_documents import archived, encoded, file_name

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.teardown.archive_documents import ArchivedTeardown


def document(uid: str = "t-1") -> ArchivedTeardown:
    return archived(teardown(uid=uid), [inventory()])


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("links", [True, False])
def test_a_document_is_written_once_and_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        without_links(monkeypatch)
    archive = ArchiveDirectory(tmp_path)
    assert not archive.has(teardown())
    archive.write(document())
    assert archive.has(teardown())
    path = tmp_path / file_name(teardown())
    first = path.stat()
    changed = msgspec.structs.replace(document(), ledger=())
    archive.write(changed)
    assert path.read_bytes() == encoded(document())
    assert path.stat().st_mtime_ns == first.st_mtime_ns
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_many_writers_write_one_document(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    failures: list[Exception] = []

    def write() -> None:
        try:
            archive.write(document())
        except Exception as error:  # noqa: BLE001 - whatever it is
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [item.name for item in tmp_path.iterdir()] == [file_name(teardown())]


@pytest.mark.parametrize("content", [b"", b"{", b"someone's notes"])
def test_a_file_of_something_else_is_neither_taken_for_the_document_nor_overwritten(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / file_name(teardown())
    path.write_bytes(content)
    archive = ArchiveDirectory(tmp_path)
    for use in (lambda: archive.has(teardown()), lambda: archive.write(document())):
        with pytest.raises(ArchiveError, match="move that file away; it is not overwritten"):
            use()
    assert path.read_bytes() == content


def test_the_document_of_another_teardown_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / file_name(teardown())).write_bytes(encoded(document("another")))
    with pytest.raises(ArchiveError, match="is the document of another Teardown"):
        ArchiveDirectory(tmp_path).has(teardown())


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(encoded(document()))
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / file_name(teardown())).symlink_to(victim)
    with pytest.raises(ArchiveError):
        ArchiveDirectory(archive).has(teardown())
    with pytest.raises(ArchiveError):
        ArchiveDirectory(archive).write(document())
    assert victim.read_bytes() == encoded(document())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match=r"cannot write .*: No space left on device; check the volume; will retry"):
        ArchiveDirectory(tmp_path).write(document())
    assert list(tmp_path.iterdir()) == []


def test_the_check_leaves_nothing_but_removes_what_killed_processes_left(tmp_path: Path) -> None:
    stale, fresh = tmp_path / ".unwind-1", tmp_path / ".unwind-2"
    stale.touch()
    fresh.touch()
    os.utime(stale, (0, 0))
    ArchiveDirectory(tmp_path).check()
    assert list(tmp_path.iterdir()) == [fresh]


def test_a_directory_that_is_missing_or_none_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, why in ((tmp_path / "missing", "No such file or directory"), (file, "Not a directory")):
        with pytest.raises(ArchiveOptionError, match=f"cannot archive to {path}: {why}; --archive needs"):
            ArchiveDirectory(path).check()
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EROFS, ArchiveOptionError), (errno.EACCES, ArchiveOptionError), (errno.ENOSPC, ArchiveError)],
)
def test_a_full_disk_may_pass_and_a_read_only_one_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ArchiveError]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ArchiveError) as raised:
        ArchiveDirectory(tmp_path).check()
    assert type(raised.value) is kind


def test_a_file_system_without_rename_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_links(monkeypatch)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(type(tmp_path), "rename", refuse)
    with pytest.raises(ArchiveOptionError, match="with rename"):
        ArchiveDirectory(tmp_path).check()


def test_documents_are_read_and_everything_else_is_named(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    archive.write(document())
    archive.write(document("t-2"))
    (tmp_path / "damaged.json").write_bytes(encoded(document())[:300])
    (tmp_path / "notes.txt").write_text("do not delete")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".unwind-0").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    found = list(archive.documents())
    assert [item.teardown.metadata.uid for item in found if not isinstance(item, SkippedFile)] == ["t-1", "t-2"]
    assert [item.name for item in found if isinstance(item, SkippedFile)] == [
        "damaged.json",
        "link.json",
        "notes.txt",
        "pipe",
    ]


def test_a_missing_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"cannot read the archive .*: No such file or directory"):
        list(ArchiveDirectory(tmp_path / "missing").documents())


def test_entries_are_kept_until_the_document_is_written(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path)
    archive.keep_entries("t-1", [block("a", 1, 2)])
    archive.keep_entries("t-1", [block("a", 1, 2)])  # of another replica
    archive.keep_entries("t-1", [block("b", 3, 4)])
    archive.keep_entries("../t-1", [block("c", 3, 4)])
    (tmp_path / "timelines" / "t-1" / "damaged.json").write_text("[")
    assert sorted(entry.object.name for entry in archive.kept_entries("t-1") if entry.object) == ["a", "b"]
    assert len(list((tmp_path / "timelines").iterdir())) == 2
    archive.discard_entries("t-1")
    archive.discard_entries("t-1")
    assert archive.kept_entries("t-1") == []
    assert len(archive.kept_entries("../t-1")) == 1
