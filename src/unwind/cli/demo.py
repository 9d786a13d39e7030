"""`unwind demo`: what Unwind does, shown on a real control plane on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from unwind.cli import console
from unwind.cli.building import BuildProgress
from unwind.demo import story


async def demo(
    *,
    no_input: Annotated[
        bool, Parameter(name="--no-input", negative="", help="Press the key by itself, after a few seconds.")
    ] = False,
    keep: Annotated[
        bool, Parameter(negative="", help="Leave everything up in the end, with another cluster, until Ctrl-C.")
    ] = False,
) -> None:
    """Show on a real control plane what happens when a cluster is deleted. It takes a minute."""
    with BuildProgress() as progress:
        await story.tell(console.out, progress, ask=sys.stdin.isatty() and not no_input, keep=keep)
