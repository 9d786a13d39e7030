"""Before anything of people's goes, they are asked, and only yes means yes."""

from __future__ import annotations

import io
import sys

import pytest

from unwind.cli import console
from unwind.cli.uninstall import _confirm
from unwind.errors import UnwindError
from unwind.install.uninstall import Crd, InstalledState

SEEN = InstalledState(
    crds=(Crd("teardowns.unwind.dev", "1", 3), Crd("inventories.unwind.dev", "2", 0)),
    adopted={},
    bearers=(),
    objects=(),
)


class Terminal(io.StringIO):
    """Standard input of somebody who sits there."""

    def isatty(self) -> bool:
        return True


def asked(monkeypatch: pytest.MonkeyPatch, typed: str, *, delete_crds: bool = False) -> str:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    with console.err.capture() as shown:
        _confirm(SEEN, delete_crds=delete_crds)
    return shown.get()


@pytest.mark.parametrize("typed", ["yes\n", "Y\n", "y"])
def test_yes_goes_ahead(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    asked(monkeypatch, typed)


@pytest.mark.parametrize("typed", ["no\n", "\n", "", "yess\n", "sure\n"])
def test_anything_else_does_nothing(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    with pytest.raises(UnwindError, match="nothing was changed"):
        asked(monkeypatch, typed)


def test_what_goes_along_is_counted_before_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = asked(monkeypatch, "yes\n", delete_crds=True)
    assert "teardowns.unwind.dev is deleted: 3 objects" in shown
    assert "3 custom resources are deleted with their CRDs" in shown
    assert "teardowns.unwind.dev is kept: 3 objects" in asked(monkeypatch, "yes\n")


def test_where_nobody_can_be_asked_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    with pytest.raises(UnwindError, match="use --yes"):
        _confirm(SEEN, delete_crds=False)
