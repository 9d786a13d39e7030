"""Karmada: member clusters and what is put on them. `cluster.karmada.io` and `work.karmada.io`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from unwind.api import names
from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, listed
from unwind.api.meta import Condition, ObjectMeta, SecretReference
from unwind.api.resources import Resource

CLUSTERS = Resource("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", namespaced=False)
WORKS = Resource("work.karmada.io", "v1alpha1", "works", "Work")
TOKEN_KEY = "token"  # noqa: S105 - the key in a Secret
CA_BUNDLE_KEY = "caBundle"


class RemoveStrategy(Word):
    """What becomes of a member's objects when it is unjoined."""

    NEEDLESS = "Needless"
    """They stay."""
    REQUIRED = "Required"
    """Unjoining waits until all of them were seen to be absent."""


class SyncMode(Word):
    """Who puts Works on a member."""

    PUSH = "Push"
    PULL = "Pull"
    """An agent in the member."""


class Health(Word):
    """How an object on a member is."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class Taint(Model, frozen=True, kw_only=True):
    """What keeps workloads away from a member."""

    key: Annotated[str, doc("The key.", required=True)] = ""
    value: Annotated[str, doc("The value.")] = ""
    effect: Annotated[str, doc("What it does.", required=True)] = ""


class ClusterSpec(Model, frozen=True, kw_only=True):
    """How a member is reached, and what happens when it leaves."""

    id: Annotated[str, doc("What tells it from all others: the uid of its kube-system namespace.")] = ""
    sync_mode: Annotated[str, doc("Push, or Pull by an agent in the member.", required=True, choice=SyncMode)] = ""
    api_endpoint: Annotated[str, doc("Where its API server is.")] = ""
    secret_ref: Annotated[SecretReference | None, doc("The Secret with token and caBundle.")] = None
    impersonator_secret_ref: Annotated[SecretReference | None, doc("The Secret with the impersonator's token.")] = None
    insecure_skip_tls_verification: Annotated[bool, doc("Do not check its certificate.")] = msgspec.field(
        default=False, name="insecureSkipTLSVerification"
    )
    proxy_url: Annotated[str, doc("The proxy in front of it.")] = msgspec.field(default="", name="proxyURL")
    provider: Annotated[str, doc("Whose cloud it is in.")] = ""
    region: Annotated[str, doc("Where.")] = ""
    zones: Annotated[tuple[str, ...], doc("Where exactly.", **ATOMIC)] = ()
    taints: Annotated[tuple[Taint, ...], doc("What keeps workloads away.", **ATOMIC)] = ()
    remove_strategy: Annotated[
        str | None,
        doc(
            "What becomes of the objects on the member when it is unjoined. Needless: they stay. "
            "Required: unjoining waits until every one of them was seen to be absent.",
            choice=RemoveStrategy,
            default=RemoveStrategy.NEEDLESS.value,
        ),
    ] = None
    """None where it is not served: Karmada's own API server does not know it."""


class ClusterStatus(Model, frozen=True, kw_only=True):
    """How a member is."""

    kubernetes_version: Annotated[str, doc("Its Kubernetes version.")] = ""
    conditions: Annotated[tuple[Condition, ...], doc("What is said of it.", **listed("type"))] = ()


class Cluster(Model, frozen=True, kw_only=True):
    """A member cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[ClusterSpec, doc("How it is reached, and what happens when it leaves.", required=True)] = (
        ClusterSpec()
    )
    status: Annotated[ClusterStatus, doc("How it is.")] = ClusterStatus()

    @property
    def removal(self) -> RemoveStrategy | Unknown:
        """What becomes of its objects when it is unjoined; Needless where nothing is said."""
        said = self.spec.remove_strategy
        if said is None:
            said = self.metadata.annotations.get(names.REMOVE_STRATEGY_ANNOTATION)
        return RemoveStrategy.NEEDLESS if said is None else RemoveStrategy.read(said)

    @property
    def execution_namespace(self) -> str:
        return f"{names.KARMADA_EXECUTION_NAMESPACE}{self.metadata.name}"


class Workload(Model, frozen=True, kw_only=True):
    """Objects for a member."""

    manifests: Annotated[
        tuple[dict[str, Any], ...],
        # No more is said of a manifest than that it is an object: all of it has to arrive.
        doc("The objects, whole.", **ATOMIC),
    ] = ()


class WorkSpec(Model, frozen=True, kw_only=True):
    """What goes on a member."""

    workload: Annotated[Workload, doc("The objects.")] = Workload()
    suspend_dispatching: Annotated[bool | None, doc("Do not put it on the member for now.")] = None
    preserve_resources_on_deletion: Annotated[bool | None, doc("Leave the objects when the Work goes.")] = None


class Identifier(Model, frozen=True, kw_only=True):
    """One of the objects."""

    # What equals its default is not written, and the first place is 0.
    ordinal: Annotated[int, doc("Its place among the manifests.", required=True)] = -1
    group: Annotated[str, doc("Its API group.")] = ""
    version: Annotated[str, doc("Its version.", required=True)] = ""
    kind: Annotated[str, doc("Its kind.", required=True)] = ""
    resource: Annotated[str, doc("Its plural.", required=True)] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""
    name: Annotated[str, doc("Its name.", required=True)] = ""


class ManifestStatus(Model, frozen=True, kw_only=True):
    """How one of the objects is."""

    identifier: Annotated[Identifier, doc("Which one.", required=True)] = Identifier()
    status: Annotated[dict[str, Any], doc("Its own status.")] = msgspec.field(default_factory=dict)
    health: Annotated[str, doc("How it is.", choice=Health)] = ""


class WorkStatus(Model, frozen=True, kw_only=True):
    """What became of a Work."""

    conditions: Annotated[tuple[Condition, ...], doc("What is said of it.", **listed("type"))] = ()
    manifest_statuses: Annotated[tuple[ManifestStatus, ...], doc("Each object.", **ATOMIC)] = ()


class Work(Model, frozen=True, kw_only=True):
    """Objects that go on one member: the one whose execution namespace the Work is in."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[WorkSpec, doc("What goes on the member.", required=True)] = WorkSpec()
    status: Annotated[WorkStatus, doc("What became of it.")] = WorkStatus()
