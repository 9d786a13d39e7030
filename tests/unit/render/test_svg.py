"""What an SVG looks like, as far as one can tell without looking at it."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from tests.unit.render.pictures import BLOCKED, P, any_picture, box, chain, huge, picture, planned, under_way, wide
from unwind.render.layout import ROOM, SMALL, TITLE, laid_out
from unwind.render.styles import DARK, LIGHT, Palette
from unwind.render.svg import svg
from unwind.render.text import width

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from unwind.render.picture import Picture

SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = [planned(), under_way(), wide(), huge(), chain(9), chain(200), picture(), picture([box("a")])]


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    def holds(self, x: float, y: float, *, by: float = 0.5) -> bool:
        return self.x + by < x < self.x + self.width - by and self.y + by < y < self.y + self.height - by

    def overlaps(self, other: Rect) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


def parsed(drawn: Picture) -> Element:
    # It is our own: nobody else's XML is parsed here.
    return ET.fromstring(svg(drawn))  # noqa: S314


def steps(root: Element) -> list[Element]:
    return [item for item in root.iter(f"{SVG}g") if (item.get("class") or "").startswith("step")]


def front(step: Element) -> Rect:
    """The box itself: behind one that stands for several there are more."""
    rects = [item for item in step.iter(f"{SVG}rect") if (item.get("class") or "").startswith("box")]
    return Rect(*(float(rects[-1].get(key, "0")) for key in ("x", "y", "width", "height")))


def moved(root: Element) -> tuple[float, float]:
    """Where the boxes' own (0, 0) is."""
    group = next(item for item in root.iter(f"{SVG}g") if item.get("transform"))
    found = re.fullmatch(r"translate\((\S+) (\S+)\)", group.get("transform", ""))
    assert found
    return float(found[1]), float(found[2])


def points(way: str) -> list[tuple[float, float]]:
    """Points along a path of ours, near enough to each other."""
    numbers = re.findall(r"([MCHlvz])([^MCHlvz]*)", way)
    found: list[tuple[float, float]] = []
    for letter, text in numbers:
        values = [float(part) for part in text.split()]
        if letter == "M":
            found.append((values[0], values[1]))
        elif letter == "H":
            x, y = found[-1]
            found += [(x + (values[0] - x) * part / 20, y) for part in range(1, 21)]
        elif letter == "C":
            (a, b), (c, d, e, f, g, h) = found[-1], values
            for part in range(1, 31):
                t = part / 30
                s = 1 - t
                found.append(
                    (
                        s**3 * a + 3 * s * s * t * c + 3 * s * t * t * e + t**3 * g,
                        s**3 * b + 3 * s * s * t * d + 3 * s * t * t * f + t**3 * h,
                    )
                )
    return found


def arrows(root: Element) -> list[list[tuple[float, float]]]:
    group = next(item for item in root.iter(f"{SVG}g") if item.get("transform"))
    return [
        points(item.get("d", "")) for item in group.iter(f"{SVG}path") if (item.get("class") or "").startswith("arrow")
    ]


def holds_together(drawn: Picture) -> None:
    root = parsed(drawn)
    canvas = Rect(0, 0, float(root.get("width", "0")), float(root.get("height", "0")))
    dx, dy = moved(root)
    boxes = [front(step) for step in steps(root)]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    for item in boxes:
        assert canvas.holds(item.x + dx, item.y + dy)
        assert canvas.holds(item.x + item.width + dx, item.y + item.height + dy)
    for arrow in arrows(root):
        assert not [(point, item) for point in arrow for item in boxes if item.holds(*point)]
        assert all(canvas.holds(x + dx, y + dy) for x, y in arrow)
    for text in root.iter(f"{SVG}text"):
        assert canvas.holds(float(text.get("x", "-1")), float(text.get("y", "-1")))
    names = [name for placed in laid_out(drawn).boxes for name in placed.card.box.stands_for or (placed.card.box.name,)]
    assert sorted(names) == sorted(box.name for box in drawn.boxes)
    assert len(steps(root)) == len(laid_out(drawn).boxes)


@pytest.mark.parametrize("drawn", SAMPLES, ids=range(len(SAMPLES)))
def test_boxes_do_not_overlap_nothing_is_outside_and_no_arrow_crosses_a_box(drawn: Picture) -> None:
    holds_together(drawn)


@given(any_picture())
@settings(max_examples=30, deadline=None)
def test_so_it_is_with_any_picture(drawn: Picture) -> None:
    holds_together(drawn)


def test_every_step_of_a_plan_is_drawn_once_with_its_full_name_for_who_points_at_it() -> None:
    titles = [step.findtext(f"{SVG}title") or "" for step in steps(parsed(planned()))]
    assert sorted(title.splitlines()[0] for title in titles) == sorted(item.name for item in planned().boxes)


def test_waves_stand_from_left_to_right() -> None:
    placed = {item.card.box.name: item for item in laid_out(planned()).boxes}
    for first, then in planned().edges:
        assert placed[first].right < placed[then].x


def test_a_long_name_is_shortened_to_fit_and_can_be_read_in_full() -> None:
    name = f"{P}{'a-very-long-name-' * 12}end"
    root = parsed(picture([box(name)]))
    shown = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert len(shown) == 1
    assert shown[0].startswith("a-very")
    assert shown[0].endswith("end")
    assert width(shown[0], TITLE, bold=True) <= ROOM
    assert name in (steps(root)[0].findtext(f"{SVG}title") or "")


def test_what_blocks_is_red_with_its_text_and_the_arrow_from_it_too() -> None:
    root = parsed(under_way())
    held = [step for step in steps(root) if any(item.get("class") == "box blocked" for item in step)]
    assert len(held) == 1
    told = [text.text or "" for text in held[0].iter(f"{SVG}text") if text.get("class") == "stop"]
    assert " ".join(told).startswith("Service ingress/nginx has the finalizer")
    assert all(width(line, SMALL) <= ROOM for line in told)
    assert BLOCKED in (held[0].findtext(f"{SVG}title") or "")
    assert [item for item in root.iter(f"{SVG}path") if "stopped" in (item.get("class") or "").split()]
    assert "blocked: action required" in svg(under_way())
    assert "action required" not in svg(planned())


def test_a_bar_is_as_full_as_a_step_has_come() -> None:
    steps_ = [box("half", objects=10, removed=5, state="Removing"), box("none", objects=10, state="Waiting")]
    found = {}
    for step in steps(parsed(picture(steps_))):
        bars = {item.get("class"): float(item.get("width", "0")) for item in step.iter(f"{SVG}rect")}
        found[(step.findtext(f"{SVG}title") or "").splitlines()[0]] = bars.get("gone", 0.0) / bars["track"]
    assert found == {"half": pytest.approx(0.5, abs=0.01), "none": 0.0}


def test_the_legend_says_only_what_can_be_seen() -> None:
    drawn = svg(picture([box("a", "Try")]))
    assert "Try: " in drawn
    assert "Enforce: " not in drawn
    assert "unknown effort" in svg(picture([box("a", "enforce")]))


def test_an_arrow_that_others_imply_is_left_out() -> None:
    order = (("a", "b"), ("b", "c"), ("a", "c"))
    drawn = laid_out(picture([box("a")], [box("b")], [box("c")], edges=order))
    assert [(arrow.first, arrow.then) for arrow in drawn.arrows] == [("a", "b"), ("b", "c")]


def test_what_is_no_order_is_dotted() -> None:
    circle = picture([box("a"), box("b")], [box("c"), box("d")], edges=(("a", "b"), ("b", "a"), ("a", "c"), ("d", "a")))
    assert {(arrow.first, arrow.then): arrow.order for arrow in laid_out(circle).arrows} == {
        ("a", "b"): False,
        ("b", "a"): False,
        ("a", "c"): True,
        ("d", "a"): False,
    }


def test_two_thousand_steps_are_a_few_boxes_and_what_is_blocked_is_among_them() -> None:
    drawn = huge()
    assert len(laid_out(drawn).boxes) < 200
    assert len(svg(drawn)) < 500_000
    assert {item.card.box.blocked for item in laid_out(drawn).boxes} >= {"stuck"}


def test_a_chain_of_two_thousand_waves_can_be_looked_at() -> None:
    drawn = laid_out(chain(2000))
    assert len(drawn.waves) <= 16
    assert drawn.waves[0].column.title == "wave 1 to 125"
    assert len(drawn.arrows) == len(drawn.waves) - 1
    assert drawn.width < 6000


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(palette: Palette) -> None:
    for ink in (palette.ink, palette.muted):
        for behind in (palette.ground, palette.band, palette.card):
            assert contrast(ink, behind) >= 4.5
    assert contrast(palette.blocked, palette.alarm) >= 4.5
    assert contrast(palette.blocked, palette.ground) >= 4.5
    for colour in (palette.enforce, palette.try_, palette.leave, palette.unknown, palette.done, palette.arrow):
        assert contrast(colour, palette.card) >= 3


def test_who_looks_at_it_in_the_dark_gets_the_dark_one() -> None:
    assert "prefers-color-scheme: dark" in svg(planned())
    assert DARK.ground not in svg(planned(), theme="light")
    assert LIGHT.ground not in svg(planned(), theme="dark")


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((_light(one), _light(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _light(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
