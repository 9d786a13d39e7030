"""The deadline of a teardown, by the TeardownPolicies that select its cluster (pure)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import OnDeadline, parse_duration
from unwind.api.names import DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unwind.api.policies import TeardownPolicy


class EffectiveDeadline(msgspec.Struct, frozen=True, kw_only=True):
    """The deadline of a teardown, and where each value is from."""

    deadline: str = ""
    """Empty: it waits forever."""
    deadline_from: str = ""
    on_deadline: str = OnDeadline.HOLD.value
    on_deadline_from: str = ""


def effective_deadline(policies: Sequence[TeardownPolicy], annotations: Mapping[str, str]) -> EffectiveDeadline:
    """The deadline of a cluster that these policies select, which must be at least one.

    The latest deadline counts, and Hold. Annotations of the Cluster can only make it later, or Hold.
    """
    spans = [
        (_span(policy.spec.deadline), policy.spec.deadline, f"TeardownPolicy {policy.metadata.name}")
        for policy in policies
    ]
    if (said := annotations.get(DEADLINE_ANNOTATION)) is not None:
        spans.append((_span(said), said, f"annotation {DEADLINE_ANNOTATION}"))
    latest = max(span for span, _, _ in spans)
    [deadline, *_] = sorted(text for span, text, _ in spans if span == latest)
    words = [
        (OnDeadline.read(policy.spec.on_deadline), f"TeardownPolicy {policy.metadata.name}") for policy in policies
    ]
    if (said := annotations.get(ON_DEADLINE_ANNOTATION)) is not None:
        words.append((OnDeadline.read(said), f"annotation {ON_DEADLINE_ANNOTATION}"))
    holds = [where for word, where in words if word is not OnDeadline.RELEASE]
    return EffectiveDeadline(
        deadline="" if latest == timedelta.max else deadline,
        deadline_from=_sources(where for span, _, where in spans if span == latest),
        on_deadline=(OnDeadline.HOLD if holds else OnDeadline.RELEASE).value,
        on_deadline_from=_sources(holds or [where for _, where in words]),
    )


def _span(text: str) -> timedelta:
    """A duration; the longest one if there is no deadline, or it is not known."""
    span = parse_duration(text) if text else None
    return span if isinstance(span, timedelta) else timedelta.max


def _sources(found: Iterable[str]) -> str:
    return ", ".join(sorted(found))
