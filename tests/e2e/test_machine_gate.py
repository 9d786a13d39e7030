"""`kubectl delete cluster` of a Cluster without a ClusterClass: the real Cluster API, and `gate: Machines`."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.gated_clusters import REMOVE
from tests.plane.support.commands import command
from tests.plane.support.objects import teardown_policy
from tests.plane.support.plugins import install_package
from unwind.api import meta
from unwind.api.capi import CLUSTERS, MACHINE_SETS, MACHINES
from unwind.api.names import (
    CLUSTER_NAME_LABEL,
    DELETE_FOR_MOVE_ANNOTATION,
    DELETION_REQUESTED_BY_ANNOTATION,
    MACHINE_GATE_ANNOTATION,
    PAUSED_ANNOTATION,
)
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import NAMESPACES
from unwind.api.rights import Right
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import Phase
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.local import stubs, tools
from unwind.testing.managers import grant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.e2e.gated_clusters import GatedCluster, GateScene, Ground
    from tests.plane.support.manager_process import Manager
    from unwind.kube.client import Object


HUNDREDS = 200


pytestmark = pytest.mark.usefixtures("manager")


class MachineScene:
    """A Cluster without a ClusterClass, with workers, and a policy that chooses its gate."""

    def __init__(self, scene: GateScene) -> None:
        self.scene = scene
        self.client = scene.client
        self.namespace = scene.namespace

    async def policy(self, gate: str = "Machines", **more: object) -> None:
        body = teardown_policy(self.namespace, self.scene.label, gate=gate, **more)
        await self.client.apply(TEARDOWN_POLICIES, body, field_manager="test")

    async def unselect(self) -> None:
        for policy in await self.client.list(TEARDOWN_POLICIES):
            if policy["metadata"]["name"] == self.namespace:
                await self.client.delete(TEARDOWN_POLICIES, self.namespace, uid=policy["metadata"]["uid"])

    async def cluster(self, *deployed: str, replicas: int = 3) -> GatedCluster:
        """A Cluster whose workers exist."""
        cluster = await self.scene.cluster(*deployed, topology=False)
        await self.workers(cluster, replicas=replicas)
        return cluster

    async def workers(self, cluster: GatedCluster, *, name: str = "workers", replicas: int) -> None:
        version = tools.KUBERNETES.version
        for resource, body in stubs.workers(
            cluster.name, self.namespace, name=name, replicas=replicas, version=version
        ):
            await self.client.create(resource, body)

    async def machines(self, cluster: GatedCluster) -> list[Object]:
        labels = f"{CLUSTER_NAME_LABEL}={cluster.name}"
        return await self.client.list(MACHINES, namespace=self.namespace, labels=labels)

    async def until_machines(
        self, cluster: GatedCluster, state: Callable[[list[Object]], bool], called: str
    ) -> list[Object]:
        """The Machines of a Cluster, as soon as they are so."""
        found = await self.machines(cluster)
        if state(found):
            return found
        async for _ in self.client.watch(MACHINES, namespace=self.namespace):
            found = await self.machines(cluster)
            if state(found):
                return found
        raise AssertionError(f"never {called}: {found}")

    async def until_armed(self, cluster: GatedCluster, count: int) -> list[Object]:
        return await self.until_machines(
            cluster, lambda found: len(found) == count and all(map(armed, found)), f"{count} armed"
        )

    async def until_told(self, state: Callable[[Object], bool], called: str) -> Object:
        """What the policy says about the cluster, as soon as it is so."""

        def told(it: Object | None) -> bool:
            clusters = ((it or {}).get("status") or {}).get("clusters") or []
            return bool(clusters) and state(clusters[0])

        found = await object_watch.until(self.client, TEARDOWN_POLICIES, self.namespace, told, called, within=90.0)
        assert found
        one: Object = found["status"]["clusters"][0]
        return one

    async def control_plane(self, cluster: GatedCluster, *names: str) -> None:
        """Machines of the control plane."""
        owner = await self.client.get(stubs.STUB_CONTROL_PLANES, cluster.name, namespace=self.namespace)
        for name in names:
            for resource, body in stubs.control_plane_machine(
                cluster.name,
                self.namespace,
                name=name,
                owner=owner["metadata"]["uid"],
                version=tools.KUBERNETES.version,
            ):
                await self.client.create(resource, body)

    def terminated(self) -> list[str]:
        """When Cluster API had the infrastructure of Machines deleted."""
        found = self.scene.ground.management.audit.deletions(resource="stubmachines", namespace=self.namespace)
        return [item.request_received_timestamp for item in found]


def find(obj: Object, condition: str) -> list[Object]:
    return [it for it in obj.get("status", {}).get("conditions") or () if it["type"] == condition]


@contextmanager
def stopped(manager: Manager) -> Iterator[None]:
    """Nothing answers meanwhile."""
    manager.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        manager.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def replaced(ground: Ground, manager: Manager, variables: dict[str, str]) -> AsyncIterator[None]:
    """Another manager with these variables runs instead of this one."""
    address = manager.addresses["https"]
    ground.balancer.remove(address)
    try:
        with stopped(manager):
            await ground.forget_replicas()
            async with ground.manager(**variables):
                yield
    finally:
        ground.balancer.add(address)


def armed(machine: Object) -> bool:
    return MACHINE_GATE_ANNOTATION in (machine["metadata"].get("annotations") or {})


def leaving(machine: Object) -> bool:
    return "deletionTimestamp" in machine["metadata"]


@pytest_asyncio.fixture(loop_scope="session")
async def gate(scene: GateScene) -> AsyncIterator[MachineScene]:
    made = MachineScene(scene)
    yield made
    await made.unselect()


async def test_a_cluster_without_class_waits_for_its_add_ons_and_only_then_do_its_machines_go(
    ground: Ground, gate: MachineScene
) -> None:
    scene = gate.scene
    await gate.policy()
    await scene.add_on("web")
    cluster = await gate.cluster("web")
    await gate.until_armed(cluster, 3)
    told = await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    assert told["gateKind"] == "Machines"
    assert told["gateMessage"] == f"3/3 Machines armed; TeardownPolicy {gate.namespace} says Machines"
    listed = await command(ground.management, "hooks")
    assert "3/3 Machines armed" in " ".join(listed.out.split())
    profile = await gate.client.get(CLUSTER_PROFILES, scene.called("web"))
    assert not find(profile, "GateNotAvailable"), "its Machines hold it"

    await scene.block("web-0")
    await cluster.delete()
    await gate.until_machines(cluster, lambda found: all(map(leaving, found)), "being deleted")
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert (held.spec.gate, held.spec.gate_from) == ("Machines", f"TeardownPolicy {gate.namespace} says Machines")
    assert not meta.is_true(held.status.conditions, "GateNotAvailable")
    assert not meta.is_true(held.status.conditions, "GateNotArmed")
    assert gate.terminated() == []
    assert cluster.taken_apart() == []
    # Nobody else may let the Machines go.
    [first, *_] = await gate.machines(cluster)
    off = {"metadata": {"annotations": {MACHINE_GATE_ANNOTATION: None}}}
    with pytest.raises(ApiError, match=f"is held until Teardown {cluster.uid}"):
        await gate.client.patch(MACHINES, first["metadata"]["name"], off, namespace=gate.namespace)
    refused = await command(ground.management, "hooks", "disarm", f"{gate.namespace}/{cluster.name}")
    assert "if a Teardown holds the Cluster, use `unwind release`" in refused.refusal

    await scene.unblock("web-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    assert await scene.on_member() == {}
    last = max(answered for _, answered in scene.deletion_times().values())
    assert len(gate.terminated()) == 3
    assert min(gate.terminated()) > last
    assert min(cluster.taken_apart()) > last


async def test_a_machine_that_is_replaced_is_let_go_of_at_once(gate: MachineScene) -> None:
    await gate.policy()
    cluster = await gate.cluster(replicas=2)
    before = await gate.until_armed(cluster, 2)
    name, uid = before[0]["metadata"]["name"], before[0]["metadata"]["uid"]
    await gate.client.delete(MACHINES, name, uid=uid, namespace=gate.namespace)
    await object_watch.until_absent(gate.client, MACHINES, name, namespace=gate.namespace, within=60.0)
    after = await gate.until_armed(cluster, 2)
    assert uid not in {machine["metadata"]["uid"] for machine in after}


async def test_a_deleted_policy_and_another_gate_take_every_annotation_off(gate: MachineScene) -> None:
    await gate.policy()
    cluster = await gate.cluster(replicas=2)
    await gate.until_armed(cluster, 2)
    await gate.policy("None")
    await gate.until_machines(cluster, lambda found: not any(map(armed, found)), "disarmed")
    await gate.policy()
    await gate.until_armed(cluster, 2)
    await gate.unselect()
    await gate.until_machines(cluster, lambda found: not any(map(armed, found)), "disarmed")


async def test_machines_can_be_disarmed_without_a_manager(ground: Ground, gate: MachineScene, manager: Manager) -> None:
    await gate.policy()
    cluster = await gate.cluster(replicas=2)
    before = await gate.until_armed(cluster, 2)
    # A Machine that is deleted while no manager runs waits after its drain.
    with stopped(manager):
        meta_ = before[0]["metadata"]
        await gate.client.delete(MACHINES, meta_["name"], uid=meta_["uid"], namespace=gate.namespace)
        ran = await command(ground.management, "hooks", "disarm", f"{gate.namespace}/{cluster.name}")
        assert ran.code == 0, ran.err
        assert ran.out == "2 Machines disarmed\n"
        await object_watch.until_absent(gate.client, MACHINES, meta_["name"], namespace=gate.namespace, within=60.0)
        assert not any(map(armed, await gate.machines(cluster)))
    await gate.until_armed(cluster, 2)
    wrong = await command(ground.management, "hooks", "disarm")
    assert "expected a Cluster as NAMESPACE/NAME, or --all" in wrong.refusal


@pytest.mark.parametrize("kind", ["Machines", "Admission"])
async def test_a_gate_that_opens_although_rules_do_not_load_reports_it(
    ground: Ground, gate: MachineScene, manager: Manager, tmp_path: Path, kind: str
) -> None:
    scene = gate.scene
    broken = install_package(tmp_path, "no_rules", "[unwind.hooks]\nBeforeClusterDelete = no_such_module:rule\n")
    await gate.policy(kind)
    await scene.add_on("web", behaviour=REMOVE)
    async with replaced(ground, manager, broken):
        cluster = await gate.cluster("web", replicas=1)
        await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
        if kind == "Admission":
            named = f"cluster.cluster.x-k8s.io/{cluster.name}"
            ran = await command(ground.management, "delete", named, "-n", gate.namespace, "--yes", "--no-wait")
            assert ran.code == 0, ran.err
        else:
            await cluster.delete()
        await cluster.until_gone()
        said = await cluster.teardown(lambda it: bool(meta.find(it.status.conditions, "NotVerified")))
    found = meta.find(said.status.conditions, "NotVerified")
    assert found
    assert found.reason == "NotLoaded"
    assert "cannot load the hook rules of package no-rules 1.0 for BeforeClusterDelete" in found.message


async def test_a_control_plane_that_loses_a_machine_during_the_teardown_can_replace_it(gate: MachineScene) -> None:
    scene = gate.scene
    kind = stubs.STUB_CONTROL_PLANES
    await grant(gate.client, "reads-stub-control-planes", Right(kind.group, (kind.plural,), ("get",)))
    await gate.policy()
    await scene.add_on("web")
    cluster = await gate.cluster("web", replicas=1)
    await gate.control_plane(cluster, "one", "two")
    await gate.until_armed(cluster, 3)
    await scene.block("web-0")
    await cluster.delete()
    await cluster.teardown(lambda it: it.phase is Phase.HELD)
    # Its control plane is not being deleted, so this is no part of the teardown.
    lost = await gate.client.get(MACHINES, f"{cluster.name}-one", namespace=gate.namespace)
    await gate.client.delete(MACHINES, f"{cluster.name}-one", uid=lost["metadata"]["uid"], namespace=gate.namespace)
    await object_watch.until_absent(gate.client, MACHINES, f"{cluster.name}-one", namespace=gate.namespace, within=60.0)
    left = await gate.machines(cluster)
    assert len(left) == 2
    assert all(map(armed, left))
    assert cluster.taken_apart() == []
    await scene.unblock("web-0")
    await cluster.until_gone()
    # The garbage collector deletes it with its control plane. A StubControlPlane does not wait for its Machines, as
    # real ones do: if the Cluster is gone first, Cluster API cannot finish the deletion of the Machine.
    await object_watch.until(
        gate.client,
        MACHINES,
        f"{cluster.name}-two",
        lambda it: it is None or not armed(it),
        "let go of",
        namespace=gate.namespace,
    )


async def test_a_held_cluster_is_not_deleted_in_the_foreground_nor_with_its_namespace(gate: MachineScene) -> None:
    await gate.policy()
    cluster = await gate.cluster(replicas=1)
    await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    with pytest.raises(ApiError, match=f"is held by TeardownPolicy {gate.namespace}: foreground deletion"):
        await gate.client.delete(
            CLUSTERS, cluster.name, uid=cluster.uid, namespace=gate.namespace, propagation="Foreground"
        )
    found = await gate.client.get(NAMESPACES, gate.namespace)
    with pytest.raises(ApiError, match="Delete the Clusters first"):
        await gate.client.delete(NAMESPACES, gate.namespace, uid=found["metadata"]["uid"])


async def test_the_shape_of_a_cluster_decides_whether_its_machines_hold_it(gate: MachineScene) -> None:
    await gate.policy()
    cluster = await gate.cluster(replicas=0)
    told = await gate.until_told(lambda it: it.get("gate") == "NotArmed", "not armed")
    assert told["gateMessage"].startswith("the Cluster has no Machines that could hold it")
    sets = f"{cluster.name}-workers"
    await gate.client.patch(MACHINE_SETS, sets, {"spec": {"replicas": 2}}, namespace=gate.namespace)
    told = await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    assert told["gateMessage"].startswith("2/2 Machines armed")


async def test_the_api_server_refuses_to_delete_a_cluster_until_cluster_api_is_paused_for_it(
    ground: Ground, gate: MachineScene, manager: Manager
) -> None:
    scene = gate.scene
    await gate.policy("Admission")
    await scene.add_on("web")
    cluster = await gate.cluster("web", replicas=1)
    told = await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    assert told["gateKind"] == "Admission"
    await scene.block("web-0")
    refused = f"unwind delete cluster/{cluster.name} -n {gate.namespace}"
    with stopped(manager), pytest.raises(ApiError, match=refused):
        await cluster.delete()

    ran = await command(
        ground.management,
        "delete",
        f"cluster.cluster.x-k8s.io/{cluster.name}",
        "-n",
        gate.namespace,
        "--yes",
        "--no-wait",
    )
    assert ran.code == 0, ran.err
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.gate == "Admission"
    assert not meta.is_true(held.status.conditions, "GateNotAvailable")
    assert not meta.is_true(held.status.conditions, "GateNotArmed")
    assert not meta.is_true(held.status.conditions, "Paused")
    # Only the Cluster is paused: what it consists of is still looked after, and nothing of it is deleted.
    assert not any(map(leaving, await gate.machines(cluster)))
    assert cluster.taken_apart() == []
    with pytest.raises(ApiError, match="only Unwind removes the annotation"):
        await cluster.annotate(gate.client, {PAUSED_ANNOTATION: None})
    await scene.unblock("web-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    last = max(answered for _, answered in scene.deletion_times().values())
    assert min(*gate.terminated(), *cluster.taken_apart()) > last


async def test_a_deletion_is_the_request_where_the_policy_says_so(
    ground: Ground, gate: MachineScene, manager: Manager
) -> None:
    scene = gate.scene
    await gate.policy("Admission", admission={"onDelete": "Request"})
    await scene.add_on("web")
    cluster = await gate.cluster("web", replicas=1)
    await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    await scene.block("web-0")
    refused = f"unwind delete cluster/{cluster.name} -n {gate.namespace}"
    with stopped(manager), pytest.raises(ApiError, match=refused):
        await cluster.delete()
    with pytest.raises(ApiError, match=refused):
        await gate.client.delete(CLUSTERS, cluster.name, uid=cluster.uid, namespace=gate.namespace, dry_run=True)
    assert PAUSED_ANNOTATION not in ((await cluster.get())["metadata"].get("annotations") or {})

    # As a prune by a GitOps controller: one DELETE, which nothing repeats.
    await cluster.delete()
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.gate == "Admission"
    assert held.spec.requested_by == (await cluster.get())["metadata"]["annotations"][DELETION_REQUESTED_BY_ANNOTATION]
    assert cluster.taken_apart() == []
    await scene.unblock("web-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    last = max(answered for _, answered in scene.deletion_times().values())
    assert min(*gate.terminated(), *cluster.taken_apart()) > last
    # The manager does not delete Clusters: the user did.
    deleted = ground.management.audit.deletions(resource=CLUSTERS.plural, namespace=gate.namespace)
    assert not any("unwind" in item.user.username for item in deleted)


async def test_a_move_passes_the_gate_admission(gate: MachineScene) -> None:
    await gate.policy("Admission")
    cluster = await gate.cluster(replicas=0)
    await gate.until_told(lambda it: it.get("gate") == "Armed", "armed")
    # As clusterctl does.
    await gate.client.patch(CLUSTERS, cluster.name, {"spec": {"paused": True}}, namespace=gate.namespace)
    with pytest.raises(ApiError, match="unwind delete cluster"):
        await cluster.delete()
    await cluster.annotate(gate.client, {DELETE_FOR_MOVE_ANNOTATION: ""})
    await cluster.delete()
    gone = {"metadata": {"finalizers": None}}
    await gate.client.patch(CLUSTERS, cluster.name, gone, namespace=gate.namespace)
    await cluster.until_gone()


@pytest.mark.soak
async def test_hundreds_of_machines_are_let_go_of_beside_a_teardown(ground: Ground, gate: MachineScene) -> None:
    scene = gate.scene
    await gate.policy()
    await scene.add_on("web")
    held = await gate.cluster("web", replicas=1)
    other = await scene.cluster(name="other", topology=False)
    await gate.workers(other, replicas=HUNDREDS)
    await gate.until_armed(held, 1)
    await gate.until_armed(other, HUNDREDS)
    await scene.block("web-0")
    await held.delete()
    await held.teardown(lambda it: it.phase is Phase.HELD)
    named = f"{other.name}-workers"
    await gate.client.patch(MACHINE_SETS, named, {"spec": {"replicas": 0}}, namespace=gate.namespace)
    await gate.until_machines(other, lambda found: not found, "gone")
    assert len(gate.terminated()) == HUNDREDS
    assert all(map(armed, await gate.machines(held)))
    # For the figure in docs/gates.md.
    audit = ground.management.audit
    asked = {it.object_ref.name: it for it in audit.deletions(resource="machines", namespace=gate.namespace)}
    freed = {
        it.object_ref.name: it
        for it in audit.entries(verbs=("patch",), resource="machines", namespace=gate.namespace)
        if it.object_ref.name in asked
        and "unwind" in it.user.username
        and it.request_received_timestamp > asked[it.object_ref.name].request_received_timestamp
    }
    took = sorted(
        (
            datetime.fromisoformat(freed[name].request_received_timestamp)
            - datetime.fromisoformat(asked[name].request_received_timestamp)
        ).total_seconds()
        for name in freed
    )
    print(f"let go of {len(took)} Machines: median {took[len(took) // 2]:.3f} s, last {took[-1]:.3f} s")
    await scene.unblock("web-0")
    await held.until_gone()
