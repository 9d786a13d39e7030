"""The members that block the deletion of a Cluster before its Teardown exists: those that are also this Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.karmada import RemoveStrategy
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.karmada.member_step_source import paired_members, step_name
from unwind.teardown.deletion_gate import GateHolder, UncachedGateSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget


class MemberGateSource(UncachedGateSource):
    """The members that block the deletion of a Cluster before its Teardown exists."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[list[GateHolder], list[str]]:
        reading("the Karmada Clusters")
        members = await paired_members(self._client, target.ref.uid)
        # Whether Works remain is decided when the plan is made.
        return [
            GateHolder(
                step_name(member),
                member.removal if isinstance(member.removal, Unknown) else ClusterDeletionBehavior.ENFORCE,
            )
            for member in members
            if member.removal is not RemoveStrategy.NEEDLESS
        ], []
