"""Shards of a killed replica: taken over at once if its Pod proves that it has ended, otherwise when its Leases expire.

The clock of the replica that takes over stands still, so that no Lease expires for it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from unwind.api.resources import LEASES, PODS
from unwind.kube.client import DEADLINE
from unwind.kube.shards import Shards, Timing
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "Error"}}
LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


class Killed(Shards):
    """A replica that releases nothing when it ends."""

    async def _leave(self) -> None:
        pass


async def pod(client: Client, namespace: str, name: str, state: Any = RUNNING) -> Object:
    """A Pod of a replica, as the kubelet reports it. No scheduler and no kubelet touches it."""
    made = await client.create(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "finalizers": ["example.dev/kubelet"]},
            "spec": {
                "schedulingGates": [{"name": "example.dev/never"}],
                "containers": [{"name": "manager", "image": "unwind"}],
            },
        },
    )
    await report(client, namespace, name, state)
    return made


async def report(client: Client, namespace: str, name: str, state: Any, *, phase: str = "Running") -> None:
    container = {"name": "manager", "image": "unwind", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": phase, "containerStatuses": [container | {"state": state}]}
    await client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")


async def release(client: Client, namespace: str, name: str) -> None:
    """Delete the Pod as the kubelet does at the end."""
    await client.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=namespace)


@asynccontextmanager
async def survivor(client: Client, namespace: str, killed: Object, *, own: str = "pod-of-b") -> AsyncIterator[Shards]:
    """Replica b, after replica a was killed in this Pod while both had shards."""
    async with manager_client(client, namespace) as account, asyncio.TaskGroup() as group:
        clock, timing = StillClock(), Timing(steady=0.0)
        a = Killed(account, namespace=namespace, identity="a", pod_uid=killed["metadata"]["uid"], timing=timing)
        b = Shards(account, namespace=namespace, identity="b", pod_uid=own, clock=clock, timing=timing)
        tasks = [group.create_task(part.run()) for part in (a, b)]
        await eventually(lambda: (len(a.owned), len(b.owned)) == (8, 8))
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        yield b
        tasks[1].cancel()


async def taken_over(b: Shards) -> None:
    await eventually(lambda: len(b.owned) == 16)
    keys = map(str, range(100))
    assert any(b.unsettled(key) > DEADLINE for key in keys), "a write of the killed replica may still arrive"


async def leases_of(client: Client, namespace: str, identity: str) -> int:
    leases = await client.list(LEASES, namespace=namespace)
    return sum(lease["spec"]["holderIdentity"] == identity for lease in leases)


async def test_a_restarted_container_takes_over_from_the_former_process_of_its_pod_at_once(
    plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    made = await pod(client, namespace, "manager-a")
    async with survivor(client, namespace, made), manager_client(client, namespace) as account:
        restarted = Shards(account, namespace=namespace, identity="a2", pod_uid=made["metadata"]["uid"])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(restarted.run())
            await eventually(lambda: len(restarted.owned) == 8)
            assert not await leases_of(client, namespace, "a")
            task.cancel()
    await release(client, namespace, "manager-a")


async def test_a_pod_that_is_deleted_and_whose_container_has_terminated_gives_its_shards_away(
    plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    made = await pod(client, namespace, "manager-a")
    async with survivor(client, namespace, made) as b:
        await client.delete(PODS, "manager-a", uid=made["metadata"]["uid"], namespace=namespace)
        await report(client, namespace, "manager-a", KILLED)
        # The Pod may be gone before anything is done about it: what was seen of it counts.
        await release(client, namespace, "manager-a")
        await taken_over(b)
        assert not await leases_of(client, namespace, "a")


@pytest.mark.parametrize(
    ("deleted", "phase", "state"),
    [
        pytest.param(True, "Running", RUNNING, id="deleted while its container runs, as with --force"),
        pytest.param(True, "Failed", RUNNING, id="marked as failed on a lost node"),
        pytest.param(True, "Failed", LOST, id="container of unknown state"),
        pytest.param(False, "Running", KILLED, id="terminated container that will be restarted"),
    ],
)
async def test_a_replica_may_still_run_without_proof_from_the_kubelet(
    plane: Plane, namespace: str, deleted: bool, phase: str, state: Any
) -> None:
    client = plane.management.client
    made, witness = [await pod(client, namespace, name) for name in ("manager-a", "witness")]
    async with survivor(client, namespace, made) as b:
        seen = []
        b._pods._pods.subscribe(lambda change: seen.append(change.key.name))
        await report(client, namespace, "manager-a", state, phase=phase)
        if deleted:
            await client.delete(PODS, "manager-a", uid=made["metadata"]["uid"], namespace=namespace)
        await release(client, namespace, "manager-a")
        # The watch is in order: when it has reported the witness, it has reported everything before.
        await client.delete(PODS, "witness", uid=witness["metadata"]["uid"], namespace=namespace)
        await eventually(lambda: seen[-1:] == ["witness"])
        await b._round()
        assert len(b.owned) == 8
        assert await leases_of(client, namespace, "a") == 9
    await release(client, namespace, "witness")
