"""What blocks the deletion of a Cluster if no feature deploys to it: objects that Inventories still record there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.teardown.deletion_gate import GateHolder, UncachedGateSource
from unwind.teardown.drafts import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.inventory.inventories import Inventories
    from unwind.members.targets import AddonTarget


class RecordedGateSource(UncachedGateSource):
    """A manager without the feature that deployed the objects does not remove them, and must not let the cluster go."""

    def __init__(self, inventories: Inventories) -> None:
        self._inventories = inventories

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        reading(f"the Inventories in namespace {self._inventories.namespace}")
        owners = lost((), await self._inventories.on(target.ref.uid))
        # Whether an owner still exists is not known here, so that none is reported as deleted.
        return [GateHolder(owner.step, ClusterDeletionBehavior.ENFORCE) for owner in owners if owner.holds], []
