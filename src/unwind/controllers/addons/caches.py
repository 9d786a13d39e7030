"""What the controllers of add-ons go by: profiles, summaries, clusters and sources, each read once and kept."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.meta import ObjectMeta
from unwind.api.names import CREDENTIALS_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    PROFILES,
    SVELTOS_CLUSTERS,
    ClusterProfile,
    ClusterSummary,
    ClusterType,
    ProfileSpec,
    SveltosCluster,
)
from unwind.api.sveltos_status import ProfileStatus
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.clock import SYSTEM
from unwind.concurrency import Together
from unwind.controllers.addons import accepting, backing, summarizing
from unwind.controllers.addons.matching import ClusterKey, ProfileKey
from unwind.controllers.addons.summarizing import Place
from unwind.controllers.capi_clusters import CapiClusters
from unwind.controllers.followed import Followed
from unwind.fleet import targets
from unwind.kube import views
from unwind.kube.errors import NotFoundError
from unwind.kube.informers import Informer
from unwind.kube.views import Key, View

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.fleet.targets import Target
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.metrics import Metrics

T = TypeVar("T")


class SeenProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile, and the fields of it that are not known here."""

    metadata: ObjectMeta
    spec: ProfileSpec
    status: ProfileStatus
    unread: tuple[str, ...] = ()


def _in_place(
    index: Callable[[ClusterSummary], Iterable[Hashable]],
) -> Callable[[ClusterSummary], Iterable[Hashable]]:
    """An index without summaries that are in another namespace than their cluster: they count for no other object."""
    return lambda it: () if summarizing.misplaced(it) else index(it)


def _profile_view(resource: Resource) -> View[SeenProfile]:
    typed = views.typed(resource, ClusterProfile)

    def decode(body: msgspec.Raw) -> SeenProfile:
        it = typed.decode(body)
        document = msgspec.json.decode(body).get("spec") or {}
        unread = tuple(accepting.unread(document, ProfileSpec))
        return SeenProfile(metadata=it.metadata, spec=it.spec, status=it.status, unread=unread)

    return View(resource, decode, typed.stamp)  # type: ignore[arg-type] # it reads nothing but the metadata


class Caches(Followed):
    """All of it, as one part of the process."""

    name = "add-ons' caches"

    def __init__(self, client: Client, *, metrics: Metrics | None = None, clock: Clock = SYSTEM) -> None:
        self._client = client
        super().__init__()
        self._followers: list[Callable[[ClusterKey, Target | None, Target | None], None]] = []
        self._reading_targets: Together[Target | None] = Together()
        self._reading_profiles: Together[dict[str, SeenProfile]] = Together()
        self.cluster_profiles = self._informer(client, _profile_view(CLUSTER_PROFILES), clock)
        self.profiles = self._informer(client, _profile_view(PROFILES), clock)
        self.summaries: Informer[ClusterSummary] = Informer(
            client,
            views.typed(CLUSTER_SUMMARIES, ClusterSummary),
            indexes={
                "cluster": _in_place(lambda it: (summarizing.cluster_of(it),)),
                "profile": _in_place(lambda it: (summarizing.profile_of(it),)),
                "place": _in_place(lambda it: (summarizing.place_of(it),)),
                "needs": _in_place(summarizing.needed_places),
                "secret": _in_place(
                    lambda it: (Key(it.metadata.namespace, it.metadata.annotations.get(CREDENTIALS_ANNOTATION, "")),)
                ),
                "source": _in_place(lambda it: summarizing.sources(it.spec)),
            },
            clock=clock,
            troubled=self._troubled(CLUSTER_SUMMARIES),
            listed=self._listed,
        )
        self.sveltos_clusters: Informer[SveltosCluster] = Informer(
            client,
            views.typed(SVELTOS_CLUSTERS, SveltosCluster),
            indexes={"label": lambda it: it.metadata.labels.items()},
            clock=clock,
            troubled=self._troubled(SVELTOS_CLUSTERS),
            listed=self._listed,
        )
        self.teardowns: Informer[Teardown] = Informer(
            client,
            views.typed(TEARDOWNS, Teardown),
            indexes={
                "target": lambda it: (Key(it.spec.target.namespace, it.spec.target.name),),
                "uid": lambda it: (it.spec.target.uid,),
            },
            clock=clock,
            troubled=self._troubled(TEARDOWNS),
            listed=self._listed,
        )
        self.clusters = CapiClusters(client, clock=clock, troubled=self._troubled(CLUSTERS), listed=self._listed)
        # Their contents are read when they are needed; here it only matters that they have changed.
        self.sources = {
            resource.kind: self._informer(client, views.metadata(resource), clock)
            for resource in (CONFIG_MAPS, SECRETS)
        }
        if metrics:
            for informer in self._informers():
                metrics.informer(informer)

    @property
    def ready(self) -> bool:
        """Whether it is known what there is. A kind that is not served, or may not be read, holds nobody else up."""
        return (self.clusters.settled or CLUSTERS.plural in self._troubles) and all(
            informer.synced or informer.view.resource.plural in self._troubles for informer in self._informers()
        )

    @property
    def settled(self) -> bool:
        """Whether everything that decides what is deployed and removed is known."""
        return (
            self.cluster_profiles.synced
            and self.profiles.synced
            and self.summaries.synced
            and self.sveltos_clusters.synced
            and self.clusters.settled
        )

    async def run(self) -> None:
        """Follow the server until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.clusters.run())
            for informer in self._informers():
                tasks.create_task(informer.run())

    # Profiles

    def profile(self, key: ProfileKey) -> SeenProfile | None:
        return self.of_kind(key.kind).cache.get(Key(key.namespace, key.name))

    def of_kind(self, kind: str) -> Informer[SeenProfile]:
        return self.profiles if kind == PROFILES.kind else self.cluster_profiles

    def all_profiles(self) -> Iterator[tuple[ProfileKey, SeenProfile]]:
        for informer in (self.cluster_profiles, self.profiles):
            for one in informer.cache:
                yield ProfileKey(informer.view.resource.kind, one.metadata.namespace, one.metadata.name), one

    async def read_profile(self, key: ProfileKey) -> SeenProfile | None:
        """A profile as it is now. They are read all at once: where one goes from a cluster, there are others."""
        there = await self._reading_profiles.ask((key.kind, key.namespace), lambda: self._read_profiles(key))
        return there.get(key.name)

    async def _read_profiles(self, like: ProfileKey) -> dict[str, SeenProfile]:
        informer = self.of_kind(like.kind)
        found: dict[str, SeenProfile] = {}
        pages = self._client.pages(informer.view.resource, namespace=like.namespace or None)
        async with aclosing(pages):
            async for page in pages:
                for item in page.items or ():
                    one = informer.view.decode(item)
                    found[one.metadata.name] = one
        return found

    def unbacked(self, summary: ClusterSummary, target: Target | None = None) -> str:
        """Why no profile backs a summary; empty if one does. `target`: its cluster, if it is at hand."""
        key = summarizing.profile_of(summary)
        return backing.unbacked(
            summary, self.profile(key) if key else None, target or self.target(summarizing.cluster_of(summary))
        )

    async def read_backed(self, summary: ClusterSummary, target: Target) -> bool:
        """Whether a profile backs a summary on this cluster, as the server says now."""
        key = summarizing.profile_of(summary)
        return key is not None and not backing.unbacked(summary, await self.read_profile(key), target)

    def summary(self, profile: ProfileKey, cluster: ClusterKey) -> ClusterSummary | None:
        return next(iter(self.summaries.cache.by("place", Place(cluster, profile))), None)

    def needing(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """The summaries on the same cluster that depend on this one."""
        return self.summaries.cache.by("needs", summarizing.place_of(summary))

    def needed(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """The summaries on the same cluster that this one depends on."""
        places = summarizing.needed_places(summary)
        return [one for place in places for one in self.summaries.cache.by("place", place)]

    # Clusters

    def target(self, key: ClusterKey) -> Target | None:
        where = Key(key.namespace, key.name)
        if key.type == ClusterType.CAPI:
            cluster = self.clusters.get(where)
            return targets.of_capi(cluster) if cluster else None
        registered = self.sveltos_clusters.cache.get(where)
        return targets.of_sveltos(registered) if registered else None

    async def read_target(self, key: ClusterKey) -> Target | None:
        """The cluster as it is now; None if there is none of this name."""
        return await self._reading_targets.ask(key, lambda: self._read_target(key))

    async def _read_target(self, key: ClusterKey) -> Target | None:
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

    def targets(self, labels: dict[str, str] | None = None) -> Iterator[Target]:
        """All clusters, or those that may have these labels: at least all that do."""
        capi: Iterator[Cluster] = self.clusters.all()
        registered: Iterator[SveltosCluster] = iter(self.sveltos_clusters.cache)
        if labels:
            label = next(iter(labels.items()))
            capi = self.clusters.labelled(label)
            registered = iter(self.sveltos_clusters.cache.by("label", label))
        return chain(map(targets.of_capi, capi), map(targets.of_sveltos, registered))

    def reached_by(self, gone: Target) -> bool:
        """Whether another cluster is reached by the Secret of one that is gone. Its name stood on a summary."""
        if gone.secret == SveltosCluster(metadata=ObjectMeta(name=gone.ref.name)).kubeconfig_secret:
            return False
        place = (gone.ref.namespace, gone.secret)
        return any((one.ref.namespace, one.secret) == place for one in self.targets())

    def knows(self, cluster: ClusterKey) -> bool:
        """Whether it can be said of a cluster that it is not there."""
        return self.clusters.synced if cluster.type == ClusterType.CAPI else self.sveltos_clusters.synced

    def resource(self, cluster: ClusterKey) -> Resource:
        return self.clusters.resource if cluster.type == ClusterType.CAPI else SVELTOS_CLUSTERS

    def follow_targets(self, changed: Callable[[ClusterKey, Target | None, Target | None], None]) -> None:
        """Have it told of every cluster that changes."""

        def capi(change: Change[Cluster]) -> None:
            old, new = (targets.of_capi(one) if one else None for one in (change.old, change.new))
            changed(ClusterKey(ClusterType.CAPI.value, *change.key), old, new)

        def registered(change: Change[SveltosCluster]) -> None:
            old, new = (targets.of_sveltos(one) if one else None for one in (change.old, change.new))
            changed(ClusterKey(ClusterType.SVELTOS.value, *change.key), old, new)

        self._followers.append(changed)
        self.clusters.subscribe(capi)
        self.sveltos_clusters.subscribe(registered)

    def look_again(self, cluster: ClusterKey) -> None:
        """Have a cluster looked at as if it were new: what waits there for its next try need not wait."""
        if target := self.target(cluster):
            for changed in self._followers:
                changed(cluster, None, target)

    def _informers(self) -> list[Informer[Any]]:
        return [
            self.cluster_profiles,
            self.profiles,
            self.summaries,
            self.sveltos_clusters,
            self.teardowns,
            *self.sources.values(),
        ]

    def _informer(self, client: Client, view: View[T], clock: Clock) -> Informer[T]:
        return Informer(client, view, clock=clock, troubled=self._troubled(view.resource), listed=self._listed)
