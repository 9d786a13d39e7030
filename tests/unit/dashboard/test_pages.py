"""The parts of the pages: what comes from a cluster is text, and what they say."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from unwind import dashboard
from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.unwind import (
    Blocker,
    Plan,
    Release,
    Step,
    StepStatus,
    Teardown,
    TeardownSpec,
    TeardownStatus,
    TimelineEntry,
)
from unwind.cli.ledger import Ledger, LedgerRow, NotVerified, Released, SetAside
from unwind.dashboard.actions import Action, ActionPreview
from unwind.dashboard.ledger_export import LedgerFilter, ledger_csv
from unwind.dashboard.pages import Pages
from unwind.dashboard.step_objects import ObjectState, StepObject
from unwind.planning.blast_radius import AffectedCRD, blast_radius
from unwind.preview.cost_preview import Cost
from unwind.preview.object_preview import Foreseen
from unwind.removal.deletion_scope import Told
from unwind.why.answers import Answer, AnswerState, Effect, Link, Remedy
from unwind.why.stuck import StuckObject, StuckReport, UnansweredCluster, UnlistedKinds

EVIL = "<img src=x onerror=alert(1)>\"'&{{7777*7777}}</script>"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STATIC = Path(dashboard.__file__).parent / "static"


def teardown(
    name: str = "one", phase: str = "Held", *, text: str = "Cluster fleet/prod", version: str = "1"
) -> Teardown:
    ref = ObjectRef(kind=text, namespace=text, name=text, uid=text)
    return Teardown(
        metadata=ObjectMeta(name=name, resource_version=version, labels={"team": text}),
        spec=TeardownSpec(
            title=text,
            target=ref,
            member=ref,
            cause=text,
            requested_by=text,
            requested_at=NOW,
            deadline=text,
            plan=Plan(steps=(Step(name=text, object=ref, effort=text, wave=1, objects=3),), waves=1, warnings=(text,)),
        ),
        status=TeardownStatus(
            phase=phase,
            wave=text,
            removed="1/3",
            steps=(StepStatus(name=text, state=text, removed=1, since=NOW, message=text),),
            blockers=(Blocker(object=ref, step=text, reason=text, message=text, actor=text, since=NOW),),
            release=Release(reason=text, message=text, by=text),
            timeline=tuple(
                TimelineEntry(at=NOW, event=event, step=text, object=ref, reason=text, message=text, by=text)
                for event in ("WaveStarted", "StepEnded", "Blocked", "Released", "Finished", text)
            ),
            conditions=(Condition(type=text, status="True", message=text),),
        ),
    )


def everything(text: str) -> list[str]:
    """Every part of every page, with this text in every field."""
    pages = Pages()
    ref = ObjectRef(kind=text, namespace=text, name=text, uid=text)
    remedy = Remedy(commands=(text,), effect=Effect.LEAVES, about=text, by=text, afterwards=(text,))
    link = Link(depth=1, object=ref, cluster=text, reason=text, message=text, actor=text, since=NOW)
    answer = Answer(
        object=ref,
        cluster=text,
        state=AnswerState.HELD,
        verdict=text,
        since=NOW,
        chain=(link,),
        only=text,
        remedies=(remedy,),
        notes=(text,),
    )
    stuck = StuckObject(
        cluster=text, object=ref, since=NOW, state=AnswerState.HELD, why=text, actor=text, remedies=(remedy,)
    )
    report = StuckReport(
        older_than_seconds=600,
        clusters=2,
        objects=(stuck,),
        unanswered=(UnansweredCluster(cluster=text, message=text),),
        unlisted=(UnlistedKinds(cluster=text, kinds=(text,), message=text),),
        notes=(text,),
    )
    ledger = Ledger(
        released=(Released(target=ref, title=text, left=1, release=Release(reason=text, message=text, by=text)),),
        left=(LedgerRow(cluster=text, object=ref, owner=text, reason=text, message=text, by=text, at=NOW),),
        set_aside=(SetAside(teardown=text, target=ref, message=text),),
        not_verified=(NotVerified(target=ref, title=text, reason=text, message=text),),
    )
    told = (Told(ref, text),)
    seen = Foreseen(
        title=text,
        target=ref,
        requested=True,
        plan=Plan(steps=(Step(name=text, object=ref, effort=text, wave=1, objects=3),), waves=1),
        objects={text: (ref,)},
        along=(ref,),
        radius=blast_radius((), custom_resources={}),
        refusals=told,
        blocked=told,
        staying=told,
        leaks=told,
        warnings=(text,),
        costs=(Cost(what=text, object=ref, made_by=text, fate=text),),
    )
    previews = [
        ActionPreview(
            action=action, teardown=teardown(text=text), title=text, confirm=text, left=(ref,), unreadable=(text,)
        )
        for action in Action
    ]
    return [
        *(pages.confirm(preview, text) for preview in previews),
        pages.step_objects(text, [StepObject(object=ref, state=ObjectState.LEFT, source=text, note=text)]),
        pages.plan(seen),
        *pages.fleet([teardown(text=text)], {text: {text: text}}).values(),
        *pages.fleet([teardown(text=text, phase="Complete", version="2")]).values(),
        *pages.teardown(teardown(text=text)).values(),
        *pages.gone(text).values(),
        pages.why(answer),
        pages.stuck(report),
        pages.ledger(ledger),
    ]


class Found(HTMLParser):
    """The tags, the names of attributes and the text of a part, as a browser reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_from_a_cluster_becomes_markup() -> None:
    for html in everything(EVIL):
        found = Found()
        found.feed(html)
        assert not found.tags & {"img", "script"}
        assert not {name for name in found.attributes if name.startswith("on")}
        assert EVIL in found.text or EVIL.lower() in found.text or "<img src=" in found.text
        assert "60481729" not in html


def test_no_part_of_a_page_needs_what_the_policy_forbids() -> None:
    parts = [*everything("text"), (STATIC / "index.html").read_text()]
    for html in parts:
        assert not re.search(r"\sstyle\s*=", html)
        assert not re.search(r"\son[a-z]+\s*=", html)
        assert "<style" not in html
        assert not re.search(r"<script(?![^>]*\ssrc=)", html)
        # Nothing is loaded from elsewhere.
        assert not re.search(r"""(?:src|href)=["'](?!/|#)""", html)


def test_held_teardowns_come_first_and_only_changed_rows_are_rendered_again() -> None:
    pages = Pages()
    first = pages.fleet([teardown("done", "Complete"), teardown("runs", "Removing"), teardown("held", "Held")])
    assert list(first) == ["held", "runs", "done"]
    assert 'data-state="held"' in first["held"]
    assert "Cluster fleet/prod" in first["held"]
    second = pages.fleet([teardown("runs", "Held", version="2"), teardown("held", "Held")])
    assert second["held"] is first["held"]
    assert 'data-state="held"' in second["runs"]
    assert "done" not in second


def test_a_row_shows_the_labels_of_its_cluster_and_is_rendered_again_when_they_are_known() -> None:
    pages, item = Pages(), teardown()
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, cause="ClusterDeleted"))
    [before] = pages.fleet([item]).values()
    assert "env=prod" not in before
    [after] = pages.fleet([item], {item.spec.target.uid: {"env": "prod"}}).values()
    assert re.search(r'data-labels="env=prod team=', after)
    assert 'data-cluster="Cluster fleet/prod' in after


def test_the_page_says_what_cluster_api_is_told() -> None:
    item = teardown()
    asked = msgspec.structs.replace(item.spec, cause="ClusterDeleted")
    told = Pages().teardown(msgspec.structs.replace(item, spec=asked))["head"]
    assert "Cluster API is told</dt><dd>wait, and ask again after" in told
    finished = msgspec.structs.replace(teardown(phase="Complete"), spec=asked)
    assert "Cluster API is told</dt><dd>go on</dd>" in Pages().teardown(finished)["head"]
    held_otherwise = msgspec.structs.replace(item, spec=msgspec.structs.replace(asked, gate="Machines"))
    assert "a pre-terminate hook on each Machine" in Pages().teardown(held_otherwise)["head"]
    assert "Cluster API is told" not in Pages().teardown(item)["head"]


def test_the_timeline_tells_what_blocked_how_long_and_who_had_to_act() -> None:
    item = teardown()
    service = ObjectRef(kind="Service", namespace="ingress", name="nginx")
    status = TeardownStatus(
        phase="Removing",
        timeline=(
            TimelineEntry(at=NOW, event="WaveStarted", wave=1),
            TimelineEntry(
                at=NOW,
                until=NOW + timedelta(minutes=3),
                event="Blocked",
                object=service,
                message="has a finalizer",
                by="the cloud",
            ),
        ),
        timeline_omitted=7,
    )
    html = Pages().teardown(msgspec.structs.replace(item, status=status))["timeline"]
    assert "Wave 1 started" in html
    assert "Blocked by Service ingress/nginx</strong> for 3m" in html
    assert "must act: the cloud" in html
    assert "7 more events are in the archive only" in html


def test_a_plan_answers_what_is_protected_foreign_costs_money_and_leaks() -> None:
    ref = ObjectRef(kind="Service", name="web")
    empty = Foreseen(
        title="Namespace shop", target=ref, requested=True, plan=Plan(), radius=blast_radius((), custom_resources={})
    )
    html = Pages().plan(empty)
    for otherwise in ("No protected object", "Nothing would be kept", "Nothing is known to cost", "left behind."):
        assert otherwise in html
    told = {name: (Told(ref, f"{name} it is"),) for name in ("refusals", "blocked", "staying", "leaks")}
    definition = AffectedCRD(name="gadgets.test", resources=9, along=4)
    radius = msgspec.structs.replace(empty.radius, definitions=(definition,))
    full = msgspec.structs.replace(
        empty, **told, radius=radius, costs=(Cost(what="load balancer", object=ref, made_by="x", fate="goes"),)
    )
    html = Pages().plan(full)
    for title, number, lines in (
        ("Protected", 2, ("refusals it is", "blocked it is")),
        ("Foreign or kept", 2, ("staying it is", "4 custom resources of gadgets.test are not managed by this target")),
        ("Costs money", 1, ("load balancer Service web",)),
        ("Would leak", 1, ("leaks it is",)),
    ):
        part = html[html.index(f'<h3>{title} <span class="number">{number}<') :]
        for line in lines:
            assert line in part[: part.index("</section>")]


def test_a_long_list_of_what_would_be_left_is_counted_and_cut() -> None:
    left = tuple(ObjectRef(kind="ConfigMap", name=f"c-{number}") for number in range(600))
    preview = ActionPreview(action=Action.RELEASE, teardown=teardown(), title="Cluster x", confirm="x", left=left)
    html = Pages().confirm(preview, "value")
    assert "600 objects would be left behind (not verified absent)" in html
    assert "600 ConfigMap" in html
    assert "and 100 more" in html


def test_a_finished_teardown_shows_no_blockers() -> None:
    parts = Pages().teardown(teardown(phase="Complete"))
    assert 'data-signature=""' in parts["blockers"]
    assert "must act" not in parts["blockers"]


def test_no_cell_of_the_csv_is_a_formula_and_every_value_is_kept() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1+1", 'a "quoted", text', "two\nlines", "plain"]
    rows = [
        LedgerRow(cluster=text, object=ObjectRef(kind="ConfigMap", name=text), reason="Forced", by=text, at=NOW)
        for text in texts
    ]
    head, *read = csv.reader(io.StringIO(ledger_csv(rows), newline=""))
    assert head[:4] == ["cluster", "kind", "namespace", "name"]
    assert [row[0].removeprefix("'") for row in read] == texts
    for row in read:
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d")) for cell in row)


def test_the_ledger_is_filtered_by_cluster_person_reason_and_words() -> None:
    def row(cluster: str, by: str, reason: str) -> LedgerRow:
        return LedgerRow(cluster=cluster, object=ObjectRef(kind="ConfigMap", name="x"), reason=reason, by=by)

    rows = (row("a", "ada", "Forced"), row("a", "bob", "Kept"), row("b", "ada", "Kept"))
    ref = ObjectRef(kind="Cluster", name="a")
    released = Released(target=ref, title="Cluster a", release=Release(reason="Forced", message="the fire", by="ada"))
    whole = Ledger(left=rows, released=(released,))
    for wanted, expected, releases in (
        (LedgerFilter(), 3, 1),
        (LedgerFilter(cluster="a"), 2, 0),
        (LedgerFilter(by="ada"), 2, 1),
        (LedgerFilter(by="ada", reason="Kept"), 1, 0),
        (LedgerFilter(words=("configmap", "bob")), 1, 0),
        (LedgerFilter(words=("fire",)), 0, 1),
    ):
        found = wanted.selected(whole)
        assert (len(found.left), len(found.released)) == (expected, releases), wanted


def test_the_command_to_copy_is_for_the_cluster_that_the_page_shows() -> None:
    item = teardown(phase="Held")
    plain, chosen = Pages(), Pages(("--kubeconfig", "'/my files/config'", "--context", "prod"))
    command = f"unwind why teardown/{item.metadata.name}"
    assert f">{command}</code>" in plain.teardown(item)["blockers"]
    shown = unescape(chosen.teardown(item)["blockers"])
    assert f">{command} --kubeconfig '/my files/config' --context prod</code>" in shown


def test_an_empty_list_of_stuck_objects_says_what_was_looked_for() -> None:
    told = Pages().stuck(StuckReport(older_than_seconds=600, clusters=2))
    assert "No object has been terminating for longer than 10m." in told
