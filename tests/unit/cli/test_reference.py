"""The reference in docs/ says what the code says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from unwind.cli import reference

DOCS = Path(__file__).parents[3] / "docs"
# Every worker collects all tests: what takes seconds is made where it is used.
pages, pictures = cache(reference.pages), cache(reference.pictures)


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "reference").iterdir()))
def test_the_reference_is_current(name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == pages()[name], "run `make docs`"


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "pictures").glob("*.svg")))
def test_the_pictures_are_current(name: str) -> None:
    assert (DOCS / "pictures" / name).read_text() == pictures()[name], "run `make docs`"


def test_there_is_nothing_else() -> None:
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(pages())
    # Those of the dashboard were taken in a browser.
    others = {path.name for path in (DOCS / "pictures").glob("dashboard-*.png")}
    assert {path.name for path in (DOCS / "pictures").iterdir()} == set(pictures()) | others


def test_every_metric_and_command_is_in_it() -> None:
    written = pages()
    assert "`unwind_reconcile_errors_total`" in written["metrics.md"]
    assert "## `unwind local up`" in written["commands.md"]
    assert "`spec.clusterDeletionBehavior`" in written["kinds.md"]
    assert "`unwind.dev/force-release`" in written["words.md"]


def test_nothing_is_named_without_a_word_on_what_it_is_for() -> None:
    empty = [line for page in pages().values() for line in page.splitlines() if line.endswith("|  |")]
    assert [line for line in empty if not line.startswith("| `unwind_")] == []
