"""What the fields of an object say about how its deployer or operator treats its deletion (pure).

A finalizer says who must act. These fields say what that controller will do, or why it will never act: it was told to
keep the objects, it is paused, or an earlier operation did not end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KUSTOMIZE_GROUP, _HELM_GROUP = "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io"
_ARGO_GROUP = "argoproj.io"
_ARGO_RESOURCES = "resources-finalizer.argocd.argoproj.io"
_ARGO_APPROVED = "argocd.argoproj.io/deletion-approved"
_FLEET_GROUP = "fleet.cattle.io"
_RELEASE = "meta.helm.sh/release-name"
_RELEASE_TYPE = "helm.sh/release.v1"
_EXTERNAL_DNS = "external-dns.alpha.kubernetes.io/hostname"
_CROSSPLANE_PAUSED = "crossplane.io/paused"
_MANAGED_RESOURCE = "finalizer.managedresource.crossplane.io"
_UNFINISHED = {
    "uninstalling": "an uninstall has started and not ended: a hook failed, or the program was stopped",
    "pending-install": "an install has started and not ended",
    "pending-upgrade": "an upgrade has started and not ended",
    "pending-rollback": "a rollback has started and not ended",
}


def deployer_states(group: str, obj: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences without a full stop; empty for an object that no known deployer or operator treats in a special way."""
    metadata, spec, status = (_mapping(obj.get(key)) for key in ("metadata", "spec", "status"))
    return (*_of_kind(group, str(obj.get("kind")), metadata, spec, status), *_of_annotations(obj, metadata, spec))


def _of_kind(
    group: str, kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]
) -> Iterator[str]:
    if (group, kind) == (_KUSTOMIZE_GROUP, "Kustomization"):
        yield from _kustomization(spec)
    elif (group, kind) == (_HELM_GROUP, "HelmRelease"):
        yield from _helm_release(spec)
    elif (group, kind) == (_ARGO_GROUP, "Application"):
        yield from _application(metadata, status)
    elif (group, kind) == (_FLEET_GROUP, "BundleDeployment"):
        if spec.get("paused") is True:
            yield "spec.paused is true: Fleet changes nothing on the cluster until it is false"
        if _mapping(spec.get("options")).get("keepResources") is True:
            yield (
                "spec.options.keepResources is true: Fleet leaves its objects on the cluster; to have them deleted,"
                " set it to false"
            )


def _kustomization(spec: Mapping[str, Any]) -> Iterator[str]:
    policy = spec.get("deletionPolicy") or "MirrorPrune"
    if spec.get("suspend") is True:
        yield "spec.suspend is true: Flux lets it go and leaves its objects; to have them deleted, resume it first"
    elif policy == "Orphan":
        yield (
            "spec.deletionPolicy is Orphan: Flux lets it go and leaves its objects; to have them deleted, set it to"
            " Delete"
        )
    elif policy == "MirrorPrune" and spec.get("prune") is not True:
        yield "spec.prune is false: Flux lets it go and leaves its objects; to have them deleted, set it to true"
    elif policy == "WaitForTermination":
        yield (
            "spec.deletionPolicy is WaitForTermination: Flux waits for its objects until spec.timeout, and lets it go "
            "then, whether they are gone or not"
        )
    if secret := _secret(spec):
        yield f"Flux needs Secret {secret} to reach its cluster, and retries without it"


def _helm_release(spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("suspend") is True:
        yield (
            "spec.suspend is true: Flux lets it go and leaves its Helm release; to have it uninstalled, resume it first"
        )
    if secret := _secret(spec):
        yield f"Flux needs Secret {secret} to reach its cluster; without it, Flux leaves its Helm release"


def _application(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    if not any(str(item).startswith(_ARGO_RESOURCES) for item in _list(metadata.get("finalizers"))):
        yield f"it has no finalizer {_ARGO_RESOURCES}: Argo CD leaves its resources; add it to have them deleted"
    annotations = _mapping(metadata.get("annotations"))
    waiting = [item for item in _list(status.get("resources")) if _mapping(item).get("requiresDeletionConfirmation")]
    if waiting and _ARGO_APPROVED not in annotations:
        yield f"{len(waiting)} of its resources need confirmation: set annotation {_ARGO_APPROVED} to the current time"
    if _mapping(status.get("operationState")).get("phase") == "Running":
        yield "a sync operation is running; wait until it ends"


def _of_annotations(obj: Mapping[str, Any], metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    annotations, labels = _mapping(metadata.get("annotations")), _mapping(metadata.get("labels"))
    if annotations.get("helm.sh/resource-policy") == "keep":
        yield "helm.sh/resource-policy is keep: `helm uninstall` leaves it"
    elif "helm.sh/hook" in annotations:
        yield "it is a Helm hook: `helm uninstall` leaves it, unless its helm.sh/hook-delete-policy says otherwise"
    elif release := annotations.get(_RELEASE):
        namespace = annotations.get("meta.helm.sh/release-namespace") or metadata.get("namespace") or ""
        uninstall = f"`helm uninstall {release} -n {namespace}`"
        yield f"it belongs to Helm release {namespace}/{release}: to delete it with the release, use {uninstall}"
    if obj.get("type") == _RELEASE_TYPE and (unfinished := _UNFINISHED.get(str(labels.get("status")))):
        name = labels.get("name")
        yield f"Helm release {name} is {labels.get('status')}: {unfinished}; see `helm history {name}`"
    if hostname := annotations.get(_EXTERNAL_DNS):
        yield (
            f"ExternalDNS removes the records of {hostname} after this object is gone, if its policy is sync; "
            "nothing waits for that"
        )
    if annotations.get(_CROSSPLANE_PAUSED) == "true":
        yield f"annotation {_CROSSPLANE_PAUSED} is true: Crossplane does nothing until the annotation is removed"
    if _MANAGED_RESOURCE in _list(metadata.get("finalizers")):
        policies = spec.get("managementPolicies")
        kept = isinstance(policies, list) and not {"*", "Delete"} & {str(item) for item in policies}
        if kept or spec.get("deletionPolicy") == "Orphan":
            yield "its policies do not allow Delete: Crossplane leaves the external resource"


def _secret(spec: Mapping[str, Any]) -> str:
    reference = _mapping(_mapping(spec.get("kubeConfig")).get("secretRef"))
    return str(reference.get("name") or "")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
