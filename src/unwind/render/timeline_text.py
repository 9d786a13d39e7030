"""Render a timeline in a terminal: a bar for each step, readable without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from unwind.api.unwind import StepState
from unwind.render.text import ELLIPSIS, counted, duration, plain
from unwind.render.timeline_rows import MOST_ROWS, shortened, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from unwind.render.timeline_rows import TimelineBlock, TimelineChart, TimelineRow

WIDTH = 80
"""In a pipe: the reader has a screen of its own."""
_MOST = 140
_NAME = 28
_TOOK = 7
_AFTER = 6
_TICK = 8
"""The minimal distance of two ticks."""
_BLOCKS = 8
_WAITS, _WORKS, _BLOCKED = "·", "━", "▒"
_COLOURS = {
    StepState.REMOVED.value: "green",
    StepState.REMOVING.value: "blue",
    StepState.GIVEN_UP.value: "yellow",
    StepState.LEFT.value: "bright_black",
}


class TimelineText:
    """A renderable that reads the width of the console when it is printed."""

    def __init__(self, chart: TimelineChart, *, every: bool = False) -> None:
        """`every`: show all steps."""
        self._chart = chart
        self._most = len(chart.rows) if every else MOST_ROWS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield from _lines(self._chart, min(options.max_width, _MOST), self._most)
        else:
            # Names are not shortened, because the reader may be a program.
            longest = max((cell_len(plain(row.name)) for row in self._chart.rows), default=0)
            yield from _lines(self._chart, WIDTH + max(0, longest - _NAME), self._most, name=longest)


def _lines(chart: TimelineChart, width: int, most: int, *, name: int = 0) -> Iterator[RenderableType]:
    yield Text.assemble((plain(chart.title), "bold"), f"  {chart.summary}")
    rows, others = shortened(chart, most)
    if rows:
        yield Text()
        yield from _bars(chart, rows, width, name or min(_NAME, width // 3))
        if others:
            yield Text(f"and {counted(others, 'more step')}; all: -o wide", style="bright_black")
        yield Text()
        yield _legend(rows)
    if len(chart.critical_path) > 1 or (chart.critical_path and len(chart.rows) > 1):
        yield Text()
        known = {row.name: row for row in chart.rows}
        yield Text("Critical path", style="bold")
        for critical in chart.critical_path:
            seconds = known[critical].seconds(chart.ends_at) or 0.0
            share = round(100 * seconds / chart.seconds)
            yield Text(f"  {duration(seconds):>7}  {share:>3} %  {plain(critical)}")
    yield from _blocks(chart)
    if chart.released:
        when = f" after {duration((chart.released_at - chart.began_at).total_seconds())}" if chart.released_at else ""
        yield Text()
        yield Text.assemble(("! ", "yellow"), plain(chart.released) + when)
    if chart.omitted:
        yield Text()
        yield Text(
            f"{counted(chart.omitted, 'event')} of this teardown are not in its status any more; "
            "`unwind run --archive` keeps all of them",
            style="bright_black",
        )


def _bars(chart: TimelineChart, rows: tuple[TimelineRow, ...], width: int, most: int) -> Iterator[Text]:
    """`most`: the maximal width of names."""
    numbers = {row.name: str(place) for place, row in enumerate(rows, 1)}
    digits = max(2, len(str(len(rows))))
    name = min(most, max(cell_len(plain(row.name)) for row in rows))
    room = max(10, width - 2 - digits - 1 - name - 2 - 1 - _TOOK - 1 - _AFTER)
    head = f"{'':2}{'#':>{digits}} {'STEP':<{name}}  "
    yield Text.assemble((head, "bold"), _axis(chart, room), (f" {'TOOK':>{_TOOK}} AFTER", "bold"))
    for row in rows:
        seconds = row.seconds(chart.ends_at)
        after = numbers.get(row.waited_for, "")
        # A step usually waits for several others: the last one is shown, and that there are more.
        after += f" +{len(row.after) - 1}" if after and len(row.after) > 1 else ""
        line = Text.assemble(
            ("* " if row.critical else "  ", "bold"),
            (f"{numbers[row.name]:>{digits}} ", "bright_black"),
            (_fitted(plain(row.name), name), "bold" if row.critical else ""),
            "  ",
            _bar(chart, row, room),
            f" {duration(seconds) if seconds is not None else '':>{_TOOK}}",
            (f" {after}", "bright_black"),
        )
        line.rstrip()
        yield line


def _axis(chart: TimelineChart, room: int) -> Text:
    line = [" "] * room
    for tick in ticks(chart.seconds, max(2, room // _TICK)):
        label = duration(tick)
        at = min(int(tick / chart.seconds * room), room - len(label))
        line[at : at + len(label)] = label
    return Text("".join(line), style="bright_black")


def _bar(chart: TimelineChart, row: TimelineRow, room: int) -> Text:
    """The bar of a step: each character shows what happened for the longest part of its time; a block always shows."""
    colour = _COLOURS.get(row.state, "")
    line = [(" ", "")] * room
    if row.skipped:
        return Text(" " * room)
    started = row.started_at or chart.ends_at
    for at in range(int(chart.place(started) * room)):
        line[at] = (_WAITS, "bright_black")
    if row.started_at:
        for at in _cells(chart.place(row.started_at), chart.place(row.ended_at or chart.ends_at), room):
            line[at] = (_WORKS, colour)
    for block in row.blocks:
        for at in _cells(chart.place(block.at), chart.place(block.until or chart.ends_at), room):
            line[at] = (_BLOCKED, "red")
    return Text.assemble(*line)


def _cells(start: float, end: float, room: int) -> range:
    """The characters of a time. At least one: short steps must be visible."""
    first = min(int(start * room), room - 1)
    return range(first, max(first + 1, min(room, round(end * room))))


def _legend(rows: tuple[TimelineRow, ...]) -> Text:
    legend = Text()
    if any(row.critical for row in rows):
        legend.append("*", style="bold").append(" critical path   ", style="bright_black")
    legend.append(_WORKS).append(" being removed   ", style="bright_black")
    if any(row.blocks for row in rows):
        legend.append(_BLOCKED, style="red").append(" blocked   ", style="bright_black")
    legend.append(_WAITS).append(" waiting for other steps", style="bright_black")
    return legend


def _blocks(chart: TimelineChart) -> Iterator[RenderableType]:
    every = chart.blocks()
    if not every:
        return
    yield Text()
    yield Text("Blocked", style="bold")
    for row, block in every[:_BLOCKS]:
        took = duration(((block.until or chart.ends_at) - block.at).total_seconds())
        at = duration((block.at - chart.began_at).total_seconds())
        still = "" if block.until else " so far"
        yield _aside(Text(f"  {took:>7}  ", style="red"), Text(_told(block)))
        more = [f"from {at}{still}", f"step {plain(row.name)}"]
        if block.actor:
            more.insert(0, f"must act: {plain(block.actor)}")
        yield _aside(Text(" " * 11), Text(" · ".join(more), style="bright_black"))
    if len(every) > _BLOCKS:
        yield Text(f"{'':11}and {counted(len(every) - _BLOCKS, 'more object')}", style="bright_black")


def _aside(first: Text, then: Text) -> Table:
    """Two texts side by side, the second one wrapped in its column."""
    table = Table.grid(padding=0)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(first, then)
    return table


def _told(block: TimelineBlock) -> str:
    said = plain(block.message)
    name = plain(block.object)
    return said if name in said else f"{name}: {said}"


def _fitted(name: str, room: int) -> str:
    """The name in this width, shortened in the middle, because names differ at their ends."""
    if cell_len(name) <= room:
        return set_cell_size(name, room)
    tail = room // 2
    return set_cell_size(name[: room - tail - 1] + ELLIPSIS + name[len(name) - tail :], room)
