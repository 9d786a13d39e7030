"""How many Pods and claims keep a namespace: counted as they come and go, and asked for without a search."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from unwind.kube import views
from unwind.kube.client import SILENCE
from unwind.kube.informers import Informer
from unwind.kube.views import Key, Stamp, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""The Pods that are not done, as a field selector. So the server need not send more of each than its metadata, and says
of one that gets done that it is gone from the choice."""


class Counted(msgspec.Struct, frozen=True, gc=False):
    """A Pod or a claim, and whether it counts."""

    namespace: str
    name: str
    uid: str
    version: str
    counts: bool


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_pod = msgspec.json.Decoder(_Pod).decode
_claim = msgspec.json.Decoder(_Claim).decode


def _decode_pod(body: msgspec.Raw) -> Counted:
    return _counted(_pod(body).metadata, counts=True)


def _decode_claim(body: msgspec.Raw) -> Counted:
    claim = _claim(body)
    return _counted(claim.metadata, counts=claim.status.phase == "Bound")


def _counted(meta: _Metadata, *, counts: bool) -> Counted:
    going = meta.deletion_timestamp is not None
    return Counted(sys.intern(meta.namespace), meta.name, meta.uid, meta.resource_version, counts and not going)


def _stamp(one: Counted) -> Stamp:
    return Stamp(Key(one.namespace, one.name), one.uid, one.version)


_METADATA = views.metadata(PODS)
ACTIVE_PODS: View[Counted] = View(PODS, _decode_pod, _stamp, _METADATA.accept_list, _METADATA.accept_watch)
"""To be asked for with the field selector above."""
BOUND_CLAIMS: View[Counted] = View(PERSISTENT_VOLUME_CLAIMS, _decode_claim, _stamp)


class Tally:
    """The names of those that count, by namespace; nothing else of them is kept.

    A watch tells of everything in order, so that a name stands for one object at a time, and its uid is not needed.
    With 50,000 Pods it comes to some 120 bytes each.
    """

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return sum(len(names) for names in self._names.values())

    def count(self, namespace: str) -> int:
        """How many count there, in the same time however many."""
        return len(self._names.get(namespace, ()))

    def get(self, key: Key) -> Counted | None:
        """Nothing: they are not kept."""
        return None

    def keys(self) -> Iterator[Key]:
        return (Key(namespace, name) for namespace, names in self._names.items() for name in names)

    def put(self, obj: Counted) -> list[Change[Counted]]:
        """Count it, or count it no longer."""
        if not obj.counts:
            return self.drop(Key(obj.namespace, obj.name))
        self._names.setdefault(obj.namespace, set()).add(obj.name)
        return []

    def drop(self, key: Key, *, uid: str | None = None) -> list[Change[Counted]]:
        """Count it no longer."""
        if names := self._names.get(key.namespace):
            names.discard(key.name)
            if not names:
                del self._names[key.namespace]
        return []


class Counts:
    """Active Pods and bound claims of the whole cluster."""

    def __init__(
        self, client: Client, *, clock: Clock, troubled: Callable[[Resource], Callable[[Exception], None]]
    ) -> None:
        self._pods, self._claims = Tally(), Tally()
        self._of_pods: Informer[Counted] = Informer(
            client, ACTIVE_PODS, fields=UNFINISHED, into=self._pods, clock=clock, troubled=troubled(PODS)
        )
        self._of_claims: Informer[Counted] = Informer(
            client, BOUND_CLAIMS, into=self._claims, clock=clock, troubled=troubled(PERSISTENT_VOLUME_CLAIMS)
        )

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self._of_pods, self._of_claims)

    def pods(self, namespace: str) -> int:
        """How many are active there as far as is known: none also where that is not known."""
        return self._pods.count(namespace) if follows(self._of_pods) else 0

    def claims(self, namespace: str) -> int:
        """How many are bound there as far as is known."""
        return self._claims.count(namespace) if follows(self._of_claims) else 0


def follows(informer: Informer[Any]) -> bool:
    """Whether a cache is good for a no: it is whole, and its server was heard of lately.

    A no that nobody takes back because the watch is broken would hold what nothing depends on any more.
    """
    return informer.synced and informer.age < SILENCE
