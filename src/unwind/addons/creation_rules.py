"""The hook rule at BeforeClusterCreate: the sources of the add-ons must be available (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.addons.hook_rule_catalogue import several, steady
from unwind.api.sveltos import HelmChartAction
from unwind.hooks import Wait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.sveltos import ProfileSpec

# Seconds. A person creates the missing object and then watches the cluster.
_RETRY = 5


class ProfileSource(NamedTuple):
    """A ConfigMap or Secret that a profile refers to."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Lack(msgspec.Struct, frozen=True):
    """A source of a profile that is not available."""

    profile: str
    what: str
    why: str


def needed_sources(spec: ProfileSpec, *, namespace: str) -> list[ProfileSource]:
    """The ConfigMaps and Secrets that a profile needs on a cluster of this namespace."""
    found = [
        ProfileSource(ref.kind, ref.namespace or namespace, ref.name) for ref in spec.policy_refs if not ref.optional
    ]
    for chart in spec.helm_charts:
        if chart.helm_chart_action == HelmChartAction.INSTALL:
            found += [
                ProfileSource(item.kind, item.namespace or namespace, item.name)
                for item in chart.values_from
                if not item.optional
            ]
    return list(dict.fromkeys(found))


def before_create(lacks: Iterable[Lack]) -> Wait | None:
    """Wait until all sources are available."""
    said = [f"{lack.profile} needs {lack.what}: {steady(lack.why)}" for lack in lacks]
    if not said:
        return None
    return Wait(
        f"waiting for sources of add-ons: {several(said)}; create them or correct the profiles",
        _RETRY,
    )
