"""API types of Karmada: member clusters and Works (`cluster.karmada.io`, `work.karmada.io`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from unwind.api import names
from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, list_map
from unwind.api.meta import Condition, ObjectMeta, ObjectRef, SecretReference
from unwind.api.resources import Resource

CLUSTERS = Resource("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", namespaced=False)
WORKS = Resource("work.karmada.io", "v1alpha1", "works", "Work")
TOKEN_KEY = "token"  # noqa: S105 - the key in a Secret
CA_BUNDLE_KEY = "caBundle"


class RemoveStrategy(Word):
    """What happens to a member's objects when it is unjoined."""

    NEEDLESS = "Needless"
    """They stay."""
    REQUIRED = "Required"
    """Unjoining waits until all of them are verified absent."""


class ClusterSyncMode(Word):
    """How Works are applied on a member."""

    PUSH = "Push"
    PULL = "Pull"
    """An agent in the member applies them."""


class Health(Word):
    """Health of an object on a member."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class Taint(Model, frozen=True, kw_only=True):
    """A taint that keeps workloads off a member."""

    key: Annotated[str, doc("Key of the taint.", required=True)] = ""
    value: Annotated[str, doc("Value of the taint.")] = ""
    effect: Annotated[str, doc("Effect of the taint.", required=True)] = ""


class ClusterSpec(Model, frozen=True, kw_only=True):
    """How to connect to a member, and what happens when it is unjoined."""

    id: Annotated[str, doc("Unique id of the cluster: the uid of its kube-system namespace.")] = ""
    sync_mode: Annotated[
        str, doc("Push, or Pull by an agent in the member.", required=True, choice=ClusterSyncMode)
    ] = ""
    api_endpoint: Annotated[str, doc("URL of the member's API server.")] = ""
    secret_ref: Annotated[SecretReference | None, doc("Secret with token and caBundle.")] = None
    impersonator_secret_ref: Annotated[SecretReference | None, doc("Secret with the impersonator's token.")] = None
    insecure_skip_tls_verification: Annotated[bool, doc("Do not verify the member's certificate.")] = msgspec.field(
        default=False, name="insecureSkipTLSVerification"
    )
    proxy_url: Annotated[str, doc("URL of the proxy to the member.")] = msgspec.field(default="", name="proxyURL")
    provider: Annotated[str, doc("Cloud provider of the member.")] = ""
    region: Annotated[str, doc("Region of the member.")] = ""
    zones: Annotated[tuple[str, ...], doc("Zones of the member.", **ATOMIC)] = ()
    taints: Annotated[tuple[Taint, ...], doc("Taints of the member.", **ATOMIC)] = ()
    remove_strategy: Annotated[
        str | None,
        doc(
            "What to do with the objects on the member when it is unjoined. Needless: leave them. "
            "Required: block the unjoin until all of them are verified absent.",
            choice=RemoveStrategy,
            default=RemoveStrategy.NEEDLESS.value,
        ),
    ] = None
    """None if the field is not served: Karmada's own CRD does not have it."""


class ClusterStatus(Model, frozen=True, kw_only=True):
    """The observed state of a member."""

    kubernetes_version: Annotated[str, doc("Kubernetes version of the member.")] = ""
    conditions: Annotated[tuple[Condition, ...], doc("Conditions of the member.", **list_map("type"))] = ()


class Cluster(Model, frozen=True, kw_only=True):
    """A member cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        ClusterSpec, doc("How to connect to the member, and what happens when it is unjoined.", required=True)
    ] = ClusterSpec()
    status: Annotated[ClusterStatus, doc("The observed state of the member.")] = ClusterStatus()

    @property
    def removal(self) -> RemoveStrategy | Unknown:
        """What happens to its objects when it is unjoined; Needless by default."""
        said = self.spec.remove_strategy
        if said is None:
            said = self.metadata.annotations.get(names.REMOVE_STRATEGY_ANNOTATION)
        return RemoveStrategy.NEEDLESS if said is None else RemoveStrategy.read(said)

    @property
    def execution_namespace(self) -> str:
        return f"{names.KARMADA_EXECUTION_NAMESPACE}{self.metadata.name}"


class Workload(Model, frozen=True, kw_only=True):
    """Manifests for a member."""

    manifests: Annotated[
        tuple[dict[str, Any], ...],
        # The schema says only that a manifest is an object: every field must be preserved.
        doc("The manifests, complete.", **ATOMIC),
    ] = ()


class WorkSpec(Model, frozen=True, kw_only=True):
    """The manifests that a Work applies on a member."""

    workload: Annotated[Workload, doc("The manifests.")] = Workload()
    suspend_dispatching: Annotated[bool | None, doc("Do not apply the manifests for now.")] = None
    preserve_resources_on_deletion: Annotated[
        bool | None, doc("Leave the objects on the member when the Work is deleted.")
    ] = None


class Identifier(Model, frozen=True, kw_only=True):
    """Identifies one manifest of a Work."""

    # Fields with their default value are not written, and the first index is 0.
    ordinal: Annotated[int, doc("Index of the manifest in the Work.", required=True)] = -1
    group: Annotated[str, doc("API group of the object.")] = ""
    version: Annotated[str, doc("API version of the object.", required=True)] = ""
    kind: Annotated[str, doc("Kind of the object.", required=True)] = ""
    resource: Annotated[str, doc("Plural name of the object's resource.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of the object.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True)] = ""


def identifier_of(ordinal: int, resource: Resource, ref: ObjectRef) -> Identifier:
    """The identifier of the object that a manifest of a Work describes."""
    return Identifier(
        ordinal=ordinal,
        group=ref.group,
        version=ref.version,
        kind=ref.kind,
        resource=resource.plural,
        namespace=ref.namespace,
        name=ref.name,
    )


class ManifestStatus(Model, frozen=True, kw_only=True):
    """The observed state of one object."""

    identifier: Annotated[Identifier, doc("The manifest that this status is about.", required=True)] = Identifier()
    status: Annotated[dict[str, Any], doc("Status of the object on the member.")] = msgspec.field(default_factory=dict)
    health: Annotated[str, doc("Health of the object.", choice=Health)] = ""


class WorkStatus(Model, frozen=True, kw_only=True):
    """The observed state of a Work."""

    conditions: Annotated[tuple[Condition, ...], doc("Conditions of the Work.", **list_map("type"))] = ()
    manifest_statuses: Annotated[tuple[ManifestStatus, ...], doc("Status of each object.", **ATOMIC)] = ()


class Work(Model, frozen=True, kw_only=True):
    """Manifests for one member: the one whose execution namespace contains the Work."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[WorkSpec, doc("The manifests to apply.", required=True)] = WorkSpec()
    status: Annotated[WorkStatus, doc("The observed state of the Work.")] = WorkStatus()
