"""One Work put on its member: what it holds comes there, and what has dropped out of it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.addons import deploying, manifests, pruning
from unwind.addons.marks import Owner
from unwind.addons.reports import Outcome, Report, first
from unwind.addons.sources import Source
from unwind.api import names
from unwind.api.karmada import WORKS
from unwind.api.meta import ref_of
from unwind.api.policies import volume_policy
from unwind.chance import CHANCE
from unwind.concurrency import Together
from unwind.controllers.members import works_telling as telling
from unwind.fleet import credentials
from unwind.fleet.targets import of_karmada

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.addons.placing import Placed
    from unwind.api.karmada import Cluster, Work
    from unwind.clock import Clock
    from unwind.controllers.members.works_standing import Standing
    from unwind.deleting.registering import External, Registration
    from unwind.deleting.registry import Plugin
    from unwind.fleet.fleet import Fleet
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client, Object
    from unwind.removing.inventories import Inventories
    from unwind.removing.removal import Removal


# Of what is not there, so much is named.
_SHOWN = 20


def matters(work: Work, cluster: Cluster) -> object:
    """What decides what has to be on the member; neither status does."""
    meta = work.metadata
    said = tuple(
        meta.annotations.get(one)
        for one in (names.ADOPT_ANNOTATION, names.TAKE_ALONG_ANNOTATION, names.VOLUMES_ANNOTATION)
    )
    return meta.uid, meta.generation, said, cluster.metadata.uid, cluster.spec.id


def source_of(work: Work) -> Source:
    """What a Work holds, as it is put on a member."""
    meta = work.metadata
    source = Source(kind=WORKS.kind, namespace=meta.namespace, name=meta.name)
    read = manifests.gather(work.spec.workload.manifests)
    return Source(
        kind=source.kind,
        namespace=source.namespace,
        name=source.name,
        manifests=tuple(read.manifests),
        faults=tuple(f"{source}, {fault}" for fault in read.faults),
    )


def owner_of(work: Work) -> Owner:
    """Whose its objects are."""
    adopt = work.metadata.annotations.get(names.ADOPT_ANNOTATION) == "true"
    return Owner(object=ref_of(WORKS, work.metadata), adopt=adopt)


def takes_along(work: Work) -> bool:
    """Whether its namespaces and CRDs go even if something foreign is in them."""
    return work.metadata.annotations.get(names.TAKE_ALONG_ANNOTATION) == "true"


class Putting:
    """What all Works of this process are put on members with."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        inventories: Inventories,
        *,
        deleters: Iterable[Registration | External],
        plugins: Iterable[Plugin] = (),
        clock: Clock,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._inventories = inventories
        self._deleters = tuple(deleters)
        self._plugins = tuple(plugins)
        self._clock = clock
        self._holding: Together[None] = Together()
        self._chance = CHANCE

    async def put(self, work: Work, cluster: Cluster, standing: Standing) -> None:
        """Have all of it on the member; `standing` knows afterwards how it was left there. Raises where the member
        cannot be reached, or the Work is being removed."""
        target, source = of_karmada(cluster), source_of(work)
        ordinals = {manifests.numbered(number): number for number in range(len(work.spec.workload.manifests))}
        doubts = standing.doubts

        def told(placed: Placed, obj: Object) -> None:
            standing.leave(placed.key, placed.resource, obj)
            if not placed.implied:
                standing.statuses[placed.key] = telling.manifest_status(placed, ordinals[placed.place], obj)

        if not standing.looked:
            # Before the first thing is put there: without it, nobody could take it back. It is let go with the Cluster.
            await self._hold(target)
        async with self._fleet.member(target, system_uid=cluster.spec.id) as member:
            report = await deploying.deploy(
                member,
                self._inventories,
                owner_of(work),
                [source],
                # Whatever happened while nobody looked: an apply that changes nothing writes nothing.
                sure=standing.sure,
                first=not standing.looked and not work.status.conditions,
                told=told,
            )
        if standing.looked and doubts and report.of(Outcome.CREATED, Outcome.UPDATED):
            standing.corrected(self._clock.monotonic())
        wanted, trouble = report.wanted if report.whole else None, first(report.troubles, shown=_SHOWN)
        standing.settle(wanted, trouble, now=self._clock.monotonic(), chance=self._chance)

    async def prune(
        self,
        work: Work,
        cluster: Cluster,
        wanted: frozenset[str],
        *,
        started: Callable[[Removal], None],
        changed: Callable[[], None],
    ) -> None:
        """Return when nothing is on the member any more that the Work does not want."""
        async with self._fleet.member(of_karmada(cluster), system_uid=cluster.spec.id) as member:
            await pruning.prune(
                member,
                self._inventories,
                owner_of(work),
                Report(wanted=wanted),
                deleters=self._deleters,
                plugins=self._plugins,
                take_along=takes_along(work),
                volumes=lambda: volume_policy(work.metadata.annotations),
                started=started,
                changed=changed,
                clock=self._clock,
            )

    async def _hold(self, target: Anchor) -> None:
        await self._holding.ask((target.home, target.secret), lambda: credentials.hold(self._client, target))
