"""Owner labels and annotations on deployed objects (pure; docs/architecture.md, Only our own objects)."""

from __future__ import annotations

import hashlib
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.karmada import WORKS
from unwind.api.meta import ObjectRef
from unwind.api.names import (
    ADOPTED_ANNOTATION,
    FIELD_MANAGER,
    HASH_ANNOTATION,
    KARMADA_MANAGED_LABEL,
    KARMADA_WORK_NAME_ANNOTATION,
    KARMADA_WORK_NAMESPACE_ANNOTATION,
    OWNER_LABEL,
    SVELTOS_HASH_ANNOTATION,
    SVELTOS_OWNER_ANNOTATION,
    SVELTOS_REASON_LABEL,
    SVELTOS_REFERENCE_ANNOTATION,
)
from unwind.api.sveltos import DEFAULT_TIER, FeatureID
from unwind.api.unwind import Effort

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.deploy.placements import PlacedObject


class DeploymentOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a deployment: a ClusterSummary, for its profile, or a Work."""

    object: ObjectRef
    profile: ObjectRef = ObjectRef()
    """Empty for a Work."""
    tier: int = DEFAULT_TIER
    """Not used for Works."""
    adopt: bool = False
    """Whether existing foreign objects are adopted."""
    effort: Effort | None = None
    """How persistently its objects are removed with their cluster, for the Inventory. None keeps what is recorded."""
    former: frozenset[str] = frozenset()
    """The uids that the owner had in former management clusters of the member. Objects that one of them deployed for
    the same profile are its own."""

    @property
    def uid(self) -> str:
        return self.object.uid

    def was(self, uid: str, profile: str) -> bool:
        """Whether an object with these owner marks was deployed for it in a former management cluster. Anyone who may
        write the Cluster can name uids, so the profile must be the same, too."""
        return uid in self.former and profile == f"{self.profile.kind} {self.profile.name}"

    @property
    def is_work(self) -> bool:
        return (self.object.group, self.object.kind) == (WORKS.group, WORKS.kind)


class Claim(Enum):
    """The ownership of an existing object, for the owner that deploys."""

    OURS = auto()
    """It has our owner label with this owner's uid, or it was deployed for the owner in a former management cluster."""
    TAKEN = auto()
    """Managed by a Work, or by a profile with the same or a lower tier, which keeps it."""
    WON = auto()
    """Managed by a profile with a higher tier: it is taken over."""
    FOREIGN = auto()
    """Not managed by Unwind."""


class LiveMarks(msgspec.Struct, frozen=True):
    """The owner labels and annotations of an existing object."""

    uid: str
    version: str
    terminating: bool
    owner: str
    """The uid of the ClusterSummary or Work in the owner label; empty if there is none."""
    profile: str
    """The profile or the Work, for messages."""
    tier: int
    """The tier of the profile. Not used for Works."""
    hash: str
    adopted: bool
    is_work: bool = False


def seen(metadata: Mapping[str, Any]) -> LiveMarks:
    """The owner labels and annotations in an object's metadata."""
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    tier = annotations.get(f"{SVELTOS_OWNER_ANNOTATION}tier", "")
    work = annotations.get(KARMADA_WORK_NAME_ANNOTATION)
    return LiveMarks(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        terminating=bool(metadata.get("deletionTimestamp")),
        owner=labels.get(OWNER_LABEL, ""),
        profile=profile_in(annotations),
        # An invalid tier counts as the default: the owner keeps the object against the same or a higher tier.
        tier=int(tier) if tier.isdecimal() else DEFAULT_TIER,
        hash=annotations.get(HASH_ANNOTATION if work else SVELTOS_HASH_ANNOTATION, ""),
        adopted=annotations.get(ADOPTED_ANNOTATION) == "true",
        is_work=bool(work),
    )


def profile_in(annotations: Mapping[str, str]) -> str:
    """The profile or the Work that an object was deployed for; empty if there is none."""
    kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
    if work := annotations.get(KARMADA_WORK_NAME_ANNOTATION):
        kind, name = WORKS.kind, f"{annotations.get(KARMADA_WORK_NAMESPACE_ANNOTATION, '')}/{work}"
    return f"{kind} {name}".strip()


def claim(it: LiveMarks, owner: DeploymentOwner) -> Claim:
    """The ownership: the lower tier wins, a tie keeps the owner. Works have no tiers: a Work keeps its objects, and
    takes over none."""
    if not it.owner:
        return Claim.FOREIGN
    if it.owner == owner.uid or owner.was(it.owner, it.profile):
        return Claim.OURS
    if it.is_work or owner.is_work:
        return Claim.TAKEN
    return Claim.WON if owner.tier < it.tier else Claim.TAKEN


def with_owner_marks(placed: PlacedObject, owner: DeploymentOwner, *, adopted: bool = False) -> dict[str, Any]:
    """The object as it is sent: with our labels and annotations, and the hash of the manifest."""
    metadata = placed.body["metadata"]
    ours = _of_work(owner) if owner.is_work else _of_profile(placed, owner)
    labels = {**(metadata.get("labels") or {}), OWNER_LABEL: owner.uid, **ours.labels}
    annotations = {**(metadata.get("annotations") or {}), **ours.annotations}
    if adopted:
        annotations[ADOPTED_ANNOTATION] = "true"
    body = placed.body | {"metadata": metadata | {"labels": labels, "annotations": annotations}}
    annotations[ours.hash] = hash_of(body)
    return body


class _Marks(msgspec.Struct, frozen=True):
    """The labels and annotations that Sveltos or Karmada set on an object."""

    labels: dict[str, str]
    annotations: dict[str, str]
    hash: str
    """The name of the hash annotation."""


def _of_profile(placed: PlacedObject, owner: DeploymentOwner) -> _Marks:
    source = placed.source
    annotations = {
        f"{SVELTOS_REFERENCE_ANNOTATION}kind": source.kind,
        f"{SVELTOS_REFERENCE_ANNOTATION}namespace": source.namespace,
        f"{SVELTOS_REFERENCE_ANNOTATION}name": source.name,
        f"{SVELTOS_REFERENCE_ANNOTATION}tier": str(source.tier),
        f"{SVELTOS_OWNER_ANNOTATION}kind": owner.profile.kind,
        f"{SVELTOS_OWNER_ANNOTATION}name": owner.profile.name,
        f"{SVELTOS_OWNER_ANNOTATION}tier": str(owner.tier),
    }
    return _Marks({SVELTOS_REASON_LABEL: FeatureID.RESOURCES.value}, annotations, SVELTOS_HASH_ANNOTATION)


def _of_work(owner: DeploymentOwner) -> _Marks:
    annotations = {
        KARMADA_WORK_NAMESPACE_ANNOTATION: owner.object.namespace,
        KARMADA_WORK_NAME_ANNOTATION: owner.object.name,
    }
    return _Marks({KARMADA_MANAGED_LABEL: "true"}, annotations, HASH_ANNOTATION)


def hash_of(body: Mapping[str, Any]) -> str:
    """The hash of an object."""
    return f"sha256:{hashlib.sha256(msgspec.json.encode(body, order='sorted')).hexdigest()}"


def hash_in(body: Mapping[str, Any]) -> str:
    """The hash in the annotations of an object."""
    annotations: dict[str, str] = body["metadata"]["annotations"]
    return annotations.get(HASH_ANNOTATION) or annotations[SVELTOS_HASH_ANNOTATION]


# Field ownership (managedFields) of our objects (pure).

Fields = list[dict[str, Any]]


def applied_fields(managed: Fields) -> Fields | None:
    """managedFields in which all fields that we set count as applied; None if they do already.

    Fields of a create belong to its manager with operation *Update*, and an apply by the same manager removes only
    fields with operation *Apply*. So a key that is dropped from a ConfigMap's manifest would stay forever.
    """
    set_by_create = [item for item in managed if _ours(item, "Update")]
    if not set_by_create:
        return None
    merged = next((item for item in managed if _ours(item, "Apply")), None)
    for item in set_by_create:
        if merged is None:
            merged = item | {"operation": "Apply"}
        else:
            merged = merged | {"fieldsV1": _union(merged.get("fieldsV1") or {}, item.get("fieldsV1") or {})}
    others = [item for item in managed if not _ours(item, "Update") and not _ours(item, "Apply")]
    return [*others, merged] if merged else others


def _ours(entry: dict[str, Any], operation: str) -> bool:
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == (FIELD_MANAGER, operation, None)


def _union(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return one | {key: _union(one.get(key) or {}, value) for key, value in other.items()}
