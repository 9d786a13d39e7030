"""Deletion protection by policies alone: the API server decides, and no process of ours runs."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.commands import command, json_of, kubectl
from tests.plane.support.objects import crd, define, new_object
from tests.plane.support.protected_objects import (
    ROOM,
    apply_policies,
    delete,
    differences,
    ours,
    pod,
    put_all,
    until_answered,
)
from tests.plane.support.protection_table import ALWAYS, BY_ITSELF, LABEL, P
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    STATEFUL_SETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from unwind.api.rights import HOME
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.protection import manifests
from unwind.server.webhook_controller import mended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

# With a machine that is busy; and the objects of a whole table are made first.
pytestmark = pytest.mark.timeout(400)

REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def protected(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A cluster with the objects of all rows, and with the policies."""
    member = await plane.add_member(f"protected-{uuid.uuid4().hex[:8]}")
    await put_all(member.client, BY_ITSELF)
    await member.client.create(DEPLOYMENTS, deployment("in-before", 0, "always"))
    await apply_policies(member.client)
    await until_answered(member.client, BY_ITSELF)
    yield member
    await plane.remove_member(member.name)


async def refused(act: Any) -> str:
    with pytest.raises(ApiError) as refusal:
        await act
    return ours(refusal.value)


async def test_every_row_of_the_table_is_answered_as_it_says(protected: LocalCluster) -> None:
    assert await differences(protected.client, BY_ITSELF) == []


async def test_the_api_server_keeps_every_policy_as_it_was_written_and_finds_no_fault_with_it(
    protected: LocalCluster,
) -> None:
    policies, bindings = manifests.policy_objects(HOME)
    for wanted in policies:
        found = await object_watch.until(
            protected.client,
            VALIDATING_ADMISSION_POLICIES,
            wanted["metadata"]["name"],
            lambda it: bool(it and it.get("status", {}).get("observedGeneration") == it["metadata"]["generation"]),
            "checked",
        )
        assert found
        assert mended(found, wanted) == {}
        assert found["status"]["typeChecking"] == {}, "it would be compared with what it is not"
    for wanted in bindings:
        found = await protected.client.get(VALIDATING_ADMISSION_POLICY_BINDINGS, wanted["metadata"]["name"])
        assert mended(found, wanted) == {}


_SAYS = f"oldObject.metadata.labels['{DELETE_PROTECTION_LABEL}']"
MUTATIONS = {
    "always is no reason": ("== 'Cascading' && (", "!= 'Never' && ("),
    "cascading is not known": ("== 'Cascading' && (", "== 'Never' && ("),
    "an unknown value lets it go": (f"|| ({_SAYS}", f"|| !({_SAYS} in ['Always', 'Cascading']) || ({_SAYS}"),
    "nothing is something": (" > 0 ?", " >= 0 ?"),
    "one is nothing": (" > 0 ?", " > 1 ?"),
    "what is not said is nothing": ("!= null) ? false", "!= null) ? true"),
    "what cannot be read is nothing": ("!= int ? false", "!= int ? true"),
    "what goes already is held": ("!has(oldObject.metadata.deletionTimestamp)", "true"),
    "it is invalid, and not forbidden": ('"reason":"Forbidden"', '"reason":"Invalid"'),
    "other words": ("forbidden by", "denied by"),
}


@pytest.mark.parametrize(("old", "new"), MUTATIONS.values(), ids=list(MUTATIONS))
async def test_a_rule_that_was_changed_is_caught_by_the_table(protected: LocalCluster, old: str, new: str) -> None:
    async with changed(protected.client, old, new):
        await eventually(lambda: differences(protected.client, REPLICATED), "a row that is answered otherwise")
    await until_answered(protected.client, BY_ITSELF)


REPLICATED = [row for row in BY_ITSELF if row.kind.count and row.kind.count.what == "replicas"]


@asynccontextmanager
async def changed(client: Client, old: str, new: str) -> AsyncIterator[None]:
    name = manifests.policy_name("replicas", HOME)
    [policy] = [item for item in manifests.policy_objects(HOME)[0] if item["metadata"]["name"] == name]
    text = msgspec.json.encode(policy).decode()
    assert old in text
    await client.apply(VALIDATING_ADMISSION_POLICIES, msgspec.json.decode(text.replace(old, new)))
    try:
        yield
    finally:
        await client.apply(VALIDATING_ADMISSION_POLICIES, policy)


async def test_a_denial_says_how_to_delete_it_all_the_same_and_that_works(protected: LocalCluster) -> None:
    made = await protected.client.create(DEPLOYMENTS, deployment("web", 0, "Always"))
    said = await refused(delete(protected.client, DEPLOYMENTS, made))
    way = f"kubectl label deployments.apps/web -n {ROOM} {LABEL}-"
    assert said == f"{ALWAYS}; to delete it anyway, remove the label first: {way}"
    assert (await kubectl(protected.kubeconfig, *way.split()[1:])).returncode == 0
    await delete(protected.client, DEPLOYMENTS, made)
    await object_watch.until_absent(protected.client, DEPLOYMENTS, "web", namespace=ROOM)


async def test_of_a_collection_what_is_protected_stays_and_each_is_named(protected: LocalCluster) -> None:
    client = protected.client
    for name, label in (("a", None), ("b", "Always"), ("c", None)):
        body = new_object(CONFIG_MAPS, name, ROOM)
        body["metadata"]["labels"] = {"together": "yes"} | ({LABEL: label} if label else {})
        await client.create(CONFIG_MAPS, body)
    path = f"{CONFIG_MAPS.path(namespace=ROOM)}?labelSelector=together%3Dyes"
    said = await refused(client._write("delete", CONFIG_MAPS, "DELETE", path, {}))
    assert said.endswith(f"kubectl label configmaps/b -n {ROOM} {LABEL}-"), "the request names nobody"
    left = {item["metadata"]["name"] for item in await client.list(CONFIG_MAPS, namespace=ROOM, labels="together=yes")}
    assert "b" in left


async def test_writes_and_subresources_are_nobodys_business(protected: LocalCluster) -> None:
    client = protected.client
    await client.create(DEPLOYMENTS, deployment("scaled", 1, "Always"))
    scale = {"spec": {"replicas": 0}}
    await client.patch(DEPLOYMENTS, "scaled", scale, namespace=ROOM, subresource="scale")
    await client.patch(DEPLOYMENTS, "scaled", {"metadata": {"labels": {"a": "b"}}}, namespace=ROOM)


async def test_an_unknown_value_is_refused_when_it_is_new_or_changed_and_holds_nothing_else_up(
    protected: LocalCluster,
) -> None:
    client = protected.client
    new = new_object(CONFIG_MAPS, "new", ROOM)
    new["metadata"]["labels"] = {LABEL: "always"}
    known = "unknown value (valid: Always, Cascading)"
    assert await refused(client.create(CONFIG_MAPS, new)) == f"{P} {LABEL}=always: {known}"
    # Of some kinds one of the words says nothing.
    [cluster] = [row for row in BY_ITSELF if row.kind.kind == "Cluster" and row.version == "v1alpha1"][:1]
    body = new_object(cluster.resource, "prod")
    body["metadata"]["labels"] = {LABEL: "Cascading"}
    assert (await refused(client.create(cluster.resource, body))).endswith("(valid for a Cluster: Always)")

    # This one got in before there was a policy.
    bad = "in-before"
    await client.patch(DEPLOYMENTS, bad, {"spec": {"replicas": 1}}, namespace=ROOM)
    await client.patch(DEPLOYMENTS, bad, {"spec": {"replicas": 0}}, namespace=ROOM, subresource="scale")
    another = {"metadata": {"labels": {LABEL: "allways"}}}
    assert "allways" in await refused(client.patch(DEPLOYMENTS, bad, another, namespace=ROOM))
    await client.patch(DEPLOYMENTS, bad, {"metadata": {"labels": {LABEL: "Always"}}}, namespace=ROOM)


async def test_what_controllers_make_from_a_template_with_an_unknown_value_is_made(protected: LocalCluster) -> None:
    client = protected.client
    body = deployment("templated", 1)
    body["spec"]["template"]["metadata"]["labels"][LABEL] = "alway"
    await client.create(DEPLOYMENTS, body)
    claims = new_object(
        PERSISTENT_VOLUME_CLAIMS, "data", spec={"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    )
    claims["metadata"]["labels"] = {LABEL: "alway"}
    claims["spec"]["resources"] = {"requests": {"storage": "1Mi"}}
    match = {"app": "stateful"}
    spec = {"replicas": 1, "selector": {"matchLabels": match}, "template": pod(match), "volumeClaimTemplates": [claims]}
    await client.create(STATEFUL_SETS, new_object(STATEFUL_SETS, "stateful", ROOM, spec=spec))
    await object_watch.until(
        client, PERSISTENT_VOLUME_CLAIMS, "data-stateful-0", lambda it: it is not None, "made", namespace=ROOM
    )
    await eventually(lambda: client.list(REPLICA_SETS, namespace=ROOM, labels="app=templated"), "a ReplicaSet")


async def test_a_denial_stands_in_the_api_servers_audit_log_with_its_reason(protected: LocalCluster) -> None:
    made = await protected.client.create(DEPLOYMENTS, deployment("audited", 3, "Cascading"))
    assert "replicas 3>0" in await refused(delete(protected.client, DEPLOYMENTS, made))
    lines = await asyncio.to_thread(protected.audit.path.read_text)
    [entry] = [
        item
        for item in map(msgspec.json.decode, lines.splitlines())
        if item["verb"] == "delete" and item["objectRef"].get("name") == "audited"
    ]
    assert entry["annotations"][f"{manifests.policy_name('replicas', HOME)}/denied"] == "Cascading"
    assert entry["responseStatus"]["code"] == 403


async def test_whoever_deletes_what_only_a_manager_decides_about_is_told_what_to_do_without_one(
    protected: LocalCluster,
) -> None:
    client = protected.client
    body = new_object(NAMESPACES, "full")
    body["metadata"]["labels"] = {LABEL: "Cascading"}
    await client.create(NAMESPACES, body)
    told = crd(Resource("told.dev", "v1", "tolds", "Told"))
    told["metadata"]["labels"] = {LABEL: "Cascading"}
    await define(client, told)
    for kind, name in (("namespaces", "full"), ("customresourcedefinitions.apiextensions.k8s.io", "tolds.told.dev")):
        said = await kubectl(protected.kubeconfig, "delete", kind, name, "--dry-run=server")
        assert f"Warning: Validation failed for ValidatingAdmissionPolicy '{manifests.PREFIX}unanswered" in said.stderr
        assert f"remove the label first: kubectl label {kind}/{name} {LABEL}-" in said.stderr
    said = await kubectl(protected.kubeconfig, "delete", "namespace", ROOM, "--dry-run=server")
    assert "Warning" not in said.stderr, "it is not labelled"


async def test_protect_says_who_keeps_it_and_what_it_is_not_protected_against_and_unprotect_lets_it_go(
    protected: LocalCluster,
) -> None:
    client = protected.client
    await client.create(DEPLOYMENTS, deployment("kept", 2))
    told = await json_of(protected, "protect", "deploy/kept", "-n", ROOM)
    assert (await client.get(DEPLOYMENTS, "kept", namespace=ROOM))["metadata"]["labels"][LABEL] == told["label"]
    assert (told["label"], told["enforced"]["way"]) == ("Always", "policy")
    assert told["now"].startswith(ALWAYS)
    assert "in the foreground" not in " ".join(told["notAgainst"])
    told = await json_of(protected, "protect", "deployments.apps/kept", "-n", ROOM, "--cascading")
    assert (told["label"], told["before"]) == ("Cascading", "Always")
    assert "and replicas 2>0" in told["now"]

    owned = await eventually(lambda: client.list(REPLICA_SETS, namespace=ROOM, labels="app=kept"), "a ReplicaSet")
    told = await json_of(protected, "protect", f"rs/{owned[0]['metadata']['name']}", "-n", ROOM)
    assert any(item.startswith("the deletion of Deployment kept, which owns it: ") for item in told["notAgainst"])

    told = await json_of(protected, "unprotect", "deploy/kept", "-n", ROOM)
    assert (told.get("label"), told["before"], told.get("now")) == (None, "Cascading", None)
    assert "labels" not in (await client.get(DEPLOYMENTS, "kept", namespace=ROOM))["metadata"]

    for kind in ("cm/any", "clusters.cluster.karmada.io/any"):
        refusal = (await command(protected, "protect", kind, "--cascading")).refusal
        assert "does not count dependents of this kind; omit --cascading" in refusal
    refusal = (await command(protected, "protect", "ns/nowhere")).refusal
    assert "Namespace nowhere not found" in refusal
    [going] = [row for row in BY_ITSELF if row.state == "terminating" and row.kind.kind == "Secret"]
    refusal = (await command(protected, "protect", f"secret/{going.name}", "-n", ROOM)).refusal
    assert "it is already being deleted" in refusal


async def test_protect_says_that_nobody_keeps_it_where_nobody_does(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "alone", namespace))
    told = await command(plane.management, "protect", "cm/alone", "-n", namespace)
    assert told.code == 1
    assert "not enforced: " in told.out
    assert "a DELETE now would be allowed" in told.out
    assert f"ConfigMap {namespace}/alone is labelled but not protected: nothing enforces it" in told.err
    assert (await client.get(CONFIG_MAPS, "alone", namespace=namespace))["metadata"]["labels"] == {LABEL: "Always"}
    told = await command(plane.management, "unprotect", "cm/alone", "-n", namespace)
    assert f"ConfigMap {namespace}/alone is no longer protected (it was Always)" in told.out


def deployment(name: str, replicas: int, label: str = "") -> Object:
    match = {"app": name}
    spec = {"replicas": replicas, "selector": {"matchLabels": match}, "template": pod(match)}
    body = new_object(DEPLOYMENTS, name, ROOM, spec=spec)
    body["metadata"]["labels"] = {LABEL: label} if label else {}
    return body
