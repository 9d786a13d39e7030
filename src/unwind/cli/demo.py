"""`unwind demo`: a demonstration on a local control plane."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from unwind.cli import console
from unwind.cli.local import BuildProgress
from unwind.demo import story


async def demo(
    *,
    no_input: Annotated[
        bool, Parameter(name="--no-input", negative="", help="Continue automatically after a few seconds.")
    ] = False,
    keep: Annotated[
        bool,
        Parameter(negative="", help="Keep the control plane running at the end, with another cluster, until Ctrl-C."),
    ] = False,
) -> None:
    """Show on a local control plane what happens when a cluster is deleted. Takes about a minute."""
    with BuildProgress() as progress:
        await story.tell(console.out, progress, ask=sys.stdin.isatty() and not no_input, keep=keep)
