"""Deletion protection by a manager that runs as a process, with exactly its rights, and that is killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.commands import command, kubectl
from tests.plane.support.manager_process import running
from tests.plane.support.objects import new_object
from tests.plane.support.protected_objects import MANAGER, ROOM, delete, differences, put_all, until_answered
from tests.plane.support.protection_table import LABEL, ROWS
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, VALIDATING_ADMISSION_POLICIES
from unwind.api.rights import HOME
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.protection import manifests

if TYPE_CHECKING:
    from unwind.local.cluster import LocalCluster

# With a machine that is busy; and the objects of a whole table are made first.
pytestmark = pytest.mark.timeout(400)

# A manager writes itself how many clusters a profile matches.
ALL = tuple(row for row in ROWS if not (row.kind.kind == "ClusterProfile" and row.state == "busy"))


async def test_what_a_manager_protects_stays_protected_when_it_is_killed_and_all_else_is_free(
    fresh_member: LocalCluster,
) -> None:
    client = fresh_member.client
    assert (await command(fresh_member, "install")).code == 0
    await put_all(client, ALL)
    kubeconfig = fresh_member.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    gate = ("--feature-gates", "ResourcesDeletionProtection=true")
    async with running(fresh_member, HOME, *gate, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("https")
        # It was registered by a Service that leads nowhere; now it is by its address.
        assert (await command(fresh_member, "install", "--url", f"https://{manager.addresses['https']}")).code == 0
        await until_answered(client, ALL)

        name = manifests.policy_name("replicas", HOME)
        found = await client.get(VALIDATING_ADMISSION_POLICIES, name)
        await delete(client, VALIDATING_ADMISSION_POLICIES, found)
        uid = found["metadata"]["uid"]
        await object_watch.until(
            client, VALIDATING_ADMISSION_POLICIES, name, lambda it: bool(it and it["metadata"]["uid"] != uid), "back"
        )
        await until_answered(client, ALL)
        manager.process.send_signal(signal.SIGKILL)
        await manager.process.wait()

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []
    assert {entry.verb for entry in asked if entry.object_ref.namespace == ROOM} <= {"get", "list", "watch"}
    await nobody_is_there(fresh_member)


async def nobody_is_there(cluster: LocalCluster) -> None:
    client = cluster.client
    assert await differences(client, [row for row in ALL if not row.by_the_rest]) == []

    for resource, namespace in ((CONFIG_MAPS, ROOM), (NAMESPACES, None)):
        made = await client.create(resource, new_object(resource, "nobody-asked", namespace))
        await delete(client, resource, made)
    await object_watch.until_absent(client, NAMESPACES, "nobody-asked")

    body = new_object(NAMESPACES, "asked-for")
    body["metadata"]["labels"] = {LABEL: "Cascading"}
    made = await client.create(NAMESPACES, body)
    with pytest.raises(ApiError) as refusal:
        await delete(client, NAMESPACES, made)
    assert refusal.value.code == 500
    told = await kubectl(cluster.kubeconfig, "delete", "namespace", "asked-for")
    assert "no manager is running: start one; to delete it anyway, remove the label first" in told.stderr
    way = told.stderr[told.stderr.index("kubectl label") :].splitlines()[0].split()[1:]
    assert (await kubectl(cluster.kubeconfig, *way)).returncode == 0
    await delete(client, NAMESPACES, made)
