"""Cluster targets: the objects on the management cluster that represent clusters, of any kind (pure)."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.sveltos import ClusterType

if TYPE_CHECKING:
    from unwind.api.resources import Resource

# The key of the kubeconfig in Cluster API's Secrets.
_CAPI_KEY = "value"


class ClusterKey(NamedTuple):
    """A cluster that add-ons are on, by the words of its ClusterSummaries."""

    type: str
    namespace: str
    name: str

    @property
    def shard(self) -> str:
        """What decides who looks after it: all that is done for one cluster is done in one place."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return f"{self.type} cluster {self.namespace}/{self.name}"


class APIEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of an API server, from the object that represents it: its Secret has a token, but no kubeconfig."""

    server: str
    insecure: bool = False
    proxy: str = ""


class ClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The object on the management cluster that represents a member, and how to connect to that member."""

    ref: ObjectRef
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    secret: str
    """The Secret with the credentials: a kubeconfig; or, with an endpoint, a token and a CA bundle."""
    secret_namespace: str = ""
    """Namespace of the Secret; empty for the object's own namespace."""
    secret_key: str = ""
    """The key in the Secret; empty for the first one."""
    endpoint: APIEndpoint | None = None
    terminating: bool = False
    deleted_at: dt.datetime | None = None
    paused: bool = False
    ready: bool = False
    """Whether it was ever reachable: before that, nothing can have been deployed on it."""
    has_class: bool = False
    """Whether Cluster API calls a hook before it deletes it."""
    pull_mode: bool = False
    """Whether it cannot be reached from here, because an agent in it pulls its configuration."""

    @property
    def gated(self) -> bool:
        """Whether its deletion waits for Unwind: Cluster API calls Unwind's hook, or it has Unwind's finalizer."""
        return self.has_class or self.ref.group == karmada.CLUSTERS.group

    @property
    def home(self) -> str:
        """The namespace of its Secret."""
        return self.secret_namespace or self.ref.namespace

    def __str__(self) -> str:
        return str(self.ref)


class AddonTarget(ClusterTarget, frozen=True, kw_only=True):
    """A cluster that add-ons are deployed on, and removed from when it is deleted."""

    type: ClusterType


def of_capi(cluster: capi.Cluster) -> AddonTarget:
    """The target of a Cluster API Cluster."""
    return _of(
        cluster,
        capi.CLUSTERS,
        type=ClusterType.CAPI,
        secret_key=_CAPI_KEY,
        paused=cluster.paused,
        ready=cluster.reachable_once,
        has_class=bool(cluster.class_name),
    )


def of_sveltos(cluster: sveltos.SveltosCluster) -> AddonTarget:
    """The target of a SveltosCluster."""
    return _of(
        cluster,
        sveltos.SVELTOS_CLUSTERS,
        type=ClusterType.SVELTOS,
        secret_key=cluster.spec.kubeconfig_key_name,
        paused=cluster.spec.paused,
        # Only Sveltos' own manager would set status.ready, and it does not run beside Unwind. A registered cluster
        # counts as ready; if it does not answer, that is reported when it is used.
        ready=True,
        pull_mode=cluster.spec.pull_mode,
    )


def _of(cluster: capi.Cluster | sveltos.SveltosCluster, resource: Resource, **fields: Any) -> AddonTarget:
    """What the targets of both kinds have in common, and the fields that they do not."""
    meta = cluster.metadata
    return AddonTarget(
        ref=ref_of(resource, meta),
        labels=meta.labels,
        annotations=meta.annotations,
        secret=cluster.kubeconfig_secret,
        terminating=meta.terminating,
        deleted_at=meta.deletion_timestamp,
        **fields,
    )


def capi_ref(namespace: str, name: str, uid: str) -> ObjectRef:
    """A reference to a Cluster API Cluster."""
    return ref_of(capi.CLUSTERS, ObjectMeta(namespace=namespace, name=name, uid=uid))


def of_gone(ref: ObjectRef) -> AddonTarget:
    """The target of a deleted Cluster API Cluster: only the place of its kubeconfig is known."""
    secret = capi.Cluster(metadata=ObjectMeta(name=ref.name)).kubeconfig_secret
    return AddonTarget(type=ClusterType.CAPI, ref=ref, secret=secret, secret_key=_CAPI_KEY)


def karmada_ref(name: str, uid: str) -> ObjectRef:
    """A reference to a Karmada Cluster."""
    return ref_of(karmada.CLUSTERS, ObjectMeta(name=name, uid=uid))


def of_karmada(cluster: karmada.Cluster) -> ClusterTarget:
    """The anchor of a Karmada Cluster: Works are applied on it, but no add-ons."""
    meta, spec = cluster.metadata, cluster.spec
    secret = spec.secret_ref
    return ClusterTarget(
        ref=ref_of(karmada.CLUSTERS, meta),
        labels=meta.labels,
        annotations=meta.annotations,
        secret=secret.name if secret else "",
        secret_namespace=secret.namespace if secret else "",
        endpoint=APIEndpoint(
            server=spec.api_endpoint, insecure=spec.insecure_skip_tls_verification, proxy=spec.proxy_url
        ),
        terminating=meta.terminating,
        deleted_at=meta.deletion_timestamp,
        ready=True,  # it was joined: if it does not answer, that is reported when it is used
        pull_mode=spec.sync_mode == karmada.ClusterSyncMode.PULL,
    )


def cluster_key(target: AddonTarget) -> ClusterKey:
    """The key of a cluster that add-ons are on."""
    return ClusterKey(target.type.value, target.ref.namespace, target.ref.name)
