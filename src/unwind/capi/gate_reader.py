"""Reads from the API server whether the gate of a Cluster is open: the hook and the Machines ask the same question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.hooks import API_VERSION, BeforeClusterDelete, Hook
from unwind.api.names import Reason
from unwind.capi import hook_rule_calls
from unwind.hooks import LONGEST, Wait
from unwind.members import targets
from unwind.teardown import deletion_gate
from unwind.teardown.deletion_gate import GateClosed, GateFault, GateOpen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unwind.api.capi import Cluster
    from unwind.capi.hook_registry import HookRegistry
    from unwind.kube.client import Client
    from unwind.members.targets import AddonTarget
    from unwind.teardown.deletion_gate import GateSource, Verdict
    from unwind.teardown.signatures import RecordKeys

# Seconds for the rules of other packages.
_WITHIN = 10.0


class GateReader:
    """Whether Clusters may be deleted, from fresh reads."""

    def __init__(self, client: Client, keys: RecordKeys, source: GateSource, registry: HookRegistry) -> None:
        """`source`: what blocks a cluster without a Teardown. `registry`: the rules of the hook."""
        self._client = client
        self._keys = keys
        self._source = source
        self._registry = registry

    async def read(
        self, target: AddonTarget, *, reading: Callable[[str], None] = lambda _: None
    ) -> tuple[Verdict, bool]:
        """The verdict, and whether it shows that nothing is enforced. Raises if it cannot be known."""
        uid = target.ref.uid
        if not self._keys.known:
            reading("the keys that verify Teardowns")
            await self._keys.load()
        reading(f"Teardown {uid}")
        if teardown := await self._keys.read(uid):
            return deletion_gate.of_teardown(uid, teardown), deletion_gate.is_unenforced(uid, teardown)
        standing, lost = await self._source.read(target, reading=reading)
        verdict = deletion_gate.of_summaries(uid, standing, lost)
        return verdict, isinstance(verdict, GateOpen)

    async def decide(self, cluster: Cluster, settings: Mapping[str, str]) -> tuple[Verdict, list[GateFault]]:
        """The verdict for a Cluster that was just read, with the rules of the hook; and the checks that failed, if it
        is open although they did. Raises if it cannot be known."""
        verdict, unenforced = await self.read(targets.of_capi(cluster))
        if isinstance(verdict, GateClosed):
            return verdict, []
        if not self._registry.ready:
            return deletion_gate.closed("the rules of hooks are not loaded yet"), []
        hook = Hook.BEFORE_CLUSTER_DELETE
        broken = self._registry.broken(hook)
        # As for the hook: rules that cannot be loaded do not block a cluster on which nothing is enforced.
        waits = [] if unenforced else [Wait(why, LONGEST) for why in broken]
        if rules := self._registry.rules(hook):
            asked = BeforeClusterDelete(
                api_version=API_VERSION, kind=f"{hook}Request", cluster=cluster, settings=dict(settings)
            )
            waits += await hook_rule_calls.ask_rules(rules, asked, client=self._client, within=_WITHIN)
        wait = hook_rule_calls.together(waits)
        if wait:
            return GateClosed(wait.why, wait.seconds), []
        return verdict, [GateFault(Reason.NOT_LOADED, why) for why in broken]
