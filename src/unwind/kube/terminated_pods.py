"""Evidence from Pods that a replica of the manager has ended, so that its Leases need not expire first.

A process is known to have ended if

- its Pod is the Pod of the current process: the kubelet restarts a container only after the former one has ended; or
- its Pod is being deleted or has finished, and the kubelet reported all of its containers as terminated. The kubelet
  never starts a container of such a Pod again.

A Pod that is missing proves nothing: `kubectl delete --force` and the garbage collector delete Pods of lost nodes while
their processes may still run. Nor does a phase, which controllers set for Pods of lost nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.resources import PODS
from unwind.kube import decoding
from unwind.kube.informers import Informer

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client

# The kubelet lost track of the container and assumes that it has ended.
_ASSUMED = "ContainerStatusUnknown"
_FINISHED = ("Succeeded", "Failed")
# Pods whose end is remembered after they are gone. A replica whose Lease still exists is among the last ones.
_REMEMBERED = 1000


class _Terminated(msgspec.Struct):
    reason: str = ""


class _State(msgspec.Struct):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct):
    state: _State = msgspec.field(default_factory=_State)


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] = ()


class Pod(msgspec.Struct):
    """The relevant fields of a Pod."""

    metadata: ObjectMeta
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def has_ended(self) -> bool:
        """Whether all of its processes have ended for good, as reported by the kubelet."""
        final = self.metadata.terminating or self.status.phase in _FINISHED
        states = [container.state.terminated for container in self.status.container_statuses]
        return final and bool(states) and all(state and state.reason != _ASSUMED for state in states)


class TerminatedPods:
    """The Pods of a namespace whose processes have ended, by uid."""

    def __init__(
        self, client: Client, *, namespace: str, own_uid: str, changed: Callable[[], None], clock: Clock
    ) -> None:
        """`changed` is called when another Pod has ended."""
        self.own_uid = own_uid
        self._changed = changed
        self._ended: dict[str, None] = {}
        self._pods = Informer(client, decoding.typed(PODS, Pod), namespace=namespace, clock=clock)
        self._pods.subscribe(self._on_change)

    async def run(self) -> None:
        """Watch the Pods until cancelled."""
        await self._pods.run()

    def ended(self, uid: str) -> bool:
        """Whether every process that ran in this Pod before the current process started has ended."""
        return bool(uid) and (uid == self.own_uid or uid in self._ended)

    def _on_change(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod and pod.has_ended and pod.metadata.uid not in self._ended:
            self._ended[pod.metadata.uid] = None
            if len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
            self._changed()
