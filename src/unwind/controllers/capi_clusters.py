"""The Clusters of Cluster API, followed in the version that the API server serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, Cluster
from unwind.controllers.versions import Versions
from unwind.kube import views
from unwind.kube.cache import Change
from unwind.kube.informers import Informer
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client


class CapiClusters:
    """Cluster API's Clusters, in whichever version they are served; there may be no such kind at all."""

    def __init__(
        self, client: Client, *, clock: Clock, troubled: Callable[[Exception], None], listed: Callable[[], None]
    ) -> None:
        self._client = client
        self._clock = clock
        self._troubled = troubled
        self._listed = listed
        self._versions = Versions(
            client, (CLUSTERS, CLUSTERS_V1BETA1), clock=clock, troubled=troubled, found=self._found
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None
        self._informer: Informer[Cluster] | None = None
        self._handlers: list[Callable[[Change[Cluster]], None]] = []
        self._looked = False

    @property
    def settled(self) -> bool:
        """Whether it is known which there are, or that there is no such kind."""
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
        """Put in what was just read, so that nobody has to wait for the watch."""
        if self._informer:
            self._informer.take(cluster)

    def subscribe(self, handler: Callable[[Change[Cluster]], None]) -> None:
        self._handlers.append(handler)

    async def run(self) -> None:
        """Follow them until cancelled; begin anew where another version is served."""
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
            views.typed(resource, Cluster),
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
        """What went while nobody looked is told: the new cache never had it."""
        while before:
            old = before.pop()
            key = Key(old.metadata.namespace, old.metadata.name)
            if key not in informer.cache:
                for handler in self._handlers:
                    handler(Change(key, old, None))
        self._listed()
