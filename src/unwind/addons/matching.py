"""Which clusters a profile is for (pure)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from unwind.api import capi, sveltos
from unwind.api.sveltos import ClusterType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.meta import LabelSelector, Reference
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
    """What a profile has to do with a cluster."""

    WANTED = "wanted"
    LATER = "later"
    """It matches, and cannot be deployed to yet: nothing new is begun, and nothing is taken back."""
    LEFT = "left"
    """It is being deleted. It gets nothing new, and what becomes of the add-ons is the teardown's business."""
    UNWANTED = "unwanted"


def verdict(key: ProfileKey, spec: ProfileSpec, target: AddonTarget | None) -> Verdict:
    """What a profile has to do with a cluster; None for one that is not there.

    Whether a cluster is paused is not asked here: its summaries are kept in step, and not acted on, as with Sveltos.
    """
    if target is None:
        return Verdict.UNWANTED
    if target.terminating:
        # To delete a SveltosCluster only means that it is managed no longer: there is no teardown.
        return Verdict.LEFT if target.type is ClusterType.CAPI else Verdict.UNWANTED
    if not matches(key, spec, target):
        return Verdict.UNWANTED
    return Verdict.WANTED if target.ready else Verdict.LATER


def matches(key: ProfileKey, spec: ProfileSpec, target: AddonTarget) -> bool:
    """Whether a profile chooses a cluster, by its labels or by its name."""
    if key.namespace and target.ref.namespace != key.namespace:
        return False  # a Profile is for the clusters of its own namespace
    return selects(spec.cluster_selector, target.labels) or any(
        names(reference, target, home=key.namespace) for reference in spec.cluster_refs
    )


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a selector. An empty one selects nothing, and so does one that is not understood."""
    if selector.empty or misread(selector):
        return False
    return selector.satisfied_by(labels)


def misread(selector: LabelSelector) -> list[str]:
    """What is not understood of a selector, for people. If there is anything, it selects nothing."""
    told: list[str] = []
    for requirement in selector.match_expressions:
        operator, values = requirement.operator, requirement.values
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            told.append(f"the operator {operator!r} of {requirement.key} is not known")
        elif bool(values) != (operator in ("In", "NotIn")):
            told.append(f"{operator} of {requirement.key} {'needs values' if not values else 'takes no values'}")
    return told


_KINDS = {
    (capi.CLUSTERS.group, capi.CLUSTERS.kind): ClusterType.CAPI,
    (sveltos.LIB_GROUP, sveltos.SVELTOS_CLUSTERS.kind): ClusterType.SVELTOS,
}


def type_of(reference: Reference) -> ClusterType | None:
    """Whose kind a reference is to, in whichever version; None for any other kind."""
    return _KINDS.get((reference.api_version.partition("/")[0], reference.kind))


def names(reference: Reference, target: AddonTarget, *, home: str = "") -> bool:
    """Whether a reference is to this cluster. `home`: the namespace that is meant where it says none."""
    return (
        type_of(reference) is target.type
        and reference.name == target.ref.name
        and (reference.namespace or home) == target.ref.namespace
    )


def misnamed(key: ProfileKey, spec: ProfileSpec) -> list[str]:
    """What is wrong with the references to clusters, for people: they match nothing."""
    told: list[str] = []
    for reference in spec.cluster_refs:
        named = f"{reference.kind} {reference.name}"
        if type_of(reference) is None:
            told.append(f"clusterRefs: {named} of {reference.api_version or 'no apiVersion'} is no cluster")
        elif key.namespace and reference.namespace not in ("", key.namespace):
            told.append(f"clusterRefs: {named} is in {reference.namespace}, and a Profile is for its own namespace")
        elif not key.namespace and not reference.namespace:
            told.append(f"clusterRefs: {named} has no namespace")
    return told
