"""Feature gates of the manager (`--feature-gates NAME=true,…`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class FeatureGate(msgspec.Struct, frozen=True):
    """A feature gate."""

    name: str
    default: bool
    what: str
    """What the feature does when enabled, in one line."""


# Register new feature gates here.
FEATURE_GATES: tuple[FeatureGate, ...] = (
    # Named by the hook. BeforeClusterDelete has no gate: removing add-ons before a cluster cannot be disabled.
    FeatureGate("BeforeClusterCreate", False, "block creation of a Cluster until the sources of its profiles exist"),
    FeatureGate("BeforeClusterUpgrade", False, "call hook rules before a Cluster is upgraded"),
    FeatureGate(
        "BeforeControlPlaneUpgrade", False, "call hook rules before each version step of a control plane upgrade"
    ),
    FeatureGate(
        "AfterControlPlaneUpgrade", False, "call hook rules after the control plane upgrade; the upgrade waits for them"
    ),
    FeatureGate("BeforeWorkersUpgrade", False, "call hook rules before workers are upgraded"),
    FeatureGate("AfterWorkersUpgrade", False, "call hook rules after the workers upgrade; the upgrade waits for them"),
    FeatureGate("AfterClusterUpgrade", False, "call hook rules after an upgrade; the next upgrade waits for them"),
    FeatureGate(
        "ResourcesDeletionProtection",
        False,
        "refuse deletion of objects with the label policy.kruise.io/delete-protection",
    ),
)

_TRUTHS = {"true": True, "false": False}


def parse(text: str, *, known: Iterable[FeatureGate] = FEATURE_GATES) -> dict[str, bool]:
    """The state of every feature gate. Raises UsageError for an unknown one."""
    features = {feature.name: feature.default for feature in known}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in features:
            valid = f"valid: {', '.join(sorted(features))}" if features else "this version has none"
            raise UsageError(f"unknown feature gate {name!r} ({valid})")
        if value.lower() not in _TRUTHS:
            raise UsageError(
                f"invalid value {value!r} for feature gate {name}", remedy=f"use {name}=true or {name}=false"
            )
        features[name] = _TRUTHS[value.lower()]
    return features
