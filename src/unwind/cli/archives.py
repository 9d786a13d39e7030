"""The option --archive: commands that read the documents of `unwind run --archive` instead of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unwind.cli import console
from unwind.errors import UsageError
from unwind.render.text import plain
from unwind.teardown.archive_directory import ArchiveDirectory, SkippedFile

if TYPE_CHECKING:
    from unwind.teardown.archive_documents import ArchivedTeardown

ArchiveOption = Annotated[
    Path | None,
    Parameter(
        name="--archive", help="Read the directory of `unwind run --archive`, or a copy of it, instead of a cluster."
    ),
]


def read_archive(directory: Path, **live: object) -> list[ArchivedTeardown]:
    """All documents. A file that is none is reported and skipped. `live`: options that need a cluster."""
    for option, value in live.items():
        if value:
            raise UsageError(f"--{option} cannot be used with --archive", remedy="omit one of them")
    found: list[ArchivedTeardown] = []
    for item in ArchiveDirectory(directory).documents():
        if isinstance(item, SkippedFile):
            # The name and the content may be anyone's.
            console.announce(plain(f"skipped {item.name}: {item.why}"))
        else:
            found.append(item)
    return found
