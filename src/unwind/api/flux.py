"""API types of Flux: `kustomize.toolkit.fluxcd.io/v1` and `helm.toolkit.fluxcd.io/v2`.

They have only the fields that Unwind reads. Unwind never installs these CRDs.
"""

from __future__ import annotations

from unwind.api.fields import Model, Word
from unwind.api.meta import Condition, ObjectMeta
from unwind.api.resources import Resource

KUSTOMIZATIONS = Resource("kustomize.toolkit.fluxcd.io", "v1", "kustomizations", "Kustomization")
HELM_RELEASES = Resource("helm.toolkit.fluxcd.io", "v2", "helmreleases", "HelmRelease")

FLUX_FINALIZER = "finalizers.fluxcd.io"
"""On every kind of Flux."""
RECONCILE = f"{KUSTOMIZATIONS.group}/reconcile"
"""Label or annotation of an object: with `disabled`, kustomize-controller neither applies nor deletes it."""
PRUNE = f"{KUSTOMIZATIONS.group}/prune"
"""Label or annotation of an object: with `disabled`, kustomize-controller does not delete it."""
SSA = f"{KUSTOMIZATIONS.group}/ssa"
"""Label or annotation of an object: with `Ignore`, kustomize-controller neither applies nor deletes it."""
DISABLED = "disabled"
IGNORED = "Ignore"
RESOURCE_SET_GROUP = "fluxcd.controlplane.io"
RESOURCE_SET_LABELS = "resourceset.fluxcd.controlplane.io"
"""The prefix of the labels that name the ResourceSet of an object."""


class DeletionPolicy(Word):
    """What Flux does with the objects of a Kustomization that is deleted."""

    MIRROR_PRUNE = "MirrorPrune"
    DELETE = "Delete"
    WAIT_FOR_TERMINATION = "WaitForTermination"
    ORPHAN = "Orphan"


class ResourceId(Model, frozen=True, kw_only=True):
    """One object in an inventory."""

    id: str = ""
    """NAMESPACE_NAME_GROUP_KIND."""
    v: str = ""
    """The API version."""


class ResourceInventory(Model, frozen=True, kw_only=True):
    """The objects that Flux applied."""

    entries: tuple[ResourceId, ...] = ()


class Dependency(Model, frozen=True, kw_only=True):
    """A reference to an object of the same kind."""

    name: str = ""
    namespace: str = ""
    """Empty for the namespace of the referring object."""


class SecretKey(Model, frozen=True, kw_only=True):
    """A reference to a Secret in the same namespace."""

    name: str = ""
    key: str = ""


class ConfigMapName(Model, frozen=True, kw_only=True):
    """A reference to a ConfigMap in the same namespace."""

    name: str = ""


class KubeConfig(Model, frozen=True, kw_only=True):
    """The cluster that objects are deployed on."""

    secret_ref: SecretKey | None = None
    config_map_ref: ConfigMapName | None = None


class KustomizationSpec(Model, frozen=True, kw_only=True):
    """The desired state of a Kustomization."""

    prune: bool = False
    suspend: bool = False
    deletion_policy: str = ""
    depends_on: tuple[Dependency, ...] = ()
    kube_config: KubeConfig | None = None
    service_account_name: str = ""
    """The account that Flux impersonates."""


class KustomizationStatus(Model, frozen=True, kw_only=True):
    """The observed state of a Kustomization."""

    inventory: ResourceInventory | None = None
    conditions: tuple[Condition, ...] = ()


class Kustomization(Model, frozen=True, kw_only=True):
    """Manifests that Flux applies."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KustomizationSpec = KustomizationSpec()
    status: KustomizationStatus = KustomizationStatus()


class Uninstall(Model, frozen=True, kw_only=True):
    """How a Helm release is uninstalled."""

    disable_hooks: bool = False


class HelmReleaseSpec(Model, frozen=True, kw_only=True):
    """The desired state of a HelmRelease."""

    suspend: bool = False
    depends_on: tuple[Dependency, ...] = ()
    kube_config: KubeConfig | None = None
    service_account_name: str = ""
    """The account that Flux impersonates."""
    uninstall: Uninstall = Uninstall()


class ReleaseSnapshot(Model, frozen=True, kw_only=True):
    """One revision of a Helm release."""

    name: str = ""
    namespace: str = ""
    version: int = 0


class HelmReleaseStatus(Model, frozen=True, kw_only=True):
    """The observed state of a HelmRelease."""

    storage_namespace: str = ""
    """The namespace of the release Secrets; empty if nothing is installed."""
    history: tuple[ReleaseSnapshot, ...] = ()
    """The latest comes first."""
    inventory: ResourceInventory | None = None
    """Since helm-controller 1.5."""
    conditions: tuple[Condition, ...] = ()


class HelmRelease(Model, frozen=True, kw_only=True):
    """A Helm release that Flux installs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HelmReleaseSpec = HelmReleaseSpec()
    status: HelmReleaseStatus = HelmReleaseStatus()
