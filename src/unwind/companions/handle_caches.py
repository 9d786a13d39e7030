"""Informers of the handles on the management cluster, by the Cluster that each deploys on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.flux import SecretKey
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.clock import SYSTEM
from unwind.companions.handle_kinds import HandleKind, HandleObject
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer, InformerSet
from unwind.members.cluster_caches import ClusterCaches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client


class CachedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A handle from the cache."""

    kind: HandleKind
    metadata: ObjectMeta
    secret: SecretKey | None = None
    """The Secret with its kubeconfig; None if it names none."""
    cluster: Key | None = None
    """The Cluster that it names; None if that is known by its kubeconfig only."""

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.kind.resource, self.metadata)


class HandleCaches(InformerSet):
    """The informers of all kinds of handles."""

    name = "handles' caches"

    def __init__(self, client: Client, kinds: Iterable[HandleKind], *, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self._kinds = tuple(kinds)
        self._handles: dict[HandleKind, Informer[HandleObject]] = {
            kind: self._informer(
                client,
                decoding.typed(kind.resource, HandleObject),
                clock,
                indexes={"cluster": _indexed(kind), "config map": _with_config_map},
                optional=True,  # a feature may be installed before its deployer
            )
            for kind in self._kinds
        }

    def of(self, cluster: Key) -> list[CachedHandle]:
        """The handles that deploy on a Cluster."""
        return [
            CachedHandle(kind=kind, metadata=handle.metadata, secret=handle.secret, cluster=kind.cluster_of(handle))
            for kind, informer in self._handles.items()
            for handle in informer.cache.by("cluster", cluster)
        ]

    def with_config_map(self, namespace: str) -> list[CachedHandle]:
        """The handles in a namespace that name their cluster by a ConfigMap, which Unwind does not read."""
        return [
            CachedHandle(kind=kind, metadata=handle.metadata)
            for kind, informer in self._handles.items()
            for handle in informer.cache.by("config map", namespace)
        ]

    def clusters(self, finalizer: str) -> set[Key]:
        """The Clusters of the handles with this finalizer."""
        return self._keys(lambda handle: finalizer in handle.metadata.finalizers)

    def with_kubeconfig(self) -> set[Key]:
        """The Clusters of the handles that name a kubeconfig, by the names of their Secrets: not all of them exist."""
        return self._keys(lambda handle: handle.secret is not None)

    def _keys(self, chosen: Callable[[HandleObject], bool]) -> set[Key]:
        return {
            kind.cluster_of(handle) or nowhere(handle)
            for kind, informer in self._handles.items()
            for handle in informer.cache
            if chosen(handle)
        }

    def follow(self, changed: Callable[[Key], None]) -> None:
        """Call `changed` with the Cluster of each handle that comes, goes, or changes its Cluster or its finalizers."""

        def tell(kind: HandleKind, change: Change[HandleObject]) -> None:
            old, new = change.old, change.new
            if old and new and _relevant(kind, old) == _relevant(kind, new):
                return  # deployers write the status of their handles all the time
            for handle in (old, new):
                if handle:
                    changed(kind.cluster_of(handle) or nowhere(handle))

        for kind, informer in self._handles.items():
            informer.subscribe(lambda change, kind=kind: tell(kind, change))  # type: ignore[misc]

    def _informers(self) -> list[Informer[Any]]:
        return list(self._handles.values())


def _relevant(kind: HandleKind, handle: HandleObject) -> object:
    meta = handle.metadata
    return meta.uid, meta.finalizers, meta.terminating, kind.cluster_of(handle), handle.secret, _with_config_map(handle)


def nowhere(handle: HandleObject) -> Key:
    """The key of handles that deploy on no Cluster: it is the name of none."""
    return Key(handle.metadata.namespace, "")


def _with_config_map(handle: HandleObject) -> tuple[str, ...]:
    config = handle.spec.kube_config
    return (handle.metadata.namespace,) if config and config.config_map_ref and not handle.secret else ()


def _indexed(kind: HandleKind) -> Callable[[HandleObject], tuple[Key, ...]]:
    return lambda handle: (kind.cluster_of(handle) or nowhere(handle),)


class PolicyDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What the controllers of policies and of handles share."""

    policy_caches: PolicyCaches
    handles: HandleCaches
    clusters: ClusterCaches
    policies: Policies
