"""`unwind plan`: what would go, in which order, what refuses, stays and needs it; and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from tests.plane.support import cluster_teardowns, profiles
from tests.plane.support.removals import stateful_set, until_claimed
from tests.plane.support.requested_deletions import Command, Room
from unwind.api import karmada
from unwind.api.names import DELETE_PROTECTION_LABEL, OWNER_LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFUL_SETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import HOME
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from typing import Any

    from unwind.local.plane import Plane

READING = {"get", "list", "watch"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> str:
    await profiles.install(plane.management.client)
    return HOME


def named(refs: list[dict[str, Any]]) -> set[str]:
    return {f"{ref['kind']}/{ref['name']}" for ref in refs}


async def test_a_namespace_shows_its_order_its_radius_and_what_would_refuse(
    plane: Plane, home: str, planner: Command
) -> None:
    room = Room(plane.management, home)
    await room.open()
    gadgets = await room.definition()
    await room.put(gadgets, "gadget")
    await room.deployment("web", replicas=2)
    await room.service("front", type="LoadBalancer")
    await room.config_map("settings")
    await room.config_map("precious", labels={DELETE_PROTECTION_LABEL: "Always"})
    await room.config_map("added", labels={OWNER_LABEL: "u-1"})
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    for name, policy in (("disk", "Delete"), ("archive", "Retain")):
        volume = f"{room.name}-{name}"
        await room.put(
            PERSISTENT_VOLUMES,
            volume,
            namespace=None,
            spec={
                **claim,
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": policy,
                "hostPath": {"path": "/x"},
                "claimRef": {"namespace": room.name, "name": name},
            },
        )
        await room.put(
            PERSISTENT_VOLUME_CLAIMS,
            name,
            spec={**claim, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        )
    await room.put(
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        f"hook-{room.name}",
        namespace=None,
        webhooks=[
            {
                "name": "a.example.dev",
                "clientConfig": {"service": {"namespace": room.name, "name": "front"}},
                "rules": [{"apiGroups": ["none.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    )
    seen = await planner.foreseen(f"ns/{room.name}")
    assert [step["name"] for step in seen["plan"]["steps"]] == [
        "custom objects",
        "load balancers",
        "workloads",
        "volume claims",
        "the rest",
    ]
    assert named(seen["objects"]["custom objects"]) == {"Gadget/gadget"}
    assert {"ConfigMap/settings", "ConfigMap/precious"} <= named(seen["objects"]["the rest"])
    along = [ref["kind"] for ref in seen["along"]]
    assert (along.count("ReplicaSet"), along.count("Pod")) == (1, 2)
    assert named(seen["radius"]["loadBalancers"]) == {"Service/front"}
    assert {item["name"]: item["goes"] for item in seen["volumes"]} == {
        f"{room.name}-disk": True,
        f"{room.name}-archive": False,
    }
    assert [item["object"]["name"] for item in seen["refusals"]] == ["precious"]
    assert {item["object"]["name"] for item in seen["staying"]} == {"added", f"{room.name}-archive", room.name}
    assert any(f"hook-{room.name}" in line for line in seen["warnings"])
    assert any(f"Namespace {room.name} stays, because" in line for line in seen["warnings"])
    assert (seen["total"], seen["refused"]) == (seen["radius"]["objects"], True)
    # And as people, or other programs, want it.
    table = await planner.plan(f"ns/{room.name}")
    assert "Refused, nothing would be deleted:" in table
    wide = await planner.plan(f"ns/{room.name}", output="wide")
    assert f"ConfigMap {room.name}/settings" in wide
    assert yaml.safe_load(await planner.plan(f"ns/{room.name}", output="yaml"))["title"] == f"Namespace {room.name}"
    assert (await planner.plan(f"ns/{room.name}", output="svg")).startswith("<svg")
    assert (await planner.plan(f"ns/{room.name}", output="dot")).startswith("digraph")
    assert "flowchart" in await planner.plan(f"ns/{room.name}", output="mermaid")


async def test_an_object_shows_what_needs_it_and_a_definition_what_it_takes_along(
    plane: Plane, home: str, planner: Command
) -> None:
    room = Room(plane.management, home)
    await room.open()
    await room.config_map("settings")
    container = {"name": "c", "image": "c", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    await room.put(PODS, "user", spec={"containers": [container]})
    seen = await planner.foreseen("cm/settings", namespace=room.name)
    assert seen["warnings"] == [f"ConfigMap {room.name}/settings is deleted, but still used by Pod {room.name}/user"]
    gadgets = await room.definition()
    for number in range(3):
        await room.put(gadgets, f"g-{number}")
    owner = {"apiVersion": f"{gadgets.group}/v1", "kind": "Gadget", "name": "g-0", "uid": room.uids["g-0"]}
    await room.config_map("owned", ownerReferences=[owner])
    seen = await planner.foreseen(f"crd/gadgets.{gadgets.group}")
    assert seen["radius"]["definitions"] == [{"name": f"gadgets.{gadgets.group}", "resources": 3, "along": 0}]
    assert named(seen["along"]) == {"ConfigMap/owned"}
    assert [step["objects"] for step in seen["plan"]["steps"]] == [3, 1]
    with pytest.raises(UnwindError, match=r"ConfigMap .*: not found"):
        await planner.plan("cm/nothing", namespace=room.name)
    with pytest.raises(UnwindError, match="kind 'thing' not found in this cluster"):
        await planner.plan("thing/x")


async def test_a_stateful_set_takes_its_claims_along_where_that_is_asked_for(
    plane: Plane, home: str, planner: Command
) -> None:
    room = Room(plane.management, home)
    await room.open()
    body = stateful_set(room.name, "db", replicas=1)
    await room.put(STATEFUL_SETS, "db", spec=body["spec"])
    await until_claimed(room.client, room.name, "data-db-0")
    seen = await planner.foreseen("sts/db", namespace=room.name, volumes="Delete")
    assert named(seen["objects"]["volume claims"]) == {"PersistentVolumeClaim/data-db-0"}
    assert "Pod/db-0" in named(seen["along"])


async def test_a_cluster_shows_the_waves_of_its_add_ons_and_what_is_on_its_member(
    plane: Plane, namespace: str, planner: Command
) -> None:
    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("base")
    await scene.add_on("shop", depends_on=("base",), objects=2)
    await scene.add_on("left", behaviour="LeavePolicies", objects=1)
    await scene.add_on("tried", behaviour="RemovePolicies", objects=1)
    patch = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
    for name in ("shop-0", "tried-0"):
        await scene.member.client.patch(CONFIG_MAPS, name, patch, namespace=scene.on_member, field_manager="jane")
    for target, where in ((f"cluster/{scene.name}", scene.namespace), (scene.name, None)):
        seen = await planner.foreseen(target, namespace=where)
        waves = {step["name"].partition("-")[0]: (step["wave"], step["effort"]) for step in seen["plan"]["steps"]}
        assert waves == {
            "ClusterProfile/shop": (1, "Enforce"),
            "ClusterProfile/base": (2, "Enforce"),
            "ClusterProfile/left": (1, "Leave"),
            "ClusterProfile/tried": (1, "Try"),
        }
        assert (seen["radius"]["objects"], seen["radius"]["staying"]) == (5, 2)
        assert seen["refusals"] == []
        [blocked] = seen["blocked"]
        assert blocked["object"]["name"] == "shop-0"
        assert blocked["why"] == (
            f"blocked by label {DELETE_PROTECTION_LABEL}=Always, set by jane; to allow its deletion:"
            f" unwind unprotect configmaps/shop-0 -n {scene.on_member} --cluster {namespace}/{scene.name}"
        )
        assert {item["object"]["name"] for item in seen["staying"]} == {"left-0", "tried-0"}
        assert not seen["requested"]
        assert [step.rpartition("-")[0] for step in seen["criticalPath"]] == [
            "ClusterProfile/shop",
            "ClusterProfile/base",
        ]
    # What becomes of a profile is told for each cluster that it is on; who needs it is named.
    seen = await planner.foreseen(f"clusterprofile/{scene.profile('base')}")
    assert [step["name"] for step in seen["plan"]["steps"]] == [f"Capi/{scene.namespace}/{scene.name}"]
    assert seen["radius"]["objects"] == 3
    assert [scene.profile("shop") in line for line in seen["warnings"]] == [True]


async def test_a_member_of_karmada_shows_what_its_strategy_leaves(plane: Plane, home: str, planner: Command) -> None:
    client = plane.management.client
    await profiles.serve(client, ("cluster.karmada.io", "work.karmada.io"), (karmada.CLUSTERS, karmada.WORKS))
    name = "planned-member"
    made = await client.create(
        karmada.CLUSTERS,
        {
            "apiVersion": karmada.CLUSTERS.api_version,
            "kind": "Cluster",
            "metadata": {"name": name},
            "spec": {"syncMode": "Push", "removeStrategy": "Required"},
        },
    )
    await plane.management.create_namespace(f"karmada-es-{name}")
    work = {"apiVersion": karmada.WORKS.api_version, "kind": "Work"}
    metadata = {"name": "w", "namespace": f"karmada-es-{name}"}
    await client.create(karmada.WORKS, {**work, "metadata": metadata, "spec": {}})
    seen = await planner.foreseen(f"cluster/{name}")
    assert [(step["name"], step["effort"]) for step in seen["plan"]["steps"]] == [("Work/w", "Enforce")]
    await client.patch(karmada.CLUSTERS, name, {"spec": {"removeStrategy": "Needless"}})
    seen = await planner.foreseen(f"clusters.cluster.karmada.io/{name}")
    assert [(step["name"], step["effort"]) for step in seen["plan"]["steps"]] == [("Work/w", "Leave")]
    await client.delete(karmada.CLUSTERS, name, uid=made["metadata"]["uid"])


async def test_nothing_was_written_by_any_of_this(plane: Plane, planner: Command) -> None:
    await planner.plan("ns/default")
    for cluster in (plane.management, *plane.members.values()):
        assert {entry.verb for entry in cluster.audit.entries(user="planner")} <= READING
        by_agent = [entry for entry in cluster.audit.entries() if entry.user_agent.startswith("unwind-plan")]
        assert {item.verb for item in by_agent} <= READING
    assert list(plane.management.audit.entries(user="planner"))
