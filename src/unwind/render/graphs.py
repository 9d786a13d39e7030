"""Render a picture as text that other programs draw: DOT for Graphviz, Mermaid for Markdown (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.render.picture import collapsed, direct
from unwind.render.styles import EFFORTS, LIGHT
from unwind.render.text import counted

if TYPE_CHECKING:
    from unwind.render.picture import Box, Picture

_COLOURS = {"enforce": LIGHT.enforce, "try": LIGHT.try_, "leave": LIGHT.leave, "unknown": LIGHT.unknown}
_CLASSES = (
    ("enforce", LIGHT.enforce),
    ("try", LIGHT.try_),
    ("leave", LIGHT.leave),
    ("unknown", LIGHT.unknown),
)
# Most renderers draw nothing for more than 500 edges: then only the order of the waves is drawn.
_ARROWS = 450
# Characters to escape: the first two would end the text, the others are markup.
_ESCAPES = {'"': "#quot;", "\n": "<br/>", "#": "#35;", "<": "#lt;", ">": "#gt;", "`": "#96;"}


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


def mermaid(picture: Picture) -> str:
    """The flowchart, with a subgraph per wave, small enough for common renderers."""
    shown = collapsed(picture, boxes=40)
    ids = {box.name: f"s{number}" for number, box in enumerate(shown.boxes, 1)}
    wave = {box.name: number for number, column in enumerate(shown.columns) for box in column.boxes}
    efforts = {box.name: box.effort for box in shown.boxes}
    lines = ["---", f"title: {_title(picture.title)}", "---", "flowchart LR"]
    for number, column in enumerate(shown.columns, 1):
        lines.append(f'  subgraph w{number}["{_escaped(column.title)}"]')
        lines += [f'    {ids[box.name]}["{_escaped(_label(box))}"]:::{_class(box)}' for box in column.boxes]
        lines.append("  end")
    arrows = direct(shown)
    for first, then in arrows if len(arrows) <= _ARROWS else ():
        order = wave[first] < wave[then] and efforts[first] != Effort.LEAVE
        lines.append(f"  {ids[first]} {'-->' if order else '-.->'} {ids[then]}")
    if len(arrows) > _ARROWS:
        lines += [f"  w{number} --> w{number + 1}" for number in range(1, len(shown.columns))]
    lines += [f"  classDef {name} stroke:{colour},stroke-width:2px" for name, colour in _CLASSES]
    lines.append(f"  classDef blocked fill:{LIGHT.alarm},stroke:{LIGHT.blocked},stroke-width:3px,color:{LIGHT.blocked}")
    return "\n".join(lines) + "\n"


def _class(box: Box) -> str:
    return "blocked" if box.blocked else EFFORTS.get(box.effort, "unknown")


def _label(box: Box) -> str:
    label = counted(box.steps, "step") if box.stands_for else box.name
    if box.objects:
        label += f"\n{box.removed}/{box.objects} objects gone" if box.state else f"\n{counted(box.objects, 'object')}"
    if box.blocked:
        label += f"\n{box.blocked}"
    return label


def _escaped(said: str) -> str:
    return "".join(_ESCAPES.get(item, item) for item in said)


def _title(said: str) -> str:
    # The title is YAML: quoted, so that no character has a special meaning.
    escaped = " ".join(said.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
