"""What is told to somebody who mistypes, how commands end, and that each of them speaks JSON."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from tests.forked_commands import UNWIND
from tests.unit.cli.program import run
from unwind.cli import EXIT_CODES, app
from unwind.errors import TimedOutError, UnwindError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cyclopts import App

# What they print is no value: a show, a log, a script, a file as it is.
SPEAK_OTHERWISE = {("dashboard",), ("demo",), ("run",), ("completion",), ("local", "kubeconfig")}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("statu", "unknown command 'statu' (did you mean 'status'?); see `unwind --help`"),
        ("local upp", "unknown command 'upp' (did you mean 'up'?); see `unwind local --help`"),
        ("hooks --bogus", "Unknown option: --bogus; see `unwind hooks --help`"),
        ("hooks -o xml", 'Invalid value "xml" for -o. Choose from: "table", "json"; see `unwind hooks --help`'),
        ("release x", 'Command "release" parameter --reason requires an argument; see `unwind release --help`'),
        (
            "release x --reason y --timeout soon",
            "invalid duration 'soon' for --timeout; use a duration such as 20s, 1m30s or 7d",
        ),
        (
            "install --dry-run --namespace-selector a=b,",
            "invalid value 'a=b,' for --namespace-selector: expected a label key, found the end; use the",
        ),
        ("crds --group x", "unknown group 'x' (valid: "),
        ("status --timeline", "--timeline needs CLUSTER; list teardowns with `unwind status`"),
        ("status prod-7 --timeline --watch", "--timeline cannot be used with --watch"),
        ("status prod-7 -o svg", "-o svg needs --timeline; `unwind plan -o svg` draws the waves of a deletion"),
        ("why", "no object given; use KIND/NAME, such as ns/shop, or --stuck"),
        ("why ns/shop --stuck", "--stuck does not apply to one object; omit KIND/NAME or --stuck"),
        ("why ns/shop --all-clusters", "--all-clusters and --older-than need --stuck; omit them, or use --stuck"),
        ("why --stuck --older-than soon", "invalid duration 'soon' for --older-than; use a duration such as"),
        ("why --stuck --all-clusters --cluster a", "--cluster and --all-clusters exclude each other; use one of"),
    ],
)
def test_what_cannot_be_understood_is_told_on_one_line_and_ends_with_2(arguments: str, told: str) -> None:
    ran = run(*arguments.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"unwind: {told}")
    assert ran.stderr.count("\n") == 1


def test_what_a_person_can_do_nothing_about_by_typing_otherwise_ends_with_1(tmp_path: Path) -> None:
    ran = run("status", "--kubeconfig", str(tmp_path / "nothing"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("unwind: ")
    assert ran.stderr.count("\n") == 1


def test_the_exit_codes_are_those_that_the_help_names() -> None:
    done = subprocess.run([UNWIND, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert EXIT_CODES in done.stdout
    assert [error.exit_code for error in (UnwindError, UsageError, TimedOutError)] == [1, 2, 3]


def commands(of: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in of:
        if name.startswith("-"):
            continue
        if of[name].default_command is None:
            yield from commands(of[name], (*path, name))
        else:
            yield (*path, name), of[name]


def test_every_command_prints_json_for_who_wants_it() -> None:
    silent = set()
    for path, command in commands(app()):
        forms = [item.hint for item in command.assemble_argument_collection() if "--output" in item.names]
        words = {word for form in forms for part in (form, *get_args(form)) for word in get_args(part)}
        if "json" not in words:
            silent.add(path)
    assert silent == SPEAK_OTHERWISE


def test_what_is_not_there_is_an_empty_list_in_json(tmp_path: Path) -> None:
    state = {"UNWIND_STATE_DIR": str(tmp_path)}
    down = run("local", "down", "--name", "nowhere", "-o", "json", beside=None, **state)
    assert msgspec.json.decode(down.stdout) == {"down": []}
    assert msgspec.json.decode(run("local", "status", "-o", "json", beside=None, **state).stdout) == []


def test_a_completion_script_is_printed_for_each_shell() -> None:
    for shell, begins in (("bash", "# Bash completion"), ("zsh", "#compdef unwind"), ("fish", "# Fish completion")):
        ran = run("completion", shell)
        assert ran.returncode == 0
        assert ran.stdout.startswith(begins)
        assert "__complete" in ran.stdout


def test_the_version_is_told_where_there_is_no_cluster(tmp_path: Path) -> None:
    ran = run("version", "--kubeconfig", str(tmp_path / "nothing"))
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "unwind")
    assert ran.stderr.startswith("unknown: ")
    assert run("version", "--client").stderr == ""
