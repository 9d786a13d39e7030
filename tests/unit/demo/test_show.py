"""What the demo prints for people who want to see more of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from unwind.demo.show import invite, own_command


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, as it was started."""
    found = tmp_path / "bin" / "unwind"
    found.parent.mkdir()
    found.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(found), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    return found


def test_a_program_that_is_on_the_path_is_named_without_its_directory(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_command() == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_command() == "unwind"


def test_another_program_of_that_name_is_not_meant(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other" / "unwind"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert own_command() == str(program)


def test_the_command_for_the_browser_is_one_line_that_a_shell_understands(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = Path("/state of mine/local/demo", *["deep"] * 30, "admin.kubeconfig")
    invite(Console(width=80, soft_wrap=True), kubeconfig)
    assert f"\n  {program} dashboard --kubeconfig '{kubeconfig}'\n" in capsys.readouterr().out
