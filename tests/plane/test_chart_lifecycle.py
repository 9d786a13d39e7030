"""The chart on a real API server, by the real Helm: what is registered, when, and what is left at the end.

Pods are simulated here, so the manager and the hook of `helm uninstall` run as processes with the rights of their
ServiceAccounts. A Pod with the address of this machine makes the Service route to the manager.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from tests.eventually import eventually
from tests.plane.support.commands import UNWIND, CommandResult, command
from tests.plane.support.extension_registration import HOME, OURS, create_cluster, create_teardown, say, serve
from tests.plane.support.manager_process import running
from tests.plane.support.objects import absent, new_object, until_refused
from tests.plane.test_chart import CHART
from unwind.api import names
from unwind.api.capi import EXTENSION_CONFIGS
from unwind.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import Setting
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import INVENTORIES
from unwind.capi.manifests import cluster_rules
from unwind.install import existing_objects, uninstall_hook
from unwind.install.manifests import policies, resource_of
from unwind.kube import kubeconfig, object_watch
from unwind.kube.events import EVENTS
from unwind.kube.kubeconfig import Token
from unwind.local import plane_programs, tools
from unwind.server.manager_names import REGISTRATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plane.support.manager_process import Manager
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

_HTTPS = 9443


async def helm(cluster: LocalCluster, *arguments: str) -> str:
    found = tools.find(tools.HELM)
    assert found, "`make setup` builds it"
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    words = [str(found.path), "--namespace", HOME, *arguments]
    done = await asyncio.to_thread(
        lambda: subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def address() -> str:
    """An address of this machine that is not loopback: the API server calls no Service there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        found: str = one.getsockname()[0]
        return found


async def everything(client: Client) -> set[str]:
    """Every object of the cluster, except those that describe others, and what Kubernetes itself keeps."""
    found: set[str] = set()
    for kind in await existing_objects.served(client):
        resource = kind.resource
        if "list" not in kind.verbs or resource.plural in ("events", "endpoints", "endpointslices", "leases", "nodes"):
            continue
        async for item in existing_objects.metadata(client, resource):
            found.add(f"{resource.kind} {item.namespace}/{item.name}")
    return found


async def route(client: Client, host: str) -> None:
    """Let the Service route to this machine, by a Pod on a Node with its address."""
    node = plane_programs.node("outside")
    node["status"]["addresses"] = [{"type": "InternalIP", "address": host}]
    node["spec"] = {"unschedulable": True}
    await client.create(NODES, node)
    # The Pod gets the address of its Node, which KWOK must know.
    await object_watch.until(client, NODES, "outside", lambda it: object_watch.has_condition(it, "Ready"), "ready")
    spec = {
        "hostNetwork": True,
        "nodeName": "outside",
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "manager", "image": "unwind"}],
    }
    pod = new_object(PODS, "manager", HOME, spec=spec)
    pod["metadata"]["labels"] = {names.NAME_LABEL: "unwind"}
    await client.create(PODS, pod)

    def routed(it: Object | None) -> bool:
        return bool(it and (it.get("status") or {}).get("podIP") == host)

    await object_watch.until(client, PODS, "manager", routed, f"at {host}", namespace=HOME)


@asynccontextmanager
async def manager(cluster: LocalCluster, host: str) -> AsyncIterator[Manager]:
    """A manager as the chart runs it."""
    listen = f"{host}:{_HTTPS}"
    async with running(cluster, HOME, UNWIND_LISTEN=listen, UNWIND_CHECK_SERVICE="true") as found:
        yield found


async def _as_hook(cluster: LocalCluster, tmp_path: Path, *options: str) -> CommandResult:
    """Run what the hook of `helm uninstall` runs, as its ServiceAccount."""
    client = cluster.client
    for item in yaml.safe_load_all(await helm(cluster, "get", "hooks", "unwind")):
        if item and item["kind"] != JOBS.kind:
            await client.apply(resource_of(item), item)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    made = await client.post(SERVICE_ACCOUNTS, uninstall_hook.NAME, "token", body, namespace=HOME)
    token = Token(made["status"]["token"])
    connection = msgspec.structs.replace(client.connection, certificate=None, key=None, credential=token)
    file = tmp_path / "hook-kubeconfig"
    file.write_text(kubeconfig.document(connection, cluster=cluster.name, user=uninstall_hook.NAME))
    file.chmod(0o600)
    env = os.environ | {"KUBECONFIG": str(file), "UNWIND_NAMESPACE": HOME, "NO_COLOR": "1"}
    words = [str(UNWIND), "uninstall", "--in-cluster", *options]
    done = await asyncio.to_thread(
        lambda: subprocess.run(words, env=env, capture_output=True, text=True, timeout=240, check=False)
    )
    return CommandResult(done)


async def _delete_hook(cluster: LocalCluster) -> None:
    """Delete the rights of the hook, as Helm does when it has succeeded."""
    for item in yaml.safe_load_all(await helm(cluster, "get", "hooks", "unwind")):
        if item and item["kind"] != JOBS.kind:
            resource, metadata = resource_of(item), item["metadata"]
            found = await cluster.client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
            uid = found["metadata"]["uid"]
            await cluster.client.delete(resource, metadata["name"], namespace=metadata.get("namespace"), uid=uid)


async def _registered(client: Client) -> dict[str, bool]:
    """Whether the objects that refuse requests or call the manager exist."""
    made, _ = policies(Setting(namespace=HOME))
    found: dict[str, tuple[Resource, str]] = {
        "extension": (EXTENSION_CONFIGS, OURS),
        "profiles": (VALIDATING_WEBHOOK_CONFIGURATIONS, f"unwind-profiles.{HOME}"),
        "clusters": (MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME)),
        **{item["metadata"]["name"]: (VALIDATING_ADMISSION_POLICIES, item["metadata"]["name"]) for item in made},
    }
    return {what: not await absent(client, resource, name) for what, (resource, name) in found.items()}


async def _is_registered(client: Client) -> bool:
    return all((await _registered(client)).values())


async def test_the_manager_registers_itself_when_the_service_routes_to_it_and_helm_uninstall_leaves_nothing(
    plane: Plane, fresh_member: LocalCluster, tmp_path: Path
) -> None:
    client, host = fresh_member.client, address()
    await serve(plane, client)
    await fresh_member.create_namespace(HOME)
    before = await everything(client)
    await helm(fresh_member, "install", "unwind", str(CHART), "--set", "replicas=0")
    assert not any((await _registered(client)).values()), "nothing refuses a request before a manager answers"
    assert "belongs to Helm release unwind; use `helm upgrade`" in (await command(fresh_member, "install")).refusal

    async with manager(fresh_member, host) as first:
        await first.until_ready("https")
        await first.until_logged("not reached through the Service")
        assert not any((await _registered(client)).values()), "it is ready, but is not reached through the Service"
        await route(client, host)
        await first.until_logged("answering through the Service")
        await eventually(lambda: _is_registered(client), "all registrations")
        await _until_cycles_are_refused(client)
        events = [item for item in await client.list(EVENTS) if item.get("reason") == "PolicyRestored"]
        assert events == [], "what is created is not restored"
        # What is deleted by mistake comes back.
        found = await client.get(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME))
        await client.delete(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME), uid=found["metadata"]["uid"])
        await eventually(lambda: _is_registered(client), "the restored webhook")
        first.process.kill()
        await first.process.wait()
    assert await _is_registered(client), "a hook without an answer holds"

    selector = "hooks.namespaceSelector.matchLabels.hold=on"
    await helm(fresh_member, "upgrade", "unwind", str(CHART), "--reuse-values", "--set", selector)
    cluster = await create_cluster(client, "prod-7")
    async with manager(fresh_member, host) as second:
        await second.until_ready("https")

        async def selected() -> bool:
            found = await client.get(EXTENSION_CONFIGS, OURS)
            return bool(found["spec"]["namespaceSelector"] == {"matchLabels": {"hold": "on"}})

        await eventually(selected, "the selector of the upgraded release")
        assert await second.stop() == 0

    # Refused while a teardown runs, and while objects are deployed that must be removed first.
    teardown = await create_teardown(client, cluster, "Enforce")
    refusal = (await _as_hook(fresh_member, tmp_path)).refusal
    assert f"unfinished teardowns: {teardown}" in refusal
    [event] = [item for item in await client.list(EVENTS) if item.get("reason") == "UninstallRefused"]
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == (DEPLOYMENTS.kind, "unwind")
    assert teardown in event["note"]
    assert await _is_registered(client), "a refusal changes nothing"
    assert not await absent(client, CONFIG_MAPS, REGISTRATION, namespace=HOME)
    await say(client, teardown, "Complete", "Removed")
    await _deploy(client, effort="Enforce")
    assert (
        "must be removed before their cluster is deleted: ClusterSummary"
        in (await _as_hook(fresh_member, tmp_path)).refusal
    )

    done = await _as_hook(fresh_member, tmp_path, "--leave-addons")
    assert done.code == 0, done.err
    assert not any((await _registered(client)).values())
    again = await _as_hook(fresh_member, tmp_path, "--leave-addons")
    assert again.code == 0, again.err
    await _delete_hook(fresh_member)
    await helm(fresh_member, "uninstall", "unwind", "--no-hooks", "--wait")
    left = {name for name in await everything(client) - before if not name.startswith("CustomResourceDefinition ")}
    assert left == {
        f"Inventory {HOME}/i",
        f"Teardown /{teardown}",
        "Cluster default/prod-7",
        f"Pod {HOME}/manager",
        "ClusterProfile /fine",
    }, "CRDs and their objects stay, and what the test made"
    inventory = await client.get(INVENTORIES, "i", namespace=HOME)
    assert "finalizers" not in inventory["metadata"]


async def _until_cycles_are_refused(client: Client) -> None:
    """The API server asks the manager through the Service."""
    needing = {"clusterSelector": {}, "dependsOn": ["other"]}
    await client.create(CLUSTER_PROFILES, new_object(CLUSTER_PROFILES, "fine", spec=needing))
    other = new_object(CLUSTER_PROFILES, "other", spec={"clusterSelector": {}, "dependsOn": ["fine"]})
    await until_refused(lambda: client.apply(CLUSTER_PROFILES, other, dry_run=True), "dependency cycle")


async def _deploy(client: Client, *, effort: str) -> None:
    """An Inventory as the manager writes it."""
    owner = {"kind": "ClusterSummary", "namespace": "default", "name": "s", "uid": "u-2"}
    member = {"object": {"kind": "Cluster", "namespace": "default", "name": "prod-8"}, "systemUid": "u-3"}
    deployed = {"version": "v1", "kind": "ConfigMap", "namespace": "default", "name": "c", "uid": "u-4"}
    entry = {"object": deployed, "state": "Confirmed"}
    spec = {"owner": owner, "member": member, "effort": effort, "entries": {"k": entry}}
    inventory = new_object(INVENTORIES, "i", HOME, spec=spec)
    inventory["metadata"]["finalizers"] = [names.Finalizer.INVENTORY.value]
    await client.create(INVENTORIES, inventory)


async def test_unwind_install_with_an_image_makes_the_same_deployment_and_uninstall_stops_it(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    await serve(plane, client)
    done = await command(fresh_member, "install", "--image", "example/unwind:1", "--replicas", "1")
    assert done.counts.keys() == {"created"}
    assert not any((await _registered(client)).values())
    assert (await command(fresh_member, "install", "--image", "example/unwind:1", "--replicas", "1")).counts.keys() == {
        "unchanged"
    }
    gone = await command(fresh_member, "uninstall", "--yes", "--delete-crds")
    assert gone.code == 0, gone.err
    assert f"Deployment {HOME}/unwind scaled to 0" in gone.err
    assert await absent(client, DEPLOYMENTS, "unwind", namespace=HOME)
