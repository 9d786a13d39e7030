"""Console output: terminal, pipe, JSON and confirmation prompts."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from unwind.errors import UnwindError
from unwind.render.text import span

if TYPE_CHECKING:
    from rich.console import RenderableType

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

# Output into a pipe is never truncated, because there is no terminal width to fit.
_ENDLESS = 10_000


def age(since: float) -> str:
    """The age since a timestamp, formatted as kubectl does."""
    return span(time.time() - since)


def show(what: RenderableType) -> None:
    """Print a renderable, fitted to the terminal's width, or at full width into a pipe."""
    if out.is_terminal:
        out.print(what, soft_wrap=False)
        return
    text = io.StringIO()
    Console(file=text, highlight=False, width=_ENDLESS).print(what)
    # Tables pad columns with spaces; trailing spaces are stripped for pipes.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def show_json(what: Any) -> None:
    """Print a value as formatted JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(what)).decode() + "\n")


def announce(line: str) -> None:
    """Print a progress line to standard error, which keeps piped output clean."""
    # Names may contain brackets, which are not markup.
    err.print(line, markup=False)


def ask(question: str, *, expected: str) -> None:
    """Ask for a confirmation; raises UnwindError if the answer differs from `expected` or stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise UnwindError("cannot ask for confirmation: stdin is not a terminal", remedy="use --yes")
    try:
        answer = err.input(question, markup=False)
    except EOFError:
        answer = ""
    if answer.strip() != expected:
        raise UnwindError(f"aborted: the answer is not {expected!r}", remedy="nothing was changed")
