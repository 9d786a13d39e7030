"""`unwind completion`: what a shell needs to complete our commands, and names from the cluster."""

from __future__ import annotations

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that has a shell complete commands, options, and names from the cluster.

    bash: `source <(unwind completion bash)`; zsh: `unwind completion zsh > "${fpath[1]}/_unwind"`; fish:
    `unwind completion fish > ~/.config/fish/completions/unwind.fish`.
    """
    # The program that it is a part of: it can be imported only when this is called.
    from unwind.cli import app  # noqa: PLC0415

    sys.stdout.write(app().generate_completion(prog_name="unwind", shell=shell))
