"""Drains on a real control plane: what users created and what costs money goes before the cluster, and only that."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.controllers import HOLD
from tests.plane.support.drains import DrainScene, draining
from tests.plane.support.objects import crd, define
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    GATEWAYS,
    INGRESSES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICES,
    VOLUME_ATTACHMENTS,
    Resource,
)
from unwind.api.unwind import Phase, Teardown
from unwind.cli.ledger import ledger
from unwind.cli.plan import plan
from unwind.errors import WouldLeakError
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until, until_absent
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.local.plane import Plane

ENFORCE = {"loadBalancers": "Enforce"}
MANY = 8
_FREE = {"metadata": {"finalizers": None}}
_POD = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "example.dev/a"}]}}
_DEPLOYMENT = {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": _POD}


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[DrainScene]:
    async with draining(plane, namespace, DrainScene) as made:
        yield made


def held_by(reason: str) -> Callable[[Teardown], bool]:
    return lambda one: any(blocker.reason == reason for blocker in one.status.blockers)


async def test_load_balancers_that_users_created_are_gone_at_the_cloud_before_the_cluster_goes(it: DrainScene) -> None:
    service = await it.service("shop")
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(lambda one: any("web" in item.message for item in one.status.blockers), "held")
        assert held.spec.plan
        [step] = held.spec.plan.steps
        assert (step.name, step.effort, step.objects) == ("Drain/loadBalancers", "Enforce", 2)
        assert step.effort_from == f"TeardownPolicy/{it.called('prod')}"
        assert [policy.name for policy in held.spec.policies] == [it.called("prod")]
        inventory = await it.cluster.inventory(step.object)
        assert inventory
        assert service.uid in {entry.object.uid for entry in inventory.spec.entries.values()}
        await it.member.patch(INGRESSES, "web", _FREE, namespace=it.namespace)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert service.uid not in it.cloud.load_balancers
    assert await it.ledger(ended) == {}
    deletions = it.cluster.member.audit.deletions(resource="services", namespace=it.namespace)
    assert [entry.object_ref.name for entry in deletions] == ["shop"]
    await it.cluster.let_go()


async def test_many_load_balancers_are_recorded_with_a_few_writes(it: DrainScene) -> None:
    for number in range(MANY):
        await it.service(f"shop-{number}")
    await it.policy("prod", ENFORCE)
    ended = await it.drained()
    assert ended.spec.plan
    [step] = ended.spec.plan.steps
    assert step.objects == MANY
    audit = it.cluster.management.audit.entries(verbs=("patch",), resource="inventories")
    written = [entry for entry in audit if entry.object_ref.name == f"{step.object.uid}-0"]
    assert len(written) < MANY
    await it.cluster.let_go()


async def test_without_a_policy_nothing_is_drained(it: DrainScene) -> None:
    await it.service("shop")
    await it.cluster.add_on("base")
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert ended.spec.plan
    assert [step.object.kind for step in ended.spec.plan.steps] == ["ClusterSummary"]
    assert await it.exists(SERVICES, "shop")
    await it.cluster.let_go()


async def test_the_drain_comes_after_other_steps_and_before_those_that_clean_up_for_it(it: DrainScene) -> None:
    service = await it.service("shop")
    network = await it.cluster.add_on("network", finalizers=(HOLD,))
    ccm = await it.cluster.add_summary("ccm", depends_on=("network",))
    running = await it.create(DEPLOYMENTS, "acme-cloud-controller-manager", _DEPLOYMENT)
    await it.cluster.record(ccm, {"ccm": it.entry(running, "deployments")})
    await it.cluster.add_on("app", depends_on=("network",), finalizers=(HOLD,))
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(lambda one: len(one.status.blockers) == 3, "waiting for the app")
        assert held.spec.plan
        waves = {step.object.name.partition("-capi")[0]: step.wave for step in held.spec.plan.steps}
        assert waves == {"app": 1, "loadBalancers": 2, "ccm": 3, "network": 4}
        assert service.uid in it.cloud.load_balancers
        await it.free("app-")
        await until_absent(it.member, DEPLOYMENTS, running.name, namespace=it.namespace)
        assert service.uid not in it.cloud.load_balancers
        assert network.uid
        await it.free("network-")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_a_step_that_cleans_up_and_depends_on_a_step_with_load_balancers_holds_the_plan(it: DrainScene) -> None:
    app = await it.cluster.add_summary("app")
    await it.cluster.record(app, {"shop": it.entry(await it.service("shop"), "services")})
    ccm = await it.cluster.add_summary("ccm", depends_on=("app",))
    running = await it.create(DEPLOYMENTS, "cloud-controller-manager", _DEPLOYMENT)
    await it.cluster.record(ccm, {"ccm": it.entry(running, "deployments")})
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any(item.reason == Reason.ORDER_CONFLICT for item in one.status.conditions), "held"
        )
        assert held.spec.plan is None
        assert await it.exists(SERVICES, "shop")
    await it.cluster.let_go()


async def test_protected_load_balancers_hold_and_excluded_ones_stay_in_the_ledger(it: DrainScene) -> None:
    await it.service("precious", labels={DELETE_PROTECTION_LABEL: "Always"})
    await it.service("shared", labels={"unwind.dev/keep": "true"})
    await it.policy("prod", {**ENFORCE, "exclude": {"matchLabels": {"unwind.dev/keep": "true"}}})
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_by(Reason.PROTECTED), "held")
        free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
        await it.member.patch(SERVICES, "precious", free, namespace=it.namespace)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert not await it.exists(SERVICES, "precious")
    assert await it.exists(SERVICES, "shared")
    assert await it.ledger(ended) == {f"Service {it.namespace}/shared": Reason.KEPT_BY_POLICY}
    await it.cluster.let_go()


async def test_an_object_whose_cleanup_cannot_be_seen_is_deleted_and_named_in_the_ledger(it: DrainScene) -> None:
    await it.ingress("web")
    await it.policy("prod", ENFORCE)
    ended = await it.drained()
    assert ended.spec.plan
    assert any("web has no finalizer" in warning for warning in ended.spec.plan.warnings)
    assert not await it.exists(INGRESSES, "web")
    assert await it.ledger(ended) == {f"Ingress {it.namespace}/web": Reason.NOT_VERIFIED}
    await it.cluster.let_go()


async def test_with_settle_the_drain_waits_for_what_cannot_be_seen_and_a_restart_does_not_begin_the_wait_again(
    it: DrainScene,
) -> None:
    await it.ingress("web")
    await it.policy("prod", {**ENFORCE, "settle": "2m"})
    clock = StillClock()
    async with it.manager(clock=clock):
        await it.cluster.delete()
        await it.cluster.teardown(held_by(Reason.SETTLING), "settling")
        assert not await it.exists(INGRESSES, "web")
    clock.advance(119)
    async with it.manager(clock=clock):
        await it.cluster.teardown(
            lambda one: any("waiting 1s" in blocker.message for blocker in one.status.blockers), "settling"
        )
        clock.advance(1)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.ledger(ended) == {}
    await it.cluster.let_go()


async def test_what_appears_until_the_drain_starts_is_added_by_name(it: DrainScene) -> None:
    await it.cluster.add_on("app", finalizers=(HOLD,))
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: len(one.status.blockers) == 3, "waiting for the app")
        late = await it.service("late")
        await it.cluster.unblock()
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert not await it.exists(SERVICES, "late")
    assert late.uid not in it.cloud.load_balancers
    await it.cluster.let_go()


async def test_a_load_balancer_that_is_created_again_is_named_and_not_fought(it: DrainScene) -> None:
    await it.service("shop")
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        await until_absent(it.member, SERVICES, "shop", namespace=it.namespace)
        again = await it.service("shop")
        await it.member.patch(INGRESSES, "web", _FREE, namespace=it.namespace)
        held = await it.cluster.teardown(held_by(Reason.CREATED_AGAIN), "held")
        [blocker] = [item for item in held.status.blockers if item.reason == Reason.CREATED_AGAIN]
        assert blocker.object.uid == again.uid
        assert "created again by" in blocker.message
    # A new manager does not fight it, either.
    async with it.manager():
        await it.cluster.teardown(held_by(Reason.CREATED_AGAIN), "held")
        assert again.uid in it.cloud.load_balancers
        await it.member.delete(SERVICES, "shop", uid=again.uid, namespace=it.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.let_go()


async def test_load_balancers_that_one_policy_enforces_and_another_leaves_hold_and_stay(it: DrainScene) -> None:
    await it.service("shop")
    await it.policy("prod", ENFORCE)
    await it.policy("careful", {"loadBalancers": "Leave"})
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_by(Reason.POLICY_CONFLICT), "in conflict")
        assert await it.exists(SERVICES, "shop")
        found = await it.client.get(TEARDOWN_POLICIES, it.called("careful"))
        await it.client.delete(TEARDOWN_POLICIES, it.called("careful"), uid=found["metadata"]["uid"])
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert not await it.exists(SERVICES, "shop")
    await it.cluster.let_go()


async def test_a_drain_that_is_only_tried_ends_and_names_what_is_left(it: DrainScene) -> None:
    await it.ingress("web", finalizers=[HOLD])
    await it.policy("prod", {"loadBalancers": "Try"})
    clock = StillClock()
    async with it.manager(clock=clock):
        await it.cluster.delete()
        await until(
            it.member,
            INGRESSES,
            "web",
            lambda one: one is not None and "deletionTimestamp" in one["metadata"],
            "deleting",
            namespace=it.namespace,
        )
        clock.advance(60)
        ended = await it.cluster.ended()
    assert await it.ledger(ended) == {f"Ingress {it.namespace}/web": Reason.GAVE_UP}
    await it.cluster.let_go()


async def test_load_balancers_of_other_steps_are_removed_by_those_and_not_by_the_drain(it: DrainScene) -> None:
    nginx = await it.cluster.add_summary("nginx")
    service = await it.service("ingress", labels={"unwind.dev/owner": nginx.uid})
    running = await it.create(DEPLOYMENTS, "ingress-nginx-controller", _DEPLOYMENT)
    entries = {"a": it.entry(service, "services"), "b": it.entry(running, "deployments")}
    await it.cluster.record(nginx, entries)
    ccm = await it.cluster.add_summary("ccm")
    cloud = await it.create(DEPLOYMENTS, "cloud-controller-manager", _DEPLOYMENT)
    await it.cluster.record(ccm, {"ccm": it.entry(cloud, "deployments")})
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert ended.spec.plan
    waves = {step.object.name.partition("-capi")[0]: (step.wave, step.objects) for step in ended.spec.plan.steps}
    assert waves == {"loadBalancers": (1, 0), "nginx": (2, 2), "ccm": (3, 1)}
    assert not await it.exists(SERVICES, "ingress")
    await it.cluster.let_go()


@pytest.mark.parametrize(
    ("drain", "said"),
    [
        ({"loadBalancers": "Enforced"}, "Unsupported value"),
        ({"resources": [{"group": "storage.k8s.io", "kind": "CSIDriver", "effort": "Try"}]}, "built-in kinds"),
        ({"resources": [{"group": "apps", "kind": "Deployment", "effort": "Try"}]}, "should match"),
        ({"settle": "soon"}, "should match"),
        ({}, "at least 1"),
    ],
)
async def test_a_drain_with_values_that_are_not_known_is_refused(
    it: DrainScene, drain: dict[str, object], said: str
) -> None:
    with pytest.raises(ApiError, match=said):
        await it.policy("wrong", drain)


async def test_volumes_go_after_load_balancers_and_only_when_the_volume_and_its_attachment_are_gone(
    it: DrainScene,
) -> None:
    claim = await it.volume("data")
    await it.volume("archive", reclaim="Retain")
    await it.service("shop")
    attached = {"attacher": "disk.example.dev", "nodeName": "a", "source": {"persistentVolumeName": it.called("data")}}
    attachment = await it.create(VOLUME_ATTACHMENTS, it.called("data"), attached)
    await it.policy("prod", {**ENFORCE, "volumes": "Enforce"})
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any("waits for its provisioner" in item.message for item in one.status.blockers), "held"
        )
        assert held.spec.plan
        waves = {step.name: (step.wave, step.objects) for step in held.spec.plan.steps}
        assert waves == {"Drain/loadBalancers": (1, 1), "Drain/volumes": (2, 1)}
        volume = await it.member.get(PERSISTENT_VOLUMES, it.called("data"))
        await it.clear(PERSISTENT_VOLUMES, volume)
        await it.cluster.teardown(
            lambda one: any("still attached to node a" in item.message for item in one.status.blockers), "attached"
        )
        await it.member.delete(VOLUME_ATTACHMENTS, attachment.name, uid=attachment.uid)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert claim.name == "data"
    assert not await it.exists(PERSISTENT_VOLUME_CLAIMS, "data")
    assert await it.exists(PERSISTENT_VOLUME_CLAIMS, "archive")
    assert await it.ledger(ended) == {}
    await it.cluster.let_go()


@pytest.mark.parametrize("said", [{}, {"volumes": "Leave"}])
async def test_volumes_that_no_policy_drains_stay_and_are_named_in_the_ledger(
    it: DrainScene, said: dict[str, str]
) -> None:
    await it.volume("data")
    await it.policy("prod", {**ENFORCE, **said})
    ended = await it.drained()
    assert await it.exists(PERSISTENT_VOLUME_CLAIMS, "data")
    assert await it.ledger(ended) == {f"PersistentVolumeClaim {it.namespace}/data": Reason.KEPT_BY_POLICY}
    written = it.cluster.member.audit.entries(verbs=("patch", "update", "delete"), resource="persistentvolumeclaims")
    assert not [one for one in written if one.object_ref.namespace == it.namespace and "unwind" in one.user_agent]
    await it.cluster.let_go()


async def test_further_kinds_are_drained_in_their_phase_while_their_operator_cleans_up(it: DrainScene) -> None:
    group = f"{it.namespace}.example.dev"
    pools = Resource(group, "v1", "pools", "Pool", namespaced=False)
    gateways = Resource(group, "v1", "records", "Record")
    for resource in (pools, gateways):
        await define(it.member, crd(resource))
    await it.create(pools, "spot", {}, finalizers=[HOLD])
    await it.create(gateways, "www", {})
    operator = await it.cluster.add_summary("operator")
    definition = await it.member.get(CUSTOM_RESOURCE_DEFINITIONS, f"pools.{group}")
    recorded = ObjectRef(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        name=f"pools.{group}",
        uid=definition["metadata"]["uid"],
    )
    await it.cluster.record(operator, {"crd": it.entry(recorded, "customresourcedefinitions")})
    await it.service("shop")
    resources = [
        {"group": group, "kind": "Pool", "effort": "Enforce", "phase": "Nodes"},
        {"group": group, "kind": "Record", "effort": "Try"},
        {"group": "not.installed.example.dev", "kind": "Anything", "effort": "Enforce"},
    ]
    await it.policy("prod", {**ENFORCE, "resources": resources})
    async with it.manager():
        await it.cluster.delete()
        assert await it.waves_when_blocked("spot") == {
            "Anything.not.installed.example.dev": 1,
            f"Record.{group}": 1,
            "loadBalancers": 1,
            f"Pool.{group}": 2,
            "operator": 3,
        }
        assert not await it.exists(SERVICES, "shop")
        await it.member.patch(pools, "spot", _FREE)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.ledger(ended) == {f"Record {it.namespace}/www": Reason.NOT_VERIFIED}
    await it.cluster.let_go()


async def test_a_step_with_the_controller_of_a_finalizer_is_removed_after_the_drain(it: DrainScene) -> None:
    buckets = Resource(f"{it.namespace}.example.dev", "v1", "buckets", "Bucket")
    await define(it.member, crd(buckets))  # not with the step of its operator
    bucket = await it.create(buckets, "logs", {})
    # As its operator does when it first sees it.
    held = {"metadata": {"finalizers": ["storage.acme.test/cleanup"]}}
    await it.member.patch(buckets, "logs", held, namespace=it.namespace, field_manager="bucket-keeper")
    operator = await it.cluster.add_summary("operator")
    running = await it.create(DEPLOYMENTS, "bucket-keeper", _DEPLOYMENT)
    await it.cluster.record(operator, {"operator": it.entry(running, "deployments")})
    await it.cluster.add_on("app", objects=1)
    await it.policy("prod", {"resources": [{"group": buckets.group, "kind": "Bucket", "effort": "Enforce"}]})
    async with it.manager():
        await it.cluster.delete()
        assert await it.waves_when_blocked("logs") == {"app": 1, f"Bucket.{buckets.group}": 2, "operator": 3}
        assert await it.exists(DEPLOYMENTS, "bucket-keeper")
        await it.member.patch(buckets, "logs", _FREE, namespace=it.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert bucket.name == "logs"
    assert not await it.exists(DEPLOYMENTS, "bucket-keeper")
    await it.cluster.let_go()


async def test_gateways_are_drained_where_they_are_served_and_what_they_own_goes_with_them(it: DrainScene) -> None:
    definition = crd(GATEWAYS)
    definition["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, only for this test"}
    await define(it.member, definition)
    gateway = await it.create(GATEWAYS, "edge", {"listeners": []}, finalizers=[HOLD])
    owner = {
        "apiVersion": GATEWAYS.api_version,
        "kind": "Gateway",
        "name": "edge",
        "uid": gateway.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    service = await it.service("edge-lb", ownerReferences=[owner])
    await it.policy("prod", ENFORCE)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: any("edge" in item.message for item in one.status.blockers), "held"
        )
        assert held.spec.plan
        [step] = held.spec.plan.steps
        assert step.objects == 1
        await it.member.patch(GATEWAYS, "edge", _FREE, namespace=it.namespace)
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert service.uid not in it.cloud.load_balancers
    await it.cluster.let_go()


async def test_the_plan_shows_what_costs_money_who_made_it_and_what_becomes_of_it(
    it: DrainScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    service = await it.service("shop")
    await it.service("shared", labels={"unwind.dev/keep": "true"})
    await it.ingress("web")
    await it.volume("data")
    await it.volume("archive", reclaim="Retain")
    app = await it.cluster.add_summary("app")
    await it.cluster.record(app, {"lb": it.entry(await it.service("own"), "services")})
    await it.policy("prod", {**ENFORCE, "exclude": {"matchLabels": {"unwind.dev/keep": "true"}}})
    step = f"ClusterProfile/{it.cluster.profile('app')}"

    async def shown() -> dict[tuple[str, str], dict[str, object]]:
        name = f"cluster/{it.cluster.name}"
        with suppress(WouldLeakError):
            await plan(name, namespace=it.cluster.namespace, output="json", kubeconfig=plane.management.kubeconfig)
        document = json.loads(capsys.readouterr().out)
        return {(cost["what"], cost["object"]["name"]): cost for cost in document["costs"]}

    found = await shown()
    steps = {name for name, _ in found}
    assert steps == {"load balancer", "volume", "DNS name"}
    address = it.cloud.load_balancers[service.uid].address
    assert found["load balancer", "shop"] == {
        "what": "load balancer",
        "object": {"version": "v1", "kind": "Service", "namespace": it.namespace, "name": "shop", "uid": service.uid},
        "names": [address],
        "madeBy": "unwind",
        "fate": "deleted by step Drain/loadBalancers (Enforce)",
    }
    assert found["load balancer", "own"]["fate"] == f"removed with step {step}"
    assert found["load balancer", "shared"]["fate"] == f"left behind: excluded by TeardownPolicy {it.called('prod')}"
    assert found["DNS name", "web"]["names"] == ["web.example.com"]
    assert "no finalizer shows" in str(found["DNS name", "web"]["fate"])
    data = found["volume", "data"]
    assert (data["size"], data["storageClass"], data["names"]) == ("8Gi", "fast", [it.called("data")])
    assert data["fate"] == "left behind: no TeardownPolicy drains it"
    assert found["volume", "archive"]["fate"] == "left behind: the reclaim policy of its volume is Retain"
    await it.forget_policies()
    found = await shown()
    assert found["load balancer", "shop"]["fate"] == "left behind: no TeardownPolicy drains it"
    assert all(cost.get("left") for cost in found.values() if cost["object"] != found["load balancer", "own"]["object"])
    assert await it.exists(SERVICES, "shop")


async def test_the_plan_shows_the_steps_of_a_drain_as_the_teardown_runs_them(
    it: DrainScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    await it.service("shop")
    await it.volume("data")
    await it.cluster.add_on("app")
    await it.policy("prod", ENFORCE)
    name = f"cluster/{it.cluster.name}"
    with suppress(WouldLeakError):  # other tests have created what costs money on this member
        await plan(name, namespace=it.cluster.namespace, output="json", kubeconfig=plane.management.kubeconfig)
    foreseen = json.loads(capsys.readouterr().out)["plan"]["steps"]
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert ended.spec.plan
    shown = [(step["name"], step["wave"], step["effort"], step["objects"]) for step in foreseen]
    assert shown == [(step.name, step.wave, step.effort, step.objects) for step in ended.spec.plan.steps]
    await ledger(it.cluster.name, costs=True, kubeconfig=plane.management.kubeconfig)
    told = capsys.readouterr().out
    assert "8Gi" in told
    assert "shop" not in told
    await it.cluster.let_go()
