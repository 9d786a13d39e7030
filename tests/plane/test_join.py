"""`unwind join` on real clusters: what it makes on both sides, what it refuses, and what it takes back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio
import yaml

from tests.plane.support import karmada_members as fixtures
from tests.plane.support.commands import command
from tests.plane.support.karmada_members import a_name, clear, prepare
from tests.plane.support.objects import new_object
from tests.plane.support.transports import FailingTransport, Killed
from unwind.api.karmada import CLUSTERS, Cluster, RemoveStrategy
from unwind.api.names import JOINED_LABEL, KARMADA_CLUSTER_NAMESPACE, REMOVE_STRATEGY_ANNOTATION
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from unwind.cli.join import join as cli_join
from unwind.errors import UnwindError
from unwind.install.manifests import crds
from unwind.karmada import join as karmada_join
from unwind.karmada import tokens
from unwind.karmada.join_objects import JoinOptions, account, role
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.members import credentials, targets
from unwind.members.members import Members

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plane.support.commands import CommandResult
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

WHERE = {"namespace": KARMADA_CLUSTER_NAMESPACE}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(plane: Plane) -> Client:
    await fixtures.install(plane.management.client)
    for cluster in (plane.management, plane.members["member-1"]):
        await prepare(cluster)
    return plane.management.client


@pytest.fixture
def member(plane: Plane) -> LocalCluster:
    return plane.members["member-1"]


@pytest_asyncio.fixture(loop_scope="session")
async def name(plane: Plane, client: Client) -> AsyncIterator[str]:
    """A name for one test; what was joined by it is no longer."""
    name = a_name()
    yield name
    await clear(client, name)
    home = await client.cluster_uid()
    await karmada_join.take_out(plane.members["member-1"].client, name, KARMADA_CLUSTER_NAMESPACE, joined_to=home)


async def join(plane: Plane, name: str, *more: str) -> CommandResult:
    file = plane.members["member-1"].kubeconfig
    return await command(plane.management, "join", name, "--cluster-kubeconfig", str(file), *more)


async def found(client: Client, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
    try:
        return await client.get(resource, name, namespace=namespace)
    except NotFoundError:
        return None


async def remains(client: Client, member: Client, name: str) -> list[str]:
    """What there is of a member, on both sides."""
    places = [
        (member, SERVICE_ACCOUNTS, account(name), KARMADA_CLUSTER_NAMESPACE),
        (member, CLUSTER_ROLES, role(name), None),
        (member, CLUSTER_ROLE_BINDINGS, role(name), None),
        (client, SECRETS, name, KARMADA_CLUSTER_NAMESPACE),
        (client, CLUSTERS, name, None),
        (client, NAMESPACES, f"karmada-es-{name}", None),
    ]
    return [resource.kind for where, resource, called, within in places if await found(where, resource, called, within)]


async def test_a_cluster_is_joined_with_all_that_it_takes(
    plane: Plane, client: Client, member: LocalCluster, name: str
) -> None:
    options = ("--cluster-provider", "p", "--cluster-region", "r", "--cluster-zones", "a, b")
    told = await join(plane, name, *options, "--remove-strategy", "Required")
    assert told.code == 0, told.err
    identity = await member.client.cluster_uid()
    assert told.out.strip() == f"{name} joined (cluster ID {identity})"

    it = await client.get(CLUSTERS, name, type=Cluster)
    assert (it.spec.id, it.spec.sync_mode, it.spec.api_endpoint) == (identity, "Push", member.server)
    assert (it.spec.provider, it.spec.region, it.spec.zones) == ("p", "r", ("a", "b"))
    assert it.removal is RemoveStrategy.REQUIRED
    assert REMOVE_STRATEGY_ANNOTATION not in it.metadata.annotations
    assert await found(client, NAMESPACES, f"karmada-es-{name}")

    secret = await client.get(SECRETS, name, **WHERE)
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Cluster", it.metadata.uid)
    way = credentials.connection(targets.of_karmada(it), secret)
    async with Client(way) as by_token:
        # Whatever a Work is of.
        await by_token.create(CONFIG_MAPS, new_object(CONFIG_MAPS, name, "default"))
        made = await by_token.get(CONFIG_MAPS, name, namespace="default")
        await by_token.delete(CONFIG_MAPS, name, uid=made["metadata"]["uid"], namespace="default")
        assert b"gitVersion" in await by_token.raw("/version")
    async with Members(client) as fleet, fleet.member(targets.of_karmada(it), system_uid=identity):
        pass
    token = tokens.read_claims(way.credential.token)  # type: ignore[union-attr]
    assert token
    assert (token.namespace, token.account) == (KARMADA_CLUSTER_NAMESPACE, f"karmada-{name}")
    assert token.expires > token.issued


async def test_joined_again_nothing_changes_but_what_is_asked(plane: Plane, client: Client, name: str) -> None:
    assert (await join(plane, name)).code == 0
    before = [await client.get(CLUSTERS, name), await client.get(SECRETS, name, **WHERE)]
    again = await join(plane, name, "-o", "json")
    assert again.code == 0, again.err
    done = msgspec.json.decode(again.out)["items"]
    assert {item["result"] for item in done} == {"unchanged"}
    assert {(item["kind"], item["where"]) for item in done} >= {
        ("ServiceAccount", "member"),
        ("Cluster", "control plane"),
    }
    assert [await client.get(CLUSTERS, name), await client.get(SECRETS, name, **WHERE)] == before

    assert (await join(plane, name, "--cluster-region", "r2")).code == 0
    it = await client.get(CLUSTERS, name, type=Cluster)
    assert it.spec.region == "r2"
    assert it.metadata.uid == before[0]["metadata"]["uid"]


async def test_what_would_be_made_is_printed_and_nothing_is_made(
    plane: Plane, client: Client, member: LocalCluster, name: str
) -> None:
    told = await join(plane, name, "--dry-run", "--remove-strategy", "Required")
    assert told.code == 0, told.err
    documents = list(yaml.safe_load_all(told.out))
    assert [document["kind"] for document in documents] == [
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"),
        *("Namespace", "Secret", "Cluster", "Namespace"),
    ]
    assert documents[6]["spec"]["removeStrategy"] == "Required"
    as_json = msgspec.json.decode((await join(plane, name, "--dry-run", "-o", "json")).out)
    assert [item["kind"] for item in as_json["items"]] == [document["kind"] for document in documents]
    assert await remains(client, member.client, name) == []


async def test_a_member_is_not_joined_under_a_second_name(
    plane: Plane, client: Client, member: LocalCluster, name: str
) -> None:
    assert (await join(plane, name)).code == 0
    other = a_name()
    for more in ((), ("--dry-run",)):
        refusal = (await join(plane, other, *more)).refusal
        assert f"this cluster is already joined as {name}; unjoin {name} first" in refusal
    assert await remains(client, member.client, other) == []


async def test_of_two_who_join_a_cluster_at_once_under_two_names_one_succeeds(
    client: Client, member: LocalCluster
) -> None:
    names = [a_name(), a_name()]
    ended = await asyncio.gather(
        *(karmada_join.join(client, member.client, JoinOptions(name=name)) for name in names), return_exceptions=True
    )
    try:
        [joined] = [item for item in ended if isinstance(item, karmada_join.Joined)]
        [refused] = [item for item in ended if isinstance(item, UnwindError)]
        assert f"already joined as {joined.name}" in str(refused)
        [other] = set(names) - {joined.name}
        await object_watch.until_absent(client, NAMESPACES, f"karmada-es-{other}")
        assert await remains(client, member.client, other) == []
    finally:
        for name in names:
            await clear(client, name)
            await karmada_join.take_out(
                member.client, name, KARMADA_CLUSTER_NAMESPACE, joined_to=await client.cluster_uid()
            )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"id": "somebody-else"}, "is taken by cluster somebody-else"),
        ({}, "is taken by a cluster without an id"),
    ],
)
async def test_a_name_that_is_taken_is_refused(
    plane: Plane, client: Client, name: str, spec: Object, said: str
) -> None:
    made = await client.create(CLUSTERS, new_object(CLUSTERS, name, spec={"syncMode": "Push", **spec}))
    assert said in (await join(plane, name)).refusal
    assert (await client.get(CLUSTERS, name))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_member_that_is_being_unjoined_is_not_joined(plane: Plane, client: Client, name: str) -> None:
    assert (await join(plane, name)).code == 0
    made = await client.patch(CLUSTERS, name, {"metadata": {"finalizers": ["example.dev/holds"]}})
    await client.delete(CLUSTERS, name, uid=made["metadata"]["uid"])
    assert f"cannot join {name}: it is being unjoined; wait" in (await join(plane, name)).refusal


async def test_what_cannot_be_joined_is_told_in_one_line(plane: Plane, client: Client, tmp_path: Path) -> None:
    here, there = plane.management.kubeconfig, plane.members["member-1"].kubeconfig
    nowhere, name = tmp_path / "nowhere", a_name()
    nowhere.write_text(there.read_text().replace(plane.members["member-1"].server, "https://127.0.0.1:1"))
    for given, said in (
        ({"name": "Not_A_Name"}, "invalid name 'Not_A_Name'; use lower case letters"),
        ({"name": "a" * 49}, "invalid name"),
        ({"cluster_namespace": "No"}, "invalid --cluster-namespace 'No'"),
        ({"remove_strategy": "required"}, "invalid --remove-strategy 'required' (valid: Needless, Required)"),
        ({"cluster_context": "none"}, "no 'none' in contexts"),
        ({"cluster_kubeconfig": tmp_path / "none"}, "--cluster-kubeconfig: cannot read the kubeconfig"),
        ({"cluster_kubeconfig": nowhere}, "check --cluster-kubeconfig"),
        ({"kubeconfig": nowhere}, "to the control plane at"),
        (
            {"kubeconfig": there},
            "is not installed; run `unwind install --features karmada` first",
        ),
    ):
        with pytest.raises(UnwindError) as refusal:
            await cli_join(**{"name": name, "kubeconfig": here, "cluster_kubeconfig": there, **given})  # type: ignore[arg-type]
        assert said in str(refusal.value)
        assert "\n" not in str(refusal.value)
    # As a person sees it.
    assert "invalid name" in (await join(plane, "Not_A_Name")).refusal


async def test_somebody_elses_account_is_not_taken_over(
    plane: Plane, client: Client, member: LocalCluster, name: str
) -> None:
    theirs = await member.client.create(
        SERVICE_ACCOUNTS, new_object(SERVICE_ACCOUNTS, account(name), KARMADA_CLUSTER_NAMESPACE)
    )
    refusal = (await join(plane, name)).refusal
    assert f"ServiceAccount karmada-cluster/{account(name)} in the member was not created by this join" in refusal
    assert await remains(client, member.client, name) == ["ServiceAccount"]
    uid = theirs["metadata"]["uid"]
    await member.client.delete(SERVICE_ACCOUNTS, account(name), uid=uid, namespace=KARMADA_CLUSTER_NAMESPACE)


@asynccontextmanager
async def failing(plane: Plane, write: int, how: str) -> AsyncIterator[tuple[Client, Client]]:
    """Clients of both sides, of whose writes one fails."""
    count = [write]
    ways = [item.client.connection for item in (plane.management, plane.members["member-1"])]
    transports = [FailingTransport(way, count, how) for way in ways]
    async with Client(ways[0], transport=transports[0]) as home, Client(ways[1], transport=transports[1]) as member:
        yield home, member


@pytest.mark.parametrize("how", ["refused", "unanswered", "killed before", "killed after"])
async def test_whichever_write_fails_it_is_taken_back_or_gone_on_with(
    plane: Plane, client: Client, member: LocalCluster, how: str
) -> None:
    name, write, ended = a_name(), 0, ""
    left: list[str] = []
    while ended != "joined":
        write += 1
        async with failing(plane, write, how) as (home, there):
            try:
                await karmada_join.join(home, there, JoinOptions(name=name, remove_strategy=RemoveStrategy.REQUIRED))
                ended = "joined"
            except UnwindError as error:
                ended = str(error)
            except Killed:
                ended = "killed"
        before, left = left, await remains(client, member.client, name)
        if how == "refused" and ended != "joined":
            assert left == [], f"after write {write}: {ended}"
        if how == "unanswered" and ended != "joined":
            # Nobody knows whether it is of this call: so it stays, and is named.
            assert all(kind in ended for kind in left if kind not in before), f"after write {write}: {ended}"
        if how == "refused" and "karmada-es-" in ended:
            await object_watch.until_absent(client, NAMESPACES, f"karmada-es-{name}")
    try:
        assert write > 8
        it = await client.get(CLUSTERS, name, type=Cluster)
        assert it.removal is RemoveStrategy.REQUIRED
        assert len(await remains(client, member.client, name)) == 6
        secret = await client.get(SECRETS, name, **WHERE)
        assert secret["metadata"]["ownerReferences"][0]["uid"] == it.metadata.uid
    finally:
        await clear(client, name)
        await karmada_join.take_out(
            member.client, name, KARMADA_CLUSTER_NAMESPACE, joined_to=await client.cluster_uid()
        )


async def test_a_token_that_serves_no_longer_is_another_one_after_joining_again(
    plane: Plane, client: Client, name: str
) -> None:
    assert (await join(plane, name)).code == 0
    await client.patch(SECRETS, name, {"data": {"token": "bm9uZQ=="}}, namespace=WHERE["namespace"])
    assert (await join(plane, name)).code == 0
    it = await client.get(CLUSTERS, name, type=Cluster)
    async with Members(client) as fleet, fleet.member(targets.of_karmada(it), system_uid=it.spec.id):
        pass


async def test_our_end_is_taken_out_and_nothing_of_others(client: Client, member: LocalCluster) -> None:
    name, home = a_name(), await client.cluster_uid()
    namespace = f"{name}-home"
    await karmada_join.join(client, member.client, JoinOptions(name=name, namespace=namespace))
    try:
        assert await karmada_join.take_out(member.client, name, namespace, joined_to="another") == []
        note = await member.client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "note", namespace))
        binding = await member.client.get(CLUSTER_ROLE_BINDINGS, role(name))
        assert binding["metadata"]["labels"][JOINED_LABEL] == home
        # Somebody has made the role theirs.
        await member.client.patch(CLUSTER_ROLES, role(name), {"metadata": {"labels": {JOINED_LABEL: None}}})
        gone = await karmada_join.take_out(member.client, name, namespace, joined_to=home)
        assert gone == [f"ClusterRoleBinding {role(name)}", f"ServiceAccount {namespace}/{account(name)}"]
        await member.client.delete(CONFIG_MAPS, "note", uid=note["metadata"]["uid"], namespace=namespace)
        assert await karmada_join.take_out(member.client, name, namespace, joined_to=home) == [f"Namespace {namespace}"]
        assert await karmada_join.take_out(member.client, "never", "nowhere", joined_to=home) == []
    finally:
        await clear(client, name)


async def test_where_the_field_is_not_served_an_annotation_says_it(
    plane: Plane, client: Client, member: LocalCluster
) -> None:
    """The other way round: the member is the control plane of the management cluster."""
    [definition] = crds("cluster.karmada.io")
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["removeStrategy"], spec["x-kubernetes-preserve-unknown-fields"]
    made = await member.client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    called, name = made["metadata"]["name"], a_name()
    try:
        await object_watch.until_true(member.client, CUSTOM_RESOURCE_DEFINITIONS, called, "Established")
        await karmada_join.join(member.client, client, JoinOptions(name=name, remove_strategy=RemoveStrategy.REQUIRED))
        it = await member.client.get(CLUSTERS, name, type=Cluster)
        assert it.spec.remove_strategy is None
        assert it.metadata.annotations[REMOVE_STRATEGY_ANNOTATION] == "Required"
        assert it.removal is RemoveStrategy.REQUIRED
    finally:
        await member.client.delete(CUSTOM_RESOURCE_DEFINITIONS, called, uid=made["metadata"]["uid"])
        await object_watch.until_absent(member.client, CUSTOM_RESOURCE_DEFINITIONS, called)
        await karmada_join.take_out(
            client, name, KARMADA_CLUSTER_NAMESPACE, joined_to=await member.client.cluster_uid()
        )
