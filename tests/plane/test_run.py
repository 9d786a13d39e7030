"""`unwind run` as a process: what it listens on, how it stops, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import base64
import operator
import os
import ssl
import uuid
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest

from tests.eventually import eventually
from tests.forked_commands import run_off_loop
from tests.plane.support import profiles
from tests.plane.support.manager_process import running
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import RECORD_KEY_SECRET
from unwind.api.resources import DEPLOYMENTS, SECRETS
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown, TeardownSpec, TeardownStatus
from unwind.certificates import Authority, KeyPair
from unwind.concurrency import gather_limited
from unwind.kube.object_watch import until_absent
from unwind.server.certificate_secret import NAME
from unwind.server.path_keys import NAME as PATHS
from unwind.testing.managers import expecting_refusals, manager_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


async def test_a_manager_becomes_ready_serves_and_stops_in_peace(plane: Plane, namespace: str) -> None:
    async with running(plane.management, namespace) as manager:
        await manager.until_ready("https")
        assert await manager.probe("/healthz") == (200, "ok\n")
        _, metrics = await manager.probe("/metrics")
        assert "unwind_serving_certificate_expiry_timestamp_seconds 1" in metrics
        assert 'unwind_api_call_seconds_count{resource="other",status="2xx",verb="get"}' in metrics

        found = await plane.management.client.get(SECRETS, NAME, namespace=namespace)
        bundle = ssl.create_default_context(cadata=_decoded(found["data"]["ca.crt"]))
        async with aiohttp.ClientSession() as session:
            url = f"https://{manager.addresses['https']}/nothing"
            async with session.post(url, data=b"{}", ssl=bundle) as answer:
                assert (answer.status, (await answer.json())["message"]) == (404, "not found")
        assert await manager.stop() == 0
    assert manager.logged[-1]["event"] == "stopped"


def _decoded(value: str) -> str:
    return base64.b64decode(value).decode()


async def test_without_the_role_for_it_nothing_is_served(plane: Plane, namespace: str) -> None:
    async with running(plane.management, namespace, "--roles", "controllers") as manager:
        await manager.until_ready()
        assert await manager.stop() == 0
    assert list(manager.addresses) == ["metrics"]
    # No serving certificate: only the key for paths, from which it registers others, and the key of its records.
    found = await plane.management.client.list(SECRETS, namespace=namespace)
    assert {item["metadata"]["name"] for item in found} == {PATHS, RECORD_KEY_SECRET}


async def test_certificates_in_files_are_exchanged_under_load_without_a_failure(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    authority, callers = Authority("server"), Authority("callers")
    certificate, key, client_ca, client = (tmp_path / name for name in ("tls.crt", "tls.key", "callers", "client"))

    def renew() -> KeyPair:
        pair = authority.server("unwind", hosts=("127.0.0.1",))
        for path, content in ((certificate, pair.certificate), (key, pair.key)):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(content)
            fresh.replace(path)
        return pair

    renew()
    client_ca.write_bytes(callers.certificate)
    caller = callers.client("api-server")
    client.write_bytes(caller.certificate + caller.key)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.load_cert_chain(client)
    seen: set[bytes] = set()
    done = asyncio.Event()
    options = ("--tls-cert", certificate, "--tls-key", key, "--client-ca", client_ca)
    async with running(plane.management, namespace, *map(str, options)) as manager:
        await manager.until_listening("https")
        host, _, port = manager.addresses["https"].rpartition(":")

        async def call(*, anew: bool) -> int:
            calls = 0
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            while not done.is_set() or calls < 100:
                if anew and calls:
                    await _close(writer)
                    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
                seen.add(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
                writer.write(b"POST /nothing HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
                await reader.readuntil(b"404}")
                calls += 1
            await _close(writer)
            return calls

        async def rotate() -> None:
            for number in range(3):
                renewed = renew()
                renewed_der = ssl.PEM_cert_to_DER_cert(renewed.certificate.decode())
                await eventually(partial(operator.contains, seen, renewed_der), "the renewed certificate")
                assert len(seen) == number + 2
            done.set()

        async with asyncio.TaskGroup() as group:
            for anew in (True, False, True, False):
                group.create_task(call(anew=anew))
            group.create_task(rotate())

        stranger = ssl.create_default_context(cadata=authority.certificate.decode())
        with pytest.raises((OSError, EOFError)):
            await _answered(host, int(port), stranger)
        assert await manager.stop() == 0


async def _answered(host: str, port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        return await reader.readexactly(1)
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_a_manager_outlives_its_api_server_and_goes_on_when_it_is_back(fresh_member: LocalCluster) -> None:
    namespace = f"unwind-{uuid.uuid4().hex[:6]}"
    await fresh_member.create_namespace(namespace)
    async with running(fresh_member, namespace) as manager, AsyncExitStack() as stack:
        await manager.until_listening("https")
        stack.enter_context(expecting_refusals())
        await fresh_member.api_server.stop()
        await manager.until_logged("watch failed")
        assert (await manager.probe("/healthz"))[0] == 200
        await fresh_member.api_server.start()
        before = await fresh_member.client.get(SECRETS, NAME, namespace=namespace)
        await fresh_member.client.delete(SECRETS, NAME, namespace=namespace, uid=before["metadata"]["uid"])
        async for event in fresh_member.client.watch(SECRETS, namespace=namespace, name=NAME):
            if event.type != "DELETED" and event.object["metadata"]["uid"] != before["metadata"]["uid"]:
                assert event.object["data"] == before["data"]
                break
        assert await manager.stop() == 0
    await _rival(fresh_member)
    path = await manager_kubeconfig(fresh_member, namespace)
    said = await refused("--kubeconfig", str(path), "--namespace", namespace)
    assert "Sveltos' addon-controller" in said
    assert "scale deployment addon-controller --replicas=0" in said


async def _rival(cluster: LocalCluster) -> None:
    await cluster.create_namespace("projectsveltos")
    labels = {"control-plane": "addon-controller"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "manager", "image": "projectsveltos/addon-controller"}]},
    }
    await cluster.client.create(
        DEPLOYMENTS,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "addon-controller", "namespace": "projectsveltos", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
    )


async def test_the_record_of_a_teardown_goes_when_its_time_is_over(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    await profiles.install(client)
    ended = {"old": timedelta(hours=2), "new": timedelta(minutes=30)}
    for name, ago in ended.items():
        target = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace=namespace, name=name, uid=name)
        metadata = ObjectMeta(name=f"{namespace}-{name}")
        spec = TeardownSpec(target=target, title=name, cause=Cause.CLUSTER_DELETED.value)
        body = manifest(TEARDOWNS, Teardown(metadata=metadata, spec=spec))
        await client.create(TEARDOWNS, body)
        status = TeardownStatus(phase=Phase.COMPLETE.value, finished_at=datetime.now(UTC) - ago)
        patch = {"status": msgspec.to_builtins(status)}
        await client.patch(TEARDOWNS, metadata.name, patch, subresource="status")
    async with running(plane.management, namespace, UNWIND_KEEP_TEARDOWNS="1h") as manager:
        await until_absent(client, TEARDOWNS, f"{namespace}-old")
        kept = await client.get(TEARDOWNS, f"{namespace}-new")
        assert await manager.stop() == 0
    await client.delete(TEARDOWNS, kept["metadata"]["name"], uid=kept["metadata"]["uid"])


async def refused(*options: str) -> str:
    """Start a manager that cannot start; what it says is one line."""
    listening = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    done = await run_off_loop("run", *options, *listening, "--metrics-listen", "127.0.0.1:0", env=os.environ)
    assert done.returncode in (1, 2)
    [line] = done.stderr.splitlines()
    assert line.startswith("unwind: ")
    return line


async def test_what_is_wrong_is_said_in_one_line_with_what_to_do(plane: Plane, namespace: str, tmp_path: Path) -> None:
    path = await manager_kubeconfig(plane.management, namespace)
    kubeconfig = ("--kubeconfig", str(path), "--namespace", namespace)
    for name in ("crt", "key", "other"):
        pair = Authority(name).server("unwind", hosts=("localhost",))
        (tmp_path / name).write_bytes(pair.key if name == "key" else pair.certificate)
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(path.read_text().replace(plane.management.server, "https://127.0.0.1:1"))
    taken = plane.management.server.removeprefix("https://")
    wrong = (
        ((*kubeconfig, "--roles", "serving,cooking"), "unknown role cooking in --roles (valid: controllers, serving)"),
        ((*kubeconfig, "--feature-gates", "Nope=true"), "unknown feature gate 'Nope'"),
        ((*kubeconfig, "--listen", "9443"), "invalid --listen '9443'; use HOST:PORT"),
        ((*kubeconfig, "--listen", taken), "Address already in use"),
        ((*kubeconfig, "--shutdown-grace", "soon"), "use a duration such as 20s"),
        (
            (*kubeconfig, "--keep-teardowns", "a week"),
            "invalid duration 'a week' for --keep-teardowns; use a duration such as 20s",
        ),
        (
            (*kubeconfig, "--best-effort-timeout", "60"),
            "invalid duration '60' for --best-effort-timeout; use a duration such as 20s",
        ),
        (
            (*kubeconfig, "--delete-policy", "Skip"),
            "invalid --delete-policy 'Skip' (valid: manage, skip, detach-on-delete)",
        ),
        ((*kubeconfig, "--tls-cert", str(tmp_path / "crt")), "--tls-cert and --tls-key must be used together"),
        (
            (*kubeconfig, "--tls-cert", str(tmp_path / "none"), "--tls-key", str(tmp_path / "key")),
            "No such file or directory; check --tls-cert",
        ),
        (
            (*kubeconfig, "--tls-cert", str(tmp_path / "crt"), "--tls-key", str(tmp_path / "key")),
            "cannot serve HTTPS: invalid certificate or key",
        ),
        ((*kubeconfig, "--client-ca", str(tmp_path / "key")), "it contains no certificate; check --client-ca"),
        ((*kubeconfig[:2], "--namespace", "not-there"), "run `unwind install`"),
        (("--kubeconfig", str(nowhere)), "check that it is running, and its address"),
        (("--kubeconfig", str(tmp_path / "none")), "use another one with --kubeconfig"),
        ((*kubeconfig, "--context", "other"), "other"),
    )

    async def check(options: tuple[str, ...], said: str) -> None:
        assert said in await refused(*options)

    # The manager of a namespace has no rights in another one.
    with expecting_refusals("secrets"):
        await gather_limited((check(options, said) for options, said in wrong), limit=4)
