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
    programs: tuple[str, ...] = ()
    """The usual names of the workload that serves it, if it runs in the cluster like any other workload."""


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
    Finalizer.HANDLE: Duty(
        "unwind", "what it deployed to be verified absent, or its Cluster to be gone if a parent would create it again"
    ),
    Finalizer.COPIED_KUBECONFIG: Duty("unwind", "the handles that use this kubeconfig to be released"),
    Finalizer.TEARDOWN: Duty("unwind", "the deletion to stop, and what was stopped for it to be restored"),
    SVELTOS_CLUSTER_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons to be withdrawn"),
    SVELTOS_PROFILE_FINALIZER: Duty("Sveltos", "its add-ons to be withdrawn"),
    SVELTOS_SUMMARY_FINALIZER: Duty("Sveltos", "its objects on the cluster to be removed"),
    KARMADA_CLUSTER_FINALIZER: Duty("Karmada", "its Works to be removed"),
    KARMADA_WORK_FINALIZER: Duty("Karmada", "its objects on the member to be deleted"),
    AZURE_FINALIZER: Duty("Azure Service Operator", "the Azure resource to be deleted"),
}
_KUSTOMIZE, _FLUX_HELM = ("kustomize-controller",), ("helm-controller",)
_ARGO = ("argocd-application-controller",)
_FLEET = ("fleet-controller",)
_CROSSPLANE = ("crossplane",)
_CERT_MANAGER = ("cert-manager",)
_FLUX_FINALIZER = "finalizers.fluxcd.io"
_ARGO_RESOURCES = "resources-finalizer.argocd.argoproj.io"
# Deployers that people run beside Unwind, and the systems that most often hold an object. Flux has one finalizer for
# all of its kinds.
_BY_KIND: dict[tuple[str, str], Duty] = {
    (_FLUX_FINALIZER, "Kustomization"): Duty(
        "Flux (kustomize-controller)",
        "kustomize-controller to delete the objects in its inventory, without waiting until they are gone",
        programs=_KUSTOMIZE,
    ),
    (_FLUX_FINALIZER, "HelmRelease"): Duty(
        "Flux (helm-controller)", "helm-controller to uninstall its Helm release", programs=_FLUX_HELM
    ),
    (_ARGO_RESOURCES, "AppProject"): Duty(
        "Argo CD", "every Application of the project to be deleted", Reason.IN_USE, programs=_ARGO
    ),
}
_OF_DEPLOYERS: dict[str, Duty] = {
    _FLUX_FINALIZER: Duty("Flux", "Flux to clean up what it keeps for this object"),
    "fluxcd.controlplane.io/finalizer": Duty(
        "Flux Operator", "the objects in its inventory to be deleted", programs=("flux-operator",)
    ),
    **{
        f"{_ARGO_RESOURCES}{how}": Duty("Argo CD", "every resource of the Application to be gone", programs=_ARGO)
        for how in ("", "/foreground", "/background")
    },
    **{
        f"{when}-delete-finalizer.argocd.argoproj.io{what}": Duty(
            "Argo CD",
            f"the {when.capitalize()}Delete hooks to {'be deleted' if what else 'complete'}",
            programs=_ARGO,
        )
        for when in ("pre", "post")
        for what in ("", "/cleanup")
    },
    "argocd.argoproj.io/hook-finalizer": Duty(
        "Argo CD", "the sync operation that this hook belongs to, to complete or to be terminated", programs=_ARGO
    ),
    "helmreleaseproxy.addons.cluster.x-k8s.io": Duty(
        "Cluster API (add-on provider Helm)", "its Helm release to be uninstalled from the cluster"
    ),
    "helmchartproxy.addons.cluster.x-k8s.io": Duty(
        "Cluster API (add-on provider Helm)", "its HelmReleaseProxies to be deleted"
    ),
    "wrangler.cattle.io/on-helm-chart-remove": Duty(
        "the Helm controller of K3s and RKE2", "its Job to uninstall the chart", programs=("helm-controller",)
    ),
    "fleet.cattle.io/bundle-finalizer": Duty("Fleet", "its BundleDeployments to be deleted", programs=_FLEET),
    "fleet.cattle.io/bundle-deployment-finalizer": Duty(
        "Fleet", "Fleet to let it go; the agent on the cluster uninstalls the release after that", programs=_FLEET
    ),
    "fleet.cattle.io/gitrepo-finalizer": Duty(
        "Fleet", "its Bundles to be deleted", programs=("gitjob", "fleet-controller")
    ),
    "fleet.cattle.io/helmop-finalizer": Duty("Fleet", "its Bundle to be deleted", programs=("helmops", *_FLEET)),
    "fleet.cattle.io/cluster-finalizer": Duty(
        "Fleet", "the BundleDeployments of the cluster to be deleted", programs=_FLEET
    ),
    "controller.cattle.io/namespace-auth": Duty(
        "Rancher", "Rancher to remove the roles that it manages for this namespace", programs=("rancher",)
    ),
    "finalizer.managedresource.crossplane.io": Duty(
        "Crossplane (the provider of this kind)", "the external resource to be deleted"
    ),
    "composite.apiextensions.crossplane.io": Duty(
        "Crossplane", "the resources that it is composed of to be deleted", programs=_CROSSPLANE
    ),
    "finalizer.apiextensions.crossplane.io": Duty(
        "Crossplane", "the composite resource of this claim to be deleted", programs=_CROSSPLANE
    ),
    "defined.apiextensions.crossplane.io": Duty(
        "Crossplane", "every composite resource of this kind to be deleted", Reason.IN_USE, programs=_CROSSPLANE
    ),
    "offered.apiextensions.crossplane.io": Duty(
        "Crossplane", "every claim of this kind to be deleted", Reason.IN_USE, programs=_CROSSPLANE
    ),
    "usage.apiextensions.crossplane.io": Duty(
        "Crossplane", "the resource that uses the other one to be deleted", Reason.IN_USE, programs=_CROSSPLANE
    ),
    "in-use.crossplane.io": Duty(
        "the owners of the resources that use it",
        "every managed resource that uses this ProviderConfig to be deleted",
        Reason.IN_USE,
    ),
    **{
        name: Duty("cert-manager", "the ACME challenge to be cleaned up at its solver", programs=_CERT_MANAGER)
        for name in ("finalizer.acme.cert-manager.io", "acme.cert-manager.io/finalizer")
    },
}
# Every finalizer in these domains and their subdomains belongs to the named system. The specific domain comes first.
_DOMAINS = {
    "fluxcd.io": "Flux",
    "fluxcd.controlplane.io": "Flux Operator",
    "argocd.argoproj.io": "Argo CD",
    "argoproj.io": "Argo",
    "fleet.cattle.io": "Fleet",
    "cattle.io": "Rancher",
    "crossplane.io": "Crossplane",
    "upbound.io": "Crossplane",
    "cert-manager.io": "cert-manager",
    # ExternalDNS itself sets no finalizer. This is the domain of its annotations.
    "external-dns.alpha.kubernetes.io": "ExternalDNS",
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


def known_controller(finalizer: str, kind: str = "") -> Duty | None:
    """The controller that removes a finalizer from an object of this kind, if it is a known one."""
    if known := _KNOWN.get(finalizer) or _BY_KIND.get((finalizer, kind)) or _OF_DEPLOYERS.get(finalizer):
        return known
    if finalizer.startswith(_DRIVERS):
        return Duty(_CSI, "the driver to finish with the volume")
    it = domain(finalizer)
    for whose, actor in _DOMAINS.items():
        if it == whose or it.endswith(f".{whose}"):
            return Duty(actor, f"{actor} to finish its cleanup")
    return None


def own_workload(duty: Duty, workloads: Iterable[ControllerWorkload]) -> ControllerWorkload | None:
    """The workload of a known controller; a running one if several match, None if there is none."""
    fitting = [workload for workload in workloads if _called(workload, duty.programs)]
    return next((item for item in fitting if item.running), fitting[0] if fitting else None)


def needs_workloads(finalizer: str, kind: str = "") -> bool:
    """Whether only the workloads of the cluster tell if the controller of a finalizer runs."""
    known = known_controller(finalizer, kind)
    return known is None or bool(known.programs)


def found_workload(finalizer: str, kind: str, workloads: Iterable[ControllerWorkload]) -> ControllerWorkload | None:
    """The workload behind a finalizer, known or inferred by its name."""
    known = known_controller(finalizer, kind)
    return own_workload(known, workloads) if known else serving(finalizer, workloads)


def serving(
    finalizer: str, workloads: Iterable[ControllerWorkload], writers: Iterable[str] = ()
) -> ControllerWorkload | None:
    """The workload that seems to be the controller of an unknown finalizer, by its name; a running one if several
    match.

    `writers`: the field managers that set the finalizer.
    """
    fitting = all_serving(finalizer, workloads, writers)
    return next((item for item in fitting if item.running), fitting[0] if fitting else None)


def all_serving(
    finalizer: str, workloads: Iterable[ControllerWorkload], writers: Iterable[str] = ()
) -> list[ControllerWorkload]:
    """All workloads that may be the controller of an unknown finalizer, by their names. `writers`: see `serving`."""
    it = domain(finalizer)
    written = [writer for writer in writers if writer and not writer.startswith(_ANYBODY) and writer not in _COMMON]
    return [workload for workload in workloads if _fits(workload, it) or _called(workload, written)]


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
