"""What the API server refuses of profiles, with a real manager that it asks."""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.commands import command
from tests.plane.support.manager_process import running
from tests.plane.support.objects import until_refused
from unwind.addons.manifests import profile_rules
from unwind.api.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, PROFILES
from unwind.kube.errors import AlreadyExistsError, ApiError

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster

MANAGER = f"system:serviceaccount:{HOME}:unwind"


async def write(client: Client, name: str, *needs: str, namespace: str = "", **spec: str) -> Object:
    """A profile that needs others; a Profile where there is a namespace."""
    kind = PROFILES if namespace else CLUSTER_PROFILES
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    body = {"dependsOn": list(needs), **spec}
    return await client.create(
        kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": body}
    )


async def refused(client: Client, name: str, *needs: str, namespace: str = "", **spec: str) -> str:
    with pytest.raises(ApiError) as caught:
        await write(client, name, *needs, namespace=namespace, **spec)
    return f"{caught.value.code} {caught.value.status.message}"


async def until_asked(client: Client) -> None:
    """It takes the API server a moment to know whom to ask, and by which authority."""
    with suppress(AlreadyExistsError):  # it was asked before
        await write(client, "x", "y")

    async def attempt() -> None:
        made = await write(client, "y", "x")
        await client.delete(CLUSTER_PROFILES, "y", uid=made["metadata"]["uid"])

    await until_refused(attempt, "x → y → x", within=30)


async def edit(client: Client, resource: Resource, name: str, spec: Object, namespace: str | None = None) -> None:
    await client.patch(resource, name, {"spec": spec}, namespace=namespace)


async def test_a_cycle_is_refused_by_name_and_without_a_manager_nothing_is(fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    assert (await command(fresh_member, "install")).code == 0
    kubeconfig = fresh_member.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    run = partial(running, fresh_member, HOME, "--roles", "serving", kubeconfig=kubeconfig)
    async with run() as manager:
        await manager.until_listening("https")
        address = manager.addresses["https"]
        # It was registered by a Service that leads nowhere; now it is by its address.
        assert (await command(fresh_member, "install", "--url", f"https://{address}")).code == 0
        await until_asked(client)

        await write(client, "a", "b")
        await write(client, "b", "c")
        assert await refused(client, "c", "a") == (
            '403 admission webhook "profiles.addons.unwind.dev" denied the request: ClusterProfile c: dependency '
            "cycle a → b → c → a; remove a from its dependsOn, or break the cycle at another profile first"
        )
        await write(client, "c")
        with pytest.raises(ApiError, match="a → b → c → a"):
            await edit(client, CLUSTER_PROFILES, "c", {"dependsOn": ["a"]})

        # Profiles of the same names are others in another namespace, and none of them is a ClusterProfile.
        for namespace in ("one", "two"):
            await fresh_member.create_namespace(namespace)
        await write(client, "a", "b", namespace="one")
        await write(client, "b", "a", namespace="two")
        await write(client, "c", "a", namespace="one")
        assert "Profile one/b: dependency cycle a → b → a" in await refused(client, "b", "a", namespace="one")

        # An installation that is brought up to date leaves the authority in place by which the manager is known.
        assert (await command(fresh_member, "install", "--url", f"https://{address}")).counts.keys() == {
            "unchanged",
            "left out",
        }
        manager.process.send_signal(signal.SIGKILL)
        await manager.process.wait()

    # Nobody is there to be asked: profiles are written all the same, also one that closes the circle.
    await edit(client, CLUSTER_PROFILES, "c", {"dependsOn": ["a"]})

    async with run("--listen", address) as manager:
        await manager.until_listening("https")
        await until_asked(client)
        # It is in a circle now, which is no reason to refuse what has nothing to do with it.
        await edit(client, CLUSTER_PROFILES, "c", {"tier": 50})
        await client.patch(CLUSTER_PROFILES, "c", {"metadata": {"labels": {"team": "a"}}})
        with pytest.raises(ApiError, match="b → c → b"):
            await edit(client, CLUSTER_PROFILES, "c", {"dependsOn": ["a", "b"]})
        await edit(client, CLUSTER_PROFILES, "c", {"dependsOn": []})
        assert await manager.stop() == 0

    asked = list(fresh_member.audit.entries(user=MANAGER))
    assert asked
    assert [entry for entry in asked if entry.code == 403] == []
    patched = fresh_member.audit.entries(verbs=("patch",), user=MANAGER, resource="validatingwebhookconfigurations")
    assert {entry.object_ref.name for entry in patched} == {profile_rules(HOME)}
    found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(HOME))
    assert found["webhooks"][0]["clientConfig"]["caBundle"]


async def test_a_behaviour_that_is_not_known_is_refused_without_anybody_being_asked(fresh_member: LocalCluster) -> None:
    assert (await command(fresh_member, "install")).code == 0
    said = await refused(fresh_member.client, "a", clusterDeletionBehavior="EnforceRemovePolices")
    assert said.startswith("422 ")
    assert 'supported values: "LeavePolicies", "RemovePolicies", "EnforceRemovePolicies"' in said
    # Until somebody answers at its Service, profiles are written as if there were no rule.
    await write(fresh_member.client, "b", "c")
    await write(fresh_member.client, "c", "b")
