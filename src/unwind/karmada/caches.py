"""What the controllers of members go by: Karmada's Clusters and Works, and namespaces, each read once and kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.names import KARMADA_EXECUTION_NAMESPACE
from unwind.api.resources import NAMESPACES
from unwind.clock import SYSTEM
from unwind.karmada.unjoin_plan import needs
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer, InformerSet

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.kube.decoding import Metadata
    from unwind.kube.metrics import Metrics


def executes_for(namespace: str) -> str:
    """The name of the member whose Works are in a namespace; empty if that is for something else."""
    found = namespace.startswith(KARMADA_EXECUTION_NAMESPACE)
    return namespace.removeprefix(KARMADA_EXECUTION_NAMESPACE) if found else ""


class KarmadaCaches(InformerSet):
    """All of it, as one part of the process."""

    name = "members' caches"

    def __init__(self, client: Client, *, metrics: Metrics | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self.clusters: Informer[Cluster] = Informer(
            client,
            decoding.typed(CLUSTERS, Cluster),
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
            decoding.typed(WORKS, Work),
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
            decoding.metadata(NAMESPACES),
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
        return [item for item in found if item]

    def works_of(self, cluster: Cluster) -> list[Work]:
        return self.works.cache.by("namespace", cluster.execution_namespace)

    def _informers(self) -> list[Informer[Any]]:
        return [self.clusters, self.works, self.namespaces]
