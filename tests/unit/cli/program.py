"""The command line, with an output of a fixed width."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests import forked_commands

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def run(*arguments: str, beside: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command. `beside`: a directory with further packages."""
    env = os.environ | variables | {"NO_COLOR": "1", "COLUMNS": "160"}
    return forked_commands.run(*arguments, env=env, beside=beside)
