"""Rules for Helm releases on a member: what the cluster itself needs, what Helm keeps, hooks, order, revisions (pure).

Who drives a release: `helm_release_drivers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import (
    DEPENDS_ON_ANNOTATION,
    HELM_NAMESPACE_ANNOTATION,
    HELM_RELEASE_ANNOTATION,
    MANAGED_BY_HELM,
    MANAGED_BY_LABEL,
)
from unwind.api.resources import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.helm.release_secrets import ChartManifest, HelmRelease
    from unwind.kube.decoding import Metadata

KUBE_SYSTEM = "kube-system"
_SECRET_PREFIX = "sh.helm.release.v1."  # noqa: S105 - the prefix of a name

# Why Helm does not delete an object.
STAYS = "it is left in place, delete it if it is not needed"
KEPT_BY_POLICY = "Helm keeps it: annotation helm.sh/resource-policy"
KEPT_CRD = "Helm keeps it: a CRD of the chart's crds directory"
KEPT_HOOK = "Helm keeps it: a hook is not part of the release"
KEPT_NAMESPACE = "Helm keeps it: the namespace that it created for the release"


# What the cluster itself needs

# CNI plugins that an operator installs, so that the chart does not contain their DaemonSet.
_CNI_CHARTS = frozenset(
    ["antrea", "calico", "canal", "cilium", "flannel", "kube-ovn", "kube-router", "tigera-operator", "weave-net"]
)
_CNI_PATHS = ("/etc/cni/net.d", "/opt/cni/bin")
_CSI_PATHS = ("/var/lib/kubelet/plugins_registry",)
_CCM = "cloud-controller-manager"


def cluster_role(namespace: str, release: HelmRelease, documents: Iterable[Mapping[str, Any]]) -> str:
    """Why the other workloads of the cluster may need a release; empty if they do not.

    Without its network, storage or cloud controller, nothing else on the cluster can be removed properly.
    """
    if namespace == KUBE_SYSTEM:
        return f"it is in namespace {KUBE_SYSTEM}"
    chart = release.chart.metadata.name
    if chart in _CNI_CHARTS:
        return f"chart {chart} installs the network of the cluster (CNI)"
    if _CCM in chart:
        return f"chart {chart} installs the cloud controller manager"
    for document in documents:
        kind, name = str(document.get("kind", "")), str((document.get("metadata") or {}).get("name", ""))
        if kind == "CSIDriver":
            return f"{kind} {name} provides storage (CSI)"
        for pod in _pod_specs(document):
            paths = [
                str((volume.get("hostPath") or {}).get("path", "")).rstrip("/") for volume in _dicts(pod, "volumes")
            ]
            if any(path.startswith(_CNI_PATHS) for path in paths):
                return f"{kind} {name} runs the network of the cluster (CNI)"
            if any(path.startswith(_CSI_PATHS) for path in paths):
                return f"{kind} {name} provides storage (CSI)"
            if any(_CCM in word for container in _dicts(pod, "containers") for word in _words(container)):
                return f"{kind} {name} runs the cloud controller manager"
    return ""


def _pod_specs(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    pod = template.get("spec") if isinstance(template, dict) else None
    if isinstance(pod, dict):
        yield pod


def _dicts(obj: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    found = obj.get(field)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _words(container: Mapping[str, Any]) -> list[str]:
    words = [container.get("image"), *(container.get("command") or ()), *(container.get("args") or ())]
    return [str(word) for word in words]


# Hooks


# Hooks that grant no rights: their creator needs none but those in the namespace. Custom resources are not among them,
# because an operator may act on them with rights of its own.
_HARMLESS_HOOKS = frozenset(["v1/ConfigMap", "v1/Secret", "v1/Service", "v1/Pod", "batch/v1/Job"])


def reaching_hooks(manifests: Iterable[ChartManifest], *, namespace: str, storage: str = "") -> list[str]:
    """The hooks of the uninstall that act outside of the namespace that their release is stored in, or grant rights.
    `storage`: that namespace, if it is not the one of the release.

    Helm creates hooks with the rights of the manager. Who can write Secrets in a namespace can write a release with any
    hook, so such a hook runs only if a policy names its release and its namespace exactly.
    """
    return [
        f"{it.kind} {it.name}"
        for it in manifests
        if it.hook
        and it.on_delete
        and (
            f"{it.api_version}/{it.kind}" not in _HARMLESS_HOOKS
            or (it.namespace or namespace) != (storage or namespace)
            or it.reaches_node
        )
    ]


# Order


class ReleaseName(msgspec.Struct, frozen=True, order=True):
    """A release by its namespace and name."""

    namespace: str
    name: str

    @property
    def step(self) -> str:
        """The name of its step."""
        return f"Release/{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def depends_on(release: HelmRelease, *, namespace: str) -> tuple[str, ...]:
    """The steps that a release depends on, from the annotation of its chart.

    A word is the name of a release in the same namespace, `NAMESPACE/NAME` of a release, or the name of any step
    (`KIND/NAMESPACE/NAME`).
    """
    text = (release.chart.metadata.annotations or {}).get(DEPENDS_ON_ANNOTATION, "")
    found: list[str] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        parts = word.split("/")
        if len(parts) == 1:
            found.append(ReleaseName(namespace, word).step)
        elif len(parts) == 2:
            found.append(ReleaseName(*parts).step)
        else:
            found.append(word)
    return tuple(dict.fromkeys(found))


def why_not_uninstalled(release: ReleaseName, hooks: Sequence[str], *, disabled: bool) -> str:
    """Why Unwind does not uninstall a release that its deployer leaves behind; empty if it may.

    `hooks`: its hooks that act outside of the namespace of the release. Helm would create them with the rights of
    Unwind, and they are stored on the cluster, where others can write them. `disabled`: whether its deployer runs none.
    """
    if hooks:
        return (
            f"cannot uninstall release {release}: its hooks would create {', '.join(hooks)} with the rights of Unwind;"
            " uninstall it with `helm uninstall`"
        )
    if disabled:
        return (
            f"cannot uninstall release {release}: its hooks are disabled; uninstall it with `helm uninstall --no-hooks`"
        )
    return ""


# Marks


def is_of_release(found: Metadata, release: ReleaseName) -> bool:
    """Whether an object carries Helm's label and annotations for this release."""
    annotations = found.annotations or {}
    return (
        (found.labels or {}).get(MANAGED_BY_LABEL) == MANAGED_BY_HELM
        and annotations.get(HELM_RELEASE_ANNOTATION) == release.name
        and annotations.get(HELM_NAMESPACE_ANNOTATION) == release.namespace
    )


def is_release_secret(found: Metadata, release: ReleaseName) -> bool:
    """Whether a Secret stores a revision of this release."""
    labels = found.labels or {}
    return (found.namespace, labels.get("owner"), labels.get("name")) == (release.namespace, "helm", release.name)


def stored_name(ref: ObjectRef) -> ReleaseName | None:
    """The release whose revision a Secret stores, by its name; None if it stores none."""
    name, _, version = ref.name.removeprefix(_SECRET_PREFIX).rpartition(".v")
    return ReleaseName(ref.namespace, name) if stores_release(ref) and name and version.isdecimal() else None


def stores_release(ref: ObjectRef) -> bool:
    """Whether an object is the Secret of a revision, by its name."""
    return (ref.group, ref.kind) == ("", SECRETS.kind) and ref.name.startswith(_SECRET_PREFIX)


class StoredRevision(msgspec.Struct, frozen=True):
    """One revision of a release, as the labels of its Secret name it."""

    release: ReleaseName
    version: int
    status: str
    secret: str

    @classmethod
    def of(cls, found: Metadata) -> StoredRevision | None:
        """None if the labels are not Helm's."""
        labels = found.labels or {}
        version = labels.get("version", "")
        if not labels.get("name") or not version.isdecimal():
            return None
        release = ReleaseName(found.namespace, labels["name"])
        return cls(release, int(version), labels.get("status", ""), found.name)


def by_release(found: Iterable[StoredRevision]) -> dict[ReleaseName, list[StoredRevision]]:
    """The revisions of each release, the oldest first; without releases that were uninstalled with their history."""
    revisions: dict[ReleaseName, list[StoredRevision]] = {}
    for revision in sorted(found, key=lambda item: (item.release, item.version)):
        revisions.setdefault(revision.release, []).append(revision)
    return {name: those for name, those in revisions.items() if those[-1].status != "uninstalled"}


def concerning(revisions: Sequence[StoredRevision]) -> list[StoredRevision]:
    """The revisions whose objects may exist: the last one, and all others unless that one is deployed. After an
    upgrade that failed or was interrupted, objects of earlier revisions are still there."""
    return [revisions[-1]] if revisions[-1].status == "deployed" else list(revisions)
