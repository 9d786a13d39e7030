"""Claims of StatefulSets stay, and are in the ledger, whichever way the StatefulSet goes; unless it was asked for."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support import cluster_teardowns, profiles, unjoins
from tests.plane.support.profiles import config_map
from tests.plane.support.removals import stateful_set, until_claimed
from tests.plane.support.requested_deletions import ANYTHING, Command, Room, manager, policies, tidy, user
from unwind.api.karmada import WORKS, RemoveStrategy
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import REQUEST_PREFIX, SCALE_TO_ZERO_ANNOTATION, VOLUMES_ANNOTATION
from unwind.api.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STATEFUL_SETS
from unwind.api.rights import Right
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.helm.program import Helm
from unwind.kube import kubeconfig, object_watch
from unwind.kube.errors import ApiError
from unwind.local import build, tools
from unwind.teardown.requests import request_manifest
from unwind.testing.charts import pack, unpack_chart
from unwind.testing.managers import granting
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.api.unwind import Inventory, Teardown
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane

pytestmark = pytest.mark.timeout(300)

CLAIM = "data-db-0"
DELETE = {VOLUMES_ANNOTATION: "Delete"}


def database(namespace: str) -> Object:
    """A StatefulSet with a claim."""
    body = stateful_set(namespace, "db", replicas=1)
    return {"apiVersion": STATEFUL_SETS.api_version, "kind": STATEFUL_SETS.kind, **body}


async def left(client: Client, namespace: str) -> list[str]:
    found = await client.list(PERSISTENT_VOLUME_CLAIMS, namespace=namespace)
    return [item["metadata"]["name"] for item in found]


def ledger(chunks: list[Inventory]) -> dict[str, str]:
    """The names of the objects in the ledger, and why they are in it."""
    entries = [entry for chunk in chunks for entry in chunk.spec.entries.values()]
    return {entry.object.name: entry.ledger.reason for entry in entries if entry.ledger}


def planned(teardown: Teardown) -> list[str]:
    """What the plan says of claims that stay, up to the reason."""
    assert teardown.spec.plan
    return [warning.partition(" stays: ")[0] for warning in teardown.spec.plan.warnings]


async def annotate(scene: profiles.ProfileScene, profile: str, annotations: dict[str, str]) -> None:
    await scene.client.patch(CLUSTER_PROFILES, scene.called(profile), {"metadata": {"annotations": annotations}})


@pytest_asyncio.fixture(loop_scope="session")
async def edge(plane: Plane, namespace: str) -> AsyncIterator[profiles.ProfileScene]:
    await profiles.install(plane.management.client)
    async with profiles.playing(plane, namespace) as scene:
        yield scene


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_a_set_that_drops_out_of_a_profile_and_one_that_is_withdrawn(
    edge: profiles.ProfileScene, policy: str
) -> None:
    member, room = edge.member.client, edge.namespace
    await edge.source("db", database(room), config_map(room, "a"))
    await edge.register()
    await edge.profile("db", "db")
    await annotate(edge, "db", {VOLUMES_ANNOTATION: policy})
    kept = [CLAIM] if policy == "Retain" else []
    async with profiles.running(edge.client, room):
        await edge.until_provisioned("db")
        await until_claimed(member, room, CLAIM)
        uid = (await edge.summary("db")).metadata.uid
        # Pruned.
        await edge.edit("db", config_map(room, "a"), config_map(room, "b"))
        await object_watch.until_absent(member, STATEFUL_SETS, "db", namespace=room)
        await edge.edit("db", config_map(room, "a"), config_map(room, "c"))
        await edge.until_off_member("b")  # it has looked again, and prunes no claim that it kept
        assert await left(member, room) == kept
        # Deployed again, and withdrawn.
        await edge.edit("db", database(room))
        await edge.until_off_member("a")
        await until_claimed(member, room, CLAIM)
        await edge.delete_profile("db")
        await edge.until_profile_gone("db")
        assert await left(member, room) == kept
    assert ledger(await edge.inventories(uid)) == dict.fromkeys(kept, "KeptByPolicy")


async def test_an_unknown_word_on_a_profile_withdraws_nothing_and_says_so(edge: profiles.ProfileScene) -> None:
    member, room = edge.member.client, edge.namespace
    await edge.source("db", database(room), config_map(room, "a"))
    await edge.register()
    await edge.profile("db", "db")
    async with profiles.running(edge.client, room, clock=SYSTEM):
        await edge.until_provisioned("db")
        await until_claimed(member, room, CLAIM)
        await annotate(edge, "db", {VOLUMES_ANNOTATION: "delete"})
        await edge.delete_profile("db")
        await edge.until_summary("db", lambda it: VOLUMES_ANNOTATION in str(it.status), "held")
        assert set(await edge.on_member()) == {"a"}
        await member.get(STATEFUL_SETS, "db", namespace=room)
        await annotate(edge, "db", DELETE)
        await edge.until_profile_gone("db")
        assert await left(member, room) == []


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[cluster_teardowns.DeployedScene]:
    """A Cluster of Cluster API."""
    scene = cluster_teardowns.DeployedScene(plane, namespace)
    await scene.begin()
    yield scene
    await scene.clear()


@pytest.mark.parametrize("policy", ["", "Delete"])
async def test_a_cluster_that_is_deleted(scene: cluster_teardowns.DeployedScene, namespace: str, policy: str) -> None:
    await scene.source("db", database(namespace))
    await scene.profile("db", "db", clusterDeletionBehavior="EnforceRemovePolicies")
    if policy:
        await annotate(scene, "db", {VOLUMES_ANNOTATION: policy})
    async with cluster_teardowns.all_controllers(scene.client, namespace):
        await scene.deployed("db")
        await until_claimed(scene.member.client, namespace, CLAIM)
        uid = (await scene.summary_of("db")).metadata.uid
        await scene.cluster.delete()
        teardown = await scene.cluster.ended()
        assert teardown.phase is Phase.COMPLETE
        assert teardown.status.left == (0 if policy else 1)
        assert planned(teardown) == ([] if policy else [f"PersistentVolumeClaim {namespace}/{CLAIM}"])
        assert await left(scene.member.client, namespace) == ([] if policy else [CLAIM])
        assert ledger(await scene.inventories(uid)) == ({} if policy else {CLAIM: "KeptByPolicy"})
        await cluster_teardowns.until_let_go(scene)
        await scene.cluster.go()
        await scene.until_summaries_gone("db")


async def test_the_plan_of_a_cluster_names_local_claims_that_stay(
    scene: cluster_teardowns.DeployedScene, plane: Plane, namespace: str
) -> None:
    room = f"{namespace}-local"  # the other one is Unwind's own, where no profile puts anything
    await plane.management.create_namespace(room)
    await scene.source("db", database(room))
    refs = [ref | {"deploymentType": "Local"} for ref in scene.refs("db")]
    await scene.profile("db", policyRefs=refs, clusterDeletionBehavior="EnforceRemovePolicies")
    deploys = Right("*", ("*",), ("get", "list", "watch", "create", "patch", "delete"))
    async with granting(scene.client, namespace, deploys), cluster_teardowns.all_controllers(scene.client, namespace):
        await scene.deployed("db")
        await until_claimed(scene.client, room, CLAIM)
        await scene.cluster.delete()
        teardown = await scene.cluster.ended()
        assert planned(teardown) == [f"PersistentVolumeClaim {room}/{CLAIM}"]
        assert await left(scene.client, room) == [CLAIM]
        await scene.cluster.go()
        await scene.until_summaries_gone("db")


async def test_a_member_that_does_not_answer_holds_no_plan_up_for_its_claims(
    scene: cluster_teardowns.DeployedScene, namespace: str
) -> None:
    await scene.source("db", database(namespace))
    await scene.profile("db", "db", clusterDeletionBehavior="EnforceRemovePolicies")
    way = kubeconfig.load(scene.member.kubeconfig)
    async with Proxy(scene.member.server) as proxy, AsyncExitStack() as stack:
        # Before anything connects: the manager has one connection to a member.
        await scene.cluster.lead_to(msgspec.structs.replace(way, server=proxy.url))
        await stack.enter_async_context(
            cluster_teardowns.all_controllers(scene.client, namespace, clock=SYSTEM),
        )
        await scene.deployed("db")
        await until_claimed(scene.member.client, namespace, CLAIM)
        proxy.close()
        await scene.cluster.delete()
        teardown = await scene.cluster.teardown(lambda it: it.spec.plan is not None, "planned")
        assert teardown.spec.plan
        [warning] = teardown.spec.plan.warnings
        assert warning.startswith("cannot list the PersistentVolumeClaims that stay after StatefulSets of ")
        assert "cannot connect to" in warning
        proxy.reopen()
        ended = await scene.cluster.ended()
        assert (ended.phase, ended.spec.plan) == (Phase.COMPLETE, teardown.spec.plan)
        assert await left(scene.member.client, namespace) == [CLAIM]
        await scene.cluster.go()
        await scene.until_summaries_gone("db")


@pytest.mark.parametrize("policy", ["", "Delete"])
async def test_a_member_that_is_unjoined_and_a_work_that_is_deleted(plane: Plane, namespace: str, policy: str) -> None:
    async with (
        unjoins.scene(plane, namespace, remove_strategy=RemoveStrategy.REQUIRED) as it,
        unjoins.controllers(it.client, namespace),
    ):
        member = it.cluster.client
        for name in ("first", "second"):
            room = f"{namespace}-{name}"
            await it.cluster.create_namespace(room)
            await it.work(name, database(room))
            if policy:
                patch = {"metadata": {"annotations": {VOLUMES_ANNOTATION: policy}}}
                await it.client.patch(WORKS, name, patch, namespace=it.execution)
            await it.deployed(name)
            await until_claimed(member, room, CLAIM)
        uids = {name: await it.work_uid(name) for name in ("first", "second")}
        found = await it.client.get(WORKS, "first", namespace=it.execution)
        await it.client.delete(WORKS, "first", uid=found["metadata"]["uid"], namespace=it.execution)
        await object_watch.until_absent(it.client, WORKS, "first", namespace=it.execution)
        await it.delete()
        teardown = await it.gone()
        assert teardown.phase is Phase.COMPLETE
        # The first was withdrawn before, and its claim is in its ledger.
        assert planned(teardown) == ([] if policy else [f"PersistentVolumeClaim {namespace}-second/{CLAIM}"])
        for name, uid in uids.items():
            assert await left(member, f"{namespace}-{name}") == ([] if policy else [CLAIM])
            assert ledger(await it.inventories.of(uid)) == ({} if policy else {CLAIM: "KeptByPolicy"})


async def test_a_helm_release_may_have_the_claims_deleted(edge: profiles.ProfileScene, tmp_path: Path) -> None:
    member, room = edge.member.client, edge.namespace
    template = msgspec.json.encode(database(room)).decode()
    directory = unpack_chart(pack("database", {"values.yaml": "{}", "templates/db.yaml": template}), tmp_path)
    helm = Helm((await build.ensure([tools.HELM]))["helm"].path, charts=tmp_path)
    chart = {"repositoryURL": directory.as_uri(), "releaseName": "db", "releaseNamespace": room}
    await edge.register()
    await edge.profile("db", helmCharts=[chart])
    await annotate(edge, "db", DELETE)
    async with profiles.running(edge.client, room, helm=helm):
        await edge.until_summary("db", lambda it: profiles.feature(it, "Helm") == "Provisioned", "Provisioned")
        await until_claimed(member, room, CLAIM)
        uid = (await edge.summary("db")).metadata.uid
        await edge.delete_profile("db")
        await edge.until_profile_gone("db")
        await object_watch.until_absent(member, STATEFUL_SETS, "db", namespace=room)
    assert await left(member, room) == []
    assert ledger(await edge.inventories(uid)) == {}


# `unwind delete`


@pytest_asyncio.fixture(loop_scope="session")
async def room(plane: Plane) -> AsyncIterator[Room]:
    await profiles.install(plane.management.client)
    home = f"unwind-{uuid.uuid4().hex[:6]}"
    await plane.management.create_namespace(home)
    made = Room(plane.management, home)
    await made.open()
    async with granting(plane.management.client, home, ANYTHING):
        yield made
    await tidy(plane.management.client)


@pytest.fixture
def command(plane: Plane, room: Room, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(plane.management.kubeconfig, room.home, capsys)


async def put_database(room: Room, *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    metadata = {"annotations": annotations or {}}
    await room.put(STATEFUL_SETS, "db", metadata=metadata, spec=database(room.name)["spec"] | spec)
    room.uids[CLAIM] = (await until_claimed(room.client, room.name, CLAIM))["metadata"]["uid"]


async def test_the_plan_names_what_stays_and_the_request_leaves_it(room: Room, command: Command) -> None:
    await put_database(room)
    seen = await command.foreseen("sts/db", namespace=room.name)
    assert [item["object"]["name"] for item in seen["staying"]] == [CLAIM]
    assert "volume claims" not in seen["objects"]
    asked = await command.foreseen("sts/db", namespace=room.name, volumes="Delete")
    assert [item["name"] for item in asked["objects"]["volume claims"]] == [CLAIM]
    async with manager(room.client, room.home):
        outcome = await command.outcome("sts/db", namespace=room.name)
    assert outcome["gone"]
    assert [item["object"]["name"] for item in outcome["left"]] == [CLAIM]
    assert await left(room.client, room.name) == [CLAIM]
    teardown = await room.teardown(lambda it: it.finished, "finished", target="db")
    assert planned(teardown) == [f"PersistentVolumeClaim {room.name}/{CLAIM}"]


async def test_a_set_that_would_lose_its_claims_by_it_is_not_scaled_to_zero(room: Room, command: Command) -> None:
    policy = {"whenDeleted": "Retain", "whenScaled": "Delete"}
    annotations = {SCALE_TO_ZERO_ANNOTATION: "true"}
    await put_database(room, annotations=annotations, persistentVolumeClaimRetentionPolicy=policy)
    scales = Right(STATEFUL_SETS.group, (STATEFUL_SETS.plural,), ("patch",))
    async with granting(room.client, f"{room.home}-scales", scales), manager(room.client, room.home):
        outcome = await command.outcome("sts/db", namespace=room.name)
    assert outcome["gone"]
    assert [item["object"]["name"] for item in outcome["left"]] == [CLAIM]
    claim = await room.client.get(PERSISTENT_VOLUME_CLAIMS, CLAIM, namespace=room.name)
    assert "deletionTimestamp" not in claim["metadata"]
    assert claim["metadata"]["uid"] == room.uids[CLAIM]


async def test_a_namespace_with_such_a_claim_stays_until_its_deletion_is_asked_for(
    room: Room, command: Command
) -> None:
    await put_database(room)
    async with manager(room.client, room.home):
        with pytest.raises(UnwindError, match=f"was kept: .*PersistentVolumeClaim {room.name}/{CLAIM}"):
            await command.delete(f"ns/{room.name}")
        assert await left(room.client, room.name) == [CLAIM]
        # Its StatefulSet is gone: now it is content of the Namespace like any other.
        told = await command.delete(f"ns/{room.name}")
    assert f"Namespace {room.name} is gone" in told
    assert not await room.there(NAMESPACES, room.name, namespace=None)


async def test_a_request_may_have_the_claims_deleted(room: Room, command: Command) -> None:
    await put_database(room)
    async with manager(room.client, room.home):
        outcome = await command.outcome("sts/db", namespace=room.name, volumes="Delete")
    assert outcome["gone"]
    assert "left" not in outcome
    assert await left(room.client, room.name) == []
    assert room.deleted() == ["db", CLAIM]


async def test_who_may_not_delete_claims_may_not_ask_for_it(room: Room) -> None:
    await put_database(room)
    rules = [
        {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "list", "patch"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["delete"]},
    ]

    def body(by: str, volumes: str) -> Any:
        uid = room.uids["db"]
        ref = ObjectRef(group="apps", version="v1", kind="StatefulSet", namespace=room.name, name="db", uid=uid)
        name = f"{REQUEST_PREFIX}{uid}"
        made = manifest(TEARDOWNS, request_manifest(ref, name=name, by=by, plural="statefulsets", now=SYSTEM.now()))
        made["metadata"]["annotations"][VOLUMES_ANNOTATION] = volumes
        return made

    async with policies(room.client, room.home), user(room, "ann", rules) as ann:
        for word in ("Delete", "delete"):
            with pytest.raises(ApiError, match=f"may not set {VOLUMES_ANNOTATION}: {word}"):
                await ann.client.create(TEARDOWNS, body(ann.name, word))
        made = await ann.client.create(TEARDOWNS, body(ann.name, "Retain"))
        with pytest.raises(ApiError, match="only the manager changes"):
            await ann.client.patch(TEARDOWNS, made["metadata"]["name"], {"metadata": {"annotations": DELETE}})
    claims = [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["delete"]}]
    async with policies(room.client, room.home), user(room, "bob", rules, here=claims) as bob:
        again = body(bob.name, "Delete")
        again["metadata"]["name"] += "-2"
        await bob.client.create(TEARDOWNS, again)
