"""Render an SVG as PNG."""

from __future__ import annotations

import re

from unwind.errors import UnwindError
from unwind.render.styles import FONTS

# Rendering this size uses about 200 MB.
_MOST_PIXELS = 48_000_000
_SIZE = re.compile(r'<svg[^>]* width="(\d+)" height="(\d+)"')


_PROBE = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9" font-family="{FONTS}">%s</text></svg>'
)


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
