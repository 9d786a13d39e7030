"""Fixtures of the building tests."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.unit.local.workshop import GO, Workshop
from unwind.local import golang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workshop]:
    go = golang.find_go()
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("UNWIND_UNWIND_TINY", raising=False)
    wrapper = tmp_path / "bin" / "go"
    wrapper.parent.mkdir()
    wrapper.write_text(GO.format(here=tmp_path, go=go))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    shop = Workshop(tmp_path)
    yield shop
    # Of a test that failed: builders first, so that none goes on when its Go is ended.
    left = [process for process in shop.processes if process.returncode is None]
    for process in left:
        process.kill()
    for pid in shop.running():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in left:
        await process.communicate()
