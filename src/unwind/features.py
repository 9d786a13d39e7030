"""Feature gates: what can be switched on and off when a process starts (`--feature-gates K=V,…`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Feature(msgspec.Struct, frozen=True):
    """Something that can be switched."""

    name: str
    default: bool
    what: str
    """One line: what is different when it is on."""


# Whoever adds a feature that can be switched names it here.
FEATURES: tuple[Feature, ...] = (
    # Named by the hook. That a cluster waits for its add-ons when it is deleted is no feature that can be off.
    Feature("BeforeClusterCreate", False, "a cluster is made only when what its profiles refer to is there"),
    Feature("BeforeClusterUpgrade", False, "rules have a say before a cluster is upgraded"),
    Feature("BeforeControlPlaneUpgrade", False, "rules have a say before a control plane is upgraded by one version"),
    Feature("AfterControlPlaneUpgrade", False, "an upgrade goes on only when rules let it, after its control plane"),
    Feature("BeforeWorkersUpgrade", False, "rules have a say before workers are upgraded"),
    Feature("AfterWorkersUpgrade", False, "an upgrade goes on only when rules let it, after its workers"),
    Feature("AfterClusterUpgrade", False, "the next upgrade begins only when rules let it"),
    Feature("ResourcesDeletionProtection", False, "what is labelled policy.kruise.io/delete-protection stays"),
)

_TRUTHS = {"true": True, "false": False}


def parse(text: str, *, known: Iterable[Feature] = FEATURES) -> dict[str, bool]:
    """What is on and what is off, for every feature there is. Raises UsageError for one there is not."""
    features = {feature.name: feature.default for feature in known}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in features:
            there_are = f"there are {', '.join(sorted(features))}" if features else "this version has none"
            raise UsageError(f"there is no feature gate {name!r}", remedy=there_are)
        if value.lower() not in _TRUTHS:
            raise UsageError(f"feature gate {name} is {value!r}", remedy=f"write {name}=true or {name}=false")
        features[name] = _TRUTHS[value.lower()]
    return features
