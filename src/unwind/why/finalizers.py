"""Maps finalizers to the controllers that remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import (
    AZURE_FINALIZER,
    KARMADA_CLUSTER_FINALIZER,
    KARMADA_WORK_FINALIZER,
    SVELTOS_CLUSTER_PROFILE_FINALIZER,
    SVELTOS_PROFILE_FINALIZER,
    SVELTOS_SUMMARY_FINALIZER,
    Finalizer,
    Reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.why.facts import ControllerWorkload

NAMESPACE_FINALIZER = "kubernetes"
"""In a Namespace's spec, not in its metadata."""


class Duty(msgspec.Struct, frozen=True):
    """The controller that removes a finalizer, and when."""

    actor: str
    """Who must act."""
    waits_for: str
    """What has to happen first, as the rest of "waiting for …"."""
    reason: Reason = Reason.FINALIZER


_GARBAGE_COLLECTOR = "Kubernetes (garbage collector)"
_CSI = "the CSI driver of the volume"
_KNOWN: dict[str, Duty] = {
    "foregroundDeletion": Duty(_GARBAGE_COLLECTOR, "its dependents to be deleted", Reason.OWNS_OTHERS),
    "orphan": Duty(_GARBAGE_COLLECTOR, "its dependents to be orphaned", Reason.OWNS_OTHERS),
    "kubernetes.io/pvc-protection": Duty(
        "the owner of the Pods that use it", "Pods to stop using the claim", Reason.IN_USE
    ),
    "kubernetes.io/pv-protection": Duty(
        "the owner of its PersistentVolumeClaim", "its PersistentVolumeClaim to be deleted", Reason.IN_USE
    ),
    "service.kubernetes.io/load-balancer-cleanup": Duty(
        "the cloud controller manager of the cluster", "the cloud load balancer to be deleted"
    ),
    "external-provisioner.volume.kubernetes.io/finalizer": Duty(_CSI, "the storage volume to be deleted"),
    "batch.kubernetes.io/job-tracking": Duty("Kubernetes (Job controller)", "the Job to count the Pod as finished"),
    "customresourcecleanup.apiextensions.k8s.io": Duty(
        "Kubernetes (API server)", "its custom resources to be deleted", Reason.HOLDS_OTHERS
    ),
    NAMESPACE_FINALIZER: Duty("Kubernetes (namespace controller)", "its contents to be deleted", Reason.HOLDS_OTHERS),
    Finalizer.PROFILE: Duty("unwind", "its add-ons to be withdrawn"),
    Finalizer.SUMMARY: Duty("unwind", "its objects on the cluster to be removed or released"),
    Finalizer.INVENTORY: Duty("unwind", "the objects that it lists to be removed or released"),
    Finalizer.CREDENTIALS: Duty("unwind", "the removal that needs these credentials to finish"),
    Finalizer.MEMBER: Duty("unwind", "its Works to be removed or released"),
    Finalizer.WORK: Duty("unwind", "its objects on the member to be removed or released"),
    Finalizer.EXTERNAL: Duty("unwind", "the external resource to be deleted"),
    Finalizer.TEARDOWN: Duty("unwind", "the deletion to stop, and what was stopped for it to be restored"),
    SVELTOS_CLUSTER_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons to be withdrawn"),
    SVELTOS_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons to be withdrawn"),
    SVELTOS_SUMMARY_FINALIZER: Duty("Sveltos", "its objects on the cluster to be removed"),
    KARMADA_CLUSTER_FINALIZER: Duty("Karmada", "its Works to be removed"),
    KARMADA_WORK_FINALIZER: Duty("Karmada", "its objects on the member to be deleted"),
    AZURE_FINALIZER: Duty("Azure Service Operator", "the Azure resource to be deleted"),
}
# Every finalizer in these domains and their subdomains belongs to the named system.
_DOMAINS = {
    "unwind.dev": "unwind",
    "projectsveltos.io": "Sveltos",
    "karmada.io": "Karmada",
    "cluster.x-k8s.io": "Cluster API",
    "azure.com": "Azure Service Operator",
    "kubernetes.io": "Kubernetes",
    "k8s.io": "Kubernetes",
}
_DRIVERS = ("external-attacher/", "snapshot.storage.kubernetes.io/")
# Generic words: they do not identify a controller.
_COMMON = frozenset(["finalizer", "finalizers", "operator", "controller", "resources", "cluster", "manager", "unknown"])
# Tools of users and scripts: a tool that wrote a finalizer is not its controller.
_ANYBODY = ("kubectl", "helm", "unwind", "curl", "python", "OpenAPI-Generator", "Go-http-client", "Mozilla", "k9s")


def domain(finalizer: str) -> str:
    """The domain of a finalizer, which identifies its controller."""
    return finalizer.partition("/")[0]


def served(finalizer: str) -> Duty | None:
    """The controller that removes a finalizer, if it is a known one."""
    if known := _KNOWN.get(finalizer):
        return known
    if finalizer.startswith(_DRIVERS):
        return Duty(_CSI, "the driver to finish with the volume")
    it = domain(finalizer)
    for whose, actor in _DOMAINS.items():
        if it == whose or it.endswith(f".{whose}"):
            return Duty(actor, f"{actor} to finish its cleanup")
    return None


def serving(
    finalizer: str, workloads: Iterable[ControllerWorkload], writers: Iterable[str] = ()
) -> ControllerWorkload | None:
    """The workload that seems to be the controller of an unknown finalizer, by its name; a running one if several
    match.

    `writers`: the field managers that set the finalizer.
    """
    it = domain(finalizer)
    written = [writer for writer in writers if writer and not writer.startswith(_ANYBODY) and writer not in _COMMON]
    fitting = [workload for workload in workloads if _fits(workload, it) or _called(workload, written)]
    return next((item for item in fitting if item.running), fitting[0] if fitting else None)


def _fits(workload: ControllerWorkload, it: str) -> bool:
    if any(it == item or it.endswith(f".{item}") or item.endswith(f".{it}") for item in workload.domains):
        return True
    # `acme.cert-manager.io` belongs to the Deployment cert-manager, and `example.dev` to example-operator.
    name = workload.object.name
    labels = [label for label in it.split(".")[:-1] if len(label) > 3 and label not in _COMMON]
    return any(name == label or name.startswith(f"{label}-") for label in labels)


def _called(workload: ControllerWorkload, programs: Iterable[str]) -> bool:
    """Whether a workload belongs to one of these programs: its name is usually the program's name, or starts with
    it."""
    name = workload.object.name
    return any(name == program or name.startswith(f"{program}-") for program in programs)
