"""Clusters that `clusterctl move` moves between management clusters: their add-ons are adopted where they arrive.

A moved Cluster keeps its annotations, but it and its ClusterSummaries have new uids. So each Cluster carries the uids
of its ClusterSummaries, and in the new management cluster a ClusterSummary of the same name adopts what was deployed
for them. The former management cluster does nothing on the cluster any more: it deleted its Cluster for the move.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.addons import cluster_summaries
from unwind.addons.cluster_deletion_behavior import effort
from unwind.addons.step_source import is_on_cluster
from unwind.api.fields import Model
from unwind.api.meta import ref_of
from unwind.api.names import OWNERS_ANNOTATION
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterType
from unwind.deploy.former_owners import adopt_former
from unwind.deploy.owner_marks import DeploymentOwner
from unwind.kube.controller import Controller
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.members.targets import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.addons.caches import AddonCaches
    from unwind.api.sveltos import ClusterSummary
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.members.member import Member
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps

log = logs.get(__name__)

# Seconds. The uids of many ClusterSummaries are written together.
_SOON = 1.0
# A cluster that is moved back and forth has no more former owners than this for each ClusterSummary.
_FORMER = 4
# Bytes. All annotations of an object may have 256 KiB.
_LARGEST = 128 * 1024
# The uids become part of label selectors, and anyone who may patch the Cluster can write them.
_UID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class RecordedOwners(Model, frozen=True, kw_only=True):
    """The value of the annotation: the ClusterSummaries that have deployed to a Cluster."""

    cluster: str = ""
    """The uid of the Cluster that this was written for. In another management cluster, the Cluster has another one."""
    owners: dict[str, str] = msgspec.field(default_factory=dict)
    """The uids of its ClusterSummaries, by name."""
    former: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The uids of ClusterSummaries in former management clusters, by name."""


def recorded(annotations: Mapping[str, str]) -> RecordedOwners:
    """What the annotations of a Cluster say. An invalid value says nothing, so nothing is adopted."""
    return _decoded(annotations.get(OWNERS_ANNOTATION, "{}"))


@lru_cache(maxsize=64)
def _decoded(value: str) -> RecordedOwners:
    """Cached: each of hundreds of ClusterSummaries looks at the same value."""
    try:
        found = msgspec.json.decode(value, type=RecordedOwners)
    except (msgspec.DecodeError, RecursionError):
        return RecordedOwners()
    uids = chain(found.owners.values(), *found.former.values())
    return found if all(map(_UID.fullmatch, uids)) else RecordedOwners()


def former_owners(target: AddonTarget, name: str) -> frozenset[str]:
    """The uids that the ClusterSummary of this name had in former management clusters of a Cluster (pure)."""
    return frozenset(_former(recorded(target.annotations), target.ref.uid).get(name, ()))


def _former(before: RecordedOwners, cluster: str) -> dict[str, tuple[str, ...]]:
    if not before.cluster or before.cluster == cluster:
        return before.former
    names = {*before.owners, *before.former}
    return {
        name: tuple(dict.fromkeys([*filter(None, [before.owners.get(name)]), *before.former.get(name, ())]))[:_FORMER]
        for name in names
    }


def to_record(target: AddonTarget, owners: Mapping[str, str]) -> RecordedOwners:
    """What a Cluster must say, so that its add-ons can be adopted elsewhere (pure). `owners`: the uids of its
    ClusterSummaries, by name."""
    former = _former(recorded(target.annotations), target.ref.uid)
    return RecordedOwners(
        cluster=target.ref.uid, owners=dict(sorted(owners.items())), former=dict(sorted(former.items()))
    )


class OwnerRecordController(Controller[ClusterKey]):
    """Writes the uids of ClusterSummaries on their Cluster."""

    name = "owner records"
    _caches: AddonCaches

    def __init__(self, shared: ControllerDeps, caches: AddonCaches) -> None:
        super().__init__(shared, caches)
        caches.summaries.subscribe(self._summary_changed)
        caches.follow_targets(self._target_changed)

    def _summary_changed(self, change: Change[ClusterSummary]) -> None:
        it = change.new or change.old
        if it and (change.old is None or change.new is None or change.old.metadata.uid != change.new.metadata.uid):
            self._look(cluster_summaries.cluster_of(it))

    def _target_changed(self, cluster: ClusterKey, old: AddonTarget | None, new: AddonTarget | None) -> None:
        if new and (old is None or (old.ref.uid, old.paused) != (new.ref.uid, new.paused)):
            self._look(cluster)

    def _look(self, cluster: ClusterKey) -> None:
        if cluster.type == ClusterType.CAPI:
            self._queue.add_after(cluster, _SOON)

    def _enqueue_all(self) -> None:
        if self._caches.settled:
            for cluster in {cluster_summaries.cluster_of(it) for it in self._caches.summaries.cache}:
                self._look(cluster)

    def _shard(self, key: ClusterKey) -> str:
        return key.shard

    def _describe(self, key: ClusterKey) -> dict[str, str]:
        return {"cluster": str(key)}

    async def _reconcile(self, key: ClusterKey) -> float | None:
        target = self._caches.target(key)
        # While it is paused, it may be on the move: its annotations are copied at any moment.
        if not self._caches.settled or target is None or target.terminating or target.paused:
            return None
        if not self._owner.owns(key.shard):
            return None
        here = [it for it in self._caches.summaries.cache.by("cluster", key) if is_on_cluster(it, target)]
        if not here and OWNERS_ANNOTATION not in target.annotations:
            return None
        wanted = to_record(target, {it.metadata.name: it.metadata.uid for it in here})
        if wanted == recorded(target.annotations):
            return None
        value = msgspec.json.encode(wanted).decode()
        if len(value) > _LARGEST:
            log.warning(
                "owners of add-ons not recorded, too many profiles",
                cluster=str(key),
                owners=len(here),
                remedy="use fewer profiles for it before it is moved: its add-ons are not adopted there",
            )
            return None
        meta = {"uid": target.ref.uid, "annotations": {OWNERS_ANNOTATION: value}}
        try:
            async with self._client.aside:
                await self._client.patch(
                    self._caches.clusters.resource, key.name, {"metadata": meta}, namespace=key.namespace
                )
        except (NotFoundError, ConflictError):
            return None  # the change comes as an event
        return None


class MovedAddons:
    """Adopts what was deployed to a Cluster from a former management cluster."""

    def __init__(self, deps: RemovalDeps) -> None:
        self._deps = deps
        self._adopted: set[str] = set()
        """The uids of ClusterSummaries whose former objects are adopted."""

    async def former(self, target: AddonTarget, summary: ClusterSummary) -> frozenset[str]:
        """The former owners of a summary's objects. An owner that this management cluster has an Inventory of is not
        one: it may still be here."""
        uids = former_owners(target, summary.metadata.name) - {summary.metadata.uid}
        if not uids:
            return uids
        here = await self._deps.inventories.owned(uids)
        return uids - {chunk.spec.owner.uid for chunk in here}

    def had_owner(self, target: AddonTarget, name: str) -> bool:
        """Whether a ClusterSummary of this name deployed to the cluster from a former management cluster."""
        return bool(former_owners(target, name))

    async def adopt(self, member: Member, owner: DeploymentOwner) -> list[str]:
        """Adopt the objects of the former owners; return the Helm releases that are left to be adopted."""
        if not owner.former or owner.uid in self._adopted:
            return []
        releases = await adopt_former(member, self._deps.inventories, owner)
        self._adopted.add(owner.uid)
        return releases

    async def adopt_all(self, target: AddonTarget, summary: ClusterSummary) -> list[str]:
        """Adopt the objects of a summary whose cluster is deleted before it was deployed here."""
        former = await self.former(target, summary)
        if not former:
            return []
        ref = ref_of(CLUSTER_SUMMARIES, summary.metadata)
        owner = DeploymentOwner(
            object=ref, profile=cluster_summaries.profile_ref(summary), effort=effort(summary), former=former
        )
        async with self._deps.members.member(target) as member:
            return await adopt_former(member, self._deps.inventories, owner)
