"""Reads and updates status conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    found = find(conditions, type_)
    return found is not None and found.status == "True"


def with_condition(
    conditions: tuple[Condition, ...],
    *,
    type: str,  # noqa: A002 - the name of the field
    status: bool | None,
    reason: str,
    message: str = "",
    generation: int | None = None,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with this one set; the same tuple if nothing changes, so that callers can skip the write.

    lastTransitionTime changes only with the status: it says since when the status holds, and a reworded message is no
    transition.
    """
    before = find(conditions, type)
    word = {True: "True", False: "False", None: "Unknown"}[status]
    moved = before is None or before.status != word
    after = Condition(
        type=type,
        status=word,
        reason=reason,
        message=message,
        # The API stores whole seconds, and what is written must equal what is read back.
        last_transition_time=now.replace(microsecond=0) if moved or before is None else before.last_transition_time,
        observed_generation=msgspec.UNSET if generation is None else generation,
    )
    if before is None:
        return (*conditions, after)
    if after == before:
        return conditions
    return tuple(after if condition is before else condition for condition in conditions)


def without_condition(conditions: tuple[Condition, ...], type_: str) -> tuple[Condition, ...]:
    """The conditions without this type; the same tuple if it is not present."""
    if find(conditions, type_) is None:
        return conditions
    return tuple(condition for condition in conditions if condition.type != type_)
