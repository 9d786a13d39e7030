"""Which clusters a profile matches (pure)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api import capi, sveltos
from unwind.api.names import SVELTOS_PAUSED_ANNOTATION
from unwind.api.sveltos import ClusterType, ProfileSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from unwind.api.meta import LabelSelector, ObjectMeta, Reference
    from unwind.members.targets import AddonTarget


class ProfileKey(NamedTuple):
    """A ClusterProfile, or a Profile; the namespace of a ClusterProfile is empty."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Verdict(Enum):
    """How a profile relates to a cluster."""

    WANTED = "wanted"
    LATER = "later"
    """It matches but is not ready: nothing new is deployed, and nothing is removed."""
    LEFT = "left"
    """It is terminating. It gets nothing new, and its Teardown handles the add-ons."""
    UNWANTED = "unwanted"
    UNKNOWN = "unknown"
    """Whether it selects the cluster is not known: nothing new is deployed, and nothing is removed."""


class Selection(Enum):
    """Whether a profile selects a cluster."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """What is understood of the profile does not select the cluster, and the rest of it is not understood."""


def match(key: ProfileKey, spec: ProfileSpec, target: AddonTarget | None, unread: Collection[str]) -> Verdict:
    """How a profile relates to a cluster; None is a cluster that does not exist. `unread`: as for `selection`.

    A paused cluster is not handled here: its summaries are updated but not acted on, as in Sveltos.
    """
    if target is None:
        return Verdict.UNWANTED
    if target.terminating:
        # Deleting a SveltosCluster only ends its management: there is no Teardown.
        return Verdict.LEFT if target.type is ClusterType.CAPI else Verdict.UNWANTED
    selected = selection(key, spec, target, unread)
    if selected is Selection.YES:
        return Verdict.WANTED if target.ready else Verdict.LATER
    return Verdict.UNWANTED if selected is Selection.NO else Verdict.UNKNOWN


def is_paused(metadata: ObjectMeta) -> bool:
    """Whether a profile is paused, by its metadata. As in Sveltos, the value of the annotation does not matter."""
    return SVELTOS_PAUSED_ANNOTATION in metadata.annotations


def selection(key: ProfileKey, spec: ProfileSpec, target: AddonTarget, unread: Collection[str]) -> Selection:
    """Whether a profile selects a cluster, by labels or by name. `unread`: the paths of its unknown fields.

    A typo is not a "no": the add-ons of every cluster would be removed (docs/architecture.md, Unknown values hold).
    """
    if key.namespace and target.ref.namespace != key.namespace:
        return Selection.NO  # a Profile matches clusters of its own namespace only
    if selects(spec.cluster_selector, target.labels) or any(
        refers_to(reference, target, home=key.namespace) for reference in spec.cluster_refs
    ):
        return Selection.YES
    return Selection.UNKNOWN if not_understood(key, spec, unread) else Selection.NO


def not_understood(key: ProfileKey, spec: ProfileSpec, unread: Collection[str]) -> list[str]:
    """What is not understood of the clusters that a profile selects, for people; empty if all is."""
    told = [*misread(spec.cluster_selector), *misnamed(key, spec)]
    if spec.set_refs:
        told.append("setRefs is not supported (valid: clusterSelector, clusterRefs)")
    return [*told, *_unread(unread)]


_SELECTING = {"clusterSelector": "matchLabels, matchExpressions", "clusterRefs": "apiVersion, kind, namespace, name"}
"""The fields that select clusters, and the fields that they have."""
_KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(ProfileSpec))


def _unread(unread: Collection[str]) -> Iterator[str]:
    """The unknown fields that may select clusters. One beside the known fields may be a misspelt clusterSelector."""
    for path in sorted(unread):
        field = path.partition(".")[0].partition("[")[0]
        if field in _SELECTING:
            # Fields of a requirement are known by the reference of Kubernetes.
            valid = "key, operator, values" if "matchExpressions" in path else _SELECTING[field]
            yield f"{path} is not known (valid: {valid})"
        elif field not in _KNOWN:
            yield f"{path} is not known, and may be about clusters (valid: clusterSelector, clusterRefs)"


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a selector. An empty one selects nothing. An invalid one is not known to select anything:
    `selection` tells it apart."""
    if selector.empty or misread(selector):
        return False
    return selector.satisfied_by(labels)


def misread(selector: LabelSelector) -> list[str]:
    """The errors of a selector, for people."""
    return [f"clusterSelector: {fault}" for item in selector.match_expressions if (fault := item.fault)]


_KINDS = {
    (capi.CLUSTERS.group, capi.CLUSTERS.kind): ClusterType.CAPI,
    (sveltos.LIB_GROUP, sveltos.SVELTOS_CLUSTERS.kind): ClusterType.SVELTOS,
}


def type_of(reference: Reference) -> ClusterType | None:
    """The cluster type of a reference, in any version; None for other kinds."""
    return _KINDS.get((reference.api_version.partition("/")[0], reference.kind))


def refers_to(reference: Reference, target: AddonTarget, *, home: str = "") -> bool:
    """Whether a reference names this cluster. `home`: the namespace if the reference has none."""
    return (
        type_of(reference) is target.type
        and reference.name == target.ref.name
        and (reference.namespace or home) == target.ref.namespace
    )


def misnamed(key: ProfileKey, spec: ProfileSpec) -> list[str]:
    """The invalid entries of clusterRefs, for people."""
    told: list[str] = []
    for reference in spec.cluster_refs:
        named = f"{reference.kind} {reference.name}"
        if type_of(reference) is None:
            told.append(
                f"clusterRefs: {named} (apiVersion {reference.api_version or 'missing'}) is not a Cluster of Cluster"
                " API or a SveltosCluster; correct its apiVersion and kind"
            )
        elif key.namespace and reference.namespace not in ("", key.namespace):
            told.append(
                f"clusterRefs: {named} is in namespace {reference.namespace}, but a Profile matches only its own"
                " namespace; use a ClusterProfile"
            )
        elif not key.namespace and not reference.namespace:
            told.append(f"clusterRefs: {named} has no namespace; set it")
    return told
