"""`unwind run --secure-metrics`: metrics over HTTPS, for tokens that the API server authorizes."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING

import aiohttp

from tests.eventually import eventually
from tests.plane.support.manager_process import running
from tests.plane.support.objects import new_object
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SECRETS, SERVICE_ACCOUNTS
from unwind.api.rights import Setting
from unwind.install.contributions import metrics_reader
from unwind.install.manifests import without_crds
from unwind.server.certificate_secret import NAME

if TYPE_CHECKING:
    from unwind.kube.client import Client
    from unwind.local.plane import Plane


async def token(client: Client, namespace: str, account: str) -> str:
    """A token of a new ServiceAccount."""
    await client.create(SERVICE_ACCOUNTS, new_object(SERVICE_ACCOUNTS, account, namespace))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    made = await client.post(SERVICE_ACCOUNTS, account, "token", request, namespace=namespace)
    found: str = made["status"]["token"]
    return found


async def test_metrics_are_read_over_https_by_those_who_may_and_probes_by_everyone(
    plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    reader, stranger = [await token(client, namespace, name) for name in ("prometheus", "stranger")]
    name = f"prometheus-{namespace}"
    role = {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": metrics_reader(namespace)}
    for manifest in without_crds(Setting(namespace=namespace)):
        if manifest["metadata"]["name"] == role["name"]:
            await client.create(CLUSTER_ROLES, manifest)
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": "prometheus", "namespace": namespace}
    binding = new_object(CLUSTER_ROLE_BINDINGS, name, roleRef=role, subjects=[subject])
    bound = await client.create(CLUSTER_ROLE_BINDINGS, binding)
    async with running(plane.management, namespace, "--secure-metrics") as manager, aiohttp.ClientSession() as session:
        await manager.until_listening("metrics", "https")
        found = await client.get(SECRETS, NAME, namespace=namespace)
        trusted = ssl.create_default_context(cadata=base64.b64decode(found["data"]["ca.crt"]).decode())

        async def get(path: str, bearer: str = "") -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
            url = f"https://{manager.addresses['metrics']}{path}"
            async with session.get(url, ssl=trusted, headers=headers) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "ok\n")
        for bearer, status, told in (
            ("", 401, "no token"),
            ("forged", 401, "the token is not valid"),
            (stranger, 403, f"system:serviceaccount:{namespace}:stranger may not get it"),
            (reader, 200, "unwind_shards_owned"),
            (reader, 200, "unwind_teardowns"),
        ):
            found_status, text = await get("/metrics", bearer)
            assert found_status == status
            assert told in text

        await client.delete(CLUSTER_ROLE_BINDINGS, name, uid=bound["metadata"]["uid"])

        async def refused() -> bool:
            return (await get("/metrics", reader))[0] == 403

        await eventually(refused, "an answer that is not remembered for ever")
