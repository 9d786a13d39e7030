"""Reports a deletion that a gate allowed although a check failed: nothing is enforced on that cluster."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.capi import CLUSTERS
from unwind.api.meta import with_condition
from unwind.api.names import HOOKS_FIELD_MANAGER, ConditionType
from unwind.api.unwind import TEARDOWNS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.api.unwind import Teardown
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.informers import Informer
    from unwind.members.targets import AddonTarget
    from unwind.teardown.deletion_gate import GateFault
    from unwind.teardown.signatures import RecordKeys

log = logs.get(__name__)

RECORD_WITHIN = 2.0
"""Seconds to wait for the Teardown that a failed check is written into. The gate opens in any case."""
_LOOK_AGAIN = 0.1


class FailedChecks:
    """Reports what is not known of clusters whose gate opens."""

    def __init__(
        self, client: Client, teardowns: Informer[Teardown], keys: RecordKeys, recorder: Recorder | None
    ) -> None:
        self._client = client
        self._teardowns = teardowns
        self._keys = keys
        self._recorder = recorder

    async def report(self, target: AddonTarget, faults: Sequence[GateFault], *, within: float = RECORD_WITHIN) -> None:
        """Report the failed checks in an Event on the Cluster and in a condition of its Teardown, which the ledger
        shows. `within`: seconds for the condition, at most RECORD_WITHIN."""
        message = "; ".join(fault.message for fault in faults)
        remedy = "see `unwind ledger` for what is left"
        log.warning("cluster deletion allowed with a failed check", cluster=str(target), why=message, remedy=remedy)
        ref = target.ref
        if self._recorder:
            regarding = Regarding(CLUSTERS.api_version, ref.kind, ref.name, ref.uid, ref.namespace)
            self._recorder.report(regarding, ConditionType.NOT_VERIFIED, message, action="Delete", type="Warning")
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(RECORD_WITHIN, within))):
                await self._write(ref.uid, faults[0].reason, message)
                return
        log.warning(
            "condition NotVerified not written",
            cluster=str(target),
            why="timed out; the Event NotVerified on the Cluster says the same",
        )

    async def _write(self, uid: str, reason: str, message: str) -> None:
        """Write the condition, as soon as the Teardown exists."""
        while True:
            found = self._keys.chosen(self._teardowns.cache.by("uid", uid), uid)
            if found:
                wanted = with_condition(
                    (),
                    type=ConditionType.NOT_VERIFIED,
                    status=True,
                    reason=reason,
                    message=message,
                    generation=found.metadata.generation,
                    now=SYSTEM.now(),
                )
                meta = found.metadata
                body = {
                    "apiVersion": TEARDOWNS.api_version,
                    "kind": TEARDOWNS.kind,
                    "metadata": {"name": meta.name, "uid": meta.uid},
                    "status": {"conditions": msgspec.to_builtins(wanted)},
                }
                try:
                    # With a field manager of its own: the others do not remove it.
                    await self._client.apply(TEARDOWNS, body, subresource="status", field_manager=HOOKS_FIELD_MANAGER)
                except UnwindError as error:
                    log.warning(
                        "condition NotVerified not written",
                        teardown=meta.name,
                        why=f"{error}; the Event NotVerified on the Cluster says the same",
                    )
                return
            await asyncio.sleep(_LOOK_AGAIN)
