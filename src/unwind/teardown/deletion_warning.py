"""The warning for a user who deletes a cluster, in counted steps: removed first, tried, left, or not awaited (pure)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from unwind.api.names import ConditionType
from unwind.api.unwind import Effort
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.teardown.drafts import TeardownNotice
    from unwind.teardown.step_sources import SourceStep


def deletion_warning_text(
    steps: Iterable[SourceStep],
    *,
    subject: str,
    noun: str,
    status: str,
    paused: bool = False,
    not_awaited: str = "",
    said: Iterable[TeardownNotice] = (),
) -> str:
    """The warning for a cluster with these steps; empty if it has none.

    `subject`: a format for the counted nouns. `status`: the argument of `unwind status`. `paused`: nothing is removed
    until the cluster is unpaused. `not_awaited`: why the deletion does not wait for any step; empty if it does. `said`:
    notices about the cluster.
    """
    steps = list(steps)
    if not steps:
        return ""
    follow = f"follow with: unwind status {status}"
    notices = [*said, *(notice for step in steps for notice in step.said)]
    if unknown := [notice for notice in notices if notice.type is ConditionType.UNKNOWN_VALUE]:
        return f"blocked, and nothing is removed: {unknown[0].message}; {follow}"
    efforts = Counter(step.draft.effort for step in steps)

    def those(*which: Effort) -> str:
        return subject.format(counted(sum(efforts[effort] for effort in which), noun))

    told: list[str] = []
    if not_awaited:
        if efforts[Effort.ENFORCE] or efforts[Effort.TRY]:
            told.append(f"{those(Effort.ENFORCE, Effort.TRY)} will be removed, but {not_awaited}")
    else:
        if efforts[Effort.ENFORCE]:
            told.append(f"{those(Effort.ENFORCE)} will be removed first")
        if efforts[Effort.TRY]:
            told.append(f"{those(Effort.TRY)} will be removed if possible, without blocking the deletion")
    if efforts[Effort.LEAVE]:
        told.append(f"{those(Effort.LEAVE)} will be left in place")
    when = "paused, so nothing is removed until it is unpaused; then " if paused else ""
    return f"{when}{', '.join(told)}; {follow}"
