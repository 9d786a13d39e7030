"""An SVG as PNG, for where pictures are pasted."""

from __future__ import annotations

import re

from unwind.errors import UnwindError
from unwind.picturing.styles import FONTS

# About 200 MB while it is being drawn.
_MOST_PIXELS = 48_000_000
_SIZE = re.compile(r'<svg[^>]* width="(\d+)" height="(\d+)"')


_PROBE = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9" font-family="{FONTS}">%s</text></svg>'
)


def png(svg: str, *, scale: float = 2) -> bytes:
    """The bytes of a PNG, `scale` times the size; smaller where it would be too large for any program to open."""
    size = _SIZE.search(svg)
    if size:
        pixels = int(size[1]) * int(size[2])
        scale = min(scale, (_MOST_PIXELS / max(1, pixels)) ** 0.5)
    try:
        if _drawn(_PROBE % "x") == _drawn(_PROBE % ""):
            # It would be a picture without a word in it.
            raise UnwindError(
                "no font is installed here, and a PNG needs one", remedy="take it as SVG, or install DejaVu"
            )
        return _drawn(svg, scale)
    except ValueError as error:
        raise UnwindError(f"the picture cannot be drawn as PNG ({error})", remedy="take it as SVG") from error


def _drawn(svg: str, scale: float = 1) -> bytes:
    # Other commands do not wait for this import.
    try:
        import resvg_py  # noqa: PLC0415
    except ImportError as error:
        raise UnwindError(
            f"cannot draw a PNG: {error}", remedy="use SVG, or install the extra: pip install 'kube-unwind[png]'"
        ) from error
    return resvg_py.svg_to_bytes(svg_string=svg, zoom=scale)
