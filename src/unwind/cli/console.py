"""What goes to the terminal, and how it looks in a pipe."""

from __future__ import annotations

import time

from rich.console import Console

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)


def age(since: float) -> str:
    """How long ago, the way kubectl writes it."""
    seconds = int(max(0.0, time.time() - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
