"""How `unwind dashboard` starts."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.unit.cli.program import run
from unwind.dashboard import command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ADDRESS = "http://127.0.0.1:8123/?token=a&b"
WITHOUT = """
import sys
sys.modules["starlette"] = None
from unwind.cli import main
sys.argv = ["unwind", "dashboard"]
main()
"""


def test_only_the_user_can_read_the_file_that_opens_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = os.umask(0)
    try:
        with command.browser_file(ADDRESS) as file:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            assert "token=a&amp;b" in file.read_text()
            assert "token" not in str(file)
    finally:
        os.umask(before)
    assert not list(tmp_path.iterdir())


def test_without_its_packages_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("unwind: cannot start the dashboard: ")
    assert "pip install 'kube-unwind[dashboard]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: x}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run("dashboard", "--no-browser", "--port", str(port), "--kubeconfig", str(kubeconfig))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"unwind: cannot listen on 127.0.0.1:{port}: ")
    assert ran.stderr.endswith("use another --port\n")
