"""Render a picture in a terminal: waves side by side if they fit, otherwise stacked; plain lines in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from unwind.api.unwind import Effort, StepState
from unwind.render.picture import collapsed, kind
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from unwind.render.picture import Box, Column, Picture

_LEAST = 24
"""The minimal width of a wave."""
_MOST = 40
_STACKED = 72
_BAR = 16
_BETWEEN = 3
_BOXES = 12

COLOURS = {Effort.ENFORCE.value: "blue", Effort.TRY.value: "yellow", Effort.LEAVE.value: "bright_black"}
UNKNOWN = "magenta"
_SIGNS = {
    StepState.REMOVED.value: ("✓", "green"),
    StepState.LEFT.value: ("○", "bright_black"),
    StepState.GIVEN_UP.value: ("!", "yellow"),
    StepState.REMOVING.value: ("●", "green"),
    StepState.WAITING.value: ("·", "bright_black"),
}


def rendered(picture: Picture) -> Rendered:
    """A rich renderable of the picture: fitted to the terminal, plain lines in a pipe."""
    return Rendered(picture)


class Rendered:
    """A renderable that reads the width of the console when it is printed."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        count = len(self.picture.columns)
        each = min(_MOST, (width - _BETWEEN * (count - 1)) // count) if count else 0
        if self.picture.title:
            yield Text(self.picture.title, style="bold")
        if self.picture.subtitle:
            yield Text(self.picture.subtitle, style="bright_black")
        if console.is_terminal and not options.ascii_only:
            yield Text()
            if each >= _LEAST:
                yield _columns(collapsed(self.picture, boxes=_BOXES), each)
            else:
                yield from _stacked(collapsed(self.picture, boxes=_BOXES), min(width, _STACKED))
            yield Text()
            yield _legend(self.picture)
        else:
            yield from _lines(self.picture)
        for note in self.picture.notes:
            yield Text.assemble(("! ", "yellow"), note)


def bar(share: float, width: int, *, blocked: bool = False) -> Text:
    """A progress bar that is readable without colours."""
    filled = round(max(0.0, min(1.0, share)) * width)
    # Never round to empty or full: some progress must not look like none, or like all.
    if share > 0:
        filled = max(1, filled)
    if share < 1:
        filled = min(width - 1, filled)
    return Text.assemble(("━" * filled, "red" if blocked else "green"), ("─" * (width - filled), "bright_black"))


def _columns(picture: Picture, each: int) -> Table:
    table = Table.grid(padding=0)
    for place, _ in enumerate(picture.columns):
        if place:
            table.add_column(width=_BETWEEN, no_wrap=True)
        table.add_column(width=each, no_wrap=True)
    cells: list[Text] = []
    heads: list[Text] = []
    for place, column in enumerate(picture.columns):
        if place:
            heads.append(Text(" → ", style="bright_black"))
            cells.append(Text())
        heads.append(_head(column, each))
        lines = [line for box in column.boxes for line in _box(box, each)]
        cells.append(Text("\n").join(lines if lines and not lines[0].plain else [Text(), *lines]))
    table.add_row(*heads)
    table.add_row(*cells)
    return table


def _stacked(picture: Picture, width: int) -> Iterator[Text]:
    """The waves stacked, if they do not fit side by side."""
    for place, column in enumerate(picture.columns):
        if place:
            yield Text("↓", style="bright_black")
        yield _head(column, width)
        for box in column.boxes:
            yield from _row(box, width)


def _head(column: Column, each: int) -> Text:
    steps = sum(box.steps for box in column.boxes)
    said = f" {counted(steps, 'step')}"
    return Text.assemble((_cut(column.title, each - len(said)), "bold underline"), (said, "bright_black"))


def _box(box: Box, each: int) -> Iterator[Text]:
    edge = _edge(box)
    sign, look = _sign(box)
    sign = f"{sign} " if sign else ""
    count = _count(box)
    name = _cut(_name(box), each - len(count) - len(sign) - 3)
    gap = " " * (each - cell_len(name) - len(count) - len(sign) - 2)
    if box.state or box.details or box.blocked:
        yield Text()
    yield Text.assemble(edge, (sign, look), (name, "bold"), gap, (count, "bright_black"))
    if box.state:
        yield Text.assemble(edge, bar(_share(box), each - 2, blocked=bool(box.blocked)))
    yield from _small(box, each)


def _row(box: Box, width: int) -> Iterator[Text]:
    """A box with its bar on the same line: stacked waves must save height."""
    sign, look = _sign(box)
    count = f" {_count(box)}"
    shown = bar(_share(box), _BAR, blocked=bool(box.blocked)) if box.state else Text()
    name = _cut(_name(box), width - len(count) - len(shown) - 5)
    gap = " " * (width - cell_len(name) - len(count) - len(shown) - 4)
    yield Text.assemble(_edge(box), (f"{sign or ' '} ", look), (name, "bold"), gap, shown, (count, "bright_black"))
    yield from _small(box, width)


def _small(box: Box, each: int) -> Iterator[Text]:
    """The small print: contents and blockers."""
    for line in box.details[:3]:
        yield Text.assemble(_edge(box), (_cut(" ".join(line.split()), each - 2), "bright_black"))
    if box.blocked:
        for line in _folded(box.blocked, each - 2, most=6):
            yield Text.assemble(_edge(box), (line, "red"))


def _edge(box: Box) -> tuple[str, str]:
    return "▌", "red" if box.blocked else COLOURS.get(box.effort, UNKNOWN)


def _lines(picture: Picture) -> Iterator[Text]:
    """One untruncated line per step: the reader may be a program."""
    waits: dict[str, list[str]] = {}
    for first, then in picture.edges:
        waits.setdefault(then, []).append(first)
    for column in picture.columns:
        yield Text(f"{column.title}:")
        for box in column.boxes:
            parts = [f"  {box.name}", box.effort]
            if box.objects:
                parts.append(_count(box) + " objects" if "/" in _count(box) else counted(box.objects, "object"))
            if box.state:
                parts.append(box.state)
            if waits.get(box.name):
                parts.append(f"after {', '.join(waits[box.name])}")
            line = Text("  ".join(parts))
            if box.blocked:
                line.append(f"  blocked: {box.blocked}", style="red")
            yield line
            yield from (Text(f"    {detail}") for detail in box.details)


def _legend(picture: Picture) -> Text:
    legend = Text()
    there = {box.effort for box in picture.boxes}
    for effort, colour in COLOURS.items():
        if effort in there:
            legend.append("▌", style=colour).append(f"{effort}  ", style="bright_black")
    if there - set(COLOURS):
        legend.append("▌", style=UNKNOWN).append("unknown  ", style="bright_black")
    if any(box.blocked for box in picture.boxes):
        legend.append("▌", style="red").append("blocked", style="bright_black")
    return legend


def _sign(box: Box) -> tuple[str, str]:
    return ("✗", "red") if box.blocked else _SIGNS.get(box.state, ("", ""))


def _count(box: Box) -> str:
    if box.state == StepState.LEFT:
        return f"{box.objects} kept"
    return f"{box.removed}/{box.objects}" if box.state else f"{box.objects or ''}"


def _share(box: Box) -> float:
    if box.state == StepState.REMOVED:
        return 1.0
    return box.removed / box.objects if box.objects else 0.0


def _name(box: Box) -> str:
    if box.stands_for:
        return counted(box.steps, "step")
    return box.name[len(kind(box.name)) + 1 :] if kind(box.name) else box.name


def _cut(said: str, room: int) -> str:
    return said if cell_len(said) <= room else set_cell_size(said, max(1, room - 1)).rstrip() + "…"


def _folded(said: str, room: int, *, most: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in said.split():
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = _cut(word, room)
    lines.append(line)
    return lines if len(lines) <= most else [*lines[: most - 1], _cut(f"{lines[most - 1]} …", room)]
