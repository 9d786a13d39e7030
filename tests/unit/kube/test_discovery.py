from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from unwind.api.resources import DEPLOYMENTS, EVENTS, NAMESPACES, Resource
from unwind.errors import UnwindError
from unwind.kube.discovery import Discovery, ServedKind, choose, split

if TYPE_CHECKING:
    from unwind.kube.client import Client

OTHER_EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CAPI = Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")
OLD_CAPI = Resource("cluster.x-k8s.io", "v1beta1", "clusters", "Cluster")
KARMADA = Resource("cluster.karmada.io", "v1alpha1", "clusters", "Cluster", namespaced=False)
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
POOLS = Resource("example.dev", "v1", "pools", "Pool")
KINDS = [
    ServedKind(NAMESPACES, frozenset(), ("ns",), "namespace"),
    ServedKind(EVENTS, frozenset(), ("ev",), "event"),
    ServedKind(DEPLOYMENTS, frozenset(), ("deploy",), "deployment"),
    ServedKind(OTHER_EVENTS, frozenset(), ("ev",), "event"),
    ServedKind(CAPI, frozenset(), ("cl",), "cluster"),
    ServedKind(OLD_CAPI, frozenset(), ("cl",), "cluster"),
    ServedKind(KARMADA, frozenset(), (), "cluster"),
    ServedKind(CLASSES, frozenset(), ("pool",), "clusterclass"),
    ServedKind(POOLS, frozenset(), (), "pool"),
]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ns", NAMESPACES),
        ("Namespace", NAMESPACES),
        ("namespaces", NAMESPACES),
        ("namespaces.v1", NAMESPACES),
        ("deploy", DEPLOYMENTS),
        ("deployments.apps", DEPLOYMENTS),
        ("deployments.v1.apps", DEPLOYMENTS),
        ("event", EVENTS),
        ("events.events.k8s.io", OTHER_EVENTS),
        ("events.events", OTHER_EVENTS),
        ("cl", CAPI),
        ("clusters.cluster.x-k8s.io", CAPI),
        ("clusters.v1beta1.cluster.x-k8s.io", OLD_CAPI),
        ("cluster.cluster.karmada.io", KARMADA),
        ("pool", POOLS),
        ("unicorns", None),
        ("deployments.batch", None),
    ],
)
def test_a_kind_is_found_by_any_of_its_names(text: str, meant: Resource | None) -> None:
    assert choose(KINDS, text) == meant


@pytest.mark.parametrize("text", ["cluster", "clusters", "clusters.cluster"])
def test_a_kind_of_several_groups_is_not_guessed(text: str) -> None:
    with pytest.raises(UnwindError) as told:
        choose(KINDS, text)
    assert "clusters.cluster.karmada.io or clusters.cluster.x-k8s.io" in str(told.value)


@pytest.mark.parametrize("text", ["deploy", "deploy/", "/web", "a/b/c", ""])
def test_what_is_no_kind_and_name_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UnwindError, match="use KIND/NAME"):
        split(text)


def test_a_name_may_have_dots() -> None:
    assert split("crd/pools.example.dev") == ("crd", "pools.example.dev")


class _SlowServer:
    """Answers discovery requests when it is told to, and counts them."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def raw(self, path: str, *, accept: str) -> bytes:
        self.asked += path == "/api"
        await self.answer.wait()
        return b'{"items": [{"versions": [{"version": "v1", "resources": [{"resource": "things"}]}]}]}'


async def test_what_is_read_anew_was_read_after_the_call_began() -> None:
    server = _SlowServer()
    discovery = Discovery(cast("Client", server))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(discovery.kinds(anew=True))
        while not server.asked:
            await asyncio.sleep(0)
        # The first reading is under way and may miss what exists by now.
        later = [tasks.create_task(discovery.kinds(anew=True)) for _ in range(3)]
        await asyncio.sleep(0)
        server.answer.set()
    assert server.asked == 2
    assert all(task.result() for task in later)
    await discovery.kinds()
    assert server.asked == 2
