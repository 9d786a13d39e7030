"""Which changes of a profile the controller of profiles acts on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.owners import Owner
from unwind.addons.caches import AddonCaches
from unwind.addons.matching import ProfileKey
from unwind.addons.profile_controller import ProfileController, ProfileMatch
from unwind.addons.validation import profile_conditions
from unwind.api.names import CLUSTER_UID_ANNOTATION, Finalizer, Reason
from unwind.api.resources import SECRETS
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    SVELTOS_CLUSTERS,
    ClusterDeletionBehavior,
    ClusterSummary,
)
from unwind.clock import SYSTEM
from unwind.kube.client import Client
from unwind.kube.controller import ControllerDeps
from unwind.kube.events import Recorder
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.metrics import Metrics
from unwind.kube.transport import ServerAnswer
from unwind.members.members import Members
from unwind.members.targets import ClusterKey
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.kube.client import Object

ACCEPTED: Object = {
    "conditions": msgspec.to_builtins(
        profile_conditions((), None, (), served=True, reason=Reason.UNKNOWN_VALUE, generation=1, now=SYSTEM.now())
    )
}


def profile(version: int, status: Object) -> Object:
    return {
        "apiVersion": CLUSTER_PROFILES.api_version,
        "kind": CLUSTER_PROFILES.kind,
        "metadata": {
            "name": "web",
            "uid": "u",
            "generation": 1,
            "resourceVersion": str(version),
            "finalizers": [Finalizer.PROFILE.value],
        },
        "spec": {
            "clusterSelector": {"matchLabels": {"env": "prod"}},
            "clusterDeletionBehavior": ClusterDeletionBehavior.REMOVE.value,
        },
        "status": status,
    }


class Profiles:
    """An API server with one profile, whose status changes once."""

    def __init__(self, status: Object) -> None:
        self._status = status
        self.change = asyncio.Event()

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        del method, target, body, headers, within
        listed = {"kind": "ClusterProfileList", "metadata": {"resourceVersion": "1"}, "items": [profile(1, {})]}
        return ServerAnswer(200, msgspec.json.encode(listed))

    @asynccontextmanager
    async def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[ServerAnswer | AsyncIterator[list[bytes]]]:
        del target, headers, silence

        async def events() -> AsyncIterator[list[bytes]]:
            await self.change.wait()
            yield [msgspec.json.encode({"type": "MODIFIED", "object": profile(2, self._status)})]
            await asyncio.Event().wait()

        yield events()

    async def close(self) -> None:
        pass


async def reconciles_after(status: Object) -> int:
    """How often a profile is reconciled because its status changed to this one."""
    server, registry, changed = Profiles(status), CollectorRegistry(), asyncio.Event()
    client = Client(ClusterConnection(server="https://127.0.0.1:1"), transport=server)
    caches = AddonCaches(client)
    shared = ControllerDeps(
        client=client, owner=Owner(), metrics=Metrics(registry), recorder=Recorder(client, instance="test")
    )
    controller = ProfileController(shared, caches, members=Members(client))
    caches.cluster_profiles.subscribe(lambda change: changed.set() if change.old else None)

    def reconciles() -> int:
        return int(registry.get_sample_value("unwind_reconcile_seconds_count", {"controller": "profiles"}) or 0)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (controller.run(), caches.cluster_profiles.run())]
        while not reconciles():
            await asyncio.sleep(0)
        before = reconciles()
        server.change.set()
        await changed.wait()
        for _ in range(5):  # a reconcile that was queued has started and, with caches that are not synced, ended
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    return reconciles() - before


async def test_a_profile_whose_status_is_right_is_not_reconciled_after_the_write_of_it() -> None:
    assert await reconciles_after(ACCEPTED) == 0


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": []},
        ACCEPTED | {"matchingClusters": [{"apiVersion": "v1", "kind": "SveltosCluster", "name": "x"}]},
    ],
    ids=["without conditions", "with a cluster that it does not match"],
)
async def test_a_profile_whose_status_somebody_changed_is_reconciled(status: Object) -> None:
    assert await reconciles_after(status) == 1


CLUSTER: Object = {
    "apiVersion": SVELTOS_CLUSTERS.api_version,
    "kind": SVELTOS_CLUSTERS.kind,
    "metadata": {"name": "edge", "namespace": "fleet", "uid": "c", "labels": {}},
    "status": {"ready": True},
}


@pytest.mark.parametrize("made_for", [{CLUSTER_UID_ANNOTATION: "c"}, {}], ids=["of Unwind", "of Sveltos"])
@pytest.mark.parametrize(
    ("selector", "stays"),
    [
        ({"matchLabels": {"env": "prod"}}, False),
        ({}, False),
        ({"matchLabel": {"env": "prod"}}, True),
        ({"matchExpressions": [{"key": "env", "operator": "In"}]}, True),
        ({"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}, True),
    ],
)
async def test_what_was_to_be_withdrawn_by_the_cache_stays_if_the_read_before_it_finds_that_it_may_be_selected(
    selector: Object, made_for: dict[str, str], stays: bool
) -> None:
    objects = Objects(resources=(CLUSTER_PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS, SECRETS))
    objects.put(CLUSTER)
    objects.put({**profile(1, {}), "spec": {"clusterSelector": selector}})
    owner = {"apiVersion": CLUSTER_PROFILES.api_version, "kind": CLUSTER_PROFILES.kind, "name": "web", "uid": "u"}
    body = {
        "apiVersion": CLUSTER_SUMMARIES.api_version,
        "kind": CLUSTER_SUMMARIES.kind,
        "metadata": {"name": "web-sveltos-edge", "namespace": "fleet", "uid": "s", "annotations": made_for}
        | {"ownerReferences": [owner]},
        "spec": {"clusterNamespace": "fleet", "clusterName": "edge", "clusterType": "Sveltos"},
    }
    objects.put(body)
    caches = AddonCaches(objects.client)
    shared = ControllerDeps(
        client=objects.client,
        owner=Owner(),
        metrics=Metrics(CollectorRegistry()),
        recorder=Recorder(objects.client, instance="test"),
    )
    controller = ProfileController(shared, caches, members=Members(objects.client))
    pair = ProfileMatch(ProfileKey("ClusterProfile", "", "web"), ClusterKey("Sveltos", "fleet", "edge"))
    await controller._withdraw(pair, msgspec.convert(body, ClusterSummary))
    assert (objects.get(CLUSTER_SUMMARIES, "web-sveltos-edge", namespace="fleet") is not None) is stays
