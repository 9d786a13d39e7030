from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from unwind.errors import UnwindError
from unwind.local import golang
from unwind.local.golang import Version, find_go, hint, last_words, needed_version

if TYPE_CHECKING:
    from pathlib import Path


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def go_that_says(path: Path, version: str) -> Path:
    return script(path, f'test "$1" = version && echo "go version {version} linux/amd64"')


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two directories on the PATH and a Python of its own, none of which has Go."""
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name) for name in ("first", "second")))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", Version(1, 26, 8)),
        ("go version go1.26 linux/amd64", Version(1, 26, 0)),
        ("go version go1.27rc1 linux/amd64", Version(1, 27, -1)),
        ("go version devel go1.28-abc1234 Mon linux/amd64", Version(1, 28, 0)),
        ("go 1.26.0", Version(1, 26, 0)),
        ("go version unknown", None),
    ],
)
def test_versions_are_read_as_go_writes_them(text: str, version: Version | None) -> None:
    assert Version.parse(text) == version


def test_a_candidate_is_older_than_its_release() -> None:
    assert Version(1, 25, 9) < Version(1, 26, -1) < Version(1, 26, 0)


def test_the_go_mod_files_say_which_go_is_needed() -> None:
    assert needed_version() == Version(1, 26, 0)


def test_the_first_go_on_the_path_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    go_that_says(tmp_path / "first" / "go", "go1.25.9")
    newer = go_that_says(tmp_path / "second" / "go", "go1.26.0")
    go_that_says(tmp_path / "venv" / "go", "go1.27.0")
    assert find_go() == newer


def test_the_go_beside_this_python_serves_where_the_path_has_none(tmp_path: Path) -> None:
    script(tmp_path / "first" / "go", "exit 1")
    beside = go_that_says(tmp_path / "venv" / "go", "go1.27.3")
    assert find_go() == beside


def test_a_go_that_cannot_be_run_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "go").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "first" / "go").chmod(0o755)
    good = go_that_says(tmp_path / "second" / "go", "go1.26.1")
    assert find_go() == good


def test_without_a_go_one_line_says_what_is_needed_what_is_there_and_what_to_do(tmp_path: Path) -> None:
    old = go_that_says(tmp_path / "second" / "go", "go1.19.8")
    with pytest.raises(UnwindError) as caught:
        find_go()
    line = str(caught.value)
    assert "Go 1.26" in line
    assert f"{old} is 1.19.8" in line
    assert "pip install 'kube-unwind[go]'" in line
    assert "\n" not in line


@pytest.mark.parametrize("there", [True, False])
def test_as_a_program_it_prints_the_path_or_fails_with_the_error(tmp_path: Path, there: bool) -> None:
    go = go_that_says(tmp_path / "first" / "go", "go1.26.2" if there else "go1.2.3")
    # Not the environment's own Python: that one may have a Go beside it.
    python = tmp_path / "venv" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath("/proc/self/exe"))
    ran = subprocess.run(
        [python, "-m", "unwind.local.golang"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if there:
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{go}\n", "")
    else:
        assert (ran.returncode, ran.stdout) == (1, "")
        assert "Go 1.26 or newer not found" in ran.stderr


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        (["unicode", "go: a.b/c@v1: no such host in the file"], "go: a.b/c@v1: no such host in the file"),
        (
            ["unicode", "# a.b/c", "./c.go:3:2: undefined: x", "./c.go:4:2: undefined: y", "too many errors"],
            "./c.go:3:2: undefined: x",
        ),
        (["# a.b/c", "link: signal: killed", "crypto"], "link: signal: killed"),
        (["go: downloading a.b/c v1.2.3", "unicode"], "nothing"),
        ([], "nothing"),
    ],
)
def test_the_telling_line_is_neither_a_package_nor_a_headline_nor_a_download(heard: list[str], words: str) -> None:
    assert last_words(heard) == words


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('Get "https://proxy.example/x": dial tcp: lookup proxy.example: no such host', "GOPROXY"),
        ("module lookup disabled by GOPROXY=off", "GOPROXY"),
        ("a.b/c@v1: reading https://proxy/x.zip: 502 Bad Gateway", "GOPROXY"),
        ("write /x/a.out: no space left on device", "the disk is full"),
        ("/go/link: signal: killed", "GOMAXPROCS=1"),
        ("./c.go:3:2: undefined: x", "see the log"),
    ],
)
def test_a_failure_comes_with_what_to_do_about_it(line: str, advice: str) -> None:
    assert advice in hint(["unicode", line])


def test_settings_in_the_environment_do_not_change_what_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"GOOS": "plan9", "GOFLAGS": "-mod=vendor", "GO111MODULE": "off"}.items():
        monkeypatch.setenv(variable, value)
    effective = os.environ | golang.settings()
    assert effective["GOOS"] == sys.platform
    assert effective["GOFLAGS"] == "-buildvcs=false"
    assert effective["GO111MODULE"] == "on"
