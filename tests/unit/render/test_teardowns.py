"""How teardowns are told of."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.unwind import Blocker, Plan, Release, Step, StepStatus, Teardown, TeardownSpec, TeardownStatus
from unwind.render.teardowns import changes, detail, elapsed, gone, ordered, overview, teardown_line

if TYPE_CHECKING:
    from rich.console import RenderableType

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STUCK = Blocker(
    object=ObjectRef(kind="Service", namespace="a", name="b", uid="1"),
    step="shop",
    reason="Finalizer",
    message="it has the finalizer x/y",
    actor="the controller of x",
    since=NOW - timedelta(minutes=3),
)


def teardown(name: str = "prod-7", phase: str = "Removing", **status: Any) -> Teardown:
    plan = Plan(steps=(Step(name="shop", effort="Enforce", wave=1, objects=4),), waves=1, objects=4)
    spec = TeardownSpec(
        title=f"Cluster a/{name}", cause="ClusterDeleted", requested_at=NOW - timedelta(minutes=5), plan=plan
    )
    return Teardown(metadata=ObjectMeta(name=name), spec=spec, status=TeardownStatus(phase=phase, **status))


def printed(what: RenderableType, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(what)
    return file.getvalue()


def test_what_somebody_has_to_see_to_comes_first_and_what_is_over_last() -> None:
    every = [teardown("a", "Complete"), teardown("b"), teardown("c", "Held"), teardown("d", "Nonsense")]
    assert [item.metadata.name for item in ordered(every)] == ["c", "b", "d", "a"]


def test_before_anything_is_said_the_plan_says_how_many_go() -> None:
    assert gone(teardown()) == (0, 4)
    assert gone(teardown(removed="3/4")) == (3, 4)
    assert gone(teardown(removed="many")) == (0, 4)


def test_the_age_of_what_is_over_stands_still() -> None:
    assert elapsed(teardown(), now=NOW) == "5m"
    assert elapsed(teardown(phase="Complete", finished_at=NOW - timedelta(minutes=3)), now=NOW) == "2m"


def test_only_what_changed_is_told() -> None:
    before = teardown(removed="1/4", steps=(StepStatus(name="shop", state="Removing"),))
    assert list(changes(before, before)) == []
    # A clock that goes on is no change.
    later = msgspec.structs.replace(before, metadata=ObjectMeta(name="prod-7", resource_version="7"))
    assert list(changes(before, later)) == []
    after = teardown(phase="Held", removed="2/4", steps=(StepStatus(name="shop", state="Removing"),), blockers=(STUCK,))
    assert list(changes(before, after)) == [
        "Cluster a/prod-7: Held, 2/4 gone",
        "Cluster a/prod-7: blocked: Service a/b: it has the finalizer x/y (must act: the controller of x)",
    ]


def test_who_let_it_go_and_what_is_out_of_the_ordinary_is_told() -> None:
    release = Release(reason="Forced", message="the fire", by="ada")
    odd = Condition(type="CycleBroken", status="True", message="a → b → a")
    usual = Condition(type="Planned", status="True", message="fine")
    one = teardown(phase="Released", left=2, release=release, conditions=(odd, usual))
    told = printed(detail(one, now=NOW))
    assert "! released by ada (Forced): the fire" in told
    assert "! CycleBroken: a → b → a" in told
    assert "fine" not in told
    assert teardown_line(one) == "Cluster a/prod-7: Released, 0/4 gone, 2 left"


def test_what_is_waited_for_stands_beneath_the_table_with_who_must_act() -> None:
    told = printed(overview([teardown(phase="Held", blockers=(STUCK,) * 5), teardown("b", "Complete")], now=NOW))
    assert told.count("Service a/b: it has the finalizer x/y") == 3
    assert "must act: the controller of x · since 3m · step shop" in told
    assert "and 2 more objects" in told


def test_a_phase_that_is_not_known_is_shown_as_it_is() -> None:
    assert "'Exploding' is not known" in printed(overview([teardown(phase="Exploding")], now=NOW))


def test_nothing_in_a_name_or_a_message_is_markup() -> None:
    one = teardown("[red]x[/red]", "Held", blockers=(msgspec.structs.replace(STUCK, message="[bold]"),))
    assert printed(overview([one], now=NOW)).count("[red]x[/red]") == 2
    assert "[bold]" in printed(detail(one, now=NOW))
