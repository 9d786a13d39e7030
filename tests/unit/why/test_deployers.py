from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.api.resources import Resource
from unwind.why import facts
from unwind.why.answers import Effect, Kubectl, Thing
from unwind.why.blocker_causes import cause
from unwind.why.deployer_states import deployer_states
from unwind.why.facts import ControllerWorkload, ObjectFacts, StepWait
from unwind.why.finalizers import known_controller, needs_workloads
from unwind.why.terminating_objects import hold_findings

DELETED = "2026-05-04T11:30:00Z"
KUSTOMIZATIONS = Resource("kustomize.toolkit.fluxcd.io", "v1", "kustomizations", "Kustomization")


def deployment(name: str, *, running: bool, wanted: int = 0) -> ControllerWorkload:
    ref = ObjectRef(group="apps", version="v1", kind="Deployment", namespace="ops", name=name, uid=name)
    return ControllerWorkload(object=ref, running=running, wanted=wanted)


@pytest.mark.parametrize(
    ("finalizer", "kind", "actor", "waits_for"),
    [
        ("finalizers.fluxcd.io", "Kustomization", "Flux (kustomize-controller)", "without waiting until they are gone"),
        ("finalizers.fluxcd.io", "HelmRelease", "Flux (helm-controller)", "uninstall its Helm release"),
        ("finalizers.fluxcd.io", "GitRepository", "Flux", "clean up"),
        ("unwind.dev/handle", "Kustomization", "unwind", "what it deployed to be verified absent"),
        ("fluxcd.controlplane.io/finalizer", "ResourceSet", "Flux Operator", "inventory to be deleted"),
        ("image.toolkit.fluxcd.io/x", "ImagePolicy", "Flux", "Flux to finish its cleanup"),
        ("resources-finalizer.argocd.argoproj.io", "Application", "Argo CD", "every resource of the Application"),
        ("resources-finalizer.argocd.argoproj.io/background", "Application", "Argo CD", "every resource"),
        ("resources-finalizer.argocd.argoproj.io", "AppProject", "Argo CD", "every Application of the project"),
        ("post-delete-finalizer.argocd.argoproj.io", "Application", "Argo CD", "PostDelete hooks to complete"),
        ("pre-delete-finalizer.argocd.argoproj.io/cleanup", "Application", "Argo CD", "PreDelete hooks to be deleted"),
        ("argocd.argoproj.io/hook-finalizer", "Job", "Argo CD", "the sync operation"),
        ("workflows.argoproj.io/artifact-gc", "Workflow", "Argo", "Argo to finish its cleanup"),
        (
            "helmreleaseproxy.addons.cluster.x-k8s.io",
            "HelmReleaseProxy",
            "Cluster API (add-on provider Helm)",
            "its Helm release to be uninstalled",
        ),
        ("wrangler.cattle.io/on-helm-chart-remove", "HelmChart", "the Helm controller of K3s and RKE2", "its Job"),
        ("fleet.cattle.io/bundle-finalizer", "Bundle", "Fleet", "its BundleDeployments to be deleted"),
        ("fleet.cattle.io/something-new", "Bundle", "Fleet", "Fleet to finish its cleanup"),
        ("controller.cattle.io/namespace-auth", "Namespace", "Rancher", "the roles"),
        ("wrangler.cattle.io/cluster-remove", "Cluster", "Rancher", "Rancher to finish its cleanup"),
        ("finalizer.managedresource.crossplane.io", "Bucket", "Crossplane (the provider of this kind)", "external"),
        ("composite.apiextensions.crossplane.io", "XDatabase", "Crossplane", "composed of to be deleted"),
        ("in-use.crossplane.io", "ProviderConfig", "the owners of the resources that use it", "every managed resource"),
        ("finalizer.acme.cert-manager.io", "Challenge", "cert-manager", "the ACME challenge"),
        ("acme.cert-manager.io/finalizer", "Challenge", "cert-manager", "the ACME challenge"),
        ("external-dns.alpha.kubernetes.io/x", "Service", "ExternalDNS", "ExternalDNS to finish its cleanup"),
    ],
)
def test_the_controller_of_a_deployers_finalizer_is_named_with_what_it_waits_for(
    finalizer: str, kind: str, actor: str, waits_for: str
) -> None:
    found = known_controller(finalizer, kind)
    assert found is not None
    assert found.actor == actor
    assert waits_for in found.waits_for


@pytest.mark.parametrize(
    ("group", "kind", "body", "says"),
    [
        ("kustomize.toolkit.fluxcd.io", "Kustomization", {"spec": {"suspend": True, "prune": True}}, "spec.suspend is"),
        ("kustomize.toolkit.fluxcd.io", "Kustomization", {"spec": {"prune": False}}, "spec.prune is false"),
        ("kustomize.toolkit.fluxcd.io", "Kustomization", {"spec": {"deletionPolicy": "Orphan"}}, "is Orphan: Flux"),
        (
            "kustomize.toolkit.fluxcd.io",
            "Kustomization",
            {"spec": {"prune": True, "deletionPolicy": "WaitForTermination"}},
            "whether they are gone or not",
        ),
        (
            "kustomize.toolkit.fluxcd.io",
            "Kustomization",
            {"spec": {"prune": True, "kubeConfig": {"secretRef": {"name": "east-kubeconfig"}}}},
            "retries without it",
        ),
        ("helm.toolkit.fluxcd.io", "HelmRelease", {"spec": {"suspend": True}}, "leaves its Helm release"),
        (
            "helm.toolkit.fluxcd.io",
            "HelmRelease",
            {"spec": {"kubeConfig": {"secretRef": {"name": "east-kubeconfig"}}}},
            "without it, Flux leaves its Helm release",
        ),
        ("argoproj.io", "Application", {}, "Argo CD leaves its resources"),
        (
            "argoproj.io",
            "Application",
            {
                "metadata": {"finalizers": ["resources-finalizer.argocd.argoproj.io"]},
                "status": {"resources": [{"requiresDeletionConfirmation": True}, {}]},
            },
            "1 of its resources need confirmation",
        ),
        ("fleet.cattle.io", "BundleDeployment", {"spec": {"paused": True}}, "Fleet changes nothing"),
        ("", "Secret", {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}, "leaves it"),
        ("batch", "Job", {"metadata": {"annotations": {"helm.sh/hook": "pre-install"}}}, "it is a Helm hook"),
        (
            "",
            "ConfigMap",
            {"metadata": {"namespace": "shop", "annotations": {"meta.helm.sh/release-name": "db"}}},
            "it belongs to Helm release shop/db: to delete it with the release, use `helm uninstall db -n shop`",
        ),
        (
            "",
            "Secret",
            {"type": "helm.sh/release.v1", "metadata": {"labels": {"name": "db", "status": "uninstalling"}}},
            "Helm release db is uninstalling: an uninstall has started and not ended",
        ),
        (
            "",
            "Service",
            {"metadata": {"annotations": {"external-dns.alpha.kubernetes.io/hostname": "shop.example.com"}}},
            "ExternalDNS removes the records of shop.example.com after this object is gone",
        ),
        (
            "s3.example.org",
            "Bucket",
            {"metadata": {"annotations": {"crossplane.io/paused": "true"}}},
            "Crossplane does nothing until the annotation is removed",
        ),
        (
            "s3.example.org",
            "Bucket",
            {
                "metadata": {"finalizers": ["finalizer.managedresource.crossplane.io"]},
                "spec": {"managementPolicies": ["Observe"]},
            },
            "Crossplane leaves the external resource",
        ),
    ],
)
def test_the_state_that_decides_what_a_deployer_does_is_told(
    group: str, kind: str, body: dict[str, Any], says: str
) -> None:
    assert any(says in state for state in deployer_states(group, {"kind": kind, **body}))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "Kustomization", "spec": {"suspend": True}},  # of Kustomize itself: another group
        {"kind": "ConfigMap", "metadata": {"annotations": {"helm.sh/resource-policy": "maybe"}}, "spec": "text"},
        {"kind": "Secret", "type": "helm.sh/release.v1", "metadata": {"labels": {"status": "deployed"}}},
    ],
)
def test_an_object_without_such_a_state_tells_nothing(body: dict[str, Any]) -> None:
    assert deployer_states("", body) == ()


def test_a_known_controller_that_does_not_run_is_named_and_can_be_started() -> None:
    metadata = {
        "name": "apps",
        "namespace": "flux-system",
        "uid": "u-1",
        "finalizers": ["finalizers.fluxcd.io"],
        "deletionTimestamp": DELETED,
    }
    obj = {"kind": "Kustomization", "metadata": metadata, "spec": {"prune": False}}
    look = facts.facts_of(Thing(resource=KUSTOMIZATIONS, name="apps"), obj)
    look = msgspec.structs.replace(look, workloads=(deployment("kustomize-controller", running=False),))
    assert look.seen.deleted_at
    [found] = hold_findings(look, Kubectl(), now=look.seen.deleted_at)
    assert found.reason == Reason.FINALIZER_NOT_SERVED
    assert "Deployment ops/kustomize-controller is not running" in found.message
    assert "spec.prune is false" in found.message
    assert found.actor == "the owner of Deployment ops/kustomize-controller"
    assert [remedy.effect for remedy in found.remedies] == [Effect.SAFE, Effect.LEAVES]


def test_a_removal_says_that_the_controller_of_a_deployer_does_not_run() -> None:
    assert needs_workloads("finalizers.fluxcd.io", "HelmRelease")
    assert not needs_workloads("kubernetes.io/pvc-protection")
    ref = ObjectRef(group="helm.toolkit.fluxcd.io", version="v2", kind="HelmRelease", namespace="a", name="b", uid="u")
    seen = ObjectFacts(deleted_at=msgspec.convert(DELETED, datetime), finalizers=("finalizers.fluxcd.io",))
    found = cause(StepWait(object=ref, message="m"), seen, [deployment("helm-controller", running=False)])
    assert found.reason == Reason.FINALIZER_NOT_SERVED
    assert "Deployment ops/helm-controller is not running" in found.message
    assert cause(StepWait(object=ref, message="m"), seen, [deployment("helm-controller", running=True)]).actor == (
        "Flux (helm-controller)"
    )
