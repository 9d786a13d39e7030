"""What blocks the deletion of a Cluster if no feature deploys to it: objects that Inventories still record there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.teardown.drafts import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.inventory.inventories import Inventories
    from unwind.members.targets import AddonTarget
    from unwind.teardown.gate import GateHolder


class RecordedGateSource:
    """A manager without the feature that deployed the objects does not remove them, and must not let the cluster go."""

    synced = True
    settled = True

    def __init__(self, inventories: Inventories) -> None:
        self._inventories = inventories

    def known(self, target: AddonTarget) -> list[GateHolder]:
        del target
        return []  # only the API server is asked

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        del target
        return []

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        reading(f"the Inventories in namespace {self._inventories.namespace}")
        chunks = await self._inventories.on(target.ref.uid)
        return [], [owner.step for owner in lost((), chunks) if owner.holds]
