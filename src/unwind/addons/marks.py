"""The marks on what is deployed: whose it is, where it came from, in which version (pure; DESIGN, rule 2)."""

from __future__ import annotations

import hashlib
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import (
    ADOPTED_ANNOTATION,
    OWNER_LABEL,
    SVELTOS_HASH_ANNOTATION,
    SVELTOS_OWNER_ANNOTATION,
    SVELTOS_REASON_LABEL,
    SVELTOS_REFERENCE_ANNOTATION,
)
from unwind.api.sveltos_status import FeatureID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.addons.placing import Placed

DEFAULT_TIER = 100


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who deploys: a ClusterSummary, for its profile."""

    summary: ObjectRef
    profile: ObjectRef
    tier: int = DEFAULT_TIER
    adopt: bool = False
    """Whether the profile takes what is there already under the name of an add-on."""

    @property
    def uid(self) -> str:
        return self.summary.uid


class Claim(Enum):
    """What an object that is there already is to a profile."""

    OURS = auto()
    """It carries our mark with this owner's uid."""
    TAKEN = auto()
    """Another profile's, whose tier is not lower: it keeps it."""
    WON = auto()
    """Another profile's, whose tier is higher: it is taken over."""
    FOREIGN = auto()
    """Nobody's that we know of."""


class Seen(msgspec.Struct, frozen=True):
    """What there is to know of an object's marks."""

    uid: str
    version: str
    terminating: bool
    owner: str
    """The uid of the summary that it belongs to; empty if none says so."""
    profile: str
    """For people."""
    tier: int
    hash: str
    adopted: bool


def seen(metadata: Mapping[str, Any]) -> Seen:
    """The marks in an object's metadata."""
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
    tier = annotations.get(f"{SVELTOS_OWNER_ANNOTATION}tier", "")
    return Seen(
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        terminating=bool(metadata.get("deletionTimestamp")),
        owner=labels.get(OWNER_LABEL, ""),
        profile=f"{kind} {name}".strip(),
        # Unreadable, it is as if it were not there; whoever it belongs to keeps it against the same or a higher one.
        tier=int(tier) if tier.isdecimal() else DEFAULT_TIER,
        hash=annotations.get(SVELTOS_HASH_ANNOTATION, ""),
        adopted=annotations.get(ADOPTED_ANNOTATION) == "true",
    )


def claim(it: Seen, owner: Owner) -> Claim:
    """Whose it is: the lower tier wins, a tie keeps the owner."""
    if not it.owner:
        return Claim.FOREIGN
    if it.owner == owner.uid:
        return Claim.OURS
    return Claim.WON if owner.tier < it.tier else Claim.TAKEN


def marked(placed: Placed, owner: Owner, *, adopted: bool = False) -> dict[str, Any]:
    """The object as it is sent: with our marks, and the hash of all that we say of it."""
    metadata = placed.body["metadata"]
    labels = {**(metadata.get("labels") or {}), OWNER_LABEL: owner.uid, SVELTOS_REASON_LABEL: FeatureID.RESOURCES.value}
    source = placed.source
    annotations = {
        **(metadata.get("annotations") or {}),
        f"{SVELTOS_REFERENCE_ANNOTATION}kind": source.kind,
        f"{SVELTOS_REFERENCE_ANNOTATION}namespace": source.namespace,
        f"{SVELTOS_REFERENCE_ANNOTATION}name": source.name,
        f"{SVELTOS_REFERENCE_ANNOTATION}tier": str(source.tier),
        f"{SVELTOS_OWNER_ANNOTATION}kind": owner.profile.kind,
        f"{SVELTOS_OWNER_ANNOTATION}name": owner.profile.name,
        f"{SVELTOS_OWNER_ANNOTATION}tier": str(owner.tier),
    }
    if adopted:
        annotations[ADOPTED_ANNOTATION] = "true"
    body = placed.body | {"metadata": metadata | {"labels": labels, "annotations": annotations}}
    annotations[SVELTOS_HASH_ANNOTATION] = hash_of(body)
    return body


def hash_of(body: Mapping[str, Any]) -> str:
    """What changes when anything of it does."""
    return f"sha256:{hashlib.sha256(msgspec.json.encode(body, order='sorted')).hexdigest()}"


def hash_in(body: Mapping[str, Any]) -> str:
    """The hash that a marked object carries."""
    carried: str = body["metadata"]["annotations"][SVELTOS_HASH_ANNOTATION]
    return carried
