"""Values of labels and annotations that users set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown, Word
from unwind.api.names import VOLUMES_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Mapping


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
