"""Render a picture as a Mermaid flowchart for Markdown (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.render.collapse import collapsed, direct
from unwind.render.styles import EFFORTS, LIGHT
from unwind.render.text import counted

if TYPE_CHECKING:
    from unwind.render.picture import Box, Picture

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
