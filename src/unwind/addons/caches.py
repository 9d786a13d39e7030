"""Shared informers of the add-on controllers: profiles, summaries, clusters and sources."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind.addons import cluster_summaries, validation
from unwind.addons.cluster_summaries import ProfileOnCluster
from unwind.addons.matching import ProfileKey
from unwind.api.meta import ObjectMeta
from unwind.api.names import CREDENTIALS_ANNOTATION
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    PROFILES,
    ClusterProfile,
    ClusterSummary,
    ProfileSpec,
    ProfileStatus,
)
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.kube import decoding
from unwind.kube.decoding import Key, View
from unwind.members.cluster_caches import ClusterCaches

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer, InformerFactory
    from unwind.members.targets import AddonTarget, ClusterKey

T = TypeVar("T")


class SeenProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile, and the paths of its unknown fields."""

    metadata: ObjectMeta
    spec: ProfileSpec
    status: ProfileStatus
    unread: tuple[str, ...] = ()


def _in_place(index: Callable[[ClusterSummary], Iterable[Hashable]]) -> Callable[[ClusterSummary], Iterable[Hashable]]:
    """An index without summaries in another namespace than their cluster: they affect no other object."""
    return lambda it: () if cluster_summaries.misplaced(it) else index(it)


def _profile_view(resource: Resource) -> View[SeenProfile]:
    typed = decoding.typed(resource, ClusterProfile)

    def decode(body: msgspec.Raw) -> SeenProfile:
        it = typed.decode(body)
        document = msgspec.json.decode(body).get("spec") or {}
        unread = tuple(validation.unknown_fields(document, ProfileSpec))
        return SeenProfile(metadata=it.metadata, spec=it.spec, status=it.status, unread=unread)

    return View(resource, decode, typed.stamp)  # type: ignore[arg-type] # it reads nothing but the metadata


class AddonCaches(ClusterCaches):
    """The informers of the add-on controllers, as one component."""

    name = "add-ons' caches"

    def __init__(self, client: Client, *, informers: InformerFactory | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__(client, informers=informers, clock=clock)
        self._reading_profiles: SingleFlight[dict[str, SeenProfile]] = SingleFlight()
        self.cluster_profiles = self._informer(client, _profile_view(CLUSTER_PROFILES), clock)
        self.profiles = self._informer(client, _profile_view(PROFILES), clock)
        self.summaries = self._informer(
            client,
            decoding.typed(CLUSTER_SUMMARIES, ClusterSummary),
            clock,
            indexes={
                "cluster": _in_place(lambda it: (cluster_summaries.cluster_of(it),)),
                "profile": _in_place(lambda it: (cluster_summaries.profile_of(it),)),
                "place": _in_place(lambda it: (cluster_summaries.place_of(it),)),
                "needs": _in_place(cluster_summaries.needed_places),
                "secret": _in_place(
                    lambda it: (Key(it.metadata.namespace, it.metadata.annotations.get(CREDENTIALS_ANNOTATION, "")),)
                ),
                "source": _in_place(lambda it: cluster_summaries.sources(it.spec)),
            },
        )

    @property
    def settled(self) -> bool:
        """Whether all caches that decide deployment and removal are synced."""
        return self.cluster_profiles.synced and self.profiles.synced and self.summaries.synced and self.clusters_settled

    # Profiles

    def profile(self, key: ProfileKey) -> SeenProfile | None:
        return self.of_kind(key.kind).cache.get(Key(key.namespace, key.name))

    def of_kind(self, kind: str) -> Informer[SeenProfile]:
        return self.profiles if kind == PROFILES.kind else self.cluster_profiles

    def all_profiles(self) -> Iterator[tuple[ProfileKey, SeenProfile]]:
        for informer in (self.cluster_profiles, self.profiles):
            for item in informer.cache:
                yield ProfileKey(informer.view.resource.kind, item.metadata.namespace, item.metadata.name), item

    async def read_profile(self, key: ProfileKey) -> SeenProfile | None:
        """A profile read from the API server. One LIST serves concurrent callers."""
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

    def unbacked(self, summary: ClusterSummary, target: AddonTarget | None = None) -> str:
        """Why no profile backs a summary; empty if one does. `target`: its cluster, if already read."""
        target = target or self.target(cluster_summaries.cluster_of(summary))
        return cluster_summaries.unbacked(summary, self.profile_of_summary(summary), target)

    def not_understood(self, summary: ClusterSummary) -> list[str]:
        """Why it is not known whether the profile of a summary selects its cluster; empty if it is known."""
        target = self.target(cluster_summaries.cluster_of(summary))
        return cluster_summaries.not_understood(summary, self.profile_of_summary(summary), target)

    async def read_backed(self, summary: ClusterSummary, target: AddonTarget) -> bool:
        """Whether a profile backs a summary on this cluster, by fresh reads."""
        key = cluster_summaries.profile_of(summary)
        return key is not None and not cluster_summaries.unbacked(summary, await self.read_profile(key), target)

    def summary(self, profile: ProfileKey, cluster: ClusterKey) -> ClusterSummary | None:
        return next(iter(self.summaries.cache.by("place", ProfileOnCluster(cluster, profile))), None)

    def profile_of_summary(self, summary: ClusterSummary) -> SeenProfile | None:
        key = cluster_summaries.profile_of(summary)
        return self.profile(key) if key else None

    def target_of_summary(self, summary: ClusterSummary) -> AddonTarget | None:
        """Its cluster, if it is the one that the summary was made for."""
        return cluster_summaries.same_cluster(summary, self.target(cluster_summaries.cluster_of(summary)))

    def needing(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """The summaries on the same cluster that depend on this one."""
        return self.summaries.cache.by("needs", cluster_summaries.place_of(summary))

    def needed(self, summary: ClusterSummary) -> list[ClusterSummary]:
        """The summaries on the same cluster that this one depends on."""
        places = cluster_summaries.needed_places(summary)
        return [summary for place in places for summary in self.summaries.cache.by("place", place)]

    def _informers(self) -> list[Informer[Any]]:
        return [self.cluster_profiles, self.profiles, self.summaries, *super()._informers()]
