"""What the documentation tells people to type works as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.plane.support.commands import Shell

# Long: `make soak` runs it.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
_LONG = 270.0

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> list[Path]:
    # The one about deleters has files, too, and a test of its own.
    return [page for page in sorted(DOCS.glob("*.md")) if "```sh\n" in page.read_text() and page.stem != "deleters"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_command_on_the_page_succeeds(page: Path, tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    # What a page puts into the background ends with it, also where it fails halfway.
    script = f"trap 'jobs -p | xargs -r kill || true' EXIT\n{script}"
    shell = Shell(tmp_path / "state")
    # A group of its own: if it hangs, nothing of it stays and holds a port.
    running = subprocess.Popen(
        ["bash", "-eux", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = running.communicate(timeout=_LONG)
        assert running.returncode == 0, told
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        raise
    finally:
        shell.run("local", "down", "--all")
    assert shell.nothing_left()
