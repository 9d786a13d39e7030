"""The parts of the pages as HTML. Everything from a cluster is text: the templates escape every value (pure)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unwind.api.unwind import Cause, Gate, Phase, StepState, TimelineEvent
from unwind.cli.plan import paragraphs, pictured, summary_line
from unwind.dashboard.actions import possible
from unwind.dashboard.ledger_export import moment, outcome
from unwind.planning.timeline import course
from unwind.render.picture import of_plan
from unwind.render.styles import stylesheet
from unwind.render.svg import svg
from unwind.render.teardowns import CAUSES, elapsed, gone, ordered, remarks
from unwind.render.text import counted, duration, span
from unwind.render.timeline_rows import timeline_chart
from unwind.render.timeline_svg import timeline_svg
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.unwind import Teardown
    from unwind.cli.ledger import Ledger
    from unwind.dashboard.actions import Action, ActionPreview
    from unwind.dashboard.step_objects import StepObject
    from unwind.preview.object_preview import Foreseen
    from unwind.why.answers import Answer
    from unwind.why.stuck import StuckReport

_RUNNING = (Phase.PENDING, Phase.REMOVING)
# Teardowns of a cluster as a whole. Others are on a member, or on this cluster.
_OF_CLUSTERS = (Cause.CLUSTER_DELETED.value, Cause.UNJOINED.value, Cause.MOVED.value)
_GATES = {
    Gate.MACHINES.value: "a pre-terminate hook on each Machine",
    Gate.ADMISSION.value: "the API server refuses to delete the Cluster",
    Gate.NONE.value: "nothing holds the deletion",
}
_FOREIGN = "Foreign:"
# What a person asks first about a plan: a heading, what to say if there is nothing, and the paragraphs that tell it.
_QUESTIONS = (
    (
        "Protected",
        "No protected object, and nothing refuses the deletion.",
        ("Refused, nothing would be deleted:", "Blocked, the deletion waits for these:"),
    ),
    ("Foreign or kept", "Nothing would be kept.", ("Kept:", _FOREIGN)),
    ("Costs money", "Nothing is known to cost money.", ("What would cost money:", "Cloud resources:")),
    ("Would leak", "Nothing would be left behind.", ("Left behind, or not known:",)),
)
_SHOWN = 8
_OBJECTS_SHOWN = 500


def picture_css() -> str:
    """The colours of pictures, for pictures inside of a page: a strict Content-Security-Policy ignores their own."""
    return f".picture{{{stylesheet('auto')}}}\n"


class Pages:
    """Renders the parts of the pages."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """`options`: for printed commands, which select the cluster if it is not the default."""
        self._options = options
        self._environment = Environment(
            loader=PackageLoader("unwind.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["moment"] = moment
        self._environment.globals["counted"] = counted
        self._rows: dict[str, tuple[object, str]] = {}
        """The rows of the list by name, each with the version that it shows."""

    def _html(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(**values)

    # The fleet

    def fleet(
        self, teardowns: Iterable[Teardown], labels: Mapping[str, Mapping[str, str]] | None = None
    ) -> dict[str, str]:
        """The rows of the list by name, in order: held ones first, then running ones, then finished ones. `labels`: of
        clusters, by uid."""
        known = labels or {}
        rows = {item.metadata.name: self._row(item, _labels(item, known)) for item in ordered(teardowns)}
        self._rows = {name: self._rows[name] for name in rows}
        return rows

    def _row(self, teardown: Teardown, labels: tuple[str, ...]) -> str:
        meta = teardown.metadata
        known, version = self._rows.get(meta.name), (meta.resource_version, labels)
        if known is None or known[0] != version:
            known = (version, self._html("row.html", **_head(teardown, labels)))
            self._rows[meta.name] = known
        return known[1]

    # One teardown

    def teardown(self, teardown: Teardown, labels: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
        """The sections of the page about one Teardown. `labels`: of clusters, by uid."""
        values = _head(teardown, _labels(teardown, labels or {}))
        plan = teardown.spec.plan
        states = {step.name: step for step in teardown.status.steps}
        steps = [(step, states.get(step.name)) for step in (plan.steps if plan else ())]
        blockers = () if teardown.finished else teardown.status.blockers
        parts = {
            "head": self._html(
                "teardown_head.html",
                **values,
                remarks=remarks(teardown),
                gate=_gate(teardown),
                action=possible(teardown) or "",
            ),
            "blockers": self._html(
                "blockers.html",
                blockers=blockers,
                # What is explained below changes with the blockers, and not with each object that is gone.
                signature="|".join(
                    sorted(f"{blocker.object.uid}{blocker.object}{blocker.reason}" for blocker in blockers)
                ),
                command=" ".join(("unwind why", f"teardown/{teardown.metadata.name}", *self._options)),
            ),
        }
        if plan and plan.steps:
            parts["picture"] = self._html(
                "picture.html", picture=_picture(teardown), title=teardown.spec.title, waves=plan.waves
            )
            parts["steps"] = self._html("steps.html", steps=steps, done=_STATE_CLASSES)
        if lines := _timeline(teardown):
            parts["timeline"] = self._html(
                "timeline.html",
                lines=lines,
                omitted=teardown.status.timeline_omitted,
                chart=_chart(teardown),
                title=teardown.spec.title,
            )
        return parts

    def gone(self, name: str) -> dict[str, str]:
        """The page about a Teardown that does not exist, or not any more."""
        return {"gone": self._html("gone.html", name=name)}

    def why(self, answer: Answer) -> str:
        return self._html("why.html", answer=answer)

    def step_objects(self, step: str, objects: Sequence[StepObject]) -> str:
        """The objects behind a step."""
        gone_ = sum(it.state == "gone" for it in objects)
        return self._html("objects.html", step=step, objects=objects[:_OBJECTS_SHOWN], total=len(objects), gone=gone_)

    def actions(self, name: str, action: Action | None) -> str:
        """The button for what a person may do; empty if there is nothing."""
        return self._html("actions.html", name=name, action=action) if action else ""

    def confirm(self, preview: ActionPreview, confirmation: str) -> str:
        """What an action would do, and the form that confirms it."""
        return self._html(
            "confirm.html", preview=preview, confirmation=confirmation, shown=preview.left[:_OBJECTS_SHOWN]
        )

    # Stuck objects, the ledger, plans

    def stuck(self, report: StuckReport) -> str:
        return self._html("stuck.html", report=report, older=duration(report.older_than_seconds))

    def ledger(self, ledger: Ledger) -> str:
        return self._html("ledger.html", ledger=ledger, outcome=outcome)

    def plan(self, seen: Foreseen) -> str:
        told = {heading: lines for heading, _, lines in paragraphs(seen, wide=True)}
        told[_FOREIGN] = [
            f"{definition.along} custom resources of {definition.name} are not managed by this target"
            for definition in seen.radius.definitions
            if definition.along
        ]
        questions = [
            (title, otherwise, [line for heading in headings for line in told.pop(heading, ())])
            for title, otherwise, headings in _QUESTIONS
        ]
        return self._html(
            "plan.html",
            seen=seen,
            summary=summary_line(seen),
            picture=Markup(svg(pictured(seen), styled=False)) if seen.plan.steps else "",  # noqa: S704 - see _picture
            questions=questions,
            shown=_SHOWN,
            paragraphs=[(heading.removesuffix(":"), lines) for heading, lines in told.items() if lines],
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


def _chart(teardown: Teardown) -> Markup:
    """How long each step took, as a picture; empty if none has started."""
    chart = timeline_chart(teardown, now=datetime.now(UTC))
    # The renderer escapes all text, and its own tests show that.
    return Markup(timeline_svg(chart, styled=False) if chart.rows else "")  # noqa: S704


def _labels(teardown: Teardown, known: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The labels of a Teardown and of its cluster."""
    labels = {**known.get(_cluster_uid(teardown), {}), **teardown.metadata.labels}
    return tuple(f"{key}={value}" for key, value in sorted(labels.items()))


def _cluster_uid(teardown: Teardown) -> str:
    spec = teardown.spec
    return spec.target.uid if spec.cause in _OF_CLUSTERS else spec.member.uid if spec.member else ""


def _gate(teardown: Teardown) -> str:
    """What Cluster API is told when it asks whether it may delete the cluster; empty if it does not ask."""
    spec = teardown.spec
    if spec.cause != Cause.CLUSTER_DELETED:
        return ""
    if spec.gate in _GATES:
        return f"Cluster API does not ask: {_GATES[spec.gate]}"
    told = deletion_gate.of_teardown(spec.target.uid, teardown)
    if isinstance(told, GateClosed):
        return f"wait, and ask again after {told.seconds} s: {told.message}"
    return "go on"


def _timeline(teardown: Teardown) -> list[dict[str, Any]]:
    """The course of a teardown, in order, as lines with a time."""
    lines = []
    for entry in course(teardown):
        lasted = span((entry.until - entry.at).total_seconds()) if entry.until and entry.at else ""
        what = {
            TimelineEvent.WAVE_STARTED.value: f"Wave {entry.wave} started",
            TimelineEvent.STEP_ENDED.value: f"{entry.step}: {entry.reason}",
            TimelineEvent.BLOCKED.value: f"Blocked by {entry.object}" if entry.object else "Blocked",
            TimelineEvent.RELEASED.value: f"Released by {entry.by}",
            TimelineEvent.FINISHED.value: f"Finished: {entry.reason}",
        }.get(entry.event, entry.event)
        blocked = entry.event == TimelineEvent.BLOCKED
        explained = entry.event == TimelineEvent.FINISHED and entry.message
        lines.append(
            {
                "at": entry.at,
                "what": what,
                "message": f"reason given by {entry.by}: {entry.message}" if explained else entry.message,
                "lasted": lasted,
                "since": entry.at if blocked and not entry.until else None,
                "actor": entry.by if blocked else "",
                "blocked": blocked,
            }
        )
    return lines


def _head(teardown: Teardown, labels: tuple[str, ...]) -> dict[str, Any]:
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
    member = spec.member
    cluster = str(spec.target) if spec.cause in _OF_CLUSTERS else str(member or "")
    searched = [
        spec.title,
        teardown.metadata.name,
        str(phase),
        spec.cause,
        spec.requested_by,
        str(member or ""),
        *labels,
        *(f"{blocker.message} {blocker.actor}" for blocker in status.blockers[:1]),
    ]
    return {
        "name": teardown.metadata.name,
        "title": spec.title,
        "namespace": spec.target.namespace or (member.namespace if member else ""),
        "member": str(member) if member and member.name else "",
        "cluster": cluster,
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
