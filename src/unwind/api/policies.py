"""The words that people write into labels and annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown, Word
from unwind.api.names import VOLUMES_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Mapping


class OnDeadline(Word):
    """What happens when a teardown has taken longer than it may."""

    HOLD = "Hold"
    """It says so, and goes on."""
    RELEASE = "Release"
    """The target is let go, and what is left goes into the ledger."""


class DeleteProtection(Word):
    """The value of OpenKruise's label."""

    ALWAYS = "Always"
    CASCADING = "Cascading"
    """Protected as long as something depends on it: replicas, Pods, volumes, custom resources."""


class DeletePolicy(Word):
    """The value of Azure Service Operator's annotation, and of our own."""

    MANAGE = "manage"
    SKIP = "skip"
    """Neither changed nor deleted."""
    DETACH_ON_DELETE = "detach-on-delete"
    """Changed, but not deleted."""


class VolumePolicy(Word):
    """What becomes of the claims of a StatefulSet that is removed."""

    RETAIN = "Retain"
    """They stay, unless the StatefulSet owns them (`persistentVolumeClaimRetentionPolicy.whenDeleted: Delete`)."""
    DELETE = "Delete"


def volume_policy(annotations: Mapping[str, str] | None) -> VolumePolicy | Unknown:
    """What the annotations of a profile, a Work or a request say."""
    return VolumePolicy.read((annotations or {}).get(VOLUMES_ANNOTATION, VolumePolicy.RETAIN.value))


def retained() -> VolumePolicy | Unknown:
    """What holds where nothing is said."""
    return VolumePolicy.RETAIN
