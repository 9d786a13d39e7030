"""Members, reached by what their Secrets say, on real API servers."""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.eventually import eventually
from unwind.api.meta import ObjectRef
from unwind.api.names import Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import ClusterType
from unwind.kube import kubeconfig
from unwind.kube.absence import Presence
from unwind.kube.errors import NotFoundError, UnreachableError
from unwind.members import credentials
from unwind.members.member import RECENT
from unwind.members.members import LINGER, Members
from unwind.members.targets import AddonTarget
from unwind.testing.clock import StillClock
from unwind.testing.proxy import Interceptor, Proxy
from unwind.testing.scripts import checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


NOWHERE = """
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}]
users: [{{name: a, user: {{{}}}}}]
"""


def target(namespace: str, name: str = "prod", **more: Any) -> AddonTarget:
    ref = ObjectRef(
        group="lib.projectsveltos.io", version="v1beta1", kind="SveltosCluster", namespace=namespace, name=name
    )
    own = ObjectRef(**{**{field: getattr(ref, field) for field in ref.__struct_fields__}, "uid": uuid.uuid4().hex})
    return AddonTarget(type=ClusterType.SVELTOS, ref=own, secret=f"{name}-sveltos-kubeconfig", **more)


def member_of(plane: Plane) -> LocalCluster:
    return plane.members["member-1"]


def way(cluster: LocalCluster, server: str = "") -> str:
    connection = kubeconfig.load(cluster.kubeconfig)
    text = kubeconfig.document(connection, cluster="it", user="admin")
    return text.replace(connection.server, server) if server else text


async def put(client: Client, namespace: str, text: str, *, key: str = "kubeconfig", **metadata: Any) -> Object:
    name = "prod-sveltos-kubeconfig"
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "data": {key: base64.b64encode(text.encode()).decode()},
    }
    return await client.apply(SECRETS, body, field_manager="test")


async def test_a_member_is_known_by_its_kube_system(plane: Plane, namespace: str) -> None:
    client, cluster = plane.management.client, member_of(plane)
    await put(client, namespace, way(cluster))
    async with Members(client) as fleet, fleet.member(target(namespace)) as member:
        assert member.system_uid == await cluster.client.cluster_uid()
        await member.verify()


async def test_a_secret_that_is_not_there_is_named(plane: Plane, namespace: str) -> None:
    async with Members(plane.management.client) as fleet:
        with pytest.raises(
            UnreachableError, match=f"Secret {namespace}/prod-sveltos-kubeconfig with its credentials not found"
        ):
            async with fleet.member(target(namespace)):
                pass
        assert fleet.open == 0


async def test_a_key_that_is_not_there_is_named(plane: Plane, namespace: str) -> None:
    await put(plane.management.client, namespace, "x")
    async with Members(plane.management.client) as fleet:
        with pytest.raises(UnreachableError, match="has no key 'value'"):
            async with fleet.member(target(namespace, secret_key="value")):  # noqa: S106 - a key in a Secret
                pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no: kubeconfig", "has no current context"),
        ("[", "is not a kubeconfig"),
        (NOWHERE.format("exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}"), "has an exec plugin"),
        (NOWHERE.format("token: a"), "does not answer"),
    ],
)
async def test_a_kubeconfig_that_does_not_serve_says_why(plane: Plane, namespace: str, text: str, said: str) -> None:
    await put(plane.management.client, namespace, text)
    async with Members(plane.management.client) as fleet:
        with pytest.raises(UnreachableError, match=said):
            async with fleet.member(target(namespace)):
                pass
        assert fleet.open == 0


async def test_a_member_whose_credentials_are_refused_says_so(plane: Plane, namespace: str) -> None:
    server = member_of(plane).server
    text = (
        "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],"
        f" clusters: [{{name: a, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}],"
        " users: [{name: a, user: {token: over}}]}"
    )
    await put(plane.management.client, namespace, text)
    async with Members(plane.management.client) as fleet:
        with pytest.raises(UnreachableError, match=r"refused access.*401"):
            async with fleet.member(target(namespace)):
                pass


async def test_another_cluster_at_the_address_is_noticed(plane: Plane, namespace: str) -> None:
    client, cluster = plane.management.client, member_of(plane)
    await put(client, namespace, way(cluster))
    found = await cluster.client.cluster_uid()
    async with Members(client) as fleet:
        with pytest.raises(UnreachableError, match=f"another cluster answers.*{found}, not the-one-before"):
            async with fleet.member(target(namespace), system_uid="the-one-before"):
                pass


@asynccontextmanager
async def balanced(one: LocalCluster, other: LocalCluster) -> AsyncIterator[tuple[Proxy, str, str]]:
    """An address with two clusters behind it, the first of which answers; and the two."""

    async def ignore(method: str, path: str, body: bytes) -> None:
        pass

    ways = [kubeconfig.load(cluster.kubeconfig) for cluster in (one, other)]
    async with (
        Interceptor(ways[0], before=ignore, after=ignore) as first,
        Interceptor(ways[1], before=ignore, after=ignore) as second,
        Proxy(first.connection.server) as proxy,
    ):
        yield proxy, first.connection.server, second.connection.server


async def test_a_new_connection_to_another_cluster_is_not_believed(plane: Plane, namespace: str) -> None:
    client, it = plane.management.client, target(namespace)
    cluster, name = member_of(plane), f"shared-{namespace}"
    metadata = {"name": name, "namespace": "default"}
    body: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    made = await cluster.client.create(CONFIG_MAPS, body)
    uid = made["metadata"]["uid"]
    async with balanced(cluster, plane.management) as (proxy, first, second), Members(client) as fleet:
        insecure = {"server": proxy.url, "insecure-skip-tls-verify": True}
        text = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a"}}],
            "clusters": [{"name": "a", "cluster": insecure}],
        }
        await put(client, namespace, msgspec.json.encode(text).decode())
        async with fleet.member(it) as member:
            assert member.system_uid == await cluster.client.cluster_uid()
            absence = await member.watches.absence(CONFIG_MAPS, name=name, uid=uid, namespace="default")
            proxy.lead_to(second)
            proxy.cut()
            # The other cluster has no such object, and says so.
            with pytest.raises(UnreachableError, match="another cluster answers"):
                await member.client.get(CONFIG_MAPS, name, namespace="default")
            with pytest.raises(UnreachableError, match="another cluster answers"):
                await member.client.create(CONFIG_MAPS, body | {"metadata": metadata | {"name": f"{name}-2"}})
            seen = await member.client.sighting(
                CONFIG_MAPS, name, uid=uid, namespace="default", cluster=member.system_uid
            )
            assert seen.presence is Presence.UNKNOWN
            with pytest.raises(UnreachableError, match="another cluster answers"):
                await member.verify()
            with pytest.raises(NotFoundError):
                await client.get(CONFIG_MAPS, f"{name}-2", namespace="default")
            assert not absence.happened
            proxy.lead_to(first)
            proxy.cut()
            await member.client.delete(CONFIG_MAPS, name, uid=uid, namespace="default")
            async with asyncio.timeout(60):
                await absence.wait()
            absence.close()


async def test_which_cluster_it_is_costs_one_request_for_each_connection(plane: Plane, namespace: str) -> None:
    client, it, cluster = plane.management.client, target(namespace), member_of(plane)
    counted: list[str] = []
    async with Proxy(cluster.server) as proxy:
        await put(client, namespace, way(cluster, proxy.url))
        async with (
            Members(client, observe=lambda verb, plural, *_: counted.append(f"{verb} {plural}")) as fleet,
            fleet.member(it) as member,
        ):
            assert (counted, proxy.accepted) == (["get namespaces"], 1)
            for _ in range(20):
                await member.client.list(CONFIG_MAPS, namespace="default")
            assert proxy.accepted == 1
            assert counted.count("get namespaces") == 1
            changes = await member.watches.changes(CONFIG_MAPS)
            # The watch has a connection of its own.
            await eventually(lambda: proxy.accepted >= 2, "a second connection", within=30)
            assert counted.count("get namespaces") == 1  # no question after the list
            changes.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NOWHERE.replace("https://127", "http://127").format("token: a"), "is not an https address"),
        (NOWHERE.format('token: "a\\r\\nX-Remote-User: admin"'), "token contains control characters"),
        (NOWHERE.format('as: "a\\r\\nX-Remote-User: admin"'), "as contains control characters"),
        ("[" * 200_000, "nested more than"),
    ],
)
async def test_a_kubeconfig_that_is_not_safe_is_refused(plane: Plane, namespace: str, text: str, said: str) -> None:
    await put(plane.management.client, namespace, text)
    async with Members(plane.management.client) as fleet:
        with pytest.raises(UnreachableError, match=said) as raised:
            async with fleet.member(target(namespace)):
                pass
        assert "X-Remote-User" not in str(raised.value)


async def test_users_of_a_target_share_its_member_until_a_while_after_the_last(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    await put(client, namespace, way(member_of(plane)))
    clock, it = StillClock(), target(namespace)
    async with Members(client, clock=clock) as fleet:
        async with fleet.member(it) as one:
            async with fleet.member(it) as two:
                assert one is two
            assert clock.waiting == []
        clock.advance(LINGER - 1)
        async with fleet.member(it) as three:
            assert three is one
            clock.advance(LINGER)
            await three.verify()
        clock.advance(LINGER)
        assert fleet.open == 0
        async with fleet.member(it) as four:
            assert four is not one


async def test_a_rotated_secret_opens_another_way_and_the_old_one_stays_for_its_users(
    plane: Plane, namespace: str
) -> None:
    client, cluster = plane.management.client, member_of(plane)
    await put(client, namespace, way(cluster))
    it, clock = target(namespace), StillClock()
    async with Proxy(cluster.server) as proxy, Members(client, clock=clock) as fleet:
        async with fleet.member(it) as old:
            await put(client, namespace, way(cluster, proxy.url))
            clock.advance(RECENT)
            async with fleet.member(it) as new:
                assert new is not old
                assert new.client.connection.server == proxy.url
                await old.verify()
        assert fleet.open == 1
        for _ in range(20):
            await checkpoint()
        with pytest.raises(Exception, match="closed"):
            await old.verify()


async def test_a_member_that_answers_no_longer_is_opened_anew_when_it_does(plane: Plane, namespace: str) -> None:
    client, cluster = plane.management.client, member_of(plane)
    it, clock = target(namespace), StillClock()
    async with Proxy(cluster.server) as proxy, Members(client, clock=clock) as fleet:
        await put(client, namespace, way(cluster, proxy.url))
        async with fleet.member(it) as first:
            pass
        proxy.close()
        clock.advance(RECENT)
        with pytest.raises(UnreachableError, match="does not answer"):
            async with fleet.member(it):
                pass
        proxy.reopen()
        async with fleet.member(it) as second:
            assert second is not first
            await second.verify()


async def test_who_is_cancelled_while_a_member_is_opened_does_not_take_it_from_others(
    plane: Plane, namespace: str
) -> None:
    client, cluster = plane.management.client, member_of(plane)
    it = target(namespace)
    began = asyncio.Event()

    async def use(fleet: Members) -> str:
        began.set()
        async with fleet.member(it) as member:
            return member.system_uid

    async with Proxy(cluster.server) as proxy, Members(client) as fleet, asyncio.TaskGroup() as group:
        await put(client, namespace, way(cluster, proxy.url))
        proxy.hold()
        one, two = group.create_task(use(fleet)), group.create_task(use(fleet))
        await eventually(lambda: proxy.accepted, "a connection", every=0)
        one.cancel()
        proxy.resume()
        assert await two == await cluster.client.cluster_uid()


async def test_the_management_cluster_is_a_member_too(plane: Plane) -> None:
    client = plane.management.client
    async with Members(client) as fleet, fleet.management() as member:
        assert member.client is client
        assert member.ref.uid == member.system_uid == await client.cluster_uid()
    assert await client.cluster_uid()  # it stays open for its owner


async def test_the_secret_stays_until_it_is_let_go(plane: Plane, namespace: str) -> None:
    client, it = plane.management.client, target(namespace)
    made = await put(client, namespace, "x", finalizers=["example.dev/other"])
    name = made["metadata"]["name"]
    for _ in range(2):
        await credentials.hold_secret(client, it)
    held = await client.get(SECRETS, name, namespace=namespace)
    assert held["metadata"]["finalizers"] == ["example.dev/other", Finalizer.CREDENTIALS]
    await client.delete(SECRETS, name, uid=made["metadata"]["uid"], namespace=namespace)
    for _ in range(2):
        await credentials.let_go(client, it)
    left = await client.get(SECRETS, name, namespace=namespace)
    assert left["metadata"]["finalizers"] == ["example.dev/other"]
    with pytest.raises(UnreachableError, match="is being deleted"):
        await credentials.hold_secret(client, it)
    await client.revise(SECRETS, left, {"metadata": {"finalizers": []}})
    with pytest.raises(NotFoundError):
        await client.get(SECRETS, name, namespace=namespace)
    await credentials.let_go(client, it)
    with pytest.raises(UnreachableError, match="not found"):
        await credentials.hold_secret(client, it)


async def test_finalizers_that_others_put_on_the_secret_meanwhile_are_not_lost(plane: Plane, namespace: str) -> None:
    client, it = plane.management.client, target(namespace)
    await put(client, namespace, "x")

    async def other() -> None:
        for number in range(5):
            patch = [{"op": "add", "path": "/metadata/finalizers/-", "value": f"example.dev/{number}"}]
            await client.patch(SECRETS, it.secret, patch, namespace=namespace)

    await client.patch(SECRETS, it.secret, {"metadata": {"finalizers": ["example.dev/a"]}}, namespace=namespace)
    async with asyncio.TaskGroup() as group:
        group.create_task(other())
        group.create_task(credentials.hold_secret(client, it))
    found = (await client.get(SECRETS, it.secret, namespace=namespace))["metadata"]["finalizers"]
    assert sorted(found) == sorted(
        ["example.dev/a", *(f"example.dev/{number}" for number in range(5)), Finalizer.CREDENTIALS]
    )
    await client.patch(SECRETS, it.secret, {"metadata": {"finalizers": None}}, namespace=namespace)
