"""Features of Unwind: each has its CRDs, rights, controllers, webhooks and policies, and is installed by its name.

A feature gate (`unwind.manager.feature_gates`) switches a behaviour within a feature.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from unwind.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Feature(StrEnum):
    """A feature, named like its package."""

    ADDONS = "addons"
    CAPI = "capi"
    EXTERNAL = "external"
    KARMADA = "karmada"
    PROTECTION = "protection"


Features = frozenset[Feature]

DESCRIPTIONS = {
    Feature.ADDONS: "deploy the add-ons of Sveltos profiles, and remove them in order; requires `capi`",
    Feature.CAPI: "hold the deletion of Cluster API Clusters by lifecycle hooks until their teardown is finished",
    Feature.EXTERNAL: "delete resources outside the cluster with the objects that represent them",
    Feature.KARMADA: "member Clusters and Works of Karmada: deploy, unjoin",
    Feature.PROTECTION: "refuse the deletion of objects with the label policy.kruise.io/delete-protection",
}
ALL: Features = frozenset(Feature)
"""Also the features of an installation that recorded none: version 0.1.0 had no others."""
DEFAULT: Features = frozenset({Feature.CAPI, Feature.PROTECTION})
"""The features of a new installation."""


def parse(text: str, *, source: str = "--features") -> Features:
    """The features in a comma-separated list; raises UsageError. `source`: where the list is from, for the message."""
    words = [word for part in text.split(",") if (word := part.strip())]
    unknown = [word for word in words if word not in set(Feature)]
    if unknown:
        raise UsageError(f"unknown feature {', '.join(map(repr, unknown))} in {source} (valid: {', '.join(Feature)})")
    found = frozenset(map(Feature, words))
    if Feature.ADDONS in found and Feature.CAPI not in found:
        # Without the gate, Cluster API would delete a cluster whose add-ons must be removed first.
        raise UsageError(
            f"feature {Feature.ADDONS} in {source} requires {Feature.CAPI}",
            remedy=f"use {written({*found, Feature.CAPI})}",
        )
    return found


def written(features: Iterable[Feature]) -> str:
    """The comma-separated list of features."""
    return ",".join(sorted(features))
