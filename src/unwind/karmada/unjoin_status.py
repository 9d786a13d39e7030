"""The conditions of a Cluster during its unjoin, from the record of its teardown (pure).

The message is stable for the same state: it says since when, not for how long.
"""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.karmada import CLUSTERS, WORKS
from unwind.api.meta import find, ref_of, with_condition, without_condition
from unwind.api.names import ConditionType, Reason
from unwind.api.unwind import Blocker, StepState
from unwind.karmada import remove_strategy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.api.karmada import Cluster, Work
    from unwind.api.meta import Condition
    from unwind.api.unwind import Teardown

SLOW = timedelta(seconds=30)
"""The time after which a transient wait is reported as a failure."""
UNJOINING = "Unjoining resources."
_SHOWN = 20
_LONGEST = 8000
_TOLD = 500
# Reasons that every deletion passes through and that mostly resolve by themselves.
_USUAL = (Reason.DELETING, Reason.OWNS_OTHERS, Reason.HOLDS_OTHERS, Reason.IN_USE)
_OURS = (
    ConditionType.UNJOINING,
    ConditionType.UNJOIN_FAILED,
    ConditionType.UNKNOWN_VALUE,
    ConditionType.DEADLINE_EXCEEDED,
    ConditionType.PLAN_FROZEN,
)


def failing(blockers: Iterable[Blocker], *, now: datetime) -> tuple[Blocker, ...]:
    """The blockers that a person should know of."""
    return tuple(blocker for blocker in blockers if blocker.reason not in _USUAL or _is_slow(blocker, now))


def looked_at_again(blockers: Iterable[Blocker], *, now: datetime) -> float | None:
    """The seconds until another blocker counts as failing; None if time alone changes nothing."""
    due = [
        blocker.since + SLOW - now
        for blocker in blockers
        if blocker.since and blocker.reason in _USUAL and not _is_slow(blocker, now)
    ]
    return max(1.0, min(due).total_seconds()) if due else None


def unjoin_conditions(
    cluster: Cluster,
    teardown: Teardown | None,
    blockers: tuple[Blocker, ...] = (),
    works: Iterable[Work] = (),
    *,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions of the Cluster while it is unjoined; the same tuple if nothing changes.

    `blockers`: those of the cleanup. `works`: the remaining ones of the member.
    """
    wanted: dict[ConditionType, tuple[str, str]] = {ConditionType.UNJOINING: (Reason.UNJOIN_CLUSTER, UNJOINING)}
    said = teardown.status.conditions if teardown and not teardown.finished else ()
    for type_ in (ConditionType.UNKNOWN_VALUE, ConditionType.DEADLINE_EXCEEDED):
        if there := find(said, type_):
            wanted[type_] = (there.reason, there.message)
    plan = teardown.spec.plan if teardown else None
    if isinstance(cluster.removal, Unknown) and plan:
        message = f"removeStrategy: {cluster.removal}; the unjoin continues as planned when it began"
        wanted[ConditionType.UNKNOWN_VALUE] = (Reason.UNKNOWN_VALUE, message)
    if remove_strategy.raised(cluster, plan, works):
        message = (
            "removeStrategy was Needless when the unjoin began, so the objects on the member stay: a later change has"
            " no"
            " effect"
        )
        wanted[ConditionType.PLAN_FROZEN] = (Reason.STRATEGY_CHANGED, message)
    under_way = teardown and not teardown.finished
    found = (*failing(teardown.status.blockers if teardown and under_way else (), now=now), *blockers)
    if teardown and under_way and not any(item.reason == Reason.UNREACHABLE for item in found):
        found = (*silent(cluster, teardown), *found)
    if found and teardown:
        wanted[ConditionType.UNJOIN_FAILED] = (found[0].reason, blockers_text(found, teardown))
    elif plan is None and ConditionType.UNKNOWN_VALUE in wanted:
        # A plan that cannot be made is a failure, too.
        wanted[ConditionType.UNJOIN_FAILED] = wanted[ConditionType.UNKNOWN_VALUE]
    result = cluster.status.conditions
    for type_ in _OURS:
        if type_ in wanted:
            reason, message = wanted[type_]
            result = with_condition(result, type=type_, status=True, reason=reason, message=message, now=now)
        else:
            result = without_condition(result, type_)
    return result


def silent(cluster: Cluster, teardown: Teardown) -> tuple[Blocker, ...]:
    """A blocker for an unreachable member, if something must be removed from it.

    A removal waits for watch events and does not notice it.
    """
    ready = find(cluster.status.conditions, ConditionType.READY)
    if ready is None or ready.status != "False" or not remove_strategy.is_enforced(teardown.spec.plan):
        return ()
    ref, message = ref_of(CLUSTERS, cluster.metadata), f"member unreachable: {ready.message}"
    return tuple(
        Blocker(
            object=ref, step=step.name, reason=Reason.UNREACHABLE, message=message, since=ready.last_transition_time
        )
        for step in teardown.status.steps
        if step.state == StepState.REMOVING
    )


def blockers_text(blockers: tuple[Blocker, ...], teardown: Teardown) -> str:
    """Each blocked Work and object with cause, since when, and who must act; truncated."""
    together: dict[tuple[str, str, str], list[Blocker]] = {}
    for blocker in blockers:
        # An unreachable member blocks all its Works for the same reason.
        together.setdefault((str(blocker.object), blocker.reason, blocker.message), []).append(blocker)
    parts = []
    for (obj, _, message), those in list(together.items())[:_SHOWN]:
        words = message or obj
        named = words if obj in words else f"{obj}: {words}"
        parts.append(f"{_named([item.step for item in those])}{_cut(named, _TOLD)}{_aside(those)}")
    if len(together) > _SHOWN:
        parts.append(f"and {len(together) - _SHOWN} more")
    mentioned = {blocker.step for blocker in blockers}
    waiting = [
        step.name
        for step in teardown.status.steps
        if step.state in (StepState.WAITING, StepState.REMOVING) and step.name not in mentioned
    ]
    if waiting and not teardown.finished:
        parts.append(f"not removed yet: {_listed(waiting)}")
    return _cut("; ".join(parts), _LONGEST)


def _named(steps: list[str]) -> str:
    found = [fromkey for fromkey in dict.fromkeys(steps) if fromkey]
    return f"{_listed(found)}: " if found else ""


def _listed(steps: list[str]) -> str:
    names = [step.replace("/", " ", 1) if step.startswith(f"{WORKS.kind}/") else step for step in steps]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _aside(those: list[Blocker]) -> str:
    since = min((blocker.since for blocker in those if blocker.since), default=None)
    actor = next((blocker.actor for blocker in those if blocker.actor), "")
    words = [f"since {since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"] if since else []
    words += [f"must act: {actor}"] if actor else []
    return f" ({'; '.join(words)})" if words else ""


def _is_slow(blocker: Blocker, now: datetime) -> bool:
    return blocker.since is not None and now - blocker.since >= SLOW


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
