"""Console output: tables, YAML, JSON and progress lines, on a terminal or in a pipe, and confirmation prompts."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml
from rich.console import Console

from unwind.errors import UnwindError
from unwind.render.text import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

# Output into a pipe is never truncated, because there is no terminal width to fit.
_ENDLESS = 10_000
DocumentFormat = Literal["yaml", "json"]


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


def confirm(question: str, *, expected: str) -> None:
    """Ask for a confirmation; raises UnwindError if the answer differs from `expected` or stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise UnwindError("cannot ask for confirmation: stdin is not a terminal", remedy="use --yes")
    try:
        answer = err.input(question, markup=False)
    except EOFError:
        answer = ""
    if answer.strip() != expected:
        raise UnwindError(f"aborted: the answer is not {expected!r}", remedy="nothing was changed")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        # Repeat shared values instead of using anchors: the output is for people.
        return True


def show_objects(objects: Sequence[dict[str, Any]], form: DocumentFormat) -> None:
    """Write objects to standard output in a form that `kubectl apply -f -` accepts."""
    sys.stdout.write(as_yaml(objects) if form == "yaml" else as_json(objects))


def as_yaml(objects: Sequence[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120, allow_unicode=True)


def as_json(objects: Sequence[dict[str, Any]]) -> str:
    whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return msgspec.json.format(msgspec.json.encode(whole)).decode() + "\n"
