"""Writes Kubernetes Events, which `kubectl describe` shows."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

import msgspec

from unwind.api.resources import Resource
from unwind.clock import SYSTEM
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object

EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
REPORTER = "unwind.dev/unwind"
# The API server's own limit for the text.
_NOTE = 1024
# The same Event within this time is counted up instead of written again.
_SERIES = 600.0
_REMEMBERED = 4096
_PENDING = 1000


class Regarding(msgspec.Struct, frozen=True):
    """The object that an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""

    @classmethod
    def of(cls, ref: ObjectRef) -> Regarding:
        """The object that is referred to."""
        version = f"{ref.group}/{ref.version}" if ref.group else ref.version
        return cls(version, ref.kind, ref.name, ref.uid, ref.namespace)


class _What(msgspec.Struct, frozen=True):
    regarding: Regarding
    reason: str
    note: str
    type: str
    action: str


class _Series(msgspec.Struct):
    name: str
    began: float
    count: int = 1


class Recorder:
    """Writes Events in the background: reporting never waits and never fails.

    If the server is slower than the reports, the oldest ones are dropped: Events are a courtesy, the state is in
    conditions.
    """

    name = "events"
    ready = True

    def __init__(self, client: Client, *, instance: str, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._instance = instance
        self._clock = clock
        self._pending: OrderedDict[_What, int] = OrderedDict()
        self._series: OrderedDict[_What, _Series] = OrderedDict()
        self._wake = asyncio.Event()
        self.dropped = 0

    def report(
        self,
        regarding: Regarding,
        reason: str,
        note: str,
        *,
        action: str,
        type: Literal["Normal", "Warning"] = "Normal",  # noqa: A002 - the field's name
    ) -> None:
        """Report what happened: a CamelCase reason, a note for users, the action taken."""
        what = _What(regarding, reason, note[:_NOTE], type, action)
        self._pending[what] = self._pending.get(what, 0) + 1
        if len(self._pending) > _PENDING:
            self._pending.popitem(last=False)
            self.dropped += 1
        self._wake.set()

    async def write(self) -> None:
        """Write the reported Events now, for a process that ends."""
        while self._pending:
            what, times = self._pending.popitem(last=False)
            try:
                await self._write(what, times)
            except (ApiError, UnreachableError):
                # A namespace that is being deleted accepts no Events, and neither does an unreachable server.
                self.dropped += 1

    async def run(self) -> None:
        """Write the reported Events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.write()

    async def _write(self, what: _What, times: int) -> None:
        now = self._clock.monotonic()
        series = self._series.get(what)
        if series and now - series.began < _SERIES:
            series.count += times
            patch = {"series": {"count": series.count, "lastObservedTime": self._now()}}
            try:
                await self._client.patch(EVENTS, series.name, patch, namespace=_home(what.regarding))
            except NotFoundError:
                pass  # it has expired: a new one is written below
            else:
                return
        body = self._event(what)
        await self._client.create(EVENTS, body)
        self._series[what] = _Series(name=body["metadata"]["name"], began=now, count=times)
        while len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)

    def _event(self, what: _What) -> Object:
        it = what.regarding
        regarding = {"apiVersion": it.api_version, "kind": it.kind, "name": it.name, "uid": it.uid}
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            # Names may be as long as those of objects: the suffix must fit.
            "metadata": {"name": f"{it.name[:236]}.{uuid.uuid4().hex[:16]}", "namespace": _home(it)},
            "eventTime": self._now(),
            "regarding": regarding | ({"namespace": it.namespace} if it.namespace else {}),
            "reason": what.reason,
            "action": what.action,
            "note": what.note,
            "type": what.type,
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
        }

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _home(regarding: Regarding) -> str:
    """The namespace for Events about cluster-scoped objects."""
    return regarding.namespace or "default"
