"""Shared informers of the Karmada controllers: Clusters, Works and Namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.karmada import CLUSTERS, WORKS, Cluster, Work
from unwind.api.names import KARMADA_EXECUTION_NAMESPACE
from unwind.api.resources import NAMESPACES
from unwind.clock import SYSTEM
from unwind.karmada.remove_strategy import needs
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.informers import Informer, InformerFactory, InformerSet

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.kube.client import Client


def executes_for(namespace: str) -> str:
    """The member whose Works are in a namespace; empty if it is not an execution namespace."""
    found = namespace.startswith(KARMADA_EXECUTION_NAMESPACE)
    return namespace.removeprefix(KARMADA_EXECUTION_NAMESPACE) if found else ""


class KarmadaCaches(InformerSet):
    """The informers of the Karmada controllers, as one component."""

    name = "members' caches"

    def __init__(self, client: Client, *, informers: InformerFactory | None = None, clock: Clock = SYSTEM) -> None:
        """`informers`: those that the process shares."""
        super().__init__()
        self.clusters = self._informer(
            client,
            decoding.typed(CLUSTERS, Cluster),
            clock,
            indexes={
                # By Secret: a changed Secret may mean new credentials.
                "secret": lambda it: (
                    (Key(it.spec.secret_ref.namespace, it.spec.secret_ref.name),) if it.spec.secret_ref else ()
                ),
                "id": lambda it: (it.spec.id,) if it.spec.id else (),
            },
        )
        self.works = self._informer(
            client,
            decoding.typed(WORKS, Work),
            clock,
            indexes={
                "namespace": lambda it: (it.metadata.namespace,),
                "needs": lambda it: [Key(it.metadata.namespace, name) for name in needs(it)],
            },
        )
        self.namespaces = (informers or InformerFactory(client, clock=clock)).metadata(
            NAMESPACES, troubled=self._troubled(NAMESPACES), listed=self._listed
        )
        """Mainly for execution namespaces."""

    def cluster(self, name: str) -> Cluster | None:
        return self.clusters.cache.get(Key("", name))

    def cluster_of(self, work: Work) -> Cluster | None:
        """The member of a Work, by its namespace. None also if it is not in an execution namespace."""
        name = executes_for(work.metadata.namespace)
        return self.cluster(name) if name else None

    def needing(self, work: Work) -> list[Work]:
        """The Works for the same member that depend on this one."""
        return self.works.cache.by("needs", Key(work.metadata.namespace, work.metadata.name))

    def needed(self, work: Work) -> list[Work]:
        """The existing Works that it depends on."""
        found = (self.works.cache.get(Key(work.metadata.namespace, name)) for name in needs(work))
        return [item for item in found if item]

    def works_of(self, cluster: Cluster) -> list[Work]:
        return self.works.cache.by("namespace", cluster.execution_namespace)

    def _informers(self) -> list[Informer[Any]]:
        return [self.clusters, self.works, self.namespaces]
