"""A timeline as SVG, as far as one can tell without looking at it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.teardown.teardown_courses import at, blocked, over, ran, step, teardown, waits
from unwind.api.unwind import Teardown
from unwind.render.timeline_rows import timeline_chart
from unwind.render.timeline_svg import timeline_svg

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SVG = "{http://www.w3.org/2000/svg}"


def drawn(one: Teardown) -> Element:
    # It is our own: nobody else's XML is parsed here.
    return ET.fromstring(timeline_svg(timeline_chart(one, now=at(500))))  # noqa: S314


def rects(root: Element, look: str) -> list[tuple[float, float]]:
    found = [item for item in root.iter(f"{SVG}rect") if item.get("class") == look]
    return [(float(item.get("x", 0)), float(item.get("width", 0))) for item in found]


def test_bars_are_as_long_as_their_steps_took() -> None:
    root = drawn(over())
    (_, shop), (_, db), (_, ingress), (_, operator), *_ = rects(root, "enforce")
    assert round(db / shop) == 4
    assert round(ingress / shop, 1) == 1.5
    assert operator < shop
    [(_, block), *_] = rects(root, "stop")
    assert round(db / block, 1) == 1.6


def test_the_critical_path_is_underlined_and_linked() -> None:
    root = drawn(over())
    assert len(rects(root, "ink")) == 3 + 1  # and the legend
    arrows = [item.get("class") for item in root.iter(f"{SVG}path") if (item.get("class") or "").startswith("arrow")]
    assert arrows.count("arrow") == 2
    assert arrows.count("arrow over") == 1


def test_everything_that_others_write_is_text() -> None:
    bad = "<script>alert(1)</script>&\x00\x1b"
    one = teardown((step(bad),), (ran(bad, 0, 10),), blocked(bad, 0, 5, name=bad), end=10, title=bad)
    root = drawn(one)
    assert not [item for item in root.iter() if "script" in item.tag]
    assert "\x1b" not in timeline_svg(timeline_chart(one, now=at(10)))


def test_a_page_can_bring_the_style_sheet() -> None:
    assert "<style>" not in timeline_svg(timeline_chart(over(), now=at(500)), styled=False)
    assert "prefers-color-scheme" in timeline_svg(timeline_chart(over(), now=at(500)))
    assert " style=" not in timeline_svg(timeline_chart(over(), now=at(500)))


def test_a_teardown_without_steps_is_drawn() -> None:
    drawn(Teardown())
    drawn(teardown((step("a"), step("b")), (waits("a"),)))


TIMES = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted)


@given(st.lists(TIMES, min_size=1, max_size=60), st.integers(0, 10**6))
def test_no_bar_leaves_the_axis(times: list[list[int]], block: int) -> None:
    names = [f"step-{place}" for place, _ in enumerate(times)]
    steps = tuple(step(name, *names[place + 1 : place + 2], wave=place + 1) for place, name in enumerate(names))
    states = tuple(ran(name, start, end) for name, (start, end) in zip(names, times, strict=True))
    root = drawn(teardown(steps, states, blocked("step-0", block), end=10**6))
    for look in ("enforce", "stop"):
        for x, width in rects(root, look):
            assert x >= 27
            assert width >= 3
            assert x + width <= 28 + 230 + 620 + 0.2 or x < 200
