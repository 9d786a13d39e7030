"""Colours and fonts of pictures, for light and dark backgrounds."""

from __future__ import annotations

from typing import Literal

import msgspec

from unwind.api.unwind import Effort

Theme = Literal["auto", "light", "dark"]
"""`auto` follows the viewer's colour scheme, or is light if that is unknown."""

EFFORTS = {Effort.ENFORCE.value: "enforce", Effort.TRY.value: "try", Effort.LEAVE.value: "leave"}
"""The CSS class of a box; an unknown effort is `unknown`."""


class Palette(msgspec.Struct, frozen=True, kw_only=True):
    """A set of colours."""

    ground: str
    band: str
    card: str
    edge: str
    ink: str
    muted: str
    faint: str
    track: str
    arrow: str
    enforce: str
    try_: str
    leave: str
    unknown: str
    done: str
    blocked: str
    alarm: str
    """The background of a blocked box."""


LIGHT = Palette(
    ground="#ffffff",
    band="#f3f5f9",
    card="#ffffff",
    edge="#d5dae3",
    ink="#18202f",
    muted="#5b667a",
    faint="#8b95a7",
    track="#e4e8ef",
    arrow="#8791a5",
    enforce="#4054d6",
    try_="#c77700",
    leave="#7a8599",
    unknown="#9333c4",
    done="#1a8a55",
    blocked="#cf222e",
    alarm="#fff1f1",
)
DARK = Palette(
    ground="#0e131b",
    band="#161d28",
    card="#1e2734",
    edge="#364254",
    ink="#edf1f7",
    muted="#a5b1c4",
    faint="#7c899d",
    track="#354052",
    arrow="#7f8ca3",
    enforce="#8899ff",
    try_="#f2ab3d",
    leave="#94a1b5",
    unknown="#cd8bf0",
    done="#45c48a",
    blocked="#ff7b7b",
    alarm="#3a1d24",
)

# PNG rendering needs an installed font by name, so common system fonts are listed.
FONTS = (
    "Inter,'Segoe UI',Roboto,'Helvetica Neue',Helvetica,'Noto Sans','DejaVu Sans','Liberation Sans',Ubuntu,Cantarell,"
    "'Open Sans',FreeSans,Arial,sans-serif"
)
_ALWAYS = f"""
text{{font-family:{FONTS};font-size:11px}}
.title{{font-size:21px;font-weight:700}}
.subtitle{{font-size:13px}}
.wave{{font-size:13px;font-weight:700}}
.name{{font-size:13.5px;font-weight:600}}
.arrow{{fill:none;stroke-width:1.6}}
.arrow.loose{{stroke-dasharray:3 4}}
.box{{stroke-width:1}}
.box.blocked{{stroke-width:2}}
.mark{{fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}}
.over{{opacity:.7}}
"""


def stylesheet(theme: Theme) -> str:
    """The <style> of an SVG. Media queries are last, because some programs skip them."""
    first = DARK if theme == "dark" else LIGHT
    sheet = _ALWAYS + _coloured(first)
    if theme == "auto":
        sheet += f"@media (prefers-color-scheme: dark){{{_coloured(DARK)}}}\n"
    return sheet


def _coloured(palette: Palette) -> str:
    fills = {
        ".ground": palette.ground,
        ".band": palette.band,
        "text,.ink": palette.ink,
        ".muted": palette.muted,
        ".faint": palette.faint,
        ".track": palette.track,
        ".gone,.fine": palette.done,
        ".stop": palette.blocked,
        ".head": palette.arrow,
        ".head.stopped": palette.blocked,
        ".enforce": palette.enforce,
        ".try": palette.try_,
        ".leave": palette.leave,
        ".unknown": palette.unknown,
    }
    rules = [f"{selector}{{fill:{colour}}}" for selector, colour in fills.items()]
    rules += [
        f".box{{fill:{palette.card};stroke:{palette.edge}}}",
        f".box.blocked{{fill:{palette.alarm};stroke:{palette.blocked}}}",
        f".arrow{{stroke:{palette.arrow}}}",
        f".arrow.stopped{{stroke:{palette.blocked}}}",
        f".mark.fine{{fill:none;stroke:{palette.done}}}",
        f".mark.stop{{fill:none;stroke:{palette.blocked}}}",
        f".mark.faint{{fill:none;stroke:{palette.faint}}}",
    ]
    return "\n".join(rules) + "\n"
