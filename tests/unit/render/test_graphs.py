"""Pictures as DOT and Mermaid, which other programs draw."""

from __future__ import annotations

import re

from tests.unit.render.pictures import P, box, huge, picture, planned, under_way
from unwind.render.graphs import dot, mermaid
from unwind.render.picture import direct


def test_dot_has_every_step_once_in_its_wave_and_every_arrow() -> None:
    drawn = dot(planned())
    labels = re.findall(r"^    s\d+ \[label=\"([^\"\\]+)", drawn, re.MULTILINE)
    assert sorted(labels) == sorted(item.name for item in planned().boxes)
    assert len(re.findall(r"subgraph cluster_", drawn)) == 3
    assert len(re.findall(r" -> ", drawn)) == len(direct(planned()))
    assert drawn.count("{") == drawn.count("}")


def test_what_is_written_in_dot_cannot_end_its_quotes() -> None:
    drawn = dot(picture([box('a"];x[label="b\\', blocked='it says "no"\nagain')]))
    assert r'label="a\"];x[label=\"b\\\n4 objects"' in drawn
    assert r'tooltip="it says \"no\"\nagain"' in drawn


def test_mermaid_has_every_step_once_in_its_wave_and_every_arrow() -> None:
    drawn = mermaid(under_way())
    assert drawn.startswith('---\ntitle: "Cluster default/prod-7"\n---\nflowchart LR\n')
    labels = re.findall(r"^    s\d+\[\"([^\"<]+)", drawn, re.MULTILINE)
    assert sorted(labels) == sorted(item.name for item in under_way().boxes)
    assert (
        len(re.findall(r"^  subgraph ", drawn, re.MULTILINE)) == len(re.findall(r"^  end$", drawn, re.MULTILINE)) == 3
    )
    assert len(re.findall(r" --> ", drawn)) == 2
    assert ":::blocked" in drawn


def test_what_is_written_in_mermaid_is_no_markup() -> None:
    drawn = mermaid(picture([box('a"]\n<script>`#')]))
    assert 's1["a#quot;]<br/>#lt;script#gt;#96;#35;<br/>4 objects"]:::enforce' in drawn


def test_what_nobody_waits_for_is_dotted_in_both() -> None:
    drawn = picture([box("stays", "Leave")], [box("goes")], edges=(("stays", "goes"),))
    assert "s1 -> s2 [style=dotted, constraint=false]" in dot(drawn)
    assert "s1 -.-> s2" in mermaid(drawn)


def test_mermaid_stays_small_enough_to_be_drawn() -> None:
    drawn = mermaid(huge())
    assert len(drawn) < 50_000
    assert re.findall(r"^  (\w+ -.*)$", drawn, re.MULTILINE) == [
        f"w{number} --> w{number + 1}" for number in range(1, 8)
    ]


def test_the_names_of_waves_and_steps_are_as_they_were() -> None:
    assert f"{P}monitoring" in dot(planned())
    assert "wave 3" in mermaid(planned())
