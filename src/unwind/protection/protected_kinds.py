"""The kinds that can be protected, and what depends on an object of each kind (pure)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, Resource
from unwind.protection.cascading_counts import (
    CLAIM_BOUND,
    CRON_JOB_ACTIVE,
    JOB_ACTIVE,
    MATCHING_CLUSTERS,
    REPLICAS,
    SCHEDULED_PODS,
    VOLUME_BOUND,
    Count,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Rest(Enum):
    """What else in the cluster depends on an object."""

    CONTENTS = auto()
    """Of a namespace: active Pods and bound PersistentVolumeClaims."""
    RESOURCES = auto()
    """Of a CRD: its custom resources."""


class Controlled(Enum):
    """What the label means on an object that has a controller (an owner with `controller: true`).

    Such an object often has its labels from a template, and its controller must be able to replace it.
    """

    PROTECTED = auto()
    """The same as on any other object."""
    FREE_FOR_CONTROLLERS = auto()
    """The controllers of Kubernetes may delete it: rollouts delete old ReplicaSets, CronJobs delete old Jobs."""
    FREE = auto()
    """Nothing: which controllers delete objects of the kind is not known."""


class ProtectedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind whose objects can be protected."""

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    namespaced: bool = True
    count: Count | None = None
    """What `Cascading` counts, if the object itself has the number."""
    rest: Rest | None = None
    """What `Cascading` counts elsewhere in the cluster. The webhook is called for such an object even without a
    label."""
    cascading: bool = True
    """Whether Cascading applies to the kind. If not, it is an unknown value, which protects."""
    controlled: Controlled = Controlled.PROTECTED
    exempt: bool = False
    """Whether the label does not protect its objects at all."""

    @property
    def built_in(self) -> bool:
        """Whether it is a built-in kind; otherwise a CRD defines it."""
        return self.group in _BUILT_IN

    def served(self, version: str) -> Resource:
        """The kind in one of its versions."""
        return Resource(self.group, version, self.plural, self.kind, namespaced=self.namespaced)

    @property
    def resource(self) -> str:
        """The resource name for kubectl: deployments.apps."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_BUILT_IN = frozenset(
    {
        "",
        "apps",
        "autoscaling",
        "batch",
        "policy",
        *(
            f"{item}.k8s.io"
            for item in (
                "admissionregistration",
                "apiextensions",
                "apiregistration",
                "certificates",
                "coordination",
                "discovery",
                "events",
                "flowcontrol.apiserver",
                "networking",
                "node",
                "rbac.authorization",
                "resource",
                "scheduling",
                "storage",
            )
        ),
    }
)
_KRUISE = "apps.kruise.io"

NAMESPACE = ProtectedKind(
    group="", plural="namespaces", kind="Namespace", versions=("v1",), namespaced=False, rest=Rest.CONTENTS
)
DEFINITION = ProtectedKind(
    group="apiextensions.k8s.io",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    versions=("v1", "v1beta1"),
    namespaced=False,
    rest=Rest.RESOURCES,
)
KINDS: tuple[ProtectedKind, ...] = (
    NAMESPACE,
    DEFINITION,
    ProtectedKind(group="apps", plural="deployments", kind="Deployment", versions=("v1",), count=REPLICAS),
    ProtectedKind(group="apps", plural="statefulsets", kind="StatefulSet", versions=("v1",), count=REPLICAS),
    ProtectedKind(
        group="apps",
        plural="replicasets",
        kind="ReplicaSet",
        versions=("v1",),
        count=REPLICAS,
        controlled=Controlled.FREE_FOR_CONTROLLERS,
    ),
    ProtectedKind(group=_KRUISE, plural="clonesets", kind="CloneSet", versions=("v1alpha1",), count=REPLICAS),
    ProtectedKind(
        group=_KRUISE, plural="statefulsets", kind="StatefulSet", versions=("v1alpha1", "v1beta1"), count=REPLICAS
    ),
    ProtectedKind(
        group=_KRUISE, plural="uniteddeployments", kind="UnitedDeployment", versions=("v1alpha1",), count=REPLICAS
    ),
    # On these kinds Cascading does not protect, as in Kruise: nothing is deleted with them.
    ProtectedKind(group="", plural="services", kind="Service", versions=("v1",)),
    ProtectedKind(group="networking.k8s.io", plural="ingresses", kind="Ingress", versions=("v1",)),
    ProtectedKind(group="", plural="secrets", kind="Secret", versions=("v1",)),
    ProtectedKind(group="", plural="configmaps", kind="ConfigMap", versions=("v1",)),
    ProtectedKind(group="apps", plural="daemonsets", kind="DaemonSet", versions=("v1",), count=SCHEDULED_PODS),
    ProtectedKind(
        group="batch",
        plural="jobs",
        kind="Job",
        versions=("v1",),
        count=JOB_ACTIVE,
        controlled=Controlled.FREE_FOR_CONTROLLERS,
    ),
    ProtectedKind(group="batch", plural="cronjobs", kind="CronJob", versions=("v1",), count=CRON_JOB_ACTIVE),
    ProtectedKind(
        group="", plural="persistentvolumeclaims", kind="PersistentVolumeClaim", versions=("v1",), count=CLAIM_BOUND
    ),
    ProtectedKind(
        group="",
        plural="persistentvolumes",
        kind="PersistentVolume",
        versions=("v1",),
        namespaced=False,
        count=VOLUME_BOUND,
    ),
    # Dependents of a whole cluster cannot be counted from here: only Always applies.
    ProtectedKind(
        group=capi.CLUSTERS.group,
        plural="clusters",
        kind="Cluster",
        versions=("v1beta1", "v1beta2"),
        cascading=False,
    ),
    ProtectedKind(
        group=karmada.CLUSTERS.group,
        plural="clusters",
        kind="Cluster",
        versions=("v1alpha1",),
        namespaced=False,
        cascading=False,
    ),
    ProtectedKind(
        group=sveltos.CONFIG_GROUP,
        plural="clusterprofiles",
        kind="ClusterProfile",
        versions=("v1beta1",),
        namespaced=False,
        count=MATCHING_CLUSTERS,
    ),
)
"""OpenKruise's kinds, and those with countable dependents. Each has its own policy; all other kinds share one, for
`Always`."""

EXEMPT: tuple[ProtectedKind, ...] = tuple(
    ProtectedKind(group=group, plural=plural, kind=kind, versions=("v1",), exempt=True)
    for group, plural, kind in (
        ("discovery.k8s.io", "endpointslices", "EndpointSlice"),
        ("", "endpoints", "Endpoints"),
        ("", "events", "Event"),
        ("events.k8s.io", "events", "Event"),
        ("coordination.k8s.io", "leases", "Lease"),
    )
)
"""Kinds that controllers write and delete all the time. EndpointSlices and Endpoints copy the labels of their Service:
if they could not be deleted, a protected Service could not be scaled down."""

_BY_NAME = {(kind.group, kind.kind): kind for kind in (*KINDS, *EXEMPT)}


def kind_of(group: str, kind: str) -> ProtectedKind | None:
    """The kind, if it is one of the above."""
    return _BY_NAME.get((group, kind))


def of_any(group: str, kind: str, *, plural: str, version: str, namespaced: bool = True) -> ProtectedKind:
    """Any kind: `Always` protects its objects, unless they have a controller."""
    return kind_of(group, kind) or ProtectedKind(
        group=group,
        plural=plural,
        kind=kind,
        versions=(version,),
        namespaced=namespaced,
        controlled=Controlled.FREE,
    )


# What the label on an object does not protect against (pure)

_ADMISSION = VALIDATING_ADMISSION_POLICIES.group


def not_against(kind: ProtectedKind, word: DeleteProtection, *, owners: Iterable[str] = ()) -> Iterator[str]:
    """One sentence each. `owners`: the owners of the object, as kind and name."""
    yield (
        f"users with RBAC permission to update or patch it: they can remove the label {DELETE_PROTECTION_LABEL}"
        " and then delete it"
    )
    if word is DeleteProtection.CASCADING:
        yield f"its deletion as soon as {_nothing_left(kind)}"
    for owner in owners:
        if kind.controlled is Controlled.FREE_FOR_CONTROLLERS:
            yield f"the deletion of {owner}, which owns it: Kubernetes' controllers may delete it, also in a rollout"
            continue
        yield (
            f"the deletion of {owner}, which owns it: with foreground deletion the owner waits for this object until"
            " the label is removed, with background deletion the owner goes and this object stays"
        )
    if kind.namespaced:
        yield (
            "the deletion of its namespace while no manager runs: all other objects in it are deleted, and the"
            " namespace stays Terminating because of this object. While a manager runs, the deletion is refused"
        )
    if not kind.built_in:
        yield (
            f"the deletion of the CRD {kind.plural}.{kind.group} while no manager runs: the API server deletes this"
            " object without admission. While a manager runs, the deletion is refused"
        )
    if (kind.group, kind.kind) == ("", "Pod"):
        yield "evictions: `kubectl drain` and the kubelet remove a Pod without a DELETE"
    match kind.rest:
        case Rest.CONTENTS:
            yield "the deletion of single objects in it: label them as well"
        case Rest.RESOURCES:
            yield "the deletion of single resources of it: label them as well"
        case None:
            yield f"changes: {_changes(kind)}"


def unprotectable(kind: ProtectedKind, *, controller: str = "") -> tuple[str, str] | None:
    """Why the label would not protect an object, and what to do instead; None if it would. `controller`: its
    controller, as kind and name."""
    if kind.group == _ADMISSION:
        return (
            f"the API server does not call admission policies for {kind.kind}",
            "restrict its deletion with RBAC",
        )
    if kind.exempt:
        return (
            f"a {kind.kind} cannot be protected: controllers write and delete it all the time",
            "protect the object that it belongs to",
        )
    if controller and kind.controlled is Controlled.FREE:
        return f"{controller} is its controller and must be able to delete it", f"protect {controller} instead"
    return None


def disk_warning(volume: Mapping[str, Any]) -> str:
    """The warning for a protected PersistentVolume; empty if there is none."""
    spec, status = volume.get("spec") or {}, volume.get("status") or {}
    claim = spec.get("claimRef") or {}
    if spec.get("persistentVolumeReclaimPolicy") != "Delete" or status.get("phase") != "Bound":
        return ""
    where, name = claim.get("namespace", ""), claim.get("name", "")
    return (
        f"deleting PersistentVolumeClaim {where}/{name} deletes the disk of this PersistentVolume, because its reclaim"
        f" policy is Delete: protect the claim as well (`unwind protect pvc/{name} -n {where}`), or set"
        " persistentVolumeReclaimPolicy: Retain"
    )


def _nothing_left(kind: ProtectedKind) -> str:
    match kind.rest:
        case Rest.CONTENTS:
            return "it has no active Pods and no bound PersistentVolumeClaims"
        case Rest.RESOURCES:
            return "it has no custom resources"
    return f"it has no {kind.count.what}" if kind.count else "requested"


def _changes(kind: ProtectedKind) -> str:
    if kind.count and kind.count.what == "replicas":
        return "it can be scaled to zero, and its Pods can be deleted one by one"
    return "users with write permission can change it"
