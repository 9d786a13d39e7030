"""`unwind completion`: print a shell completion script."""

from __future__ import annotations

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script for shell completion of commands, options and object names.

    bash: `source <(unwind completion bash)`; zsh: `unwind completion zsh > "${fpath[1]}/_unwind"`; fish:
    `unwind completion fish > ~/.config/fish/completions/unwind.fish`.
    """
    # Imported here to avoid an import cycle: unwind.cli registers this command.
    from unwind.cli import app  # noqa: PLC0415

    sys.stdout.write(app().generate_completion(prog_name="unwind", shell=shell))
