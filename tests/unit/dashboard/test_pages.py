"""The parts of the pages: what comes from a cluster is text, and what they say."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

from unwind import dashboard
from unwind.api.meta import Condition, ObjectMeta, ObjectRef
from unwind.api.unwind import Blocker, Plan, Release, Step, StepStatus, Teardown, TeardownSpec, TeardownStatus
from unwind.cli.ledger import Ledger, LedgerRow, NotVerified, Released, SetAside
from unwind.dashboard.pages import Pages, ledger_csv
from unwind.why.answers import Answer, AnswerState, Effect, Link, Remedy
from unwind.why.stuck import StuckObject, StuckReport, UnansweredCluster, UnlistedKinds

EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}</script>"
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
    return [
        *pages.fleet([teardown(text=text)]).values(),
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
        assert "49" not in html


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


def test_a_finished_teardown_shows_no_blockers() -> None:
    parts = Pages().teardown(teardown(phase="Complete"))
    assert 'data-signature=""' in parts["blockers"]
    assert "must act" not in parts["blockers"]


def test_no_cell_of_the_csv_is_a_formula_and_every_value_is_kept() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", 'a "quoted", text', "two\nlines", "plain"]
    rows = [
        LedgerRow(cluster=text, object=ObjectRef(kind="ConfigMap", name=text), reason="Forced", by=text, at=NOW)
        for text in texts
    ]
    head, *read = csv.reader(io.StringIO(ledger_csv(rows), newline=""))
    assert head[:4] == ["cluster", "kind", "namespace", "name"]
    assert [row[0].removeprefix("'") for row in read] == texts
    for row in read:
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for cell in row)
