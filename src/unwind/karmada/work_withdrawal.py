"""Works that are deleted while their member stays: their objects are seen absent, or released, before they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.annotation_values import volume_policy
from unwind.api.karmada import CLUSTERS, Cluster
from unwind.api.names import Finalizer, Reason
from unwind.concurrency import SingleFlight
from unwind.inventory.inventories import items
from unwind.karmada.caches import executes_for
from unwind.karmada.work_apply import takes_along
from unwind.kube.decoding import Key
from unwind.kube.errors import NotFoundError
from unwind.members.targets import of_karmada
from unwind.planning.ordering import dependents
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.withdrawal import Manner

if TYPE_CHECKING:
    from unwind.api.annotation_values import VolumePolicy
    from unwind.api.fields import Unknown
    from unwind.api.karmada import Work
    from unwind.inventory.inventories import Inventories
    from unwind.karmada.caches import KarmadaCaches
    from unwind.karmada.work_status import WorkWriter
    from unwind.kube.client import Client
    from unwind.teardown.withdrawal import Withdrawals

# Whether somebody else's teardown has ended, nobody tells here.
_LOOK_AGAIN = 5.0


class Withdrawing:
    """Decides how each of them goes, and says what it waits for."""

    def __init__(
        self,
        client: Client,
        caches: KarmadaCaches,
        inventories: Inventories,
        words: WorkWriter,
        withdrawals: Withdrawals,
    ) -> None:
        self._client = client
        self._caches = caches
        self._inventories = inventories
        self._words = words
        self._withdrawals = withdrawals
        self._reading: SingleFlight[Cluster | None] = SingleFlight()
        self._keys = RecordKeys(client, namespace=inventories.namespace)

    async def withdraw(self, work: Work) -> float | None:
        """See to one that is being deleted, as far as it goes now; after how many seconds it wants to be looked at
        again, or None."""
        if Finalizer.WORK not in work.metadata.finalizers:
            return None  # others are waited for by others
        cluster = self._caches.cluster_of(work)
        unjoined = cluster is not None and cluster.metadata.terminating
        if cluster is None or not (unjoined or self._withdrawals.get(work.metadata.uid)):
            # Not from a cache (docs/architecture.md, Fresh reads open gates): the deletion of a Work whose member is
            # unjoined may arrive before the deletion of the member.
            cluster = await self._read_cluster(work)
        if cluster is None:
            return await self._let_go(work)
        if cluster.metadata.terminating:
            self.give_up(work.metadata.uid)  # the teardown of its member sees to it
        elif work.spec.preserve_resources_on_deletion:
            await self._take_back(work, cluster, Manner.RELEASE)
        elif before := self._dependents(work):
            named = ", ".join(sorted(item.metadata.name for item in before))
            await self._words.wait_for(work, f"waits until these Works are gone, which need it: {named}")
        else:
            await self._take_back(work, cluster, Manner.REMOVE)
        return None

    def give_up(self, uid: str) -> None:
        """Have nothing more done for one, unless all of it is done."""
        it = self._withdrawals.get(uid)
        if it and not it.ended:
            self._withdrawals.give_up(uid)

    async def _read_cluster(self, work: Work) -> Cluster | None:
        """The member as the server says it is now; asked once for all who want to know it at this moment."""
        name = executes_for(work.metadata.namespace)
        if not name:
            return None  # it is in no member's namespace, and was never put anywhere

        async def read() -> Cluster | None:
            try:
                return await self._client.get(CLUSTERS, name, type=Cluster)
            except NotFoundError:
                return None

        return await self._reading.ask(name, read)

    def _dependents(self, work: Work) -> list[Work]:
        """Those that need it and still stand."""
        return [
            dependent
            for dependent in dependents(work, self._caches.needing, self._caches.needed)
            if not ((it := self._withdrawals.get(dependent.metadata.uid)) and it.absent)
        ]

    def _volumes(self, work: Work) -> VolumePolicy | Unknown:
        """What the Work says now about the claims of its StatefulSets."""
        now = self._caches.works.cache.get(Key(work.metadata.namespace, work.metadata.name))
        return volume_policy((now or work).metadata.annotations)

    async def _take_back(self, work: Work, cluster: Cluster, manner: Manner) -> None:
        uid, target = work.metadata.uid, of_karmada(cluster)
        it = self._withdrawals.begin(
            uid,
            work.metadata.namespace,
            target,
            manner,
            take_along=takes_along(work),
            volumes=lambda: self._volumes(work),
            why=(Reason.KEPT_BY_POLICY, "spec.preserveResourcesOnDeletion") if manner is Manner.RELEASE else None,
        )
        if it.done:
            # It is forgotten when the Work is seen to be gone: until then there is nothing to begin again.
            if not it.ended:
                await self._words.set_finalizer(work, wanted=False)
                it.ended = True
        elif it.error:
            self._withdrawals.give_up(uid)
            await self._words.wait(work, [it.error])
            raise it.error
        elif it.free.is_set() and it.waits:
            await self._words.wait(work, [what for removal in it.removals for what in removal.progress.waits.values()])

    async def _let_go(self, work: Work) -> float | None:
        """The member is not managed any more, and nobody knows the way to it: what may be there is in the ledger."""
        uid = work.metadata.uid
        chunks = await self._inventories.of(uid)
        if not all(item.done for item in items(chunks)):
            for member in {chunk.spec.member.object.uid for chunk in chunks}:
                if await self._torn_down(member):
                    await self._words.wait_for(work, f"waits for Teardown {member} of its member")
                    return _LOOK_AGAIN
            it = self._withdrawals.begin(
                uid,
                work.metadata.namespace,
                None,
                Manner.FORGET,
                why=(Reason.TARGET_GONE, "its member was unjoined before its removal was verified"),
            )
            if it.error:
                self._withdrawals.give_up(uid)
                raise it.error
            if not it.done:
                return None
        await self._words.set_finalizer(work, wanted=False)
        return None

    async def _torn_down(self, member: str) -> bool:
        """Whether a teardown of it is under way, which has the say then."""
        teardown = await self._keys.read(member)
        return teardown is not None and not teardown.finished
