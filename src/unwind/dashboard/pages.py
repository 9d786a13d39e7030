"""The parts of the pages as HTML. Everything from a cluster is text: the templates escape every value (pure)."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unwind.api.unwind import Phase, StepState
from unwind.cli.plan import paragraphs, pictured, summary_line
from unwind.render.picture import of_plan
from unwind.render.styles import stylesheet
from unwind.render.svg import svg
from unwind.render.teardowns import CAUSES, elapsed, gone, ordered, remarks
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.unwind import Teardown
    from unwind.cli.ledger import Ledger, LedgerRow
    from unwind.preview.object_preview import Foreseen
    from unwind.why.answers import Answer
    from unwind.why.stuck import StuckReport

_RUNNING = (Phase.PENDING, Phase.REMOVING)
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_COLUMNS = ("cluster", "kind", "namespace", "name", "uid", "owner", "outcome", "reason", "message", "by", "at")


def picture_css() -> str:
    """The colours of pictures, for pictures inside of a page: a strict Content-Security-Policy ignores their own."""
    return f".picture{{{stylesheet('auto')}}}\n"


class Pages:
    """Renders the parts of the pages."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("unwind.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["moment"] = _moment
        self._environment.globals["counted"] = counted
        self._rows: dict[str, tuple[str, str]] = {}
        """The rows of the list by name, each with the version that it shows."""

    def _html(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(**values)

    # The fleet

    def fleet(self, teardowns: Iterable[Teardown]) -> dict[str, str]:
        """The rows of the list by name, in order: held ones first, then running ones, then finished ones."""
        rows = {item.metadata.name: self._row(item) for item in ordered(teardowns)}
        self._rows = {name: self._rows[name] for name in rows}
        return rows

    def _row(self, teardown: Teardown) -> str:
        meta = teardown.metadata
        known = self._rows.get(meta.name)
        if known is None or known[0] != meta.resource_version:
            known = (meta.resource_version, self._html("row.html", **_head(teardown)))
            self._rows[meta.name] = known
        return known[1]

    # One teardown

    def teardown(self, teardown: Teardown) -> dict[str, str]:
        """The sections of the page about one Teardown."""
        values = _head(teardown)
        plan = teardown.spec.plan
        states = {step.name: step for step in teardown.status.steps}
        steps = [(step, states.get(step.name)) for step in (plan.steps if plan else ())]
        blockers = () if teardown.finished else teardown.status.blockers
        parts = {
            "head": self._html("teardown_head.html", **values, remarks=remarks(teardown)),
            "blockers": self._html(
                "blockers.html",
                blockers=blockers,
                # What is explained below changes with the blockers, and not with each object that is gone.
                signature="|".join(sorted(f"{one.object.uid}{one.object}{one.reason}" for one in blockers)),
                command=f"unwind why teardown/{teardown.metadata.name}",
            ),
        }
        if plan and plan.steps:
            parts["picture"] = self._html("picture.html", picture=_picture(teardown), title=teardown.spec.title)
            parts["steps"] = self._html("steps.html", steps=steps, done=_STATE_CLASSES)
        return parts

    def gone(self, name: str) -> dict[str, str]:
        """The page about a Teardown that does not exist, or not any more."""
        return {"gone": self._html("gone.html", name=name)}

    def why(self, answer: Answer) -> str:
        return self._html("why.html", answer=answer)

    # Stuck objects, the ledger, plans

    def stuck(self, report: StuckReport) -> str:
        return self._html("stuck.html", report=report)

    def ledger(self, ledger: Ledger) -> str:
        return self._html("ledger.html", ledger=ledger, outcome=_outcome)

    def plan(self, seen: Foreseen) -> str:
        return self._html(
            "plan.html",
            seen=seen,
            summary=summary_line(seen),
            picture=Markup(svg(pictured(seen), styled=False)) if seen.plan.steps else "",  # noqa: S704 - see _picture
            paragraphs=[(heading, lines) for heading, _, lines in paragraphs(seen, wide=True) if lines],
        )


_STATE_CLASSES = {
    StepState.REMOVED.value: "done",
    StepState.REMOVING.value: "running",
    StepState.LEFT.value: "left",
    StepState.GIVEN_UP.value: "left",
}


def _picture(teardown: Teardown) -> Markup:
    plan = teardown.spec.plan
    assert plan  # noqa: S101 - for the type checker
    # The renderer escapes all text, and its own tests show that.
    return Markup(svg(of_plan(teardown.spec.title, plan, teardown=teardown), styled=False))  # noqa: S704


def _head(teardown: Teardown) -> dict[str, Any]:
    """What the list and the page say about a Teardown."""
    spec, status, phase = teardown.spec, teardown.status, teardown.phase
    done, total = gone(teardown)
    first = status.blockers[0] if status.blockers and not teardown.finished else None
    state = (
        "held"
        if phase is Phase.HELD
        else "finished"
        if teardown.finished
        else "running"
        if phase in _RUNNING
        else "unknown"
    )
    labels = [f"{key}={value}" for key, value in sorted(teardown.metadata.labels.items())]
    member = spec.member
    searched = [
        spec.title,
        teardown.metadata.name,
        str(phase),
        spec.cause,
        spec.requested_by,
        str(member or ""),
        *labels,
        *(f"{one.message} {one.actor}" for one in status.blockers[:1]),
    ]
    return {
        "name": teardown.metadata.name,
        "title": spec.title,
        "namespace": spec.target.namespace or (member.namespace if member else ""),
        "member": str(member) if member and member.name else "",
        "phase": str(phase),
        "state": state,
        "finished": teardown.finished,
        "complete": phase is Phase.COMPLETE,
        "cause": CAUSES.get(spec.cause, spec.cause),
        "by": spec.requested_by,
        "wave": status.wave,
        "done": done,
        "total": total,
        "left": status.left,
        "blocker": first,
        "more": max(0, len(status.blockers) - 1),
        "since": spec.requested_at or status.started_at or teardown.metadata.creation_timestamp,
        "took": elapsed(teardown, now=datetime.now(UTC)) if teardown.finished else "",
        "ended": status.finished_at,
        "deadline": f"{spec.deadline} ({spec.on_deadline})" if spec.deadline else "",
        "labels": labels,
        "search": " ".join(searched).lower(),
    }


def _moment(at: datetime | None) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if at else ""


def _outcome(row: LedgerRow) -> str:
    return "removed" if row.removed else "kept" if row.kept else "left behind"


def ledger_csv(rows: Sequence[LedgerRow]) -> str:
    """The ledger as CSV. No cell is a formula for a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for row in rows:
        ref = row.object
        cells = (
            row.cluster,
            ref.kind,
            ref.namespace,
            ref.name,
            ref.uid,
            row.owner,
            _outcome(row),
            row.reason,
            row.message,
            row.by,
            _moment(row.at),
        )
        writer.writerow([_cell(cell) for cell in cells])
    return text.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
