"""The model of a timeline: which step took how long, what waited for what, and the critical path."""

from __future__ import annotations

import msgspec

from tests.unit.teardown.teardown_courses import at, blocked, blocker, over, ran, step, teardown, waits
from unwind.api.unwind import Plan, StepState, Teardown, TeardownSpec
from unwind.render.timeline_rows import shortened, ticks, timeline_chart, timeline_document
from unwind.testing.clock import START


def test_each_step_tells_how_long_it_took_and_what_it_waited_for() -> None:
    chart = timeline_chart(over(), now=at(1000))
    assert {row.name: (row.seconds(chart.ends_at), row.waited_for) for row in chart.rows} == {
        "shop": (20.0, ""),
        "db": (80.0, "shop"),
        "ingress": (30.0, "shop"),
        "operator": (19.0, "db"),
    }
    assert (chart.began_at, chart.ends_at, chart.finished) == (START, at(120), True)
    assert chart.summary == "Complete after 2m, 4 steps in 3 waves"


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    chart = timeline_chart(over(), now=at(1000))
    assert chart.critical_path == ("shop", "db", "operator")
    assert [row.name for row in chart.rows if not row.critical] == ["ingress"]


def test_a_step_that_is_left_passes_the_order_on() -> None:
    steps = (step("top", "middle"), step("middle", "base", effort="Leave"), step("base", wave=2))
    states = (ran("top", 0, 30), ran("middle", 0, 0, StepState.LEFT), ran("base", 30, 40))
    chart = timeline_chart(teardown(steps, states, end=40), now=at(40))
    assert chart.critical_path == ("top", "base")


def test_steps_of_a_cycle_do_not_wait_for_each_other() -> None:
    steps = (step("a", "b"), step("b", "a"), step("c", wave=2))
    chart = timeline_chart(teardown(steps, (ran("a", 0, 5), ran("b", 0, 9), ran("c", 9, 10)), end=10), now=at(10))
    assert {row.name: row.after for row in chart.rows} == {"a": (), "b": (), "c": ()}


def test_while_it_runs_the_critical_path_ends_with_what_is_blocked() -> None:
    steps = (step("shop", "db", "ingress"), step("db", wave=2), step("ingress", "dns", wave=2), step("dns", wave=3))
    states = (ran("shop", 0, 20), ran("db", 20), ran("ingress", 21), waits("dns"))
    chart = timeline_chart(
        teardown(steps, states, blockers=(blocker("ingress", 30),)),
        now=at(60),
    )
    assert chart.critical_path == ("shop", "ingress")
    [row] = [row for row in chart.rows if row.name == "dns"]
    assert (row.started_at, row.seconds(chart.ends_at), row.waited_for) == (None, None, "ingress")
    assert [(it.name, block.at, block.until) for it, block in chart.blocks()] == [("ingress", at(30), None)]
    assert chart.summary.startswith("Removing for 1m so far")


def test_an_object_that_is_in_the_timeline_and_blocks_still_is_told_once() -> None:
    held = teardown((step("db"),), (ran("db", 0),), blocked("db", 10), blockers=(blocker("db", 10),))
    assert len(timeline_chart(held, now=at(60)).blocks()) == 1


def test_a_clock_that_is_behind_the_api_server_shortens_no_bar() -> None:
    chart = timeline_chart(teardown((step("db"),), (ran("db", 50),)), now=at(10))
    assert chart.ends_at == at(50)
    assert chart.place(at(10)) <= 1.0


def test_entries_that_status_has_no_longer_are_added_and_not_counted_as_omitted() -> None:
    ended = teardown((step("db"),), (ran("db", 0, 60),), end=60, omitted=3)
    # The end of the step is known from its state.
    assert timeline_chart(ended, now=at(60)).omitted == 2
    full = timeline_chart(ended, now=at(60), more=(blocked("db", 5, 20), blocked("db", 30, 50, name="more")))
    assert full.omitted == 0
    assert [block.object.rpartition("/")[2] for _, block in full.blocks()] == ["more", "data"]


def test_a_teardown_without_plan_or_times_has_a_chart() -> None:
    empty = timeline_chart(Teardown(), now=at(0))
    assert (empty.rows, empty.critical_path, empty.seconds) == ((), (), 1.0)
    planned = Teardown(spec=TeardownSpec(plan=Plan(steps=(step("a"),), waves=1)))
    assert [row.state for row in timeline_chart(planned, now=at(0)).rows] == ["Waiting"]


def test_what_is_shown_of_many_steps_is_what_delayed_the_end() -> None:
    steps = tuple(step(f"s{number:03}") for number in range(100))
    states = tuple(ran(f"s{number:03}", 0, 200 if number == 70 else number % 7) for number in range(100))
    chart = timeline_chart(teardown(steps, states, blocked("s050", 0, 1), end=200), now=at(200))
    rows, others = shortened(chart, 10)
    assert (len(rows), others) == (10, 90)
    assert {"s070", "s050"} <= {row.name for row in rows}
    assert [row.name for row in rows] == [row.name for row in chart.rows if row in rows]


def test_ticks_are_round_and_few() -> None:
    assert ticks(182, 6) == [0, 60, 120, 180]
    assert ticks(1, 4) == [0, 1]
    for seconds in (1, 59, 3601, 90_000, 10_000_000):
        assert 1 <= len(ticks(seconds, 5)) <= 6


def test_the_document_has_the_seconds_of_each_step() -> None:
    told = msgspec.json.decode(msgspec.json.encode(timeline_document(timeline_chart(over(), now=at(1000)))))
    assert [row["seconds"] for row in told["rows"]] == [20, 80, 30, 19]
    assert told["criticalPath"] == ["shop", "db", "operator"]
    assert timeline_document(timeline_chart(Teardown(), now=at(0)))["rows"] == []
