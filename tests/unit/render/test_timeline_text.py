"""A timeline in a terminal and in a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len
from rich.console import Console

from tests.unit.teardown.teardown_courses import at, over, ran, step, teardown, waits
from unwind.api.unwind import Release
from unwind.render.timeline_rows import timeline_chart
from unwind.render.timeline_text import TimelineText

if TYPE_CHECKING:
    from unwind.api.unwind import Teardown


def printed(one: Teardown, *, width: int = 80, terminal: bool = True, every: bool = False) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)
    console.print(TimelineText(timeline_chart(one, now=at(200)), every=every))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_bars_show_work_waits_blocks_and_the_critical_path() -> None:
    lines = printed(over())
    rows = {line.split()[2 if line.startswith("*") else 1]: line for line in lines[3:7]}
    assert rows["shop"].startswith("*  1 shop")
    assert not rows["ingress"].startswith("*")
    assert "·" in rows["db"]
    assert "━▒" in rows["db"].replace("━━", "━")
    assert rows["db"].endswith("1m20s 1")
    assert rows["operator"].endswith("19s 2")
    told = "\n".join(lines)
    assert "1m20s   67 %  db" in told
    assert "50s  PersistentVolumeClaim shop/data: data has a finalizer" in told
    assert "must act: the storage controller · from 40s · step db" in told


def test_no_line_is_wider_than_the_terminal() -> None:
    names = [f"HelmRelease/team-{number}/an-add-on-with-a-long-name-{number}" for number in range(12)]
    one = teardown(tuple(step(name) for name in names), tuple(ran(name, 0, 60) for name in names), end=60)
    for width in (80, 100, 160):
        assert max(map(cell_len, printed(one, width=width))) <= width
    assert "an-add-on" not in printed(one)[3].split("…")[0] or "…" in printed(one)[3]


def test_a_pipe_has_no_colours_and_whole_names() -> None:
    name = "HelmRelease/team-1/an-add-on-with-a-long-name-that-does-not-fit"
    one = teardown((step(name),), (ran(name, 0, 60),), end=60)
    file = io.StringIO()
    Console(file=file, width=10_000, highlight=False).print(TimelineText(timeline_chart(one, now=at(60))))
    assert name in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_a_name_cannot_move_the_cursor() -> None:
    one = teardown((step("a\x1b[2Jb"),), (ran("a\x1b[2Jb", 0, 1),), end=1, title="x\x1b]0;y\x07")
    assert not any("\x1b" in line for line in printed(one))


def test_a_step_that_has_not_started_has_no_time() -> None:
    one = teardown((step("top", "base"), step("base", wave=2)), (ran("top", 0), waits("base")))
    [line] = [line for line in printed(one) if "base" in line and "#" not in line]
    assert line.endswith(" 1")
    assert "━" not in line


def test_many_steps_are_cut_unless_all_are_wanted() -> None:
    names = [f"s{number:03}" for number in range(90)]
    one = teardown(tuple(step(name) for name in names), tuple(ran(name, 0, 9) for name in names), end=9)
    assert "and 50 more steps; all: -o wide" in printed(one)
    assert sum(" s0" in line for line in printed(one, every=True)) >= 90


def test_a_release_and_what_is_not_recorded_any_more_are_told() -> None:
    one = teardown((step("a"),), (ran("a", 0, 9),), end=9, omitted=7)
    release = Release(reason="Forced", message="the backup is gone", by="admin", at=at(8))
    one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, release=release))
    lines = printed(one)
    assert "! released by admin (Forced): the backup is gone after 8s" in lines
    assert any(line.startswith("6 events of this teardown are not in its status any more") for line in lines)
