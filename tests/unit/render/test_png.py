"""Pictures as PNG."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from tests.unit.render.pictures import planned, wide
from unwind.errors import UnwindError
from unwind.render import svg as drawing
from unwind.render.svg import png, svg


def size(image: bytes) -> tuple[int, int]:
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    return width, height


def test_a_png_is_as_large_as_was_asked_for() -> None:
    drawn = svg(planned())
    width, height = size(png(drawn, scale=1))
    assert f'width="{width}" height="{height}"' in drawn
    assert size(png(drawn)) == (2 * width, 2 * height)


def test_one_that_no_program_would_open_becomes_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_MOST_PIXELS", 200_000)
    width, height = size(png(svg(wide()), scale=4))
    assert width * height <= 210_000


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UnwindError, match="use -o svg"):
        png("this is no picture")


def test_without_any_font_there_is_an_error_and_no_picture_without_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_PROBE", drawing._PROBE.replace("%s", "%.0s"))
    with pytest.raises(UnwindError, match="no font"):
        png(svg(planned()))


def test_without_its_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UnwindError, match=r"pip install 'kube-unwind\[png\]'"):
        png(svg(planned()))


def test_nobody_waits_for_it_who_does_not_want_a_png() -> None:
    asked = "import sys, unwind.cli, unwind.render.svg; sys.exit('resvg_py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
