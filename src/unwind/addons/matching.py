"""Which clusters a profile matches (pure)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from unwind.api import capi, sveltos
from unwind.api.names import SVELTOS_PAUSED_ANNOTATION
from unwind.api.sveltos import ClusterType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.meta import LabelSelector, ObjectMeta, Reference
    from unwind.api.sveltos import ProfileSpec
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


def match(key: ProfileKey, spec: ProfileSpec, target: AddonTarget | None) -> Verdict:
    """How a profile relates to a cluster; None is a cluster that does not exist.

    A paused cluster is not handled here: its summaries are updated but not acted on, as in Sveltos.
    """
    if target is None:
        return Verdict.UNWANTED
    if target.terminating:
        # Deleting a SveltosCluster only ends its management: there is no Teardown.
        return Verdict.LEFT if target.type is ClusterType.CAPI else Verdict.UNWANTED
    if not matches(key, spec, target):
        return Verdict.UNWANTED
    return Verdict.WANTED if target.ready else Verdict.LATER


def is_paused(metadata: ObjectMeta) -> bool:
    """Whether a profile is paused, by its metadata. As in Sveltos, the value of the annotation does not matter."""
    return SVELTOS_PAUSED_ANNOTATION in metadata.annotations


def matches(key: ProfileKey, spec: ProfileSpec, target: AddonTarget) -> bool:
    """Whether a profile selects a cluster, by labels or by name."""
    if key.namespace and target.ref.namespace != key.namespace:
        return False  # a Profile matches clusters of its own namespace only
    return selects(spec.cluster_selector, target.labels) or any(
        refers_to(reference, target, home=key.namespace) for reference in spec.cluster_refs
    )


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a selector. An empty or invalid selector selects nothing."""
    if selector.empty or misread(selector):
        return False
    return selector.satisfied_by(labels)


def misread(selector: LabelSelector) -> list[str]:
    """The errors of a selector, for people. An invalid selector selects nothing."""
    told: list[str] = []
    for requirement in selector.match_expressions:
        operator, values = requirement.operator, requirement.values
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            told.append(
                f"clusterSelector: unknown operator {operator!r} for key {requirement.key} (valid: In, NotIn, Exists,"
                " DoesNotExist)"
            )
        elif bool(values) != (operator in ("In", "NotIn")):
            fault = "takes no values; remove them" if values else "needs values; add some"
            told.append(f"clusterSelector: operator {operator} for key {requirement.key} {fault}")
    return told


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
    """The invalid entries of clusterRefs, for people: they match nothing."""
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
