"""Helpers for the tests of the deleter chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.memo import nowhere
from unwind.deleters.outcomes import Gone
from unwind.kube.absence import Presence, Sighting
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.watches import Watches

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.deleters.memo import Memo
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object

OBJECT: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "namespace": "default", "uid": "u-1", "annotations": {"colour": "blue"}},
    "data": {"mode": "Purge"},
}


class FakeEnd:
    """An end that a test controls."""

    name = "fake"
    clients: tuple[object, ...] = ()

    def __init__(self, *plays: Outcome | BaseException, there: bool = False) -> None:
        self.plays = list(plays) or [Gone()]
        self.there = there
        self.calls = 0

    async def delete(self, ctx: DeleteContext, obj: Object) -> Outcome:
        self.calls += 1
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        if isinstance(play, BaseException):
            raise play
        return play

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        if self.there:
            return Sighting(Presence.PRESENT, "the server returned it")
        return Sighting(Presence.ABSENT, "the server reports NotFound")


def context(*, memo: Memo | None = None, resource: Resource = CONFIG_MAPS, absent: bool = False) -> DeleteContext:
    client = Client(ClusterConnection(server="http://127.0.0.1:1"))
    return DeleteContext(
        resource=resource,
        ref=ObjectRef(group=resource.group, kind=resource.kind, namespace="default", name="one", uid="u-1"),
        memo=memo or nowhere(),
        resolver=Resolver(client),
        watches=Watches(client),
        clients=(client,),
        absent=absent,
    )
