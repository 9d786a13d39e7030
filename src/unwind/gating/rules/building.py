"""Is everything there that a new cluster's add-ons are made of? (pure)"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.sveltos import HelmChartAction
from unwind.gating.rules.wording import several, steady
from unwind.hooks import Wait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.sveltos import ProfileSpec

# Seconds. A person creates what is missing, and then looks whether the cluster comes.
_RETRY = 5


class Source(NamedTuple):
    """A ConfigMap or Secret that a profile refers to."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Lack(msgspec.Struct, frozen=True):
    """Something that a profile refers to and that is not to be had."""

    profile: str
    what: str
    why: str


def sources(spec: ProfileSpec, *, namespace: str) -> list[Source]:
    """What has to exist for a profile on a cluster of this namespace."""
    found = [Source(one.kind, one.namespace or namespace, one.name) for one in spec.policy_refs if not one.optional]
    for chart in spec.helm_charts:
        if chart.helm_chart_action == HelmChartAction.INSTALL:
            found += [
                Source(one.kind, one.namespace or namespace, one.name) for one in chart.values_from if not one.optional
            ]
    return list(dict.fromkeys(found))


def before(lacks: Iterable[Lack]) -> Wait | None:
    """Wait until nothing is lacking."""
    said = [f"{one.profile} needs {one.what}: {steady(one.why)}" for one in lacks]
    if not said:
        return None
    return Wait(
        f"waiting for what add-ons are made of: {several(said)}. Whoever looks after these profiles has to provide it",
        _RETRY,
    )
