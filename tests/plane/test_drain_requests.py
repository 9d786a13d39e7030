"""Drains of Clusters that stay (`unwind delete cluster/NAME --drain-only`), on a real control plane."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD, running_components
from tests.plane.support.drains import DrainScene, draining
from tests.plane.support.manager_process import running
from tests.plane.support.requested_deletions import Command, Room, own_namespace, request_controller, tidy, user
from tests.plane.support.waits import until_struct
from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import DELETE_PROTECTION_LABEL, DRAIN_RESOURCE, REQUEST_PREFIX, Reason
from unwind.api.resources import INGRESSES, PERSISTENT_VOLUME_CLAIMS, SERVICES
from unwind.api.rights import HOME
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.companions.policy_reader import Policies, PolicyCaches
from unwind.drain.requests import DrainRequests
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until_absent
from unwind.kube.shards import Shards
from unwind.members.targets import capi_ref
from unwind.teardown.requests import request, request_manifest
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.unwind import Step
    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.teardown.step_removers import RemovalDeps

ENFORCE = {"loadBalancers": "Enforce"}
_FREE = {"metadata": {"finalizers": None}}
ASKING = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "list", "watch"]}
DELETING = {"apiGroups": [CLUSTERS.group], "resources": [CLUSTERS.plural], "verbs": ["delete"]}


class RequestScene(DrainScene):
    """A cluster that is drained and stays."""

    @property
    def uid(self) -> str:
        return self.cluster.uid

    @property
    def ref(self) -> ObjectRef:
        return capi_ref(self.cluster.namespace, self.cluster.name, self.uid)

    @asynccontextmanager
    async def requests(self, *, installed: bool = True) -> AsyncIterator[None]:
        """The controller of requests, as the installed ServiceAccount. `installed`: with the feature `drain`."""
        async with manager_client(self.client, HOME) as own:
            policy_caches = PolicyCaches(own)
            reader = Policies(own, policy_caches, clusters=lambda: CLUSTERS)

            def drains(deps: RemovalDeps) -> DrainRequests:
                return DrainRequests(own, deps, reader if installed else None, lambda: CLUSTERS)

            async with request_controller(own, HOME, clock=StillClock(), others=drains) as (caches, controller):
                shards = Shards(own, namespace=HOME, identity=f"test-{self.cluster.name}")
                async with running_components((policy_caches, caches, controller, shards)):
                    yield

    async def ask(self, *, max_objects: int | None = None) -> Teardown:
        return await request(self.client, self.ref, plural=DRAIN_RESOURCE, now=SYSTEM.now(), max_objects=max_objects)

    async def asked(self, state: Callable[[Teardown], bool], called: str) -> Teardown:
        """The request, as soon as it is so."""
        return await until_struct(self.client, TEARDOWNS, f"{REQUEST_PREFIX}{self.uid}", Teardown, state, called)

    async def finished(self) -> Teardown:
        return await self.asked(lambda one: one.finished, "finished")

    async def lives(self) -> bool:
        found = await self.client.get(CLUSTERS, self.cluster.name, namespace=self.cluster.namespace)
        return found["metadata"]["uid"] == self.uid and "deletionTimestamp" not in found["metadata"]

    async def records(self) -> list[Object]:
        """The Inventories of requested drains on the cluster."""
        found = await self.client.list(INVENTORIES, namespace=HOME)
        mine = [item["spec"] for item in found if item["spec"]["member"]["object"]["uid"] == self.uid]
        return [spec for spec in mine if spec["owner"]["kind"] == "RequestedDrain"]


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[RequestScene]:
    async with draining(plane, namespace, RequestScene) as made:
        yield made
    await tidy(made.client)


def steps(teardown: Teardown) -> list[Step]:
    assert teardown.spec.plan
    return list(teardown.spec.plan.steps)


async def test_a_requested_drain_deletes_what_policies_name_and_the_cluster_stays(
    it: RequestScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    service = await it.service("shop")
    shared = await it.service("shared", labels={"unwind.dev/keep": "true"})
    await it.volume("data")
    app = await it.cluster.add_summary("app")
    await it.cluster.record(app, {"lb": it.entry(await it.service("own"), "services")})
    await it.policy("prod", {**ENFORCE, "exclude": {"matchLabels": {"unwind.dev/keep": "true"}}})
    run = Command(plane.management.kubeconfig, HOME, capsys)
    target, where = f"clusters.cluster.x-k8s.io/{it.cluster.name}", it.cluster.namespace

    told = await run.delete(target, namespace=where, drain_only=True, dry_run=True, output="json")
    seen = json.loads(told[told.index("{\n") :])
    assert [step["name"] for step in seen["plan"]["steps"]] == ["Drain/loadBalancers"]
    assert seen["total"] == 1
    fates = {cost["object"]["name"]: cost["fate"] for cost in seen["costs"]}
    assert fates["shop"] == "deleted by step Drain/loadBalancers (Enforce)"
    assert fates["own"].startswith("stays: ")
    with pytest.raises(UnwindError, match="no manager is running"):
        await run.delete(target, namespace=where, drain_only=True)
    assert await it.exists(SERVICES, "shop")

    async with it.requests():
        async with asyncio.timeout(60):
            while True:
                try:
                    told = await run.delete(target, namespace=where, drain_only=True)
                    break
                except UnwindError as error:
                    if "no manager is running" not in str(error):
                        raise
        assert "is drained" in told
    ended = await it.finished()
    assert ended.phase is Phase.COMPLETE
    [step] = steps(ended)
    assert (step.name, step.effort, step.object.kind) == ("Drain/loadBalancers", "Enforce", "RequestedDrain")
    assert ended.spec.plan
    assert any("own stays" in warning for warning in ended.spec.plan.warnings)
    assert service.uid not in it.cloud.load_balancers
    assert shared.uid in it.cloud.load_balancers
    assert await it.exists(SERVICES, "own")
    assert await it.exists(PERSISTENT_VOLUME_CLAIMS, "data")
    assert await it.ledger(ended) == {f"Service {it.namespace}/shared": Reason.KEPT_BY_POLICY}
    assert await it.lives()
    deletions = it.cluster.member.audit.deletions(resource="services", namespace=it.namespace)
    assert [(entry.object_ref.name, entry.uid) for entry in deletions] == [("shop", service.uid)]


async def test_the_manager_process_drains_a_cluster_on_request(it: RequestScene, plane: Plane) -> None:
    service = await it.service("shop")
    await it.policy("prod", ENFORCE)
    where = it.cluster.namespace
    async with running(plane.management, where, "--roles", "controllers") as manager:
        await manager.until_ready()
        target = f"clusters.cluster.x-k8s.io/{it.cluster.name}"
        options = ("-n", where, "--unwind-namespace", where, "--drain-only", "--yes")
        ran = await command(plane.management, "delete", target, *options)
        assert ran.code == 0, ran.err
        assert "is drained" in ran.err
    ended = await it.finished()
    assert (ended.phase, ended.status.removed, ended.status.left) == (Phase.COMPLETE, "1/1", 0)
    assert service.uid not in it.cloud.load_balancers
    assert await it.lives()


async def test_a_cluster_that_was_drained_is_drained_again_when_it_is_deleted(it: RequestScene) -> None:
    await it.ingress("web")  # of which the ledger of the request says that nothing shows its cleanup
    await it.policy("prod", ENFORCE)
    async with it.requests():
        await it.ask()
        first = await it.finished()
    assert await it.ledger(first) == {f"Ingress {it.namespace}/web": Reason.NOT_VERIFIED}
    await it.ingress("web", finalizers=[HOLD])
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(lambda one: any("web" in item.message for item in one.status.blockers), "held")
        assert [(step.name, step.object.kind) for step in steps(held)] == [("Drain/loadBalancers", "Drain")]
        await it.member.patch(INGRESSES, "web", _FREE, namespace=it.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert not await it.exists(INGRESSES, "web")
    await it.cluster.let_go()


async def test_a_deletion_of_the_cluster_beside_a_requested_drain_has_its_own_plan(it: RequestScene) -> None:
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    async with it.requests(), it.manager():
        await it.ask()
        await it.asked(lambda one: bool(one.status.blockers), "held")
        await it.cluster.delete()
        held = await it.cluster.teardown(lambda one: bool(one.status.blockers), "held")
        assert [(step.name, step.objects) for step in steps(held)] == [("Drain/loadBalancers", 1)]
        await it.member.patch(INGRESSES, "web", _FREE, namespace=it.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
        assert (await it.finished()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_what_is_created_again_or_later_is_named_and_the_request_ends(
    it: RequestScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    await it.service("shop")
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    async with it.requests():
        await it.ask()
        await until_absent(it.member, SERVICES, "shop", namespace=it.namespace)
        again, late = await it.service("shop"), await it.service("late")
        await it.member.patch(INGRESSES, "web", _FREE, namespace=it.namespace)
        ended = await it.finished()
    assert ended.phase is Phase.COMPLETE
    notes = await it.ledger(ended)
    assert notes[f"Service {it.namespace}/shop"] == Reason.CREATED_AGAIN
    assert notes[f"Service {it.namespace}/late"] == Reason.APPEARED_LATE
    assert {again.uid, late.uid} <= it.cloud.load_balancers.keys()


async def test_a_requested_drain_is_cancelled_and_leaves_no_record_behind(
    it: RequestScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    await it.service("shop")
    await it.ingress("web", finalizers=[HOLD])
    await it.ingress("other", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    run = Command(plane.management.kubeconfig, HOME, capsys)
    async with it.requests():
        await it.ask()
        await until_absent(it.member, SERVICES, "shop", namespace=it.namespace)
        told = await run.cancel(f"{REQUEST_PREFIX}{it.uid}")
        assert "1 of 3 objects are gone" in told
        assert "2 are being deleted" in told
        assert await it.records() == []
    assert await it.lives()


async def test_a_drain_of_a_cluster_that_goes_away_ends(it: RequestScene) -> None:
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    async with it.requests():
        await it.ask()
        await it.asked(lambda one: bool(one.status.blockers), "held")
    # While no manager runs, and without Cluster API: nothing holds it.
    await it.cluster.delete()
    await it.cluster.go()
    async with it.requests():
        ended = await it.finished()
    assert ended.phase is Phase.TARGET_GONE
    assert await it.ledger(ended) == {f"Ingress {it.namespace}/web": Reason.TARGET_GONE}


async def _refused(it: RequestScene, **more: Any) -> str:
    async with it.requests(**more):
        await it.ask()
        ended = await it.finished()
    assert ended.phase is Phase.REFUSED
    assert await it.records() == []
    assert await it.lives()
    assert await it.exists(SERVICES, "shop")
    await tidy(it.client)
    return ended.status.blocked_by


async def test_a_request_is_refused_if_nothing_allows_it(it: RequestScene) -> None:
    await it.service("shop", cloud=False)
    assert "no TeardownPolicy drains anything" in await _refused(it)
    await it.policy("leave", {"loadBalancers": "Leave"})
    assert "no TeardownPolicy drains anything" in await _refused(it)
    await it.policy("prod", ENFORCE)
    assert ", but left in place by TeardownPolicy " in await _refused(it)
    await it.forget_policies()
    await it.policy("prod", ENFORCE)
    assert "the feature drain is not installed" in await _refused(it, installed=False)
    cluster, where = it.cluster.name, it.cluster.namespace
    for change, undone, why in (
        ({"spec": {"paused": True}}, {"spec": {"paused": False}}, "is paused"),
        (
            {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}},
            {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}},
            "is protected",
        ),
    ):
        await it.client.patch(CLUSTERS, cluster, change, namespace=where)
        assert why in await _refused(it)
        await it.client.patch(CLUSTERS, cluster, undone, namespace=where)
    async with it.requests():
        await it.ask(max_objects=0)
        assert "the limit is 0" in (await it.finished()).status.blocked_by


async def test_a_manager_that_does_not_know_drains_deletes_nothing_for_such_a_request(it: RequestScene) -> None:
    await it.service("shop", cloud=False)
    await it.policy("prod", ENFORCE)
    async with (
        manager_client(it.client, HOME) as own,
        # As version 0.2.0: every request is for the deletion of its target.
        request_controller(own, HOME, clock=StillClock()) as older,
        running_components(older),
    ):
        await it.ask()
        ended = await it.finished()
    assert ended.phase is Phase.REFUSED
    assert DRAIN_RESOURCE in ended.status.blocked_by
    assert await it.lives()


async def test_only_a_user_who_may_delete_the_cluster_requests_its_drain(it: RequestScene, plane: Plane) -> None:
    async with own_namespace(plane, "unwind-drains") as home:
        room = Room(plane.management, home)
        await room.open()
        ref = it.ref

        def body(by: str, target: ObjectRef, plural: str) -> dict[str, Any]:
            wanted = request_manifest(target, name=f"{REQUEST_PREFIX}{ref.uid}", by=by, plural=plural, now=SYSTEM.now())
            return manifest(TEARDOWNS, wanted)

        async with user(room, "viewer", [ASKING]) as viewer, user(room, "deleter", [ASKING, DELETING]) as deleter:
            with pytest.raises(ApiError, match=f"may not delete Cluster {ref.name}"):
                await viewer.client.create(TEARDOWNS, body(viewer.name, ref, DRAIN_RESOURCE))
            # The Cluster itself is still not deleted by a request, and nothing else is drained.
            with pytest.raises(ApiError, match="cannot request deletion of Cluster"):
                await deleter.client.create(TEARDOWNS, body(deleter.name, ref, CLUSTERS.plural))
            other = msgspec.structs.replace(ref, group="example.dev")
            with pytest.raises(ApiError, match="may not delete Cluster"):
                await deleter.client.create(TEARDOWNS, body(deleter.name, other, DRAIN_RESOURCE))
            await deleter.client.create(TEARDOWNS, body(deleter.name, ref, DRAIN_RESOURCE))
