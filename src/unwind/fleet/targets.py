"""What stands for a member on the management cluster, whichever kind it is of (pure)."""

from __future__ import annotations

import datetime as dt

import msgspec

from unwind.api import capi, karmada, sveltos
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.sveltos import ClusterType

# Where Cluster API puts a kubeconfig in its Secret.
_CAPI_KEY = "value"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an API server is, told by the object that stands for it: its Secret has a token, and no kubeconfig."""

    server: str
    insecure: bool = False
    proxy: str = ""


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The object on the management cluster that stands for a member, and by which that is reached."""

    ref: ObjectRef
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    secret: str
    """The Secret with the way in: a kubeconfig; or, where there is an endpoint, a token and the server's authority."""
    secret_namespace: str = ""
    """Where that is; empty for the namespace of the object itself."""
    secret_key: str = ""
    """The key in it; empty for the first one."""
    endpoint: Endpoint | None = None
    terminating: bool = False
    deleted_at: dt.datetime | None = None
    paused: bool = False
    ready: bool = False
    """Whether it has ever answered: before that, nothing can have been put on it."""
    has_class: bool = False
    """Whether Cluster API asks a hook before it deletes it."""
    pull_mode: bool = False
    """Whether nobody can reach it from here: an agent in it fetches what it shall have."""

    @property
    def gated(self) -> bool:
        """Whether it stays until it is let go: Cluster API asks our hook, or our own finalizer is on it."""
        return self.has_class or self.ref.group == karmada.CLUSTERS.group

    @property
    def home(self) -> str:
        """The namespace of its Secret."""
        return self.secret_namespace or self.ref.namespace

    def __str__(self) -> str:
        return str(self.ref)


class Target(Anchor, frozen=True, kw_only=True):
    """A cluster that add-ons can be put on, and from which they have to go when it does."""

    type: ClusterType


def of_capi(cluster: capi.Cluster) -> Target:
    """The target that a Cluster of Cluster API is."""
    meta = cluster.metadata
    return Target(
        type=ClusterType.CAPI,
        ref=ref_of(capi.CLUSTERS, meta),
        labels=meta.labels,
        annotations=meta.annotations,
        secret=cluster.kubeconfig_secret,
        secret_key=_CAPI_KEY,
        terminating=meta.terminating,
        deleted_at=meta.deletion_timestamp,
        paused=cluster.paused,
        ready=cluster.reachable_once,
        has_class=bool(cluster.class_name),
    )


def of_sveltos(cluster: sveltos.SveltosCluster) -> Target:
    """The target that a SveltosCluster is."""
    meta = cluster.metadata
    return Target(
        type=ClusterType.SVELTOS,
        ref=ref_of(sveltos.SVELTOS_CLUSTERS, meta),
        labels=meta.labels,
        annotations=meta.annotations,
        secret=cluster.kubeconfig_secret,
        secret_key=cluster.spec.kubeconfig_key_name,
        terminating=meta.terminating,
        deleted_at=meta.deletion_timestamp,
        paused=cluster.spec.paused,
        # Only Sveltos' own manager would write status.ready, and it does not run beside us. Whoever registers a cluster
        # says that it is there; if it does not answer, that is told where it is tried.
        ready=True,
        pull_mode=cluster.spec.pull_mode,
    )


def capi_ref(namespace: str, name: str, uid: str) -> ObjectRef:
    """A Cluster of Cluster API by what it is known by."""
    return ref_of(capi.CLUSTERS, ObjectMeta(namespace=namespace, name=name, uid=uid))


def of_gone(ref: ObjectRef) -> Target:
    """The target that a Cluster of Cluster API was: all that is left of it is where its kubeconfig may be."""
    secret = capi.Cluster(metadata=ObjectMeta(name=ref.name)).kubeconfig_secret
    return Target(type=ClusterType.CAPI, ref=ref, secret=secret, secret_key=_CAPI_KEY)


def karmada_ref(name: str, uid: str) -> ObjectRef:
    """A Cluster of Karmada by what it is known by."""
    return ref_of(karmada.CLUSTERS, ObjectMeta(name=name, uid=uid))


def of_karmada(cluster: karmada.Cluster) -> Anchor:
    """What a Cluster of Karmada is: Works are put on it, and no add-ons."""
    meta, spec = cluster.metadata, cluster.spec
    secret = spec.secret_ref
    return Anchor(
        ref=ref_of(karmada.CLUSTERS, meta),
        labels=meta.labels,
        annotations=meta.annotations,
        secret=secret.name if secret else "",
        secret_namespace=secret.namespace if secret else "",
        endpoint=Endpoint(server=spec.api_endpoint, insecure=spec.insecure_skip_tls_verification, proxy=spec.proxy_url),
        terminating=meta.terminating,
        deleted_at=meta.deletion_timestamp,
        ready=True,  # it was joined: if it does not answer, that is told where it is tried
        pull_mode=spec.sync_mode == karmada.SyncMode.PULL,
    )
