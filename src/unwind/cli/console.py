"""What goes to the terminal, and how it looks in a pipe."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from unwind.errors import UnwindError
from unwind.picturing.text import span

if TYPE_CHECKING:
    from rich.console import RenderableType

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

# In a pipe nothing is cut off: there is no window that it would have to fit.
_ENDLESS = 10_000


def age(since: float) -> str:
    """How long ago, the way kubectl writes it."""
    return span(time.time() - since)


def show(what: RenderableType) -> None:
    """Print something that knows how wide it may be: the window, or in a pipe as wide as it likes."""
    if out.is_terminal:
        out.print(what, soft_wrap=False)
        return
    text = io.StringIO()
    Console(file=text, highlight=False, width=_ENDLESS).print(what)
    # Columns are filled up with spaces, which nobody in a pipe wants at the end of a line.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def show_json(what: Any) -> None:
    """Print a value for machines."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(what)).decode() + "\n")


def announce(line: str) -> None:
    """Say what is going on, to a person: what is piped into a program is not disturbed by it."""
    # Names have brackets in them, which are no markup.
    err.print(line, markup=False)


def ask(question: str, *, expected: str) -> None:
    """Have a person type something before it goes on; raises if they type anything else, or are not there."""
    if not sys.stdin.isatty():
        raise UnwindError("nobody is there to ask", remedy="say --yes")
    try:
        answer = err.input(question, markup=False)
    except EOFError:
        answer = ""
    if answer.strip() != expected:
        raise UnwindError("nothing was done", remedy=f"what was typed is not {expected!r}")
