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
    CAAPH = "caaph"
    CAPI = "capi"
    DRAIN = "drain"
    EXTERNAL = "external"
    FLUX = "flux"
    GATES = "gates"
    HELM = "helm"
    KARMADA = "karmada"
    PROTECTION = "protection"


Features = frozenset[Feature]

DESCRIPTIONS = {
    Feature.ADDONS: "deploy the add-ons of Sveltos profiles, and remove them in order; requires `capi`",
    Feature.CAAPH: "remove the HelmReleaseProxies of Cluster API's Helm add-on provider that a TeardownPolicy selects;"
    " requires `capi`",
    Feature.CAPI: "hold the deletion of Cluster API Clusters by lifecycle hooks until their teardown is finished",
    Feature.DRAIN: "delete the load balancers, volumes and further objects on clusters that a TeardownPolicy drains;"
    " requires `capi`",
    Feature.EXTERNAL: "delete resources outside the cluster with the objects that represent them",
    Feature.FLUX: "remove the Kustomizations and HelmReleases of Flux that a TeardownPolicy selects; requires `capi`",
    Feature.GATES: "hold the deletion of Clusters without a ClusterClass that a TeardownPolicy selects;"
    " requires `capi`",
    Feature.HELM: "uninstall the Helm releases on clusters that a TeardownPolicy selects; requires `capi`",
    Feature.KARMADA: "member Clusters and Works of Karmada: deploy, unjoin",
    Feature.PROTECTION: "refuse the deletion of objects with the label policy.kruise.io/delete-protection",
}
ALL: Features = frozenset(Feature)
COMPANIONS: Features = frozenset({Feature.CAAPH, Feature.DRAIN, Feature.FLUX, Feature.HELM})
"""Deployers that Unwind works beside, and the drain. TeardownPolicies say what is removed from a cluster."""
POLICIES: Features = COMPANIONS | {Feature.GATES}
"""The features that bring TeardownPolicies."""
UNRECORDED: Features = ALL - POLICIES
"""The features of an installation that recorded none: version 0.1.0 had no others."""
DEFAULT: Features = frozenset({Feature.CAPI, Feature.PROTECTION})
"""The features of a new installation."""
GATED: Features = POLICIES | {Feature.ADDONS}
"""The features that require `capi`. Without the gate, Cluster API would delete a cluster from which something must be
removed first."""


def parse(text: str, *, source: str = "--features") -> Features:
    """The features in a comma-separated list; raises UsageError. `source`: where the list is from, for the message."""
    words = [word for part in text.split(",") if (word := part.strip())]
    unknown = [word for word in words if word not in set(Feature)]
    if unknown:
        raise UsageError(f"unknown feature {', '.join(map(repr, unknown))} in {source} (valid: {', '.join(Feature)})")
    found = frozenset(map(Feature, words))
    if (gated := found & GATED) and Feature.CAPI not in found:
        raise UsageError(
            f"feature {', '.join(sorted(gated))} in {source} requires {Feature.CAPI}",
            remedy=f"use {written({*found, Feature.CAPI})}",
        )
    return found


def written(features: Iterable[Feature]) -> str:
    """The comma-separated list of features."""
    return ",".join(sorted(features))
