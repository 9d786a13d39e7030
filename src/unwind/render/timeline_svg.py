"""Render a timeline as SVG: a bar for each step, what it waited for, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from unwind.api.unwind import StepState
from unwind.render import text
from unwind.render.styles import EFFORTS, stylesheet
from unwind.render.svg import clean, cleaned, text_element
from unwind.render.text import counted, duration
from unwind.render.timeline_rows import MOST_ROWS, shortened, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unwind.render.styles import Theme
    from unwind.render.timeline_rows import TimelineChart, TimelineRow

_MARGIN = 28.0
_NAMES = 230.0
_TOOK = 76.0
_AXIS = 620.0
_WIDTH = _MARGIN + _NAMES + _AXIS + _TOOK + _MARGIN
_LEFT = _MARGIN + _NAMES
_TOP = 92.0
_WAVE = 26.0
_ROW = 30.0
_BAR = 12.0
_LEAST = 3.0
"""The minimal width of a bar: short steps must be visible."""
_NOTE = 19.0
_NOTES = 6
_STATES = {
    StepState.REMOVED.value: "removed",
    StepState.LEFT.value: "left in place",
    StepState.GIVEN_UP.value: "given up",
    StepState.REMOVING.value: "being removed",
    StepState.WAITING.value: "waiting",
}
_MEANINGS = {"Enforce": "enforced", "Try": "tried", "Leave": "left in place"}


def timeline_svg(chart: TimelineChart, *, theme: Theme = "auto", styled: bool = True) -> str:
    """A self-contained SVG document: no scripts, fonts or external references. All text is escaped.

    `styled`: with its style sheet; without, the page that it is a part of must have `styles.stylesheet`.
    """
    rows, others = shortened(chart, MOST_ROWS)
    places, bands, bottom = _placed(rows)
    notes = [line for note in _notes(chart, others) for line in _wrapped(note)]
    legend = _legend(rows, bottom + 30)
    height = bottom + 30 + (20 if legend else 0) + (_NOTE * len(notes) + 8 if notes else 0) + 6
    label = quoteattr(cleaned(f"Timeline of {chart.title}: {chart.summary}"))
    size = f'width="{_WIDTH:.0f}" height="{height:.0f}" viewBox="0 0 {_WIDTH:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={label}>',
        f"<title>{clean(f'Timeline of {chart.title}')}</title>",
        f"<style>{stylesheet(theme)}</style>" if styled else "",
        f'<rect class="ground" width="{_WIDTH:.0f}" height="{height:.0f}" rx="10"/>',
        text_element(_MARGIN, 46, "title", text.shortened(chart.title, _WIDTH - 2 * _MARGIN, 21, bold=True)),
        text_element(_MARGIN, 69, "subtitle muted", chart.summary),
        *(
            f'<rect class="band" x="{_MARGIN - 12:.1f}" y="{y:.1f}" width="{_WIDTH - 2 * _MARGIN + 24:.1f}" '
            f'height="{tall:.1f}" rx="8"/>'
            for _, y, tall in bands
        ),
        *_axis(chart, bottom),
        *(text_element(_MARGIN, y + 17, "muted", title) for title, y, _ in bands),
        *_links(chart, rows, places),
        *(line for row in rows for line in _row(chart, row, places[row.name])),
        *_released(chart, bottom),
        *legend,
        *(
            _note_line(begins, line, bottom + 30 + (20 if legend else 0) + 14 + place * _NOTE)
            for place, (begins, line) in enumerate(notes)
        ),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _placed(rows: tuple[TimelineRow, ...]) -> tuple[dict[str, float], list[tuple[str, float, float]], float]:
    """The middle of each row; the title, top and height of each wave; and the bottom."""
    places: dict[str, float] = {}
    bands: list[tuple[str, float, float]] = []
    y = _TOP + 22
    for wave in dict.fromkeys(row.wave for row in rows):
        top = y
        y += _WAVE
        for row in rows:
            if row.wave == wave:
                places[row.name] = y + _ROW / 2 - 4
                y += _ROW
        bands.append((f"wave {wave}" if wave else "other steps", top, y - top))
        y += 8
    return places, bands, y


def _x(chart: TimelineChart, share: float) -> float:
    return _LEFT + share * _AXIS


def _axis(chart: TimelineChart, bottom: float) -> Iterator[str]:
    for tick in ticks(chart.seconds, 9):
        x = _x(chart, tick / chart.seconds)
        yield f'<rect class="track" x="{x - 0.5:.1f}" y="{_TOP + 14:.1f}" width="1" height="{bottom - _TOP - 18:.1f}"/>'
        yield text_element(x, _TOP + 8, "muted", duration(tick), anchor="middle")


def _row(chart: TimelineChart, row: TimelineRow, y: float) -> Iterator[str]:
    yield f"<g><title>{clean(_full(chart, row))}</title>"
    look = "wave" if row.critical else "subtitle"
    name = text.shortened(row.name, _NAMES - 22, 13, bold=row.critical)
    yield text_element(_MARGIN, y + 4.5, look, name)
    seconds = row.seconds(chart.ends_at)
    told = "" if seconds is None else duration(seconds)
    yield text_element(_WIDTH - _MARGIN, y + 4.5, look if told else "muted", told or "-", anchor="end")
    if not row.skipped:
        begins = _x(chart, chart.place(row.started_at or chart.ends_at))
        if begins - _LEFT > _LEAST:
            # What it waits for is not its own time.
            yield f'<path class="arrow loose over" d="M{_LEFT:.1f} {y:.1f}H{begins - 2:.1f}"/>'
    start, end = chart.place(row.started_at or chart.ends_at), chart.place(row.ended_at or chart.ends_at)
    if row.started_at:
        yield _rect(chart, start, end, y, EFFORTS.get(row.effort, "unknown"))
    for block in row.blocks:
        from_, until = chart.place(block.at), chart.place(block.until or chart.ends_at)
        yield _rect(chart, from_, until, y, "stop", height=_BAR - 5)
    if row.started_at and row.critical:
        yield _rect(chart, start, end, y + _BAR / 2 + 3.5, "ink", height=2.5)
    yield "</g>"


def _rect(chart: TimelineChart, start: float, end: float, y: float, look: str, *, height: float = _BAR) -> str:
    x = _x(chart, start)
    width = max(_LEAST, (end - start) * _AXIS)
    x = min(x, _LEFT + _AXIS - width)
    round_ = min(height / 2, 3.0, width / 2)
    return (
        f'<rect class="{look}" x="{x:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_:.1f}"/>'
    )


def _links(chart: TimelineChart, rows: tuple[TimelineRow, ...], places: dict[str, float]) -> Iterator[str]:
    """A line from the end of a step to the start of each step that waited for it last."""
    known = {row.name: row for row in rows}
    for row in rows:
        before = known.get(row.waited_for)
        if before is None or before.ended_at is None or row.started_at is None:
            continue
        x, y = _x(chart, chart.place(before.ended_at)), places[before.name]
        to, down = max(x, _x(chart, chart.place(row.started_at))) + 3.5, places[row.name]
        tip = 5 if down > y else -5
        stop = down - (_BAR / 2 + 1 if down > y else -_BAR / 2 - 1) - tip
        look = "" if row.critical and before.critical else " over"
        yield f'<path class="arrow{look}" d="M{x:.1f} {y:.1f}H{to:.1f}V{stop:.1f}"/>'
        yield f'<path class="head{look}" d="M{to:.1f} {stop + tip:.1f}l-3.5 {-tip}h7z"/>'


def _released(chart: TimelineChart, bottom: float) -> Iterator[str]:
    if chart.released_at:
        x = _x(chart, chart.place(chart.released_at))
        yield f'<path class="arrow stopped" d="M{x:.1f} {_TOP + 14:.1f}V{bottom - 4:.1f}"/>'


def _legend(rows: tuple[TimelineRow, ...], y: float) -> list[str]:
    there = {row.effort for row in rows if row.started_at}
    items = [(EFFORTS[effort], meaning) for effort, meaning in _MEANINGS.items() if effort in there]
    if there - set(_MEANINGS):
        items.append(("unknown", "unknown effort"))
    if any(row.blocks for row in rows):
        items.append(("stop", "blocked"))
    if any(row.critical for row in rows):
        items.append(("ink", "critical path"))
    if any(row.after for row in rows):
        items.append(("", "waiting for other steps"))
    lines, x = [], _MARGIN
    for look, said in items:
        if look:
            tall = 2.5 if look == "ink" else 11
            lines.append(
                f'<rect class="{look}" x="{x:.1f}" y="{y - 4 - tall / 2:.1f}" width="11" height="{tall}" rx="1.2"/>'
            )
        else:
            lines.append(f'<path class="arrow loose" d="M{x:.1f} {y - 4:.1f}h12"/>')
        lines.append(text_element(x + 18, y, "muted", said))
        x += 18 + text.width(said, 11) + 22
    return lines


def _notes(chart: TimelineChart, others: int) -> Iterator[str]:
    blocks = chart.blocks()
    for row, block in blocks[:_NOTES]:
        took = duration(((block.until or chart.ends_at) - block.at).total_seconds())
        named = block.message if block.object in block.message else f"{block.object}: {block.message}"
        acts = f" (must act: {block.actor})" if block.actor else ""
        yield f"{row.name} blocked for {took}{'' if block.until else ' so far'}: {named}{acts}"
    if len(blocks) > _NOTES:
        yield f"and {counted(len(blocks) - _NOTES, 'more object')} that blocked"
    if chart.released:
        yield chart.released
    if others:
        yield f"{counted(others, 'more step')} that took less time"
    if chart.omitted:
        yield f"{counted(chart.omitted, 'event')} not recorded any more"


def _wrapped(note: str) -> list[tuple[bool, str]]:
    lines = text.wrapped(note, _WIDTH - 2 * _MARGIN - 18, 12, most=2)
    return [(place == 0, line) for place, line in enumerate(lines)]


def _note_line(begins: bool, line: str, y: float) -> str:
    mark = f'<path class="try" d="M{_MARGIN:.1f} {y:.1f}h11l-5.5 -10z"/>' if begins else ""
    return mark + text_element(_MARGIN + 18, y, "muted note", line)


def _full(chart: TimelineChart, row: TimelineRow) -> str:
    """The tooltip of a row."""
    seconds = row.seconds(chart.ends_at)
    lines = [row.name, _STATES.get(row.state, row.state)]
    if seconds is not None and row.started_at:
        begins = duration((row.started_at - chart.began_at).total_seconds())
        lines.append(f"started after {begins}, took {duration(seconds)}{'' if row.ended_at else ' so far'}")
    if row.waited_for:
        lines.append(f"waited for {row.waited_for}")
    lines += [f"blocked by {block.object}: {block.message}" for block in row.blocks[:3]]
    return "\n".join(lines)
