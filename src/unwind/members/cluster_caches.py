"""Shared informers of clusters, their Teardowns, and the Secrets with their credentials."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, Cluster
from unwind.api.meta import ObjectMeta
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.sveltos import SVELTOS_CLUSTERS, ClusterType, SveltosCluster
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.kube import decoding
from unwind.kube.cache import Change
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.kube.informers import Informer, InformerFactory, InformerSet
from unwind.kube.served_versions import ServedVersions
from unwind.members import targets
from unwind.members.targets import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget


# Cluster API's Clusters


class CapiClusters:
    """Cluster API's Clusters, watched in the served version; the kind may not exist."""

    def __init__(
        self,
        client: Client,
        *,
        informers: InformerFactory,
        clock: Clock,
        troubled: Callable[[Exception], None],
        listed: Callable[[], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._troubled = troubled
        self._listed = listed
        self._versions = ServedVersions(
            client,
            (CLUSTERS, CLUSTERS_V1BETA1),
            clock=clock,
            troubled=troubled,
            found=self._found,
            crds=informers.metadata(CUSTOM_RESOURCE_DEFINITIONS, troubled=troubled),
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None
        self._informer: Informer[Cluster] | None = None
        self._handlers: list[Callable[[Change[Cluster]], None]] = []
        self._looked = False

    @property
    def settled(self) -> bool:
        """Whether the Clusters are listed, or the kind is known not to exist."""
        return self._looked and (self._informer is None or self._informer.synced)

    @property
    def synced(self) -> bool:
        return self._informer is not None and self._informer.synced

    @property
    def resource(self) -> Resource:
        """The version that is read."""
        return self._informer.view.resource if self._informer else CLUSTERS

    def get(self, key: Key) -> Cluster | None:
        return self._informer.cache.get(key) if self._informer else None

    def all(self) -> Iterator[Cluster]:
        yield from self._informer.cache if self._informer else ()

    def labelled(self, label: tuple[str, str]) -> Iterator[Cluster]:
        yield from self._informer.cache.by("label", label) if self._informer else ()

    def take(self, cluster: Cluster) -> None:
        """Store an object that was just read, without waiting for the watch."""
        if self._informer:
            self._informer.take(cluster)

    def subscribe(self, handler: Callable[[Change[Cluster]], None]) -> None:
        self._handlers.append(handler)

    async def run(self) -> None:
        """Watch until cancelled; restart if another version is served."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._versions.run())

    def _found(self, served: Resource | None) -> None:
        if served and (self._informer is None or self.resource != served) and self._tasks:
            if self._following:
                self._following.cancel()
            self._following = self._tasks.create_task(self._follow(served).run())
        if not self._looked:
            self._looked = True
            self._listed()

    def _follow(self, resource: Resource) -> Informer[Cluster]:
        before = list(self.all())
        informer = Informer(
            self._client,
            decoding.typed(resource, Cluster),
            indexes={"label": lambda it: it.metadata.labels.items()},
            clock=self._clock,
            troubled=self._troubled,
            listed=lambda: self._taken_over(informer, before),
        )
        self._informer = informer
        for handler in self._handlers:
            informer.subscribe(handler)
        return informer

    def _taken_over(self, informer: Informer[Cluster], before: list[Cluster]) -> None:
        """Report deletions that happened between two informers: the new cache never had these objects."""
        while before:
            old = before.pop()
            key = Key(old.metadata.namespace, old.metadata.name)
            if key not in informer.cache:
                for handler in self._handlers:
                    handler(Change(key, old, None))
        self._listed()


T = TypeVar("T")


class ClusterCaches(InformerSet):
    """The informers that all controllers of clusters share."""

    name = "clusters' caches"

    def __init__(
        self,
        client: Client,
        *,
        informers: InformerFactory | None = None,
        clusters: bool = True,
        sveltos_clusters: bool = True,
        homes: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`informers`: those that the process shares. `clusters`, `sveltos_clusters`: whether Cluster API's Clusters,
        and SveltosClusters, are watched; otherwise there are none. `homes`: the only namespace in which ConfigMaps, or
        Secrets, are watched; default: all."""
        super().__init__()
        self._client = client
        self._with_clusters = clusters
        self._with_sveltos_clusters = sveltos_clusters
        self._followers: list[Callable[[ClusterKey, AddonTarget | None, AddonTarget | None], None]] = []
        self._reading_targets: SingleFlight[AddonTarget | None] = SingleFlight()
        self.sveltos_clusters = self._informer(
            client,
            decoding.typed(SVELTOS_CLUSTERS, SveltosCluster),
            clock,
            indexes={"label": lambda it: it.metadata.labels.items()},
        )
        self.teardowns = self._informer(
            client,
            decoding.typed(TEARDOWNS, Teardown),
            clock,
            indexes={
                "target": lambda it: (Key(it.spec.target.namespace, it.spec.target.name),),
                "uid": lambda it: (it.spec.target.uid,),
            },
        )
        self.clusters = CapiClusters(
            client,
            informers=informers or InformerFactory(client, clock=clock),
            clock=clock,
            troubled=self._troubled(CLUSTERS),
            listed=self._listed,
        )
        # Their data is read when it is needed; here only changes matter.
        self.sources = {
            resource.kind: self._informer(
                client, decoding.metadata(resource), clock, namespace=(homes or {}).get(resource.kind)
            )
            for resource in (CONFIG_MAPS, SECRETS)
        }

    @property
    def ready(self) -> bool:
        """Whether the caches are synced. A kind that is not served, or is forbidden, does not delay the others."""
        clusters = not self._with_clusters or self.clusters.settled or CLUSTERS.plural in self._troubles
        return clusters and super().ready

    @property
    def clusters_settled(self) -> bool:
        """Whether all clusters are known."""
        return (not self._with_sveltos_clusters or self.sveltos_clusters.synced) and (
            not self._with_clusters or self.clusters.settled
        )

    @property
    def settled(self) -> bool:
        """Whether all caches that decide about removal are synced."""
        return self.clusters_settled

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._with_clusters:
                tasks.create_task(self.clusters.run())
            tasks.create_task(super().run())

    def target(self, key: ClusterKey) -> AddonTarget | None:
        where = Key(key.namespace, key.name)
        if key.type == ClusterType.CAPI:
            cluster = self.clusters.get(where)
            return targets.of_capi(cluster) if cluster else None
        registered = self.sveltos_clusters.cache.get(where)
        return targets.of_sveltos(registered) if registered else None

    async def read_target(self, key: ClusterKey) -> AddonTarget | None:
        """The cluster, read from the API server; None if there is none of this name."""
        return await self._reading_targets.ask(key, lambda: self._read_target(key))

    async def _read_target(self, key: ClusterKey) -> AddonTarget | None:
        resource = self.resource(key)
        try:
            if key.type == ClusterType.CAPI:
                return targets.of_capi(
                    await self._client.get(resource, key.name, namespace=key.namespace, type=Cluster)
                )
            found = await self._client.get(resource, key.name, namespace=key.namespace, type=SveltosCluster)
            return targets.of_sveltos(found)
        except NotFoundError:
            return None

    def targets(self, labels: dict[str, str] | None = None) -> Iterator[AddonTarget]:
        """All clusters, or a superset of those with these labels."""
        capi: Iterator[Cluster] = self.clusters.all()
        registered: Iterator[SveltosCluster] = iter(self.sveltos_clusters.cache)
        if labels:
            label = next(iter(labels.items()))
            capi = self.clusters.labelled(label)
            registered = iter(self.sveltos_clusters.cache.by("label", label))
        return chain(map(targets.of_capi, capi), map(targets.of_sveltos, registered))

    def reached_by(self, gone: AddonTarget) -> bool:
        """Whether another cluster uses the Secret of a deleted one. The name of the Secret was on a summary."""
        if gone.secret == SveltosCluster(metadata=ObjectMeta(name=gone.ref.name)).kubeconfig_secret:
            return False
        place = (gone.ref.namespace, gone.secret)
        return any((target.ref.namespace, target.secret) == place for target in self.targets())

    def knows(self, cluster: ClusterKey) -> bool:
        """Whether the absence of a cluster can be told from the cache."""
        return self.clusters.synced if cluster.type == ClusterType.CAPI else self.sveltos_clusters.synced

    def resource(self, cluster: ClusterKey) -> Resource:
        return self.clusters.resource if cluster.type == ClusterType.CAPI else SVELTOS_CLUSTERS

    def follow_targets(self, changed: Callable[[ClusterKey, AddonTarget | None, AddonTarget | None], None]) -> None:
        """Call `changed` for every cluster that changes."""

        def capi(change: Change[Cluster]) -> None:
            old, new = (targets.of_capi(item) if item else None for item in (change.old, change.new))
            changed(ClusterKey(ClusterType.CAPI.value, *change.key), old, new)

        def registered(change: Change[SveltosCluster]) -> None:
            old, new = (targets.of_sveltos(item) if item else None for item in (change.old, change.new))
            changed(ClusterKey(ClusterType.SVELTOS.value, *change.key), old, new)

        self._followers.append(changed)
        self.clusters.subscribe(capi)
        self.sveltos_clusters.subscribe(registered)

    def look_again(self, cluster: ClusterKey) -> None:
        """Handle a cluster as if it were new: retries there need not wait for their backoff."""
        if target := self.target(cluster):
            for changed in self._followers:
                changed(cluster, None, target)

    def _informers(self) -> list[Informer[Any]]:
        registered = [self.sveltos_clusters] if self._with_sveltos_clusters else []
        return [*registered, self.teardowns, *self.sources.values()]
