"""Starting a control plane in the background, with a program in the place of its supervisor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from unwind.errors import UnwindError
from unwind.local.build import Toolbox
from unwind.local.home import Shape
from unwind.local.supervisor import Order, up

if TYPE_CHECKING:
    from pathlib import Path

# It reports, and takes a moment to end, as an interpreter does.
_FAILS = """#!/bin/sh
cat > /dev/null
echo '{"failure": "not enough disk space"}'
sleep 0.2
touch "$UNWIND_STATE_DIR/ended"
"""


async def test_a_supervisor_that_fails_has_ended_when_up_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "supervisor"
    program.write_text(_FAILS)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("UNWIND_STATE_DIR", str(tmp_path))
    with pytest.raises(UnwindError, match="not enough disk space"):
        await up(Order(name="default", shape=Shape(), toolbox=Toolbox({}, {})), announce=lambda _: None)
    assert (tmp_path / "ended").exists()
