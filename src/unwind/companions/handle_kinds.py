"""The kinds of handles on the management cluster, and how each names the Cluster that it deploys on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.capi import KUBECONFIG_SUFFIX
from unwind.api.fields import Model
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS, KubeConfig, SecretKey
from unwind.api.meta import ObjectMeta
from unwind.api.policies import SourceKind
from unwind.api.resources import Resource
from unwind.companions.flux_rules import before_stay
from unwind.kube.decoding import Key

if TYPE_CHECKING:
    from unwind.kube.client import Client


class _ClusterRef(Model, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""


class _Spec(Model, frozen=True, kw_only=True):
    kube_config: KubeConfig | None = None
    """Of Flux: the kubeconfig of the cluster that it deploys on."""
    cluster_ref: _ClusterRef | None = None
    """Of a HelmReleaseProxy."""


class HandleObject(Model, frozen=True, kw_only=True):
    """A handle, with the fields that tell which Cluster it deploys on."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()

    @property
    def secret(self) -> SecretKey | None:
        """The Secret with the kubeconfig of the cluster that a handle of Flux deploys on; None if it names none."""
        config = self.spec.kube_config
        return config.secret_ref if config and config.secret_ref and config.secret_ref.name else None


def by_kubeconfig(handle: HandleObject) -> Key | None:
    """The Cluster whose kubeconfig Secret a handle of Flux uses, by the name of the Secret; None if it deploys
    elsewhere, or uses a copy with another name."""
    secret = handle.secret.name if handle.secret else ""
    name = secret.removesuffix(KUBECONFIG_SUFFIX)
    return Key(handle.metadata.namespace, name) if name and name != secret else None


def by_cluster_ref(handle: HandleObject) -> Key | None:
    """The Cluster that a HelmReleaseProxy names."""
    ref = handle.spec.cluster_ref
    return Key(ref.namespace or handle.metadata.namespace, ref.name) if ref and ref.name else None


class HandleKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of handles on the management cluster, and how one names its Cluster."""

    source: SourceKind
    resource: Resource
    cluster_of: Callable[[HandleObject], Key | None]
    before_stay: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}
    """The merge patch that undoes what was written right before the deletion of a handle that stays."""


HANDLES = (
    HandleKind(source=SourceKind.HELM_RELEASE_PROXY, resource=HELM_RELEASE_PROXIES, cluster_of=by_cluster_ref),
    *(
        HandleKind(source=SourceKind.FLUX, resource=kind, cluster_of=by_kubeconfig, before_stay=before_stay)
        for kind in (KUSTOMIZATIONS, HELM_RELEASES)
    ),
)
"""The handles on the management cluster."""


async def count_handles(client: Client, source: SourceKind, cluster: Key) -> int:
    """The number of handles of a deployer for a Cluster, in the namespace of the Cluster, read from the API server."""
    found = 0
    for kind in HANDLES:
        if kind.source is source:
            listed = msgspec.convert(await client.list(kind.resource, namespace=cluster.namespace), list[HandleObject])
            found += sum(kind.cluster_of(handle) == cluster for handle in listed)
    return found
