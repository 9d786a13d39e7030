"""Render a picture as a DOT graph for Graphviz (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.render.collapse import direct
from unwind.render.styles import EFFORTS, LIGHT
from unwind.render.text import counted

if TYPE_CHECKING:
    from unwind.render.picture import Box, Picture

_COLOURS = {"enforce": LIGHT.enforce, "try": LIGHT.try_, "leave": LIGHT.leave, "unknown": LIGHT.unknown}


def dot(picture: Picture) -> str:
    """The DOT text: a node per step, a cluster of nodes on the same rank per wave."""
    ids = {box.name: f"s{number}" for number, box in enumerate(picture.boxes, 1)}
    wave = {box.name: number for number, column in enumerate(picture.columns) for box in column.boxes}
    efforts = {box.name: box.effort for box in picture.boxes}
    lines = [
        "digraph unwind {",
        "  rankdir=LR;",
        f"  label={_quoted(picture.title)}; labelloc=t; fontname=sans;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=sans, fontsize=11, penwidth=2];',
        f'  edge [color="{LIGHT.arrow}"];',
    ]
    for number, column in enumerate(picture.columns, 1):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f'    label={_quoted(column.title)}; style="rounded,filled"; color="{LIGHT.band}"; rank=same;')
        lines += [f"    {ids[box.name]} [{_look(box)}];" for box in column.boxes]
        lines.append("  }")
    for first, then in direct(picture):
        order = wave[first] < wave[then] and efforts[first] != Effort.LEAVE
        # An edge that does not define order must not affect the ranks.
        loose = "" if order else " [style=dotted, constraint=false]"
        lines.append(f"  {ids[first]} -> {ids[then]}{loose};")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _look(box: Box) -> str:
    label = box.name
    if box.objects:
        label += f"\n{box.removed}/{box.objects} objects gone" if box.state else f"\n{counted(box.objects, 'object')}"
    if box.state:
        label += f"\n{box.state}"
    colour = LIGHT.blocked if box.blocked else _COLOURS[EFFORTS.get(box.effort, "unknown")]
    look = f'label={_quoted(label)}, color="{colour}", tooltip={_quoted(box.blocked or box.effort or box.name)}'
    return f'{look}, fillcolor="{LIGHT.alarm}"' if box.blocked else look


def _quoted(said: str) -> str:
    escaped = said.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
