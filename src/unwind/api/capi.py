"""API types of Cluster API: `cluster.x-k8s.io` v1beta1 and v1beta2, and `runtime.cluster.x-k8s.io`.

Unwind never installs these CRDs. One struct reads both versions of a Cluster: it has the fields of both, and its
properties hide the difference.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from unwind.api import names
from unwind.api.fields import Model, Word, doc
from unwind.api.meta import Condition, LabelSelector, ObjectMeta
from unwind.api.resources import Resource

CLUSTERS = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
CLUSTERS_V1BETA1 = Resource("cluster.x-k8s.io", "v1beta1", "clusters", "Cluster")
EXTENSION_CONFIGS = Resource(
    "runtime.cluster.x-k8s.io", "v1beta2", "extensionconfigs", "ExtensionConfig", namespaced=False
)
EXTENSION_CONFIGS_V1ALPHA1 = Resource(
    "runtime.cluster.x-k8s.io", "v1alpha1", "extensionconfigs", "ExtensionConfig", namespaced=False
)
MACHINES = Resource("cluster.x-k8s.io", "v1beta2", "machines", "Machine")
MACHINES_V1BETA1 = Resource("cluster.x-k8s.io", "v1beta1", "machines", "Machine")
MACHINE_POOLS = Resource("cluster.x-k8s.io", "v1beta2", "machinepools", "MachinePool")
MACHINE_POOLS_V1BETA1 = Resource("cluster.x-k8s.io", "v1beta1", "machinepools", "MachinePool")
MACHINE_SETS = Resource("cluster.x-k8s.io", "v1beta2", "machinesets", "MachineSet")
CONTROL_PLANE_GROUP = "controlplane.cluster.x-k8s.io"
CONTROL_PLANES = (
    "k0scontrolplanes",
    "kthreescontrolplanes",
    "kubeadmcontrolplanes",
    "microk8scontrolplanes",
    "rke2controlplanes",
    "taloscontrolplanes",
)
"""Control planes with Machines, of known providers."""
KUBECONFIG_SECRET_TYPE = "cluster.x-k8s.io/secret"  # noqa: S105 - the type of a Secret
KUBECONFIG_SECRET_KEY = "value"  # noqa: S105 - the key in a Secret

KUBECONFIG_SUFFIX = "-kubeconfig"
"""Suffix of the Secret with a cluster's kubeconfig, after the cluster's name."""


class ClassRef(Model, frozen=True, kw_only=True):
    """Reference to a ClusterClass (v1beta2)."""

    name: str = ""
    namespace: str = ""


class Topology(Model, frozen=True, kw_only=True):
    """The managed topology of a cluster."""

    class_: str = msgspec.field(default="", name="class")
    class_namespace: str = ""
    class_ref: ClassRef = ClassRef()
    version: str = ""


class ComponentRef(Model, frozen=True, kw_only=True):
    """Reference to the infrastructure or the control plane of a cluster."""

    api_version: str = ""
    api_group: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def group(self) -> str:
        return self.api_group or self.api_version.partition("/")[0]


class Endpoint(Model, frozen=True, kw_only=True):
    """Address of a cluster's API server."""

    host: str = ""
    port: int = 0


class ClusterSpec(Model, frozen=True, kw_only=True):
    """The desired state of a Cluster."""

    paused: bool = False
    topology: Topology | None = None
    control_plane_endpoint: Endpoint = Endpoint()
    control_plane_ref: ComponentRef | None = None
    infrastructure_ref: ComponentRef | None = None


class Initialization(Model, frozen=True, kw_only=True):
    """Provisioning progress of a cluster (v1beta2)."""

    infrastructure_provisioned: bool = False
    control_plane_initialized: bool = False


class ClusterStatus(Model, frozen=True, kw_only=True):
    """The observed state of a Cluster. Cluster API omits it from hook requests."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    infrastructure_ready: bool = False
    control_plane_ready: bool = False
    initialization: Initialization = Initialization()


class Cluster(Model, frozen=True, kw_only=True):
    """A workload cluster."""

    api_version: str = ""
    """Set on single objects, such as in a hook request; not set on items of a list."""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus = ClusterStatus()

    @property
    def class_name(self) -> str:
        """The ClusterClass; empty if the cluster has none. Cluster API calls no hooks for such a cluster."""
        topology = self.spec.topology or Topology()
        return topology.class_ref.name or topology.class_

    @property
    def paused(self) -> bool:
        paused = self.metadata.annotations.get(names.PAUSED_ANNOTATION, names.PAUSED_BY_GATE)
        return self.spec.paused or paused != names.PAUSED_BY_GATE

    @property
    def held(self) -> bool:
        """Whether Cluster API does not delete it until its gate opens (`gate: Admission`)."""
        return self.metadata.annotations.get(names.PAUSED_ANNOTATION) == names.PAUSED_BY_GATE

    @property
    def moved(self) -> bool:
        """Whether `clusterctl move` deletes it here, because it is in another management cluster now.

        `clusterctl` pauses it first: Cluster API does nothing to it.
        """
        return self.spec.paused and names.DELETE_FOR_MOVE_ANNOTATION in self.metadata.annotations

    @property
    def reachable_once(self) -> bool:
        """Whether its control plane was ever initialized: before that, nothing can have been deployed on it."""
        status = self.status
        return status.initialization.control_plane_initialized or status.control_plane_ready

    @property
    def kubeconfig_secret(self) -> str:
        return f"{self.metadata.name}{KUBECONFIG_SUFFIX}"


class FailurePolicy(Word):
    """What Cluster API does if an extension does not answer."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class ServiceReference(Model, frozen=True, kw_only=True):
    """The Service of an extension."""

    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(Model, frozen=True, kw_only=True):
    """How Cluster API calls an extension."""

    url: str = ""
    service: ServiceReference | None = None
    ca_bundle: str = ""
    """Base64 of PEM, as in JSON."""


class ExtensionConfigSpec(Model, frozen=True, kw_only=True):
    """An extension, and the namespaces whose clusters it is called for."""

    client_config: ClientConfig = ClientConfig()
    namespace_selector: LabelSelector | None = None
    """None matches nothing, unless Cluster API's defaulting set it to `{}`, which matches every namespace."""
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class RequestHook(Model, frozen=True, kw_only=True):
    """The hook that a handler serves."""

    api_version: str = ""
    hook: str = ""


class ExtensionHandler(Model, frozen=True, kw_only=True):
    """A handler that Cluster API discovered."""

    name: str = ""
    request_hook: RequestHook = RequestHook()
    timeout_seconds: int = 10
    failure_policy: Annotated[str, doc("See FailurePolicy.")] = FailurePolicy.FAIL.value


class ExtensionConfigStatus(Model, frozen=True, kw_only=True):
    """The handlers that Cluster API discovered."""

    handlers: tuple[ExtensionHandler, ...] = ()
    conditions: tuple[Condition, ...] = ()


class ExtensionConfig(Model, frozen=True, kw_only=True):
    """A registered Runtime Extension."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ExtensionConfigSpec = ExtensionConfigSpec()
    status: ExtensionConfigStatus = ExtensionConfigStatus()
