"""The cluster controller on real clusters: what a Cluster says of its member, and what is done for it."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support import karmada_members as fixtures
from tests.plane.support.events import until_event
from tests.plane.support.karmada_members import Member, a_name, clear, joined, running
from tests.plane.support.objects import new_object
from tests.plane.support.transports import FailingTransport, Killed
from unwind.addons.manifests import ADDONS
from unwind.api import rights
from unwind.api.karmada import CLUSTERS, Cluster
from unwind.api.meta import find
from unwind.api.names import KARMADA_CLUSTER_NAMESPACE, KARMADA_NOT_READY_TAINT, Finalizer
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from unwind.install.contributions import MACHINERY
from unwind.karmada import join, tokens
from unwind.karmada.join_objects import JoinOptions, account
from unwind.karmada.manifests import MEMBERS
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.kubeconfig import Token
from unwind.teardown.manifests import RECORDS
from unwind.testing.clock import START, StillClock
from unwind.testing.managers import manager_connection
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

HOME = KARMADA_CLUSTER_NAMESPACE


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(plane: Plane) -> Client:
    await fixtures.install(plane.management.client)
    return plane.management.client


@pytest.fixture
def cluster(plane: Plane) -> LocalCluster:
    return plane.members["member-1"]


def says(reason: str) -> Callable[[Cluster], bool]:
    def holds(it: Cluster) -> bool:
        found = find(it.status.conditions, "Ready")
        return found is not None and found.reason == reason

    return holds


def message(it: Cluster) -> str:
    found = find(it.status.conditions, "Ready")
    return found.message if found else ""


def taints(it: Cluster) -> list[str]:
    return [taint.key for taint in it.spec.taints]


@asynccontextmanager
async def going(clock: StillClock) -> AsyncIterator[None]:
    """Time goes by, much faster than it does."""

    async def go() -> None:
        while True:
            await asyncio.sleep(0.02)
            clock.advance(1.0)

    task = asyncio.get_running_loop().create_task(go())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def behind_a_proxy(client: Client, cluster: LocalCluster) -> AsyncIterator[tuple[Member, Proxy]]:
    async with Proxy(cluster.server) as proxy:
        way = msgspec.structs.replace(cluster.client.connection, server=proxy.url)
        async with Client(way) as via, joined(client, cluster, via=via) as member:
            yield member, proxy


async def test_a_member_that_dies_and_comes_back_is_told_by_its_cluster(client: Client, cluster: LocalCluster) -> None:
    clock = StillClock()
    async with behind_a_proxy(client, cluster) as (member, proxy), running(client, clock=clock), going(clock):
        it = await member.until(says("ClusterReady"), "Ready")
        assert it.status.kubernetes_version.startswith("v1.")
        assert Finalizer.MEMBER in it.metadata.finalizers
        assert taints(it) == []
        secret = await client.get(SECRETS, member.name, namespace=HOME)
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]

        await client.patch(
            CLUSTERS, member.name, {"spec": {"taints": [{"key": "example.dev/a", "effect": "NoExecute"}]}}
        )
        proxy.close()
        it = await member.until(
            lambda it: says("ClusterNotReachable")(it) and KARMADA_NOT_READY_TAINT in taints(it), "not reachable"
        )
        assert message(it).startswith(f"Cluster {member.name} does not answer: ")
        assert proxy.url in message(it)
        assert taints(it) == ["example.dev/a", KARMADA_NOT_READY_TAINT]
        assert it.status.kubernetes_version  # what was last known
        event = await until_event(client, it.metadata.uid, reason="ClusterNotReachable")
        assert event["type"] == "Warning"

        proxy.reopen()
        it = await member.until(lambda it: says("ClusterReady")(it) and len(taints(it)) == 1, "Ready")
        assert taints(it) == ["example.dev/a"]


async def test_another_cluster_at_the_address_is_not_written_to(client: Client, cluster: LocalCluster) -> None:
    async with joined(client, cluster) as member:
        identity = (await member.get()).spec.id
        await client.patch(CLUSTERS, member.name, {"spec": {"id": "the-one-before"}})
        async with running(client):
            it = await member.until(lambda it: says("AnotherCluster")(it) and bool(taints(it)), "another cluster")
            where = f"another cluster answers at {cluster.server} ({identity}, not the-one-before)"
            remedy = "correct spec.apiEndpoint, or unjoin the member and join it again"
            assert message(it) == f"{where}, so nothing is written to it; {remedy}"
            assert it.spec.id == "the-one-before"
            # Who it is was never said: then it is whoever answers.
            await client.patch(CLUSTERS, member.name, {"spec": {"id": None}})
            it = await member.until(lambda it: says("ClusterReady")(it) and bool(it.spec.id), "Ready")
            assert it.spec.id == identity
            by = f"system:serviceaccount:{KARMADA_CLUSTER_NAMESPACE}:{account(member.name)}"
            writes = [entry for entry in cluster.audit.entries(user=by) if entry.verb not in ("get", "list", "watch")]
            assert writes == []


async def test_a_place_for_works_is_made_and_made_again(client: Client, cluster: LocalCluster) -> None:
    async with joined(client, cluster) as member, running(client):
        await member.until(says("ClusterReady"), "Ready")
        first = await client.get(NAMESPACES, member.execution)
        await client.delete(NAMESPACES, member.execution, uid=first["metadata"]["uid"])
        await object_watch.until(
            client,
            NAMESPACES,
            member.execution,
            lambda it: it is not None and it["metadata"]["uid"] != first["metadata"]["uid"],
            "made again",
        )


async def test_a_member_in_pull_mode_is_left_alone(client: Client) -> None:
    name = a_name()
    async with running(client):
        await client.create(CLUSTERS, new_object(CLUSTERS, name, spec={"syncMode": "Pull"}))
        found = await object_watch.until(
            client, CLUSTERS, name, lambda it: bool(it and says("PullMode")(msgspec.convert(it, Cluster))), "told"
        )
        it = msgspec.convert(found, Cluster)
        assert (it.metadata.finalizers, it.spec.taints) == ((), ())
    await clear(client, name)


async def test_a_member_without_a_way_to_it_says_what_is_missing(client: Client) -> None:
    name = a_name()
    member = Member(client, None, name, None)  # type: ignore[arg-type] # there is no cluster
    async with running(client):
        await client.create(CLUSTERS, new_object(CLUSTERS, name, spec={"syncMode": "Push"}))
        it = await member.until(says("ClusterNotReachable"))
        assert "it does not name a Secret with credentials" in message(it)
        ref = {"namespace": KARMADA_CLUSTER_NAMESPACE, "name": name}
        await client.patch(CLUSTERS, name, {"spec": {"secretRef": ref}})
        it = await member.until(
            lambda it: f"Secret {KARMADA_CLUSTER_NAMESPACE}/{name} with its credentials not found" in message(it)
        )
        assert KARMADA_NOT_READY_TAINT in taints(it)
    await clear(client, name)


async def test_the_token_of_a_secret_that_is_not_the_members_own_is_sent_nowhere(client: Client) -> None:
    name = a_name()
    member = Member(client, None, name, None)  # type: ignore[arg-type] # there is no cluster
    await client.create(SECRETS, new_object(SECRETS, name, "default", stringData={"token": "of another"}))
    spec = {
        "syncMode": "Push",
        "apiEndpoint": "https://127.0.0.1:1",
        "insecureSkipTLSVerification": True,
        "secretRef": {"namespace": "default", "name": name},
    }
    async with running(client):
        await client.create(CLUSTERS, new_object(CLUSTERS, name, spec=spec))
        it = await member.until(says("ClusterNotReachable"))
        assert f"Secret default/{name} does not belong to it" in message(it)
    secret = await client.get(SECRETS, name, namespace="default")
    assert not secret["metadata"].get("finalizers")
    await clear(client, name)


async def token_of(client: Client, member: Member) -> str:
    secret = await client.get(SECRETS, member.name, namespace=HOME)
    return base64.b64decode(secret["data"]["token"]).decode()


async def set_token(client: Client, member: Member, token: str) -> None:
    data = {"token": base64.b64encode(token.encode()).decode()}
    await client.patch(SECRETS, member.name, {"data": data}, namespace=HOME)


async def until_token(client: Client, member: Member, holds: Callable[[str], bool]) -> str:
    def look(it: Object | None) -> bool:
        return it is not None and holds(base64.b64decode(it["data"]["token"]).decode())

    await object_watch.until(client, SECRETS, member.name, look, "renewed", namespace=HOME)
    return await token_of(client, member)


async def test_a_token_is_renewed_long_before_it_ends(client: Client, cluster: LocalCluster) -> None:
    async with joined(client, cluster) as member:
        short = await cluster.client.post(
            SERVICE_ACCOUNTS,
            account(member.name),
            "token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}},
            namespace=HOME,
        )
        old: str = short["status"]["token"]
        await set_token(client, member, old)
        clock = StillClock()
        # More than a third of the ten minutes is over.
        clock.advance((datetime.now(UTC) - START).total_seconds() + 250)
        async with running(client, clock=clock):
            new = await until_token(client, member, lambda it: it != old)
            await member.until(says("ClusterReady"), "Ready")
            await until_event(client, (await member.get()).metadata.uid, reason="TokenRenewed")
        before, after = tokens.read_claims(old), tokens.read_claims(new)
        assert before
        assert after
        assert after.account == before.account == account(member.name)
        assert after.expires > before.expires
        way = msgspec.structs.replace(cluster.client.connection, certificate=None, key=None, credential=Token(new))
        await tokens.prove(way, identity=(await member.get()).spec.id)


async def test_a_token_that_is_refused_is_replaced_while_the_one_before_still_serves(
    client: Client, cluster: LocalCluster
) -> None:
    async with joined(client, cluster) as member:
        async with running(client):
            await member.until(says("ClusterReady"), "Ready")
            await set_token(client, member, "nonsense")
            new = await until_token(client, member, lambda it: it != "nonsense")
            assert tokens.read_claims(new)
            await member.until(says("ClusterReady"), "Ready")
        # Nobody remembers another one: then it takes a person.
        await set_token(client, member, "nonsense")
        async with running(client):
            it = await member.until(says("ClusterNotReachable"))
            assert "refused access" in message(it)
            await join.join(client, cluster.client, JoinOptions(name=member.name))
            await member.until(says("ClusterReady"), "Ready")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "while-nobody-looked"])
async def test_the_secret_of_a_cluster_goes_when_that_has_gone(
    client: Client, cluster: LocalCluster, seen: bool
) -> None:
    async with joined(client, cluster) as member:
        async with running(client):
            it = await member.until(says("ClusterReady"), "Ready")
            await member.delete()
            if seen:
                await client.patch(CLUSTERS, member.name, {"metadata": {"finalizers": None}})
                await object_watch.until_absent(client, SECRETS, member.name, namespace=HOME)
                return
        # It stays for as long as its Cluster does, also where all that it owns is to go first.
        secret = await client.get(SECRETS, member.name, namespace=HOME)
        await client.delete(SECRETS, member.name, uid=secret["metadata"]["uid"], namespace=HOME)
        async with running(client) as caches:
            await caches.clusters.until_synced()
            await member.until(lambda now: now.metadata.terminating)
        secret = await client.get(SECRETS, member.name, namespace=HOME)
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]
        await client.patch(CLUSTERS, member.name, {"metadata": {"finalizers": None}})
        await object_watch.until_absent(client, CLUSTERS, it.metadata.name)
        async with running(client):
            await object_watch.until_absent(client, SECRETS, member.name, namespace=HOME)


@pytest.mark.parametrize("how", ["killed before", "killed after"])
async def test_whenever_it_is_killed_the_next_life_goes_on(client: Client, cluster: LocalCluster, how: str) -> None:
    lives, it = 0, None
    async with joined(client, cluster) as member:
        while it is None:
            lives += 1
            connection = await manager_connection(client, rights.HOME)
            transport = FailingTransport(connection, [lives], how)
            try:
                async with Client(connection, transport=transport) as mortal, running(mortal):
                    it = await member.until(says("ClusterReady"), "Ready")
            except* Killed:
                pass  # as it was to be
        assert lives > 1  # killed after its last write it is ready all the same
        assert Finalizer.MEMBER in it.metadata.finalizers
        assert it.status.kubernetes_version
        secret = await client.get(SECRETS, member.name, namespace=HOME)
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]


async def test_the_rights_of_the_manager_are_enough(plane: Plane, client: Client, cluster: LocalCluster) -> None:
    user = f"manager-{a_name()}"
    rules = [right.rule() for item in (MACHINERY, RECORDS, ADDONS, MEMBERS) for right in item.everywhere]
    reference = {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": user}
    subjects = [{"kind": "User", "name": user, "apiGroup": CLUSTER_ROLES.group}]
    await client.create(CLUSTER_ROLES, new_object(CLUSTER_ROLES, user, rules=rules))
    await client.create(
        CLUSTER_ROLE_BINDINGS, new_object(CLUSTER_ROLE_BINDINGS, user, roleRef=reference, subjects=subjects)
    )
    way = plane.management.connection(user)
    async with joined(client, cluster) as member, Client(way) as manager, running(manager):
        await member.until(says("ClusterReady"), "Ready")
        await set_token(client, member, "nonsense")
        await until_token(client, member, lambda it: it != "nonsense")
        await until_event(client, (await member.get()).metadata.uid, reason="TokenRenewed")
    assert [entry for entry in plane.management.audit.entries(user=user) if entry.code == 403] == []
