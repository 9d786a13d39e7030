"""What is on a cluster, read from the server for the plan by which it goes: a plan is made once, and by no cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import CLUSTER_UID_ANNOTATION
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.api.unwind import Inventory
from unwind.controllers.addons.backing import that_hold
from unwind.controllers.addons.matching import key_of
from unwind.controllers.addons.summarizing import cluster_of
from unwind.controllers.teardowns import drafting

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.fleet.targets import Target
    from unwind.kube.client import Client
    from unwind.removing.inventories import Inventories


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The summaries of a cluster, and the accounts of what they put there."""

    summaries: tuple[ClusterSummary, ...]
    chunks: Mapping[str, Inventory]
    """By name: of all who have something on the cluster, and of its summaries wherever they put it."""
    objects: Mapping[str, int]
    """How many objects each has, by the uid of the summary."""
    lost: tuple[drafting.Lost, ...]
    """What summaries put there that are gone, and with them the word on what becomes of it."""

    def drafted(self, *, decided: bool = False) -> drafting.Drafted:
        """The plan, or why there is none."""
        return drafting.drafted(self.summaries, self.objects, self.lost, decided=decided)


async def gather(
    client: Client,
    inventories: Inventories,
    target: Target,
    *,
    backed: Callable[[ClusterSummary], bool] = lambda _: False,
) -> Gathered:
    """All that is on this cluster. `backed`: whether a profile backs a summary.

    A summary that has neither a profile nor an Inventory of its own is left out: the manager put nothing there for it.
    """
    found = await client.list(CLUSTER_SUMMARIES, namespace=target.ref.namespace)
    here = [one for one in msgspec.convert(found, list[ClusterSummary]) if is_of(one, target)]
    # A uid alone may be forged on a summary; the record of the member names the cluster, too.
    there = [chunk for chunk in await inventories.on(target.ref.uid) if _is_about(chunk, target)]
    chunks = {chunk.metadata.name: chunk for chunk in there}
    accounted = {chunk.spec.owner.uid for chunk in there if chunk.spec.entries}
    for one in here:
        uid = one.metadata.uid
        if drafting.is_local(one) or uid not in accounted:
            # What is Local is not on this cluster.
            chunks |= {chunk.metadata.name: chunk for chunk in await inventories.of(uid)}
    here = that_hold(here, {chunk.spec.owner.uid for chunk in chunks.values()}, backed)
    return Gathered(
        summaries=tuple(here),
        chunks=chunks,
        objects=Counter(chunk.spec.owner.uid for chunk in chunks.values() for _ in chunk.spec.entries),
        lost=tuple(drafting.lost(here, there)),
    )


def _is_about(chunk: Inventory, target: Target) -> bool:
    there, ref = chunk.spec.member.object, target.ref
    return (there.kind, there.namespace, there.name) == (ref.kind, ref.namespace, ref.name)


def is_of(summary: ClusterSummary, target: Target) -> bool:
    """Whether a summary is of this very cluster."""
    # Another cluster that had the name has summaries of its own.
    made_for = summary.metadata.annotations.get(CLUSTER_UID_ANNOTATION, target.ref.uid)
    return cluster_of(summary) == key_of(target) and made_for == target.ref.uid
