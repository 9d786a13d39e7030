"""API types of Cluster API's lifecycle hooks (`hooks.runtime.cluster.x-k8s.io/v1alpha1`).

Requests contain the Cluster as v1beta2 or v1beta1, without status; `unwind.api.capi.Cluster` reads both.
"""

from __future__ import annotations

import msgspec

from unwind.api.capi import Cluster
from unwind.api.fields import Model, Word

API_VERSION = "hooks.runtime.cluster.x-k8s.io/v1alpha1"


class Hook(Word):
    """The lifecycle hooks that Cluster API calls."""

    BEFORE_CLUSTER_CREATE = "BeforeClusterCreate"
    AFTER_CONTROL_PLANE_INITIALIZED = "AfterControlPlaneInitialized"
    BEFORE_CLUSTER_UPGRADE = "BeforeClusterUpgrade"
    BEFORE_CONTROL_PLANE_UPGRADE = "BeforeControlPlaneUpgrade"
    AFTER_CONTROL_PLANE_UPGRADE = "AfterControlPlaneUpgrade"
    BEFORE_WORKERS_UPGRADE = "BeforeWorkersUpgrade"
    AFTER_WORKERS_UPGRADE = "AfterWorkersUpgrade"
    AFTER_CLUSTER_UPGRADE = "AfterClusterUpgrade"
    BEFORE_CLUSTER_DELETE = "BeforeClusterDelete"

    @property
    def blocks(self) -> bool:
        """Whether the response can block the operation."""
        return self is not Hook.AFTER_CONTROL_PLANE_INITIALIZED


class DiscoveryRequest(Model, frozen=True, kw_only=True):
    """A request for the list of handlers."""

    api_version: str
    kind: str


class HookRequest(Model, frozen=True, kw_only=True):
    """The fields that every hook request has."""

    api_version: str
    kind: str
    cluster: Cluster
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    """Settings of the ExtensionConfig."""


class Upgrade(Model, frozen=True, kw_only=True):
    """One pending step of an upgrade."""

    version: str = ""


class BeforeClusterCreate(HookRequest, frozen=True, kw_only=True):
    """A cluster is about to be created."""


class AfterControlPlaneInitialized(HookRequest, frozen=True, kw_only=True):
    """The control plane of a cluster is initialized. The response cannot block."""


class Upgrading(HookRequest, frozen=True, kw_only=True):
    """An upgrade is about to start."""

    from_kubernetes_version: str = ""
    to_kubernetes_version: str = ""
    control_plane_upgrades: tuple[Upgrade, ...] = ()
    workers_upgrades: tuple[Upgrade, ...] = ()


class BeforeClusterUpgrade(Upgrading, frozen=True, kw_only=True):
    """A cluster is about to be upgraded."""


class BeforeControlPlaneUpgrade(Upgrading, frozen=True, kw_only=True):
    """A control plane is about to be upgraded by one version."""


class BeforeWorkersUpgrade(Upgrading, frozen=True, kw_only=True):
    """Workers are about to be upgraded."""


class Upgraded(HookRequest, frozen=True, kw_only=True):
    """An upgrade has finished."""

    kubernetes_version: str = ""
    control_plane_upgrades: tuple[Upgrade, ...] = ()
    workers_upgrades: tuple[Upgrade, ...] = ()


class AfterControlPlaneUpgrade(Upgraded, frozen=True, kw_only=True):
    """A control plane was upgraded by one version."""


class AfterWorkersUpgrade(Upgraded, frozen=True, kw_only=True):
    """Workers were upgraded."""


class AfterClusterUpgrade(HookRequest, frozen=True, kw_only=True):
    """A cluster was upgraded."""

    kubernetes_version: str = ""


class BeforeClusterDelete(HookRequest, frozen=True, kw_only=True):
    """A cluster is being deleted: Cluster API asks whether it may start to tear it down."""


REQUESTS: dict[Hook, type[HookRequest]] = {
    Hook.BEFORE_CLUSTER_CREATE: BeforeClusterCreate,
    Hook.AFTER_CONTROL_PLANE_INITIALIZED: AfterControlPlaneInitialized,
    Hook.BEFORE_CLUSTER_UPGRADE: BeforeClusterUpgrade,
    Hook.BEFORE_CONTROL_PLANE_UPGRADE: BeforeControlPlaneUpgrade,
    Hook.AFTER_CONTROL_PLANE_UPGRADE: AfterControlPlaneUpgrade,
    Hook.BEFORE_WORKERS_UPGRADE: BeforeWorkersUpgrade,
    Hook.AFTER_WORKERS_UPGRADE: AfterWorkersUpgrade,
    Hook.AFTER_CLUSTER_UPGRADE: AfterClusterUpgrade,
    Hook.BEFORE_CLUSTER_DELETE: BeforeClusterDelete,
}
"""The request type of each hook; its kind is the hook's name followed by `Request`."""
