"""The CRDs on the real API server: what it accepts, refuses and keeps, and what `kubectl get` shows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import yaml

from tests.plane.support.crd_examples import EXAMPLES, KINDS
from tests.plane.support.objects import until_allowed, until_refused
from unwind.api import karmada, sveltos, unwind
from unwind.api.crds import DEFINITIONS, KindDefinition
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.api.rights import Setting
from unwind.install.install import established, install
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def member(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A cluster with our kinds in it, and nobody who works on them."""
    member = await plane.add_member(f"crds-{uuid.uuid4().hex[:8]}")
    await install(member.client, Setting())
    yield member
    await plane.remove_member(member.name)


@pytest.fixture
def client(member: LocalCluster) -> Client:
    return member.client


def object_of(resource: Resource, spec: Object, *, name: str = "", **metadata: Any) -> Object:
    where = {"namespace": "default"} if resource.namespaced else {}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name or f"x-{uuid.uuid4().hex[:8]}", **where, **metadata},
        "spec": spec,
    }


def contained(smaller: Any, larger: Any) -> bool:
    if isinstance(smaller, dict):
        return isinstance(larger, dict) and all(contained(value, larger.get(key)) for key, value in smaller.items())
    if isinstance(smaller, list):
        return len(smaller) == len(larger) and all(map(contained, smaller, larger))
    return bool(smaller == larger)


TARGET = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="default", name="prod-7", uid="u-1")
TEARDOWN_SPEC: Object = {
    "title": "Cluster default/prod-7",
    "target": msgspec.to_builtins(TARGET),
    "cause": "ClusterDeleted",
}


INVENTORY_SPEC: Object = {
    "owner": {"kind": "ClusterSummary", "namespace": "default", "name": "base-capi-prod-7", "uid": "u-2"},
    "member": {"object": msgspec.to_builtins(TARGET), "systemUid": "u-3"},
}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda it: it.name)
async def test_the_api_server_serves_every_kind_and_warns_of_nothing(
    client: Client, definition: KindDefinition
) -> None:
    crd = await client.get(CUSTOM_RESOURCE_DEFINITIONS, definition.name)
    assert established(crd)
    assert "NonStructuralSchema" not in {condition["type"] for condition in crd["status"]["conditions"]}

    connection = client.connection
    url = f"{connection.server}{CUSTOM_RESOURCE_DEFINITIONS.path(definition.name)}"
    async with (
        aiohttp.ClientSession() as session,
        session.patch(
            url,
            params={"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"},
            data=msgspec.json.encode(definition.custom_resource_definition()),
            headers={"Content-Type": "application/apply-patch+yaml"},
            ssl=connection.ssl_context(),
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert "Warning" not in answer.headers


PROFILE, MEMBER, WORK = sveltos.CLUSTER_PROFILES, karmada.CLUSTERS, karmada.WORKS


@pytest.mark.parametrize(
    ("resource", "spec", "said"),
    [
        (PROFILE, {"clusterDeletionBehavior": "Enforce"}, r'Unsupported value: "Enforce".*"EnforceRemovePolicies"'),
        (sveltos.PROFILES, {"clusterDeletionBehavior": "leavePolicies"}, "Unsupported value"),
        (PROFILE, {"stopMatchingBehavior": "Withdraw"}, "Unsupported value"),
        (PROFILE, {"syncMode": "Once"}, "Unsupported value"),
        (PROFILE, {"tier": 0}, "greater than or equal to 1"),
        (PROFILE, {"dependsOn": "base"}, "must be of type array"),
        (PROFILE, {"helmCharts": [{"repositoryURL": "https://x"}]}, "releaseName: Required value"),
        (MEMBER, {"syncMode": "Push", "removeStrategy": "required"}, r'Unsupported value: "required".*"Required"'),
        (MEMBER, {}, "syncMode: Required value"),
        (unwind.TEARDOWNS, TEARDOWN_SPEC | {"deadline": "30 minutes"}, "spec.deadline"),
        (unwind.TEARDOWNS, TEARDOWN_SPEC | {"deadline": ""}, "spec.deadline"),
        (unwind.TEARDOWNS, TEARDOWN_SPEC | {"onDeadline": "Delete"}, "Unsupported value"),
        (unwind.TEARDOWNS, {"title": "x", "cause": "ClusterDeleted"}, "spec.target: Required value"),
        (unwind.INVENTORIES, {"owner": INVENTORY_SPEC["owner"]}, "spec.member: Required value"),
        (
            unwind.INVENTORIES,
            INVENTORY_SPEC
            | {"entries": {f"e{n}": {"object": {"kind": "Pod", "name": "p"}, "state": "Intended"} for n in range(501)}},
            "must have at most 500 items",
        ),
        (
            unwind.INVENTORIES,
            INVENTORY_SPEC | {"entries": {"e": {"object": {"kind": "Pod", "name": "p"}, "state": "Gone"}}},
            r'Unsupported value: "Gone".*"Intended"',
        ),
        (unwind.INVENTORIES, INVENTORY_SPEC | {"entries": {"e": {"state": "Intended"}}}, "object: Required value"),
    ],
)
async def test_an_invalid_value_is_refused_with_its_name(
    client: Client, resource: Resource, spec: Object, said: str
) -> None:
    with pytest.raises(ApiError, match=said) as refusal:
        await client.create(resource, object_of(resource, spec))
    assert refusal.value.code == 422


async def test_a_profile_that_depends_on_itself_is_refused(client: Client) -> None:
    with pytest.raises(ApiError, match="dependsOn names the profile itself"):
        await client.create(PROFILE, object_of(PROFILE, {"dependsOn": ["base", "loop"]}, name="loop"))
    created = await client.create(PROFILE, object_of(PROFILE, {"dependsOn": ["base"]}))
    name = created["metadata"]["name"]
    with pytest.raises(ApiError, match="dependsOn names the profile itself"):
        await client.patch(PROFILE, name, {"spec": {"dependsOn": [name]}})


async def test_defaults_are_those_of_the_proposals(client: Client) -> None:
    profile = await client.create(PROFILE, object_of(PROFILE, {}))
    assert profile["spec"] == {
        "clusterDeletionBehavior": "RemovePolicies",
        "stopMatchingBehavior": "WithdrawPolicies",
        "syncMode": "Continuous",
        "tier": 100,
    }
    member = await client.create(MEMBER, object_of(MEMBER, {"syncMode": "Push"}))
    assert member["spec"]["removeStrategy"] == "Needless"


@pytest.mark.parametrize("example", list(yaml.safe_load_all(EXAMPLES)), ids=lambda it: it["metadata"]["name"])
async def test_objects_of_users_of_other_systems_are_accepted_and_kept_whole(client: Client, example: Object) -> None:
    resource = KINDS[example["apiVersion"], example["kind"]]
    await client.create(resource, example)
    kept = await client.get(resource, example["metadata"]["name"], namespace=example["metadata"].get("namespace"))
    assert contained(example, kept)


async def test_status_of_other_systems_is_kept_whole(client: Client) -> None:
    created = await client.create(MEMBER, object_of(MEMBER, {"syncMode": "Push"}))
    condition = {
        "lastTransitionTime": "2021-05-08T12:34:15Z",
        "lastUpdateTime": "2021-05-08T12:34:30Z",
        "message": "Unjoining resources.",
        "reason": "UnjoinCluster",
        "status": "True",
        "type": "Unjoining",
    }
    status = {"conditions": [condition], "nodeSummary": {"totalNum": 3}, "kubernetesVersion": "v1.36.3"}
    name = created["metadata"]["name"]
    patched = await client.patch(MEMBER, name, {"status": status}, subresource="status")
    assert patched["status"] == status


async def columns(client: Client, resource: Resource, name: str) -> dict[str, Any]:
    """The line that `kubectl get` shows."""
    path = resource.path(name, namespace="default" if resource.namespaced else None)
    table = msgspec.json.decode(await client.raw(path, accept=TABLE))
    [row] = table["rows"]
    cells = zip(table["columnDefinitions"], row["cells"], strict=True)
    return {column["name"].upper(): cell for column, cell in cells if column["priority"] == 0}


async def test_kubectl_get_shows_the_progress_and_blocker_of_a_teardown(client: Client) -> None:
    teardown = unwind.Teardown(
        metadata=ObjectMeta(name="u-1"),
        spec=unwind.TeardownSpec(title=str(TARGET), target=TARGET, cause=unwind.Cause.CLUSTER_DELETED.value),
    )
    created = await client.create(unwind.TEARDOWNS, manifest(unwind.TEARDOWNS, teardown))
    assert created["spec"]["onDeadline"] == "Hold"
    status = unwind.TeardownStatus(
        phase=unwind.Phase.HELD.value,
        wave="2/3",
        removed="40/120",
        blocked_by="Service web/front and 2 more",
        blockers=(unwind.Blocker(object=ObjectRef(kind="Service", namespace="web", name="front"), reason="Finalizer"),),
    )
    await client.patch(unwind.TEARDOWNS, "u-1", {"status": msgspec.to_builtins(status)}, subresource="status")
    shown = await columns(client, unwind.TEARDOWNS, "u-1")
    assert list(shown) == ["NAME", "TARGET", "PHASE", "WAVE", "REMOVED", "BLOCKED-BY", "AGE"]
    assert list(shown.values())[1:6] == [
        "Cluster default/prod-7",
        "Held",
        "2/3",
        "40/120",
        "Service web/front and 2 more",
    ]
    read = await client.get(unwind.TEARDOWNS, "u-1", type=unwind.Teardown)
    assert read.spec == teardown.spec
    assert read.status == status


async def test_kubectl_get_shows_the_state_of_add_ons_and_members(client: Client) -> None:
    profile = await client.create(PROFILE, object_of(PROFILE, {"dependsOn": ["base"]}))
    shown = await columns(client, PROFILE, profile["metadata"]["name"])
    assert (shown["ON-CLUSTER-DELETION"], shown["SYNC"]) == ("RemovePolicies", "Continuous")
    assert "base" in shown["NEEDS"]

    member = await client.create(MEMBER, object_of(MEMBER, {"syncMode": "Pull", "removeStrategy": "Required"}))
    shown = await columns(client, MEMBER, member["metadata"]["name"])
    assert (shown["MODE"], shown["ON-UNJOIN"]) == ("Pull", "Required")

    work = await client.create(WORK, object_of(WORK, {"workload": {"manifests": [{"kind": "Secret"}]}}))
    assert (await columns(client, WORK, work["metadata"]["name"]))["WORKLOAD-KIND"] == "Secret"


async def test_all_of_unwinds_kinds_are_in_its_category_and_the_records_have_short_names(client: Client) -> None:
    for definition in DEFINITIONS:
        group = msgspec.json.decode(await client.raw(f"/apis/{definition.resource.api_version}"))
        [served] = [item for item in group["resources"] if item["name"] == definition.resource.plural]
        assert "unwind" in served["categories"]
        if definition.resource.group == unwind.GROUP:
            assert served["shortNames"]


async def test_the_plan_of_a_teardown_is_immutable_once_set(client: Client) -> None:
    created = await client.create(unwind.TEARDOWNS, object_of(unwind.TEARDOWNS, TEARDOWN_SPEC))
    name = created["metadata"]["name"]
    step = unwind.Step(
        name="base", object=ObjectRef(kind="ClusterSummary", name="base"), effort=unwind.Effort.ENFORCE.value, wave=1
    )
    plan = msgspec.to_builtins(unwind.Plan(steps=(step,), waves=1, objects=3))
    await client.patch(unwind.TEARDOWNS, name, {"spec": {"plan": plan}})
    changes: list[Object] = [{"plan": {"waves": 2}}, {"plan": None}]
    for change in changes:
        with pytest.raises(ApiError, match="the plan is immutable once set"):
            await client.patch(unwind.TEARDOWNS, name, {"spec": change})
    changes = [{"target": {"uid": "another"}}, {"cause": "Requested"}, {"title": "another"}]
    for change in changes:
        with pytest.raises(ApiError, match="target, member, cause and title are immutable"):
            await client.patch(unwind.TEARDOWNS, name, {"spec": change})
    await client.patch(unwind.TEARDOWNS, name, {"metadata": {"labels": {"seen": "true"}}})


async def test_the_record_of_a_move_can_become_that_of_a_deletion_with_another_plan_and_never_back(
    client: Client,
) -> None:
    body = object_of(unwind.TEARDOWNS, TEARDOWN_SPEC | {"cause": "Moved", "plan": {"waves": 1}})
    name = (await client.create(unwind.TEARDOWNS, body))["metadata"]["name"]
    await client.patch(unwind.TEARDOWNS, name, {"status": {"phase": "Moved"}}, subresource="status")
    cleared = await client.patch(unwind.TEARDOWNS, name, {"status": None}, subresource="status")
    assert "status" not in cleared
    with pytest.raises(ApiError, match="the plan is immutable once set"):
        await client.patch(unwind.TEARDOWNS, name, {"spec": {"plan": {"waves": 2}}})
    with pytest.raises(ApiError, match="target, member, cause and title are immutable"):
        await client.patch(unwind.TEARDOWNS, name, {"spec": {"cause": "Requested"}})
    planned = {"cause": "ClusterDeleted", "plan": {"waves": 2}}
    await client.patch(unwind.TEARDOWNS, name, {"spec": planned})
    with pytest.raises(ApiError, match="target, member, cause and title are immutable"):
        await client.patch(unwind.TEARDOWNS, name, {"spec": {"cause": "Moved", "plan": {"waves": 1}}})


async def test_the_status_of_a_teardown_is_written_apart_from_its_spec(client: Client) -> None:
    body = object_of(unwind.TEARDOWNS, TEARDOWN_SPEC) | {"status": {"phase": "Complete"}}
    created = await client.create(unwind.TEARDOWNS, body)
    assert "status" not in created
    name = created["metadata"]["name"]
    with pytest.raises(ApiError, match="Unsupported value"):
        await client.patch(unwind.TEARDOWNS, name, {"status": {"phase": "Done"}}, subresource="status")
    blockers = [{"object": {"kind": "Pod", "name": f"p{n}"}, "reason": "Finalizer"} for n in range(21)]
    with pytest.raises(ApiError, match="at most 20 items"):
        await client.patch(unwind.TEARDOWNS, name, {"status": {"blockers": blockers}}, subresource="status")


async def test_every_field_of_an_inventory_entry_is_stored(client: Client) -> None:
    entry = unwind.Entry(
        object=ObjectRef(group="apps", version="v1", kind="Deployment", namespace="web", name="web", uid="u-9"),
        resource="deployments",
        state="Confirmed",
        source="Work web/web",
        order=3,
        adopted=True,
        kept=True,
        ledger=unwind.LedgerNote(reason="Protected", message="kept", by="ann", at=datetime(2026, 1, 2, tzinfo=UTC)),
        memo={"scaled": "3"},
    )
    assert all(msgspec.to_builtins(entry).get(field.encode_name) for field in msgspec.structs.fields(entry))
    body = object_of(unwind.INVENTORIES, INVENTORY_SPEC | {"entries": {"e": msgspec.to_builtins(entry)}})
    created = msgspec.convert(await client.create(unwind.INVENTORIES, body), unwind.Inventory)
    assert created.spec.entries == {"e": entry}


async def test_one_entry_of_an_inventory_is_patched_without_the_others_until_it_is_sealed(client: Client) -> None:
    entries = {f"e{n}": {"object": {"kind": "Pod", "name": f"p{n}"}, "state": "Intended"} for n in range(3)}
    created = await client.create(
        unwind.INVENTORIES, object_of(unwind.INVENTORIES, INVENTORY_SPEC | {"entries": entries})
    )
    name = created["metadata"]["name"]

    async def patch(spec: Object) -> unwind.Inventory:
        done = await client.patch(unwind.INVENTORIES, name, {"spec": spec}, namespace="default")
        return msgspec.convert(done, unwind.Inventory)

    read = await patch({"entries": {"e1": {"state": "Confirmed", "object": {"uid": "u-9"}}, "e2": None}})
    assert {key: entry.state for key, entry in read.spec.entries.items()} == {"e0": "Intended", "e1": "Confirmed"}
    assert read.spec.entries["e1"].object == ObjectRef(kind="Pod", name="p1", uid="u-9")

    assert (await patch({"sealedFor": "u-1"})).spec.sealed_for == "u-1"
    for change in ({"sealedFor": "u-2"}, {"sealedFor": None}):
        with pytest.raises(ApiError, match="sealedFor is immutable once set"):
            await patch(change)
    with pytest.raises(ApiError, match="owner, member and chunk are immutable"):
        await patch({"member": {"systemUid": "another"}})


async def test_finalizers_can_be_removed_from_an_object_with_an_old_invalid_value(client: Client) -> None:
    """Else it could never be deleted: the rule would hold what it was made to protect."""
    profiles = sveltos.PROFILES
    definition = next(
        definition for definition in DEFINITIONS if definition.resource == profiles
    ).custom_resource_definition()
    loose = msgspec.json.decode(msgspec.json.encode(definition))
    schema = loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["x-kubernetes-validations"]
    del schema["properties"]["spec"]["properties"]["clusterDeletionBehavior"]["enum"]

    spec = {"dependsOn": ["old"], "clusterDeletionBehavior": "Typo"}
    old = object_of(profiles, spec, name="old", finalizers=["unwind.dev/profile"])
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, loose, field_manager="unwind-install")
    await until_allowed(lambda: client.apply(profiles, old, dry_run=True))
    await client.create(profiles, old)
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, definition, field_manager="unwind-install")
    await until_refused(
        lambda: client.apply(profiles, object_of(profiles, {"dependsOn": ["new"]}, name="new"), dry_run=True)
    )

    read = await client.get(profiles, "old", namespace="default", type=sveltos.Profile)
    assert (
        str(read.spec.deletion) == "'Typo' is not known (valid: LeavePolicies, RemovePolicies, EnforceRemovePolicies)"
    )
    await client.patch(profiles, "old", {"metadata": {"labels": {"a": "b"}, "finalizers": None}}, namespace="default")
    with pytest.raises(ApiError, match="Unsupported value"):
        await client.patch(profiles, "old", {"spec": {"clusterDeletionBehavior": "Other"}}, namespace="default")
