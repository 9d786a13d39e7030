"""The chart on a real API server, by the real Helm: what is registered, when, and what is left at the end.

Where Pods are only simulated, the manager and the hook of `helm uninstall` run as processes with the rights of their
ServiceAccounts. One test runs the image.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from tests.eventually import eventually
from tests.forked_commands import UNWIND
from tests.plane.support.commands import CommandResult, command
from tests.plane.support.extension_registration import HOME, OURS, create_cluster, create_teardown, say, serve
from tests.plane.support.manager_process import running
from tests.plane.support.objects import absent, new_object, until_refused
from tests.plane.test_chart import CHART
from unwind.api import names
from unwind.api.capi import EXTENSION_CONFIGS
from unwind.api.features import ALL
from unwind.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
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
from unwind.local import tools
from unwind.local.pods.agent import CHART_VALUES, PodAgent
from unwind.server.manager_names import REGISTRATION

if TYPE_CHECKING:
    from pathlib import Path

    from image.build import Image
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


_ALL = f"features={{{','.join(sorted(ALL))}}}"


async def helm(cluster: LocalCluster, *arguments: str, fails: bool = False) -> str:
    """The output of Helm, or its error if it is expected to fail."""
    found = tools.find_binary(tools.HELM)
    assert found, "`make setup` builds it"
    env = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    words = [str(found.path), "--namespace", HOME, *arguments]
    done = await asyncio.to_thread(
        lambda: subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    )
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


async def everything(client: Client) -> set[str]:
    """Every object of the cluster, except those that describe others, and what Kubernetes itself keeps."""
    found: set[str] = set()
    for kind in await existing_objects.served_kinds(client):
        resource = kind.resource
        if "list" not in kind.verbs or resource.plural in ("events", "endpoints", "endpointslices", "leases", "nodes"):
            continue
        async for item in existing_objects.list_metadata(client, resource):
            found.add(f"{resource.kind} {item.namespace}/{item.name}")
    return found


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


async def test_nothing_is_registered_before_the_service_answers_and_the_hook_refuses_while_data_depends_on_unwind(
    plane: Plane, fresh_member: LocalCluster, tmp_path: Path
) -> None:
    client = fresh_member.client
    await serve(plane, client)
    await fresh_member.create_namespace(HOME)
    before = await everything(client)
    await helm(fresh_member, "install", "unwind", str(CHART), "--set", "replicas=0", "--set", _ALL)
    assert "belongs to Helm release unwind; use `helm upgrade`" in (await command(fresh_member, "install")).refusal
    async with running(fresh_member, HOME, UNWIND_CHECK_SERVICE="true") as manager:
        await manager.until_ready("https")
        await manager.until_logged("not reached through the Service")
        assert not any((await _registered(client)).values()), "a webhook would refuse deletions, and nothing answers it"
        assert await manager.stop() == 0

    teardown = await create_teardown(client, await create_cluster(client, "prod-7"), "Enforce")
    refusal = (await _as_hook(fresh_member, tmp_path)).refusal
    assert f"unfinished teardowns: {teardown}" in refusal
    [event] = [item for item in await client.list(EVENTS) if item.get("reason") == "UninstallRefused"]
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == (DEPLOYMENTS.kind, "unwind")
    assert teardown in event["note"]
    assert not await absent(client, CONFIG_MAPS, REGISTRATION, namespace=HOME), "a refusal changes nothing"
    await say(client, teardown, "Complete", "Removed")
    await _deploy(client, effort="Enforce")
    refusal = (await _as_hook(fresh_member, tmp_path)).refusal
    assert "must be removed before their cluster is deleted: ClusterSummary" in refusal

    # It can be repeated, and what it deletes are the objects of the manager.
    for _ in range(2):
        done = await _as_hook(fresh_member, tmp_path, "--leave-addons")
        assert done.code == 0, done.err
    await _delete_hook(fresh_member)
    await helm(fresh_member, "uninstall", "unwind", "--no-hooks")
    kept = {f"Inventory {HOME}/i", f"Teardown /{teardown}", "Cluster default/prod-7"}
    await eventually(lambda: _only(client, before, kept), "CRDs and their objects")
    inventory = await client.get(INVENTORIES, "i", namespace=HOME)
    assert "finalizers" not in inventory["metadata"]


async def _only(client: Client, before: set[str], kept: set[str]) -> bool:
    """Whether nothing but CRDs, their APIServices and these objects was added."""
    added = await everything(client) - before
    return {item for item in added if not item.startswith(("CustomResourceDefinition ", "APIService "))} == kept


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


VALUES = {"features": sorted(ALL), **CHART_VALUES}


async def _ready_pods(client: Client, count: int) -> list[Object]:
    async def ready() -> list[Object]:
        pods = await client.list(PODS, namespace=HOME, labels=f"{names.NAME_LABEL}=unwind")
        found = [pod for pod in pods if object_watch.has_condition(pod, "Ready")]
        return found if len(found) == len(pods) == count else []

    found: list[Object] = await eventually(ready, f"{count} ready Pods", within=180)
    return found


async def _log(agent: PodAgent, pod: Object) -> str:
    """What the manager in a Pod has logged."""
    return await asyncio.to_thread(agent.runner(pod).containers[0].log.read_text)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image")
async def test_two_replicas_of_the_image_are_upgraded_and_uninstalled_by_helm(
    plane: Plane, fresh_member: LocalCluster, image: Image, tmp_path: Path
) -> None:
    client = fresh_member.client
    await serve(plane, client)
    await fresh_member.create_namespace(HOME)
    before = await everything(client)
    values = tmp_path / "values.json"
    values.write_bytes(msgspec.json.encode(VALUES))
    async with PodAgent(fresh_member, {"unwind": image.archive}) as agent:
        await helm(fresh_member, "install", "unwind", str(CHART), "--values", str(values))
        first = await _ready_pods(client, 2)
        await eventually(lambda: _is_registered(client), "all registrations")
        await _until_cycles_are_refused(client)
        assert "was missing" not in "".join([await _log(agent, pod) for pod in first]), "created for the first time"

        process = agent.runner(first[0]).containers[0].process
        assert process
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        selector = "hooks.namespaceSelector.matchLabels.hold=on"
        changed = ("--set", "podLabels.team=a", "--set", selector)
        await helm(fresh_member, "upgrade", "unwind", str(CHART), "--reuse-values", *changed)

        async def upgraded() -> bool:
            pods = await _ready_pods(client, 2)
            return all(pod["metadata"]["labels"].get("team") == "a" for pod in pods)

        await eventually(upgraded, "upgraded replicas", within=240)

        async def selected() -> bool:
            found = await client.get(EXTENSION_CONFIGS, OURS)
            return bool(found["spec"]["namespaceSelector"] == {"matchLabels": {"hold": "on"}})

        await eventually(selected, "the selector of the upgraded release")
        # What is deleted by mistake comes back.
        found = await client.get(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME))
        await client.delete(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME), uid=found["metadata"]["uid"])
        await eventually(lambda: _is_registered(client), "the restored webhook")
        found = await client.get(EXTENSION_CONFIGS, OURS)
        await client.delete(EXTENSION_CONFIGS, OURS, uid=found["metadata"]["uid"])
        await eventually(lambda: _is_registered(client), "the restored ExtensionConfig")
        now = await _ready_pods(client, 2)
        assert "ExtensionConfig was missing, recreated" in "".join([await _log(agent, pod) for pod in now])

        await _deploy(client, effort="Enforce")
        assert "unwind-uninstall" in await helm(fresh_member, "uninstall", "unwind", fails=True)
        [pod] = await client.list(PODS, namespace=HOME, labels="job-name=unwind-uninstall")
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        assert "must be removed before their cluster is deleted: ClusterSummary" in ended["message"]
        assert await _is_registered(client)
        await helm(fresh_member, "rollback", "unwind", "2")  # or Unwind is kept
        found = await client.patch(INVENTORIES, "i", {"metadata": {"finalizers": None}}, namespace=HOME)
        await client.delete(INVENTORIES, "i", namespace=HOME, uid=found["metadata"]["uid"])

        await helm(fresh_member, "uninstall", "unwind", "--timeout", "240s")
        await eventually(lambda: _only(client, before, {"ClusterProfile /fine"}), "CRDs and their objects")
