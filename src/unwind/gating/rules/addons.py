"""What the rules know of add-ons (pure)."""

from __future__ import annotations

import msgspec

from unwind.api.fields import Unknown
from unwind.api.sveltos_status import FeatureStatus, FeatureSummary

_FAILED = (FeatureStatus.FAILED, FeatureStatus.FAILED_NON_RETRIABLE)


class AddOn(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that is for a cluster, and how far it has come there."""

    profile: str
    """As people call it: `ClusterProfile shop`."""
    versions: str | None = None
    """Which versions of Kubernetes it says it is for."""
    wanted: tuple[str, ...] = ()
    """The features that its summary has to have."""
    features: tuple[FeatureSummary, ...] | None = None
    """What became of them; None where the profile has no summary for this very cluster."""
    waits: str = ""
    """What its summary says it waits for."""
    in_step: bool = True
    """Whether the summary says what the profile says now."""
    refused: str = ""
    """Why Unwind puts nothing new of it anywhere, which the profile itself says, too."""
    dry_run: bool = False


def failures(it: AddOn) -> list[str]:
    """What of an add-on fails, for people. A status that is not known is one that nobody can call well."""
    told: list[str] = []
    for one in it.features or ():
        status = FeatureStatus.read(one.status) if one.status else None
        if isinstance(status, Unknown):
            told.append(f"{one.feature_id}: its status {status}")
        elif status in _FAILED:
            told.append(f"{one.feature_id}: {one.failure_message or 'it does not say why'}")
        elif status is FeatureStatus.PROVISIONING and one.consecutive_failures:
            # Each new try says Provisioning for a moment, and who asks in that moment must not take it for well.
            told.append(f"{one.feature_id}: it failed, and is tried again")
    return told
