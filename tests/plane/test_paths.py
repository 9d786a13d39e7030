"""The secret segments of the paths by which Unwind is called, in a process as people run it."""

from __future__ import annotations

import base64
import json
import re
import ssl
import uuid
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.eventually import eventually
from tests.plane.support.commands import command
from tests.plane.support.extension_registration import HOME, MANAGER, OURS, create_cluster, installed
from tests.plane.support.manager_process import running
from tests.plane.support.objects import absent
from unwind.addons.manifests import PROFILES_PATH, profile_rules
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.hooks import API_VERSION
from unwind.api.names import DELETION_REQUESTED_BY_ANNOTATION
from unwind.api.resources import (
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.capi import hook_protocol
from unwind.capi.manifests import CLUSTERS_PATH, cluster_rules
from unwind.kube.object_watch import until
from unwind.server import path_segments
from unwind.server.certificate_secret import NAME as CERTIFICATE
from unwind.server.manager_names import REGISTRATION
from unwind.server.path_keys import NAME

if TYPE_CHECKING:
    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


def _deletion(cluster: Object, user: str) -> bytes:
    """A review of a deletion, as an API server posts it."""
    meta = cluster["metadata"]
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": CLUSTERS.group, "version": CLUSTERS.version, "kind": CLUSTERS.kind},
        "resource": {"group": CLUSTERS.group, "version": CLUSTERS.version, "resource": CLUSTERS.plural},
        "operation": "DELETE",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "userInfo": {"username": user},
        "oldObject": cluster,
        "object": None,
        "dryRun": False,
        "options": {},
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


async def _key(client: Client) -> bytes:
    found = await client.get(SECRETS, NAME, namespace=HOME)
    return base64.b64decode(found["data"]["key"])


async def _registered(client: Client) -> dict[str, str]:
    """The URLs by which the manager is called."""
    profiles = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(HOME))
    clusters = await client.get(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME))
    extension = await client.get(EXTENSION_CONFIGS, OURS)
    return {
        PROFILES_PATH: profiles["webhooks"][0]["clientConfig"]["url"],
        CLUSTERS_PATH: clusters["webhooks"][0]["clientConfig"]["url"],
        path_segments.HOOKS: extension["spec"]["clientConfig"]["url"],
    }


async def _until_registered(client: Client, address: str, key: bytes) -> None:
    paths = {PROFILES_PATH: PROFILES_PATH, CLUSTERS_PATH: CLUSTERS_PATH, path_segments.HOOKS: ""}
    wanted = {path: f"{address}{path_segments.prefix(key, path)}{rest}" for path, rest in paths.items()}
    found: dict[str, str] = {}

    async def registered() -> bool:
        nonlocal found
        found = await _registered(client)
        return found == wanted

    try:
        await eventually(registered, within=30)
    except AssertionError:
        pytest.fail(f"registered as {found}, and not as {wanted}")


async def test_only_a_caller_who_knows_the_path_is_answered_and_the_path_can_be_rotated(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    kubeconfig = await installed(plane, fresh_member)
    cluster = await create_cluster(client, "prod-7")
    async with running(fresh_member, HOME, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("https", "metrics")
        address = f"https://{manager.addresses['https']}"
        certificate = await client.get(SECRETS, CERTIFICATE, namespace=HOME)
        trust = ssl.create_default_context(cadata=base64.b64decode(certificate["data"]["ca.crt"]).decode())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

            async def post(path: str, body: bytes) -> tuple[int, Any]:
                async with session.post(f"{address}{path}?timeout=3s", data=body) as answer:
                    return answer.status, await answer.json()

            async def noted() -> str:
                found = await client.get(CLUSTERS, "prod-7", namespace="default")
                return str((found["metadata"].get("annotations") or {}).get(DELETION_REQUESTED_BY_ANNOTATION, ""))

            assert (await post(CLUSTERS_PATH, _deletion(cluster, "alice")))[0] == 404
            assert await noted() == "", "a stranger had it written down that alice deletes the Cluster"

            key = await _key(client)
            foreign = (b"another key", key + b"!", b"")
            wrong = [path_segments.prefix(item, CLUSTERS_PATH) for item in foreign]
            wrong += ["/", f"/{path_segments.segment(key, CLUSTERS_PATH)}/x", path_segments.prefix(key, PROFILES_PATH)]
            for prefix in wrong:
                assert (await post(prefix + CLUSTERS_PATH, _deletion(cluster, "alice")))[0] == 404
            discovery = json.dumps({"apiVersion": API_VERSION, "kind": "DiscoveryRequest"}).encode()
            assert (await post(hook_protocol.DISCOVERY_PATH, discovery))[0] == 404
            assert await noted() == ""
            hooks = path_segments.prefix(key, path_segments.HOOKS)
            assert (await post(hooks + hook_protocol.DISCOVERY_PATH, discovery))[1]["status"] == "Success"
            mine = path_segments.prefix(key, CLUSTERS_PATH)
            assert (await post(mine + CLUSTERS_PATH, _deletion(cluster, "bob")))[1]["response"]["allowed"] is True
            assert await noted() == "bob"

            # As an installation of an older version left it, or what somebody applied from a dry run.
            for prefix in ("", f"/{path_segments.PLACEHOLDER}"):
                for resource, name, path in (
                    (VALIDATING_WEBHOOK_CONFIGURATIONS, profile_rules(HOME), PROFILES_PATH),
                    (MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(HOME), CLUSTERS_PATH),
                ):
                    change = {
                        "op": "replace",
                        "path": "/webhooks/0/clientConfig",
                        "value": {"url": address + prefix + path},
                    }
                    await client.patch(resource, name, [change])
                config = {"clientConfig": {"url": address + prefix, "service": None}}
                await client.patch(EXTENSION_CONFIGS, OURS, {"spec": config})
                await _until_registered(client, address, key)

            assert (await command(fresh_member, "install", "--url", address)).code == 0
            assert "changed" not in (await command(fresh_member, "install", "--url", address)).counts
            assert await _key(client) == key
            await _until_registered(client, address, key)

            # Rotated: everybody is told the new path, and the old one is accepted for a while.
            assert (await command(fresh_member, "install", "--url", address, "--rotate-path")).code == 0
            second = await _key(client)
            assert second != key
            await _until_registered(client, address, second)
            for one in (second, key):
                prefix = path_segments.prefix(one, CLUSTERS_PATH)

                async def answered(prefix: str = prefix) -> bool:
                    return (await post(prefix + CLUSTERS_PATH, _deletion(cluster, "carol")))[0] == 200

                await eventually(answered, "the new path", within=30)
            made = await client.get(SECRETS, NAME, namespace=HOME)
            await client.delete(SECRETS, NAME, uid=made["metadata"]["uid"], namespace=HOME)
            await until(client, SECRETS, NAME, lambda it: it is not None, "made again", namespace=HOME)
            third = await _key(client)
            await _until_registered(client, address, third)
            for one, status in ((third, 200), (second, 200), (key, 404)):
                prefix = path_segments.prefix(one, CLUSTERS_PATH)
                assert (await post(prefix + CLUSTERS_PATH, _deletion(cluster, "carol")))[0] == status
        _, metrics = await manager.probe("/metrics")
        assert await manager.stop() == 0

    kept = await client.get(CONFIG_MAPS, REGISTRATION, namespace=HOME)
    dry = await command(fresh_member, "install", "--url", address, "--dry-run")
    assert path_segments.PLACEHOLDER in dry.out
    for told in (json.dumps(manager.logged), metrics, json.dumps(kept["data"]), dry.out):
        assert not re.search(r"[0-9a-f]{64}", told)
    assert [entry for entry in fresh_member.audit.entries(user=MANAGER) if entry.code == 403] == []
    gone = await command(fresh_member, "uninstall", "--yes")
    assert gone.code == 0, gone.err
    assert await absent(fresh_member.client, SECRETS, NAME, namespace=HOME)
