"""Render a picture as SVG, for light and dark backgrounds, with full texts as tooltips, and an SVG as PNG."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from unwind.api.unwind import StepState
from unwind.errors import UnwindError
from unwind.render import text
from unwind.render.layout import BAR, GAP, LINE, MARGIN, MEANINGS, PADDING, SMALL, STRIPE, Layout, laid_out
from unwind.render.styles import EFFORTS, FONTS, stylesheet
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unwind.render.layout import Arrow, PlacedBox, Wave
    from unwind.render.picture import Column, Picture
    from unwind.render.styles import Theme

_LEAST = 720.0
# Rendering this size uses about 200 MB.
_MOST_PIXELS = 48_000_000
_SIZE = re.compile(r'<svg[^>]* width="(\d+)" height="(\d+)"')


_PROBE = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9" font-family="{FONTS}">%s</text></svg>'
)


"""The minimal width, for title and legend."""
_HEAD = 92.0
_PROGRESS = 26.0
_NOTE = 19.0
_LOOP = 34.0
_TIP = 8.0
_CONTROL = re.compile(r"[^\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(picture: Picture, *, theme: Theme = "auto", styled: bool = True) -> str:
    """A self-contained SVG document: no scripts, fonts or external references.

    `styled`: with its style sheet; without, the page that it is a part of must have it.
    """
    layout = laid_out(picture)
    width = max(layout.width, _LEAST)
    head = _HEAD + (_PROGRESS if picture.under_way else 0.0)
    notes = [line for note in picture.notes for line in _note(note, width)]
    legend, legend_height = _legend(layout, width, head + layout.height + 34)
    height = head + layout.height + 24 + legend_height + (_NOTE * len(notes) + 14 if notes else 0) + 10
    # A layout that is narrower than the header is centred.
    aside = (width - layout.width) / 2
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    label = quoteattr(cleaned(picture.title))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={label}>',
        f"<title>{clean(picture.title)}</title>",
        f"<style>{stylesheet(theme)}</style>" if styled else "",
        f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="10"/>',
        *_head(picture, width),
        f'<g transform="translate({aside:.1f} {head:.1f})">',
        *(line for wave in layout.waves for line in _wave(wave)),
        *_arrows(layout),
        *(line for placed in layout.boxes for line in _box(placed)),
        "</g>",
        *legend,
        *_notes(notes, head + layout.height + 24 + legend_height + 20),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(picture: Picture, width: float) -> Iterator[str]:
    room = width - 2 * MARGIN
    yield text_element(MARGIN, 46, "title", text.shortened(picture.title, room, 21, bold=True))
    yield text_element(MARGIN, 69, "subtitle muted", text.shortened(picture.subtitle or _summed(picture), room, 13))
    if picture.under_way:
        gone, going = picture.gone
        share = gone / going if going else 1.0
        yield from _bar(MARGIN, 86, 240, share, height=8)
        held = sum(box.steps for box in picture.boxes if box.blocked)
        told = f"{gone:,} of {going:,} objects gone"
        yield text_element(MARGIN + 254, 94, "subtitle", told)
        if held:
            at = MARGIN + 254 + text.width(told, 13) + 14
            yield text_element(at, 94, "subtitle stop", f"{counted(held, 'step')} blocked")


def _summed(picture: Picture) -> str:
    steps = sum(box.steps for box in picture.boxes)
    _, going = picture.gone
    waves = len(picture.columns)
    return f"{counted(steps, 'step')} in {counted(waves, 'wave')}, {counted(going, 'object')} to remove"


def _wave(wave: Wave) -> Iterator[str]:
    yield (
        f'<rect class="band" x="{wave.x:.1f}" y="{wave.y:.1f}" width="{wave.width:.1f}" height="{wave.height:.1f}" '
        'rx="10"/>'
    )
    middle = wave.x + wave.width / 2
    room = wave.width - 20
    yield text_element(
        middle, wave.y + 24, "wave", text.shortened(wave.column.title, room, 13, bold=True), anchor="middle"
    )
    yield text_element(
        middle, wave.y + 41, "muted", text.shortened(_counted(wave.column), room, SMALL), anchor="middle"
    )


def _counted(column: Column) -> str:
    steps = sum(box.steps for box in column.boxes)
    objects = sum(box.objects for box in column.boxes)
    told = counted(steps, "step")
    if objects:
        told += f" · {counted(objects, 'object')}"
    if column.boxes and all(box.done for box in column.boxes):
        told += " · done"
    return told


def _arrows(layout: Layout) -> Iterator[str]:
    boxes = {placed.card.box.name: placed.card.box for placed in layout.boxes}
    # Blocked arrows are drawn last, above the others.
    for arrow in sorted(layout.arrows, key=lambda arrow: bool(boxes[arrow.first].blocked)):
        first = boxes[arrow.first]
        look = "stopped" if first.blocked and arrow.order else ""
        over = " over" if first.done else ""
        loose = "" if arrow.order else " loose"
        yield f'<path class="arrow {look}{loose}{over}" d="{_way(arrow)}"/>'
        yield _tip(arrow, look + over)


def _way(arrow: Arrow) -> str:
    (x, y), *rest = arrow.stops
    way = f"M{x:.1f} {y:.1f}"
    end = len(rest) - 1
    for place, (to, down) in enumerate(rest):
        if arrow.loops:
            way += f"C{x + _LOOP:.1f} {y:.1f} {to + _LOOP:.1f} {down:.1f} {to + _TIP:.1f} {down:.1f}"
        else:
            # The line ends where its tip begins: otherwise it would be visible beside the tip.
            stop = to - (_TIP if to > x else -_TIP) if place == end else to
            half = (x + stop) / 2
            straight = y == down
            way += f"H{stop:.1f}" if straight else f"C{half:.1f} {y:.1f} {half:.1f} {down:.1f} {stop:.1f} {down:.1f}"
        x, y = to, down
    return way


def _tip(arrow: Arrow, look: str) -> str:
    (before, _), (x, y) = arrow.stops[-2:]
    back = _TIP if arrow.loops or before > x else -_TIP
    return f'<path class="head {look}" d="M{x:.1f} {y:.1f}l{back:.1f} -4.5v9z"/>'


def _box(placed: PlacedBox) -> Iterator[str]:
    card, x, y = placed.card, placed.x, placed.y
    box = card.box
    effort = EFFORTS.get(box.effort, "unknown")
    held = " blocked" if box.blocked else ""
    yield f'<g class="step{" over" if box.done else ""}"><title>{clean(card.full)}</title>'
    for behind in (8, 4) if box.stands_for else ():
        # A group of steps is drawn as a stack of cards.
        yield _card(x + behind / 2, y - behind / 2, placed.width - behind / 2, card.height, "box")
    yield _card(x, y, placed.width, card.height, f"box{held}")
    yield _stripe(x, y, card.height, effort)
    left = x + STRIPE + PADDING
    right = placed.right - PADDING
    first, second = (18, 36) if card.above else (29, 29)
    yield text_element(left, y + first, "muted", card.above)
    yield text_element(right, y + first, "muted", card.count, anchor="end")
    yield text_element(left, y + second, "name", card.name)
    below = y + 36
    if card.bar is not None:
        below += 17
        yield from _progress(placed, left, right, below)
    below += GAP
    for line in card.details:
        below += LINE
        yield text_element(left, below, "muted", line)
    for line in card.blocked:
        below += LINE
        yield text_element(left, below, "stop", line)
    yield "</g>"


def _card(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="7"/>'


def _stripe(x: float, y: float, height: float, effort: str) -> str:
    """The colour of a box, along its left side."""
    way = f"M{x + 7:.1f} {y:.1f}h-2v{height:.1f}h2a7 7 0 0 1 -7 -7v-{height - 14:.1f}a7 7 0 0 1 7 -7z"
    return f'<path class="{effort}" d="{way}"/>'


def _progress(placed: PlacedBox, left: float, right: float, y: float) -> Iterator[str]:
    card = placed.card
    taken = text.width(card.state, SMALL)
    mark = _mark(card.box.state, blocked=bool(card.box.blocked), x=right - taken - 15, y=y)
    yield from _bar(left, y - BAR, right - taken - left - 26, card.bar or 0.0, height=BAR)
    yield mark
    yield text_element(right, y + 1, "muted", card.state, anchor="end")


def _bar(x: float, y: float, width: float, share: float, *, height: float) -> Iterator[str]:
    round_ = height / 2
    yield f'<rect class="track" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="{round_}"/>'
    if share > 0:
        filled = max(height, width * share)
        yield f'<rect class="gone" x="{x:.1f}" y="{y:.1f}" width="{filled:.1f}" height="{height}" rx="{round_}"/>'


def _mark(state: str, *, blocked: bool, x: float, y: float) -> str:
    """The symbol of a state, drawn as a path because fonts may lack it."""
    if blocked:
        return f'<path class="mark stop" d="M{x:.1f} {y - 7.5:.1f}l8 8m0 -8l-8 8"/>'
    if state == StepState.REMOVED:
        return f'<path class="mark fine" d="M{x - 1:.1f} {y - 3:.1f}l3.5 3.5l6 -7"/>'
    if state == StepState.REMOVING:
        return f'<circle class="fine" cx="{x + 4:.1f}" cy="{y - 3:.1f}" r="3.5"/>'
    return f'<circle class="mark faint" cx="{x + 4:.1f}" cy="{y - 3:.1f}" r="3.2"/>'


def _legend(layout: Layout, width: float, y: float) -> tuple[list[str], float]:
    """The legend of the colours in use, in as many rows as needed, and its height."""
    boxes = layout.picture.boxes
    there = {box.effort for box in boxes}
    items = [(EFFORTS[effort], meaning) for effort, meaning in MEANINGS.items() if effort in there]
    if there - set(MEANINGS):
        items.append(("unknown", "unknown effort: blocks"))
    if any(box.blocked for box in boxes):
        items.append(("stop", "blocked: action required"))
    if any(not arrow.order for arrow in layout.arrows):
        items.append(("", "dotted: dependency without waiting"))
    lines = []
    x, rows = MARGIN, 1
    for look, said in items:
        taken = 18 + text.width(said, SMALL) + 22
        if x + taken > width - MARGIN and x > MARGIN:
            x, rows = MARGIN, rows + 1
        top = y + (rows - 1) * 20
        if look:
            lines.append(f'<rect class="{look}" x="{x:.1f}" y="{top - 9:.1f}" width="11" height="11" rx="3"/>')
        else:
            lines.append(f'<path class="arrow loose" d="M{x:.1f} {top - 3.5:.1f}h12"/>')
        lines.append(text_element(x + 18, top, "muted", said))
        x += taken
    return lines, (rows * 20 + 10 if items else 0)


def _note(note: str, width: float) -> list[tuple[bool, str]]:
    lines = text.wrapped(note, width - 2 * MARGIN - 18, 12, most=3)
    return [(place == 0, line) for place, line in enumerate(lines)]


def _notes(notes: list[tuple[bool, str]], y: float) -> Iterator[str]:
    for place, (begins, line) in enumerate(notes):
        at = y + place * _NOTE
        if begins:
            yield f'<path class="try" d="M{MARGIN:.1f} {at:.1f}h11l-5.5 -10z"/>'
        yield text_element(MARGIN + 18, at, "muted note", line)


def text_element(x: float, y: float, look: str, said: str, *, anchor: str = "") -> str:
    """A line of text, escaped; nothing if it is empty."""
    if not said:
        return ""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}"{where}>{clean(said)}</text>'


def clean(said: str) -> str:
    """The text as the content of an element."""
    return escape(cleaned(said))


def cleaned(said: str) -> str:
    """The text without control characters: XML cannot represent them, not even escaped."""
    return _CONTROL.sub(" ", said)


def png(svg: str, *, scale: float = 2) -> bytes:
    """The bytes of a PNG, `scale` times the size; smaller if it would be too large for common programs."""
    size = _SIZE.search(svg)
    if size:
        pixels = int(size[1]) * int(size[2])
        scale = min(scale, (_MOST_PIXELS / max(1, pixels)) ** 0.5)
    try:
        if _drawn(_PROBE % "x") == _drawn(_PROBE % ""):
            # Without a font the picture would have no text.
            raise UnwindError(
                "cannot render PNG: no font is installed", remedy="use -o svg, or install the DejaVu fonts"
            )
        return _drawn(svg, scale)
    except ValueError as error:
        raise UnwindError(f"cannot render PNG: {error}", remedy="use -o svg") from error


def _drawn(svg: str, scale: float = 1) -> bytes:
    # Other commands do not wait for this import.
    try:
        import resvg_py  # noqa: PLC0415
    except ImportError as error:
        raise UnwindError(
            f"cannot draw a PNG: {error}", remedy="use SVG, or install the extra: pip install 'kube-unwind[png]'"
        ) from error
    return resvg_py.svg_to_bytes(svg_string=svg, zoom=scale)
