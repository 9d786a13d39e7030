"""What the tests of our registration with Cluster API are made of: its kinds without its manager, and who plays it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.support.commands import command
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.hooks import API_VERSION, Hook
from unwind.api.meta import manifest
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.capi import hook_protocol
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.local import capi
from unwind.teardown.signatures import RecordKeys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

HOME = "unwind-system"
MANAGER = f"system:serviceaccount:{HOME}:unwind"
OURS = HOME
"""What our ExtensionConfig is called."""


async def serve(plane: Plane, client: Client, *resources: Resource) -> None:
    """Have kinds of Cluster API served, with nobody who works on them."""
    assert plane.cluster_api
    definitions = await asyncio.to_thread(capi.read_definitions, plane.cluster_api._crds)
    wanted = {f"{resource.plural}.{resource.group}" for resource in resources or (CLUSTERS, EXTENSION_CONFIGS)}
    for definition in definitions:
        if definition["metadata"]["name"] in wanted:
            await capi.install_definition(client, definition)


async def installed(plane: Plane, cluster: LocalCluster) -> Path:
    """Have the kinds of Cluster API served, and Unwind installed; the kubeconfig of its manager."""
    await serve(plane, cluster.client)
    assert (await command(cluster, "install")).code == 0
    return cluster.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))


async def serve_only(client: Client, resource: Resource) -> None:
    """Have one version of a kind served, and no other."""
    name = f"{resource.plural}.{resource.group}"
    definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    versions = [item | {"served": item["name"] == resource.version} for item in definition["spec"]["versions"]]
    await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": versions}})

    async def changed() -> bool:
        paths = {f"/apis/{resource.group}/{item['name']}/{resource.plural}": item["served"] for item in versions}
        return all([await answers(client, path) is served for path, served in paths.items()])

    await eventually(changed, f"{resource.version} as the only version", within=30)


async def answers(client: Client, path: str) -> bool:
    try:
        await client.raw(path)
    except ApiError:
        return False
    return True


async def discovered(client: Client, *hooks: Hook, failure_policy: str = "Fail", word: str = "True") -> None:
    """Play Cluster API, which has discovered us."""
    handlers = [
        {
            "name": f"{hook_protocol.handler(hook)}.{OURS}",
            "requestHook": {"apiVersion": API_VERSION, "hook": hook.value},
            "timeoutSeconds": 10,
            "failurePolicy": failure_policy,
        }
        for hook in hooks or (Hook.AFTER_CONTROL_PLANE_INITIALIZED, Hook.BEFORE_CLUSTER_DELETE)
    ]
    condition = {
        "type": "Discovered",
        "status": word,
        "reason": "Discovered" if word == "True" else "NotDiscovered",
        "message": "" if word == "True" else "Error in discovery: nobody is there",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"handlers": handlers, "conditions": [condition]}
    await client.patch(EXTENSION_CONFIGS, OURS, {"status": status}, subresource="status")


async def create_cluster(client: Client, name: str, namespace: str = "default", **metadata: Any) -> Object:
    """A Cluster of a ClusterClass, with nobody who provides it."""
    body = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"topology": {"classRef": {"name": "stub"}, "version": "v1.36.3"}},
    }
    return await client.create(CLUSTERS, body)


async def create_teardown(client: Client, cluster: Object, *efforts: str) -> str:
    """The record of a cluster's teardown, with a step for each effort, that nobody carries out; its name.

    It is signed as the manager would sign it.
    """
    meta = cluster["metadata"]
    target = {
        "group": CLUSTERS.group,
        "version": CLUSTERS.version,
        "kind": "Cluster",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
    }
    steps = [
        {"name": f"step-{number}", "object": {"kind": "ClusterSummary", "name": "s"}, "effort": effort, "wave": 1}
        for number, effort in enumerate(efforts)
    ]
    body = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": {"name": meta["uid"]},
        "spec": {
            "title": f"Cluster {meta['namespace']}/{meta['name']}",
            "target": target,
            "cause": "ClusterDeleted",
            "plan": {"steps": steps, "waves": 1},
        },
    }
    keys = RecordKeys(client, namespace=HOME)
    await keys.load()
    await client.create(TEARDOWNS, manifest(TEARDOWNS, keys.signed(msgspec.convert(body, Teardown))))
    return str(meta["uid"])


async def say(client: Client, teardown: str, phase: str, *states: str) -> None:
    """How far a teardown has come."""
    steps = [{"name": f"step-{number}", "state": state} for number, state in enumerate(states)]
    await client.patch(TEARDOWNS, teardown, {"status": {"phase": phase, "steps": steps}}, subresource="status")


async def until_config(client: Client, state: Callable[[Object], bool], called: str) -> Object:
    """Our ExtensionConfig, as soon as it is so."""
    found = await object_watch.until(client, EXTENSION_CONFIGS, OURS, lambda it: it is not None and state(it), called)
    assert found
    return found
