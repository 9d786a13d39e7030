"""Values of labels and annotations that users set, and durations such as 90s, 1h30m and 7d."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from unwind.api.fields import Unknown, Word
from unwind.api.names import VOLUMES_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Mapping

DURATION_PATTERN = "^(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?$"


class OnDeadline(Word):
    """What to do when the deadline of a teardown has passed."""

    HOLD = "Hold"
    """Report it and continue."""
    RELEASE = "Release"
    """Release the target and record in the ledger what is left behind."""


class DeleteProtection(Word):
    """Values of OpenKruise's delete-protection label."""

    ALWAYS = "Always"
    CASCADING = "Cascading"
    """Protected as long as something depends on it: replicas, Pods, volumes, custom resources."""


class DeletePolicy(Word):
    """Values of Azure Service Operator's reconcile-policy annotation, and of Unwind's delete-policy annotation."""

    MANAGE = "manage"
    SKIP = "skip"
    """Neither updated nor deleted."""
    DETACH_ON_DELETE = "detach-on-delete"
    """Updated, but not deleted."""


class VolumePolicy(Word):
    """What happens to the PersistentVolumeClaims of a StatefulSet that is removed."""

    RETAIN = "Retain"
    """They stay, unless the StatefulSet owns them (`persistentVolumeClaimRetentionPolicy.whenDeleted: Delete`)."""
    DELETE = "Delete"


def volume_policy(annotations: Mapping[str, str] | None) -> VolumePolicy | Unknown:
    """The volume policy that the annotations of a profile, Work or request set."""
    return VolumePolicy.read((annotations or {}).get(VOLUMES_ANNOTATION, VolumePolicy.RETAIN.value))


def retained() -> VolumePolicy | Unknown:
    """The default volume policy."""
    return VolumePolicy.RETAIN


"""Used in CRDs together with `minLength: 1`, because every part is optional."""


def parse_duration(text: str) -> timedelta | Unknown:
    """Parse a duration; invalid text is Unknown."""
    found = re.fullmatch(DURATION_PATTERN, text, flags=re.ASCII)
    if not text or not found:
        return Unknown(text, "a duration such as 30m, 2h or 1d")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
