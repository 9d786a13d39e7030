"""The text of `unwind why --stuck`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from unwind.api.meta import ObjectRef
from unwind.cli.why import stuck_text
from unwind.why.answers import AnswerState, Effect, Remedy
from unwind.why.stuck import StuckObject, StuckReport, UnansweredCluster, UnlistedKinds

_NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_the_text_names_object_cluster_age_cause_actor_and_command() -> None:
    one = StuckObject(
        cluster="Cluster default/prod-7",
        object=ObjectRef(kind="ConfigMap", namespace="shop", name="prices"),
        since=_NOW - timedelta(minutes=15),
        state=AnswerState.HELD,
        why="blocked by finalizer example.dev/backup",
        actor="the controller of example.dev",
        remedies=(Remedy(commands=("kubectl patch x",), effect=Effect.LEAVES, about="skips the cleanup"),),
    )
    report = StuckReport(
        older_than_seconds=600,
        clusters=3,
        objects=(one,),
        unanswered=(UnansweredCluster(cluster="Cluster default/lost", message="no answer within 10s"),),
        unlisted=(UnlistedKinds(kinds=("secrets",), message="you are not allowed to list them"),),
    )
    assert stuck_text(report, now=_NOW).plain.splitlines() == [
        "ConfigMap shop/prices on Cluster default/prod-7, terminating for 15m",
        "  blocked by finalizer example.dev/backup",
        "  must act: the controller of example.dev",
        "  leaves something behind: skips the cleanup",
        "    kubectl patch x",
        "",
        "1 object terminating for longer than 10m, 3 clusters examined",
        "Cluster default/lost not examined: no answer within 10s",
        "not listed: secrets (you are not allowed to list them)",
    ]


def test_a_member_cannot_write_control_characters_to_the_terminal() -> None:
    one = StuckObject(
        object=ObjectRef(kind="ConfigMap", name="a\x1b[2Jb"),
        since=_NOW,
        state=AnswerState.HELD,
        why="one\x1b]0;title\x07\ntwo",
        remedies=(Remedy(commands=("echo \x1b[1A",), effect=Effect.LOOKS, about="\x9b1A"),),
    )
    report = StuckReport(older_than_seconds=0, clusters=1, objects=(one,), notes=("note\x1b[3m",))
    assert all(character.isprintable() or character == "\n" for character in stuck_text(report, now=_NOW).plain)
