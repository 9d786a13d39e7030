"""The client on the real API server, and on servers that have a bad day."""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from tests.eventually import eventually
from tests.plane.support.objects import crd, delete, new_object
from tests.plane.test_informers import through_proxy
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    Resource,
)
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.absence import Presence
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.workqueue import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


async def token_for(cluster: LocalCluster, namespace: str) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    answer = await cluster.client.post(SERVICE_ACCOUNTS, "default", "token", request, namespace=namespace)
    token: str = answer["status"]["token"]
    return token


async def who(client: Client) -> str:
    """The user that the server takes us for: everyone may ask, and a refusal names them."""
    with pytest.raises(ApiError) as refusal:
        await client.list(NAMESPACES)
    assert refusal.value.code == 403
    return str(refusal.value)


async def test_a_token_a_token_file_and_a_plugin_all_get_in(plane: Plane, namespace: str, tmp_path: Path) -> None:
    cluster = plane.management
    token = await token_for(cluster, namespace)
    (tmp_path / "token").write_text(token)
    plugin = tmp_path / "plugin"
    credential = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": token}}
    plugin.write_text(f"#!/bin/sh\necho '{msgspec.json.encode(credential).decode()}'\n")
    plugin.chmod(0o755)
    authority = base64.b64encode(cluster.files.certificate("ca").read_bytes()).decode()
    users = {
        "token": {"token": token},
        "file": {"tokenFile": "token"},
        "plugin": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}},
    }
    config = {
        "clusters": [{"name": "c", "cluster": {"server": cluster.server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": {"cluster": "c", "user": name}} for name in users],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    for name in users:
        async with Client(kubeconfig.load(tmp_path / "config", context=name)) as client:
            assert f"system:serviceaccount:{namespace}:default" in await who(client)


async def test_a_rotated_token_file_is_picked_up_when_the_old_token_is_refused(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    cluster = plane.management
    file = tmp_path / "token"
    file.write_text("no-longer-valid")
    connection = ClusterConnection(
        server=cluster.server,
        authority=cluster.files.certificate("ca").read_bytes(),
        credential=kubeconfig.TokenFile(str(file)),
    )
    async with Client(connection) as client:
        with pytest.raises(ApiError) as refusal:
            await client.list(NAMESPACES)
        assert refusal.value.code == 401
        file.write_text(await token_for(cluster, namespace))
        assert "system:serviceaccount" in await who(client)


async def test_a_server_of_another_name_is_verified_by_the_name_it_should_have(plane: Plane) -> None:
    direct = plane.management.connection("admin", groups=("system:masters",))
    by_name = msgspec.structs.replace(direct, server_name="kubernetes.default")
    async with Client(by_name) as client:
        await client.list(NAMESPACES)
    async with Client(msgspec.structs.replace(direct, server_name="somebody.else")) as client:
        with pytest.raises(UnreachableError, match=r"is not trusted.*tls-server-name"):
            await client.list(NAMESPACES)


@asynccontextmanager
async def tunnelling() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy that makes tunnels, and knows who asked for one to where."""
    asked: list[str] = []

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode().split()
        asked.append(f"{request[0]} {request[1]}")
        host, port = request[1].rsplit(":", 1)
        back, onward = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, onward), copy(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_a_proxy_that_the_kubeconfig_names_is_used_and_the_server_behind_it_verified(plane: Plane) -> None:
    direct = plane.management.connection("admin", groups=("system:masters",))
    async with tunnelling() as (proxy, asked):
        async with Client(msgspec.structs.replace(direct, proxy=proxy)) as client:
            await client.list(NAMESPACES)
        assert asked == [f"CONNECT {direct.server.removeprefix('https://')}"]
        wrong = plane.members["member-1"].connection("admin").authority
        async with Client(msgspec.structs.replace(direct, proxy=proxy, authority=wrong)) as client:
            with pytest.raises(UnreachableError, match="is not trusted"):
                await client.list(NAMESPACES)


async def test_gone_is_only_what_the_server_says_is_gone_by_name(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    here = await client.cluster_uid()
    created = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "it", namespace))
    uid = created["metadata"]["uid"]
    there = await client.sighting(CONFIG_MAPS, "it", uid=uid, namespace=namespace, cluster=here)
    assert there.presence is Presence.PRESENT

    unserved = Resource("apps", "v1beta1", "deployments", "Deployment")
    seen = await client.sighting(unserved, "it", uid=uid, namespace=namespace)
    assert seen.presence is Presence.UNKNOWN, "an unserved version says nothing"

    await delete(plane.management.client, CONFIG_MAPS, "it", namespace)
    gone = await client.sighting(CONFIG_MAPS, "it", uid=uid, namespace=namespace, cluster=here)
    assert gone.presence is Presence.ABSENT
    elsewhere = await client.sighting(CONFIG_MAPS, "it", uid=uid, namespace=namespace, cluster=str(uuid.uuid4()))
    assert elsewhere.presence is Presence.UNKNOWN
    assert "another cluster answers" in elsewhere.why

    await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "it", namespace))
    replaced = await client.sighting(CONFIG_MAPS, "it", uid=uid, namespace=namespace, cluster=here)
    assert replaced.presence is Presence.ABSENT
    assert "another object" in replaced.why


async def test_the_metadata_of_an_object_come_without_its_content(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    made = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "large", namespace, data={"key": "value"}))
    found = await client.get_metadata(CONFIG_MAPS, "large", namespace=namespace)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert "data" not in found
    with pytest.raises(NotFoundError):
        await client.get_metadata(CONFIG_MAPS, "never", namespace=namespace)


async def test_gone_is_told_of_kinds_in_groups_and_of_custom_ones_as_well(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    widgets = Resource(f"{namespace}.example.com", "v1", "widgets", "Widget")
    seen = await client.sighting(widgets, "it", uid="1", namespace=namespace)
    assert seen.presence is Presence.UNKNOWN, "the kind is not there yet"
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(widgets))

    async def absent() -> bool:
        seen = await client.sighting(widgets, "it", uid="1", namespace=namespace)
        assert seen.presence is not Presence.PRESENT
        return seen.presence is Presence.ABSENT

    await eventually(absent, "a kind that is served", within=20)
    assert (await client.sighting(DEPLOYMENTS, "it", uid="1", namespace=namespace)).absent


async def test_an_apply_for_an_object_that_is_gone_does_not_bring_it_back(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    created = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "it", namespace))
    await delete(plane.management.client, CONFIG_MAPS, "it", namespace)
    late = new_object(CONFIG_MAPS, "it", namespace, data={"a": "b"})
    late["metadata"]["uid"] = created["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await client.apply(CONFIG_MAPS, late)


async def test_any_kind_is_found_by_discovery_also_one_that_came_later(plane: Plane, namespace: str) -> None:
    discovery = Discovery(plane.management.client)
    assert await discovery.resource("Deployment", group="apps") == DEPLOYMENTS
    assert await discovery.named("deploy") == DEPLOYMENTS
    assert await discovery.named("ConfigMap") == CONFIG_MAPS
    assert await discovery.named("ns") == NAMESPACES
    with pytest.raises(UnwindError, match="kind 'unicorns' not found"):
        await discovery.named("unicorns")
    gadgets = Resource(f"{namespace}.example.com", "v1", "gadgets", "Gadget")
    await plane.management.client.create(CUSTOM_RESOURCE_DEFINITIONS, crd(gadgets))

    async def discovered() -> Resource | None:
        with suppress(UnwindError):
            return await discovery.resource("Gadget", group=gadgets.group)
        return None

    assert await eventually(discovered, "the new kind", within=20) == gadgets


async def test_a_server_that_never_answers_is_given_up_and_keeps_nobody_else_waiting(
    plane: Plane, namespace: str
) -> None:
    """One cluster accepts connections and says nothing; the work for another goes on meanwhile."""
    well = plane.management.client
    async with through_proxy(plane.members["member-1"]) as (_, proxy):
        proxy.hold()
        direct = plane.members["member-1"].connection("admin")
        async with Client(msgspec.structs.replace(direct, server=proxy.url), deadline=2.0) as hanging:
            done: list[str] = []
            failed: dict[str, Exception] = {}

            async def reconcile(key: str) -> None:
                await (hanging if key.startswith("hung/") else well).list(CONFIG_MAPS, namespace=namespace)
                done.append(key)

            queue: Queue[str] = Queue(
                reconcile,
                group=lambda key: key.split("/")[0],
                per_group=2,
                failed=failed.setdefault,
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(queue.run())
                for number in range(20):
                    queue.add(f"hung/{number}")
                    queue.add(f"well/{number}")
                await eventually(lambda: len(done) >= 20 and failed, "20 keys and a failure", within=30)
                running.cancel()
            assert {key.split("/")[0] for key in done} == {"well"}
            assert isinstance(next(iter(failed.values())), UnreachableError)
