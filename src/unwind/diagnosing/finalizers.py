"""Whose a finalizer is, and what it waits for."""

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

    from unwind.diagnosing.facts import Workload

NAMESPACE_FINALIZER = "kubernetes"
"""In a Namespace's spec, not in its metadata."""


class Duty(msgspec.Struct, frozen=True):
    """Who takes a finalizer off, and when."""

    actor: str
    """Who must act."""
    waits_for: str
    """What has to happen first, as a part of a sentence."""
    reason: Reason = Reason.FINALIZER


_GARBAGE_COLLECTOR = "Kubernetes (its garbage collector)"
_CSI = "the CSI driver of the volume"
_KNOWN: dict[str, Duty] = {
    "foregroundDeletion": Duty(_GARBAGE_COLLECTOR, "what it owns goes first", Reason.OWNS_OTHERS),
    "orphan": Duty(_GARBAGE_COLLECTOR, "what it owns is let go first", Reason.OWNS_OTHERS),
    "kubernetes.io/pvc-protection": Duty(
        "whoever runs the Pods that use it", "a Pod still uses the claim", Reason.IN_USE
    ),
    "kubernetes.io/pv-protection": Duty(
        "whoever has the claim to it", "a claim is still bound to the volume", Reason.IN_USE
    ),
    "service.kubernetes.io/load-balancer-cleanup": Duty(
        "the cloud controller manager of the cluster", "the cloud takes its load balancer down"
    ),
    "external-provisioner.volume.kubernetes.io/finalizer": Duty(_CSI, "the volume behind it is deleted"),
    "batch.kubernetes.io/job-tracking": Duty("Kubernetes (its Job controller)", "the Pod's end is counted"),
    "customresourcecleanup.apiextensions.k8s.io": Duty(
        "Kubernetes (the API server)", "its custom resources go first", Reason.HOLDS_OTHERS
    ),
    NAMESPACE_FINALIZER: Duty(
        "Kubernetes (its namespace controller)", "everything in it goes first", Reason.HOLDS_OTHERS
    ),
    Finalizer.PROFILE: Duty("unwind", "its add-ons are withdrawn"),
    Finalizer.SUMMARY: Duty("unwind", "what it put on its cluster is removed or released"),
    Finalizer.INVENTORY: Duty("unwind", "what it is the account of is gone"),
    Finalizer.CREDENTIALS: Duty("unwind", "the member is not needed any more"),
    Finalizer.MEMBER: Duty("unwind", "its Works are done with"),
    Finalizer.WORK: Duty("unwind", "its objects are gone, or released"),
    Finalizer.EXTERNAL: Duty("unwind", "what it stands for is gone"),
    SVELTOS_CLUSTER_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons are withdrawn"),
    SVELTOS_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons are withdrawn"),
    SVELTOS_SUMMARY_FINALIZER: Duty("Sveltos", "what it put on its cluster is removed"),
    KARMADA_CLUSTER_FINALIZER: Duty("Karmada", "its Works are done with"),
    KARMADA_WORK_FINALIZER: Duty("Karmada", "its objects are deleted"),
    AZURE_FINALIZER: Duty("Azure Service Operator", "what it stands for is gone"),
}
# Of these, whatever comes before: the whole domain is theirs.
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
# They say nothing about whose it is.
_COMMON = frozenset(["finalizer", "finalizers", "operator", "controller", "resources", "cluster", "manager", "unknown"])
# Tools that people and scripts write with: whoever used them does not look after what they wrote.
_ANYBODY = ("kubectl", "helm", "unwind", "curl", "python", "OpenAPI-Generator", "Go-http-client", "Mozilla", "k9s")


def domain(finalizer: str) -> str:
    """The domain that a finalizer carries, by which it is told apart from others'."""
    return finalizer.partition("/")[0]


def served(finalizer: str) -> Duty | None:
    """Who takes a finalizer off, if that is known."""
    if known := _KNOWN.get(finalizer):
        return known
    if finalizer.startswith(_DRIVERS):
        return Duty(_CSI, "it is done with the volume")
    it = domain(finalizer)
    for whose, actor in _DOMAINS.items():
        if it == whose or it.endswith(f".{whose}"):
            return Duty(actor, "it is done with it")
    return None


def serving(finalizer: str, workloads: Iterable[Workload], writers: Iterable[str] = ()) -> Workload | None:
    """The workload that serves a finalizer that is not known, as far as names tell; one that runs, if several may.

    `writers`: the programs that put it there, by the names that they have for the API server.
    """
    it = domain(finalizer)
    written = [one for one in writers if one and not one.startswith(_ANYBODY) and one not in _COMMON]
    fitting = [one for one in workloads if _fits(one, it) or _called(one, written)]
    return next((one for one in fitting if one.running), fitting[0] if fitting else None)


def _fits(workload: Workload, it: str) -> bool:
    if any(it == one or it.endswith(f".{one}") or one.endswith(f".{it}") for one in workload.domains):
        return True
    # `acme.cert-manager.io` is of the Deployment cert-manager, and `example.dev` of example-operator.
    name = workload.object.name
    labels = [label for label in it.split(".")[:-1] if len(label) > 3 and label not in _COMMON]
    return any(name == label or name.startswith(f"{label}-") for label in labels)


def _called(workload: Workload, programs: Iterable[str]) -> bool:
    """Whether a workload is that of one of these programs: they mostly have its name, or the beginning of it."""
    name = workload.object.name
    return any(name == one or name.startswith(f"{one}-") for one in programs)
