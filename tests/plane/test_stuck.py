"""`unwind why --stuck` on real API servers: what does not go away is found and explained, on all members."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest_asyncio
import yaml

from tests.plane.support.why_answers import Asker
from tests.plane.support.why_objects import HOLD, node, pod
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PODS,
    SECRETS,
)
from unwind.api.sveltos import SVELTOS_CLUSTERS
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.members.members import Members
from unwind.why import stuck
from unwind.why.answers import AnswerState, Effect
from unwind.why.reachable_clusters import ReachableCluster
from unwind.why.stuck import StuckObject, StuckReport, find_stuck

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

_NOW = timedelta(0)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def here() -> AsyncIterator[Plane]:
    """A plane of these tests' own: they list all of it, and all of its members."""
    async with running(Shape(members=2), announce=print) as plane:
        asker = Asker(plane.management)
        done = await asker.shell("unwind crds -o yaml | kubectl apply --server-side -f -")
        assert done.returncode == 0, done.stderr
        for name in ("sveltosclusters.lib.projectsveltos.io", "clusters.cluster.karmada.io"):
            await object_watch.until_true(asker.client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established")
        yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def asker(here: Plane) -> Asker:
    name = f"stuck-{secrets.token_hex(3)}"
    await here.management.create_namespace(name)
    return Asker(here.management, name)


async def held(asker: Asker, name: str) -> str:
    """The uid of a ConfigMap that is terminating, and stays."""
    made = await asker.make(CONFIG_MAPS, name, finalizers=[HOLD])
    await asker.delete(CONFIG_MAPS, made)
    uid: str = made["metadata"]["uid"]
    return uid


async def found(client: Client, *, older_than: timedelta = _NOW, members: bool = False) -> StuckReport:
    async with Members(client) as fleet:
        return await find_stuck(ReachableCluster(client, fleet=fleet), older_than=older_than, members=members)


def only(report: StuckReport, uid: str) -> StuckObject:
    [one] = [one for one in report.objects if one.object.uid == uid]
    return one


@asynccontextmanager
async def registered(asker: Asker, kubeconfig: str) -> AsyncIterator[str]:
    """A SveltosCluster with this kubeconfig, as the report names it; it is gone at the end."""
    name = f"edge-{secrets.token_hex(3)}"
    await asker.make(SECRETS, f"{name}-sveltos-kubeconfig", stringData={"kubeconfig": kubeconfig})
    made = await asker.make(SVELTOS_CLUSTERS, name, spec={})
    try:
        yield f"SveltosCluster {asker.namespace}/{name}"
    finally:
        await asker.delete(SVELTOS_CLUSTERS, made)
        await asker.until_gone(SVELTOS_CLUSTERS, name)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The address of a server that accepts connections and never answers."""
    opened: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: opened.append(writer), "127.0.0.1", 0)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in opened:
            writer.close()


def at(cluster: LocalCluster, server: str) -> str:
    """The kubeconfig of a cluster, with another address."""
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = server
    return yaml.safe_dump(document)


async def test_only_what_has_been_terminating_for_longer_is_listed(asker: Asker) -> None:
    uid = await held(asker, "recent")
    await asker.make(CONFIG_MAPS, "standing", finalizers=[HOLD])
    assert only(await found(asker.client), uid).object.name == "recent"
    later = await found(asker.client, older_than=timedelta(hours=1))
    assert uid not in {one.object.uid for one in later.objects}
    assert "standing" not in {one.object.name for one in (await found(asker.client)).objects}


async def test_each_object_has_its_cause_and_the_command_that_frees_it(asker: Asker) -> None:
    uid = await held(asker, "explained")
    one = only(await found(asker.client), uid)
    assert one.state is AnswerState.HELD
    assert f"blocked by finalizer {HOLD} (no controller found" in one.why
    assert one.actor
    [remedy] = one.remedies
    assert remedy.effect is Effect.LEAVES
    await asker.do(remedy)
    await asker.until_gone(CONFIG_MAPS, "explained")


async def test_a_namespace_is_listed_with_the_object_that_holds_it(asker: Asker) -> None:
    uid = await held(asker, "inside")
    space = await asker.client.get(NAMESPACES, asker.namespace)
    await asker.delete(NAMESPACES, space)
    report = await found(asker.client)
    assert f"waiting for ConfigMap {asker.namespace}/inside" in only(report, space["metadata"]["uid"]).why
    await asker.do(only(report, uid).remedies[0])
    await asker.until_gone(NAMESPACES, asker.namespace)


async def test_a_pod_counts_from_the_request_and_not_from_the_end_of_its_grace_period(asker: Asker) -> None:
    await node(asker, "gone-node", ready="Unknown")
    made = await pod(asker, "lingering", node="gone-node", grace=3600)
    await asker.delete(PODS, made)
    one = only(await found(asker.client), made["metadata"]["uid"])
    assert one.object.kind == "Pod"
    ends = (await asker.client.get(PODS, "lingering", namespace=asker.namespace))["metadata"]["deletionTimestamp"]
    assert one.since.isoformat() < ends.replace("Z", "+00:00")


async def test_what_is_beyond_the_limit_is_named_with_the_command_that_explains_it(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "EXPLAINED", 0)
    uid = await held(asker, "many")
    one = only(await found(asker.client), uid)
    assert one.state is AnswerState.NOT_KNOWN
    assert f"waiting for {HOLD}" in one.why
    assert f"`unwind why configmap/many -n {asker.namespace}`" in one.why


async def test_members_are_searched_and_one_that_does_not_answer_is_named(here: Plane, asker: Asker) -> None:
    first, second = here.members["member-1"], here.members["member-2"]
    afar = [await held(Asker(member), "afar") for member in (first, second)]
    home = await held(asker, "near")
    async with (
        silent_server() as silent,
        registered(asker, first.kubeconfig.read_text()) as one,
        registered(asker, second.kubeconfig.read_text()) as two,
        registered(asker, at(first, "https://127.0.0.1:1")) as closed,
        registered(asker, at(first, silent)) as mute,
        registered(asker, here.management.kubeconfig.read_text()),
    ):
        report = await found(asker.client, members=True)
        assert [only(report, uid).cluster for uid in (*afar, home)] == [one, two, ""]
        assert report.clusters == 3
        assert {one.cluster for one in report.unanswered} == {closed, mute}
        # As it is typed: the commands work on the member.
        shown = await asker.shell("unwind why --stuck --all-clusters --older-than 0s -o json")
        assert shown.returncode == 0, shown.stderr
        read = msgspec.json.decode(shown.stdout, type=StuckReport)
        for member, uid in zip((first, second), afar, strict=True):
            await asker.do(only(read, uid).remedies[0])
            await Asker(member).until_gone(CONFIG_MAPS, "afar")


async def test_two_objects_that_represent_one_cluster_give_one_row(here: Plane, asker: Asker) -> None:
    member = here.members["member-1"]
    uid = await held(Asker(member), "twice")
    content = member.kubeconfig.read_text()
    async with registered(asker, content), registered(asker, content):
        report = await found(asker.client, members=True)
    await Asker(member).do(only(await found(member.client), uid).remedies[0])
    assert only(report, uid).cluster


async def test_a_kind_that_the_user_may_not_list_is_named(here: Plane, asker: Asker) -> None:
    uid = await held(asker, "readable")
    name = f"reader-{asker.namespace}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    await asker.make(CLUSTER_ROLES, name, rules=rules)
    await asker.make(
        CLUSTER_ROLE_BINDINGS,
        name,
        subjects=[{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}],
        roleRef={"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"},
    )
    async with Client(here.management.connection(name)) as client:
        report = await found(client, members=True)
    assert only(report, uid).state is AnswerState.HELD
    [forbidden] = report.unlisted
    what = "you are not allowed to list them; ask an administrator for the right, or use another user"
    assert forbidden.message == what
    assert {"secrets", "deployments.apps"} <= set(forbidden.kinds)
    assert "configmaps" not in forbidden.kinds
    assert any("sveltosclusters" in note for note in report.notes)


async def test_the_command_prints_each_object_and_what_to_type(asker: Asker) -> None:
    await held(asker, "printed")
    shown = await asker.shell(f"unwind why --stuck --older-than 0s -n {asker.namespace}")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"ConfigMap {asker.namespace}/printed, terminating for ")
    assert any(line.startswith("    kubectl patch ") for line in lines)
    assert lines[-1] == "1 object terminating for longer than 0s, 1 cluster examined"
    later = await asker.shell(f"unwind why --stuck -n {asker.namespace}")
    assert later.stdout == "0 objects terminating for longer than 10m, 1 cluster examined\n"
