"""The page about deleters takes one from nothing to a tested deleter, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Long: `make soak` runs it.
pytestmark = pytest.mark.soak

PAGE = (Path(__file__).parents[2] / "docs" / "deleters.md").read_text()
VENV = Path(sys.executable).parent
# Instead of pip, which would ask a package registry for what is here already: built by the package's own backend, and
# unpacked where Python finds it.
PIP = """#!/bin/sh -e
test "$*" = "install ."
"{python}" -m hatchling build -t wheel -d "{site}/wheels" >/dev/null
"{python}" -m zipfile -e "{site}"/wheels/*.whl "{site}"
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    """What begins with the name of a file is that file."""
    found = {}
    for block in blocks("toml") + blocks("python"):
        name = re.match(r"# ([\w.]+)\n", block)
        assert name, f"what is this for?\n{block}"
        found[name[1]] = block
    return found


class Directory:
    """An empty directory in which somebody follows the page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        site, tools = path / "site", path / "bin"
        site.mkdir()
        tools.mkdir()
        (tools / "pip").write_text(PIP.format(python=sys.executable, site=site))
        (tools / "pip").chmod(0o755)
        self.env = os.environ | {
            "PATH": f"{tools}:{VENV}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        self.work = path / "work"
        self.work.mkdir()
        for name, text in files().items():
            (self.work / name).write_text(text)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_its_commands_install_test_and_show_the_deleter(directory: Directory) -> None:
    ran = directory.run("\n".join(blocks("sh")))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "7 passed" in ran.stdout
    shown = [line.split() for line in ran.stdout.splitlines()]
    names = [words[1] for words in shown if words and (words[0] in ("end", "0") or words[0].lstrip("-").isdigit())]
    assert [name for name in names if name != "passed"] == [
        "keep-by-policy",
        "wait-for-dependents",
        "leave-receipt",
        "kubernetes",
    ]
    assert "bucket-deleters 1.0" in ran.stdout


def test_a_first_deleter_and_its_test_take_about_forty_lines() -> None:
    first = [files()[name] for name in ("pyproject.toml", "bucket_deleters.py", "test_bucket_deleters.py")]
    assert sum(bool(line.strip()) for text in first for line in text.splitlines()) <= 45


def test_its_code_is_well_typed(directory: Directory) -> None:
    ran = directory.run("mypy --strict --cache-dir ../mypy *.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_deleter_that_does_not_load_blocks_its_kind(directory: Directory) -> None:
    broken = directory.work / "bucket_deleters.py"
    broken.write_text("import something_that_is_not_there\n")
    ran = directory.run("pip install .\nunwind deleters example.dev/v1/Bucket")
    assert "blocked:" in ran.stderr, ran.stdout + ran.stderr
    assert "leave-receipt" not in ran.stdout
    assert "something_that_is_not_there" in ran.stderr


@pytest.mark.parametrize(
    ("module", "said", "instead", "found"),
    [
        # When the purge is due, the object may be gone: it is never purged.
        ("patterns", 'ctx.memo.get("mode") == "Purge"', 'obj.spec.delete_mode == "Purge"', "assert {'u-1', 'u-2'} == "),
        ("patterns", "if users:", "if False:", "DID NOT RAISE"),
        ("patterns", "        raise Again(", "        return Gone('soon') or Again(", "though next was not called"),
        (
            "bucket_deleters",
            "except AlreadyExistsError",
            "except ZeroDivisionError",
            r"crashed at .*:\d+ in leave_receipt",
        ),
    ],
)
def test_a_mistake_in_it_is_found_out(directory: Directory, module: str, said: str, instead: str, found: str) -> None:
    file = directory.work / f"{module}.py"
    before = file.read_text()
    assert said in before
    file.write_text(before.replace(said, instead))
    ran = directory.run(f"pytest -q test_{module}.py")
    assert ran.returncode == 1
    assert re.search(found, ran.stdout), ran.stdout
