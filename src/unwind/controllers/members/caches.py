"""What the controllers of members go by: Karmada's Clusters and Works, and namespaces, each read once and kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.names import KARMADA_EXECUTION_NAMESPACE
from unwind.api.resources import NAMESPACES
from unwind.clock import SYSTEM
from unwind.controllers.members.drafting import needs
from unwind.kube import views
from unwind.kube.informers import Informer
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.kube.metrics import Metrics
    from unwind.kube.views import Metadata

log = logs.get(__name__)


def executes_for(namespace: str) -> str:
    """The name of the member whose Works are in a namespace; empty if that is for something else."""
    found = namespace.startswith(KARMADA_EXECUTION_NAMESPACE)
    return namespace.removeprefix(KARMADA_EXECUTION_NAMESPACE) if found else ""


class MemberCaches:
    """All of it, as one part of the process."""

    name = "members' caches"

    def __init__(self, client: Client, *, metrics: Metrics | None = None, clock: Clock = SYSTEM) -> None:
        self._told: list[Callable[[], None]] = []
        self._troubles: dict[str, str] = {}
        self.clusters: Informer[Cluster] = Informer(
            client,
            views.typed(CLUSTERS, Cluster),
            indexes={
                # Whose token is kept where: a Secret that changes is another way in.
                "secret": lambda it: (
                    (Key(it.spec.secret_ref.namespace, it.spec.secret_ref.name),) if it.spec.secret_ref else ()
                ),
                "id": lambda it: (it.spec.id,) if it.spec.id else (),
            },
            clock=clock,
            troubled=self._troubled(CLUSTERS),
            listed=self._listed,
        )
        self.works: Informer[Work] = Informer(
            client,
            views.typed(WORKS, Work),
            indexes={
                "namespace": lambda it: (it.metadata.namespace,),
                "needs": lambda it: [Key(it.metadata.namespace, name) for name in needs(it)],
            },
            clock=clock,
            troubled=self._troubled(WORKS),
            listed=self._listed,
        )
        self.namespaces: Informer[Metadata] = Informer(
            client,
            views.metadata(NAMESPACES),
            clock=clock,
            troubled=self._troubled(NAMESPACES),
            listed=self._listed,
        )
        """Where Works can be, above all."""
        if metrics:
            for informer in self._informers():
                metrics.informer(informer)

    @property
    def ready(self) -> bool:
        """Whether it is known what there is. A kind that is not served, or may not be read, holds nobody else up."""
        return all(informer.synced or informer.view.resource.plural in self._troubles for informer in self._informers())

    @property
    def settled(self) -> bool:
        """Whether all of it is known. Nothing may be taken for gone before it is."""
        return all(informer.synced for informer in self._informers())

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Have it told whenever a cache has become whole."""
        self._told.append(listed)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers():
                tasks.create_task(informer.run())

    def cluster(self, name: str) -> Cluster | None:
        return self.clusters.cache.get(Key("", name))

    def cluster_of(self, work: Work) -> Cluster | None:
        """The member that a Work is for: its namespace says which. None also where it is in no such namespace."""
        name = executes_for(work.metadata.namespace)
        return self.cluster(name) if name else None

    def needing(self, work: Work) -> list[Work]:
        """The Works for the same member that need this one."""
        return self.works.cache.by("needs", Key(work.metadata.namespace, work.metadata.name))

    def needed(self, work: Work) -> list[Work]:
        """Those that it needs and that are there."""
        found = (self.works.cache.get(Key(work.metadata.namespace, name)) for name in needs(work))
        return [one for one in found if one]

    def works_of(self, cluster: Cluster) -> list[Work]:
        return self.works.cache.by("namespace", cluster.execution_namespace)

    def _informers(self) -> list[Informer[Any]]:
        return [self.clusters, self.works, self.namespaces]

    def _listed(self) -> None:
        for told in self._told:
            told()

    def _troubled(self, resource: Resource) -> Callable[[Exception], None]:
        def troubled(error: Exception) -> None:
            if self._troubles.get(resource.plural) != str(error):
                log.warning("a kind cannot be followed", kind=resource.kind, api=resource.api_version, why=str(error))
            self._troubles[resource.plural] = str(error)

        return troubled
