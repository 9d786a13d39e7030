"""Requested Teardowns, written by users with few rights: the manager deletes nothing that they could not delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.controllers import HOLD
from tests.plane.support.requested_deletions import ANYTHING, Room, User, allowed, manager, own_namespace, user
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import MAX_OBJECTS_ANNOTATION, RESOURCE_ANNOTATION
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    NAMESPACES,
    PERSISTENT_VOLUMES,
    SECRETS,
    Resource,
)
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.teardown.requests import request_manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client
    from unwind.local.plane import Plane

AGAIN = "delete this Teardown and request the deletion with `unwind delete`"
ASKING = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "list", "watch"]}
WRITING = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "patch", "delete"]}
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> AsyncIterator[str]:
    """Unwind's own namespace, with the policies of that manager."""
    async with own_namespace(plane, "unwind-tenants", ANYTHING) as name:
        yield name


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(room: Room) -> AsyncIterator[User]:
    """A user who may do everything in the room, and create Teardowns."""
    async with user(room, "tenant", [ASKING], here=[EVERYTHING]) as known:
        yield known


def ref_to(room: Room, resource: Resource, name: str, *, namespace: str | None = None, uid: str = "") -> ObjectRef:
    return ObjectRef(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        namespace=namespace or "",
        name=name,
        uid=uid or room.uids[name],
    )


def body(who: User | None, ref: ObjectRef, plural: str, *, name: str = "", **spec: Any) -> dict[str, Any]:
    by = who.name if who else "admin"
    wanted = request_manifest(
        ref, name=name or f"request-{ref.uid or ref.name}", by=by, plural=plural, now=SYSTEM.now()
    )
    made = manifest(TEARDOWNS, wanted)
    return made | {"spec": made["spec"] | spec}


async def ended(client: Client, name: str) -> Teardown:
    """A Teardown, as soon as it is finished."""

    def over(it: Any) -> bool:
        return it is not None and msgspec.convert(it, Teardown).finished

    return msgspec.convert(await object_watch.until(client, TEARDOWNS, name, over, "finished"), Teardown)


async def another(room: Room) -> Room:
    """A namespace of another tenant."""
    other = Room(room.cluster, room.home)
    await other.open()
    return other


async def test_a_right_in_a_namespace_does_not_delete_another_namespace(room: Room, tenant: User, home: str) -> None:
    prod = await another(room)
    ref = ref_to(prod, NAMESPACES, prod.name, namespace=room.name, uid=prod.uids["namespace"])
    with pytest.raises(ApiError, match=f"may not delete Namespace {prod.name}"):
        await tenant.client.create(TEARDOWNS, body(tenant, ref, "namespaces"))
    # A manager refuses it as well, should it be there.
    asked = await room.client.create(TEARDOWNS, body(None, ref, "namespaces"))
    async with manager(room.client, home):
        refused = await ended(room.client, asked["metadata"]["name"])
    assert refused.phase is Phase.REFUSED
    assert (
        refused.status.blocked_by == f"Namespace is cluster-scoped, but spec.target.namespace is '{room.name}'; {AGAIN}"
    )
    found = await room.client.get(NAMESPACES, prod.name)
    assert "deletionTimestamp" not in found["metadata"]


async def test_a_right_in_a_namespace_deletes_nothing_that_is_cluster_scoped(
    room: Room, tenant: User, home: str
) -> None:
    name = f"prod-{room.name}"
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}}
    await room.put(PERSISTENT_VOLUMES, name, namespace=None, spec=volume)
    role = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": "view"}
    await room.put(CLUSTER_ROLE_BINDINGS, f"binding-{name}", namespace=None, roleRef=role)
    asked = []
    for resource, called in ((PERSISTENT_VOLUMES, name), (CLUSTER_ROLE_BINDINGS, f"binding-{name}")):
        with pytest.raises(ApiError, match="may not delete"):
            await tenant.client.create(TEARDOWNS, body(tenant, ref_to(room, resource, called), resource.plural))
        # With a namespace the API server asks about rights in that: it does not know the scope of the kind.
        ref = ref_to(room, resource, called, namespace=room.name)
        asked.append(await tenant.client.create(TEARDOWNS, body(tenant, ref, resource.plural)))
    async with manager(room.client, home):
        refused = [await ended(room.client, item["metadata"]["name"]) for item in asked]
    assert [item.phase for item in refused] == [Phase.REFUSED] * 2
    assert all("is cluster-scoped" in item.status.blocked_by for item in refused)
    assert await room.there(PERSISTENT_VOLUMES, name, namespace=None)
    assert await room.there(CLUSTER_ROLE_BINDINGS, f"binding-{name}", namespace=None)
    assert room.deleted() == []


async def test_the_resource_by_which_a_request_is_authorised_must_be_that_of_the_kind(room: Room, home: str) -> None:
    await room.put(SECRETS, "precious")
    maps = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}
    async with user(room, "maps", [ASKING], here=[maps]) as known:
        ref = ref_to(room, SECRETS, "precious", namespace=room.name)
        for plural in ("secrets", "", "*", "pods/exec", "Secrets"):
            with pytest.raises(ApiError, match="may not delete Secret precious"):
                await known.client.create(TEARDOWNS, body(known, ref, plural))
        asked = await known.client.create(TEARDOWNS, body(known, ref, "configmaps"))
        async with manager(room.client, home):
            refused = await ended(room.client, asked["metadata"]["name"])
    assert refused.phase is Phase.REFUSED
    said = f"annotation {RESOURCE_ANNOTATION} is 'configmaps', but the resource of Secret is 'secrets'; {AGAIN}"
    assert refused.status.blocked_by == said
    assert await room.there(SECRETS, "precious")


@pytest.mark.parametrize("right", ["*", "pods/exec"])
async def test_neither_a_wildcard_nor_a_subresource_is_a_resource(room: Room, right: str) -> None:
    await room.put(SECRETS, "precious")
    rule = {"apiGroups": [""], "resources": [right], "verbs": ["delete"]}
    async with user(room, "odd", [ASKING], here=[rule]) as known:
        ref = ref_to(room, SECRETS, "precious", namespace=room.name)
        with pytest.raises(ApiError, match="may not delete Secret precious"):
            await known.client.create(TEARDOWNS, body(known, ref, right))


async def test_a_request_is_for_one_uid_and_not_for_a_name(room: Room, tenant: User, home: str) -> None:
    await room.config_map("mine")
    ref = ref_to(room, CONFIG_MAPS, "mine", namespace=room.name)
    nameless = msgspec.structs.replace(ref, uid="")
    with pytest.raises(ApiError, match=r"spec\.target\.uid is required"):
        await tenant.client.create(TEARDOWNS, body(tenant, nameless, "configmaps"))
    asked = await tenant.client.create(
        TEARDOWNS, body(tenant, msgspec.structs.replace(ref, uid="another"), "configmaps")
    )
    async with manager(room.client, home):
        gone = await ended(room.client, asked["metadata"]["name"])
        assert gone.phase is Phase.TARGET_GONE
        assert await room.there(CONFIG_MAPS, "mine")
        # What the tenant may delete goes.
        asked = await tenant.client.create(TEARDOWNS, body(tenant, ref, "configmaps"))
        assert (await ended(room.client, asked["metadata"]["name"])).phase is Phase.COMPLETE
    assert not await room.there(CONFIG_MAPS, "mine")


async def test_a_right_to_a_namespace_in_that_namespace_is_enough_as_with_kubectl(room: Room, home: str) -> None:
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["delete"]}
    async with user(room, "owner", [ASKING], here=[rule]) as known:
        ref = ref_to(room, NAMESPACES, room.name, uid=room.uids["namespace"])
        asked = await known.client.create(TEARDOWNS, body(known, ref, "namespaces"))
        async with manager(room.client, home):
            assert (await ended(room.client, asked["metadata"]["name"])).phase is Phase.COMPLETE
    assert not await room.there(NAMESPACES, room.name, namespace=None)


async def test_only_the_manager_changes_a_request_and_only_its_requester_takes_it_back(
    room: Room, tenant: User, home: str
) -> None:
    await room.config_map("mine", finalizers=[HOLD])
    ref = ref_to(room, CONFIG_MAPS, "mine", namespace=room.name)
    wanted = body(tenant, ref, "configmaps")
    wanted["metadata"]["annotations"][MAX_OBJECTS_ANNOTATION] = "0"
    asked = await tenant.client.create(TEARDOWNS, wanted)
    name, uid = asked["metadata"]["name"], asked["metadata"]["uid"]
    async with user(room, "writer", [WRITING]) as writer:
        patches: list[dict[str, Any]] = [
            {"spec": {"deadline": "1s", "onDeadline": "Release"}},
            {"spec": {"requestedBy": "somebody-else"}},
            {"spec": {"plan": {}}},
            {"metadata": {"annotations": {MAX_OBJECTS_ANNOTATION: "100"}}},
            {"metadata": {"annotations": {RESOURCE_ANNOTATION: "secrets"}}},
            {"metadata": {"labels": {"unwind.dev/set-aside": "true"}}},
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}},
        ]
        for patch in patches:
            with pytest.raises(ApiError, match="only the manager changes the spec"):
                await writer.client.patch(TEARDOWNS, name, patch)
        await writer.client.patch(TEARDOWNS, name, {"metadata": {"annotations": {"example.dev/note": "x"}}})
        with pytest.raises(ApiError, match="only the manager deletes it"):
            await writer.client.delete(TEARDOWNS, name, uid=uid)
        async with manager(room.client, home):
            assert (
                (await ended(room.client, name)).status.blocked_by
                == "1 objects would be deleted, but the limit is 0 (--max-objects); list them with `unwind plan`"
            )
    deleting = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["delete"]}
    await room.client.patch(CLUSTER_ROLES, tenant.name, {"rules": [ASKING, deleting]})
    await eventually(lambda: allowed(tenant.client, deleting, ""), "the right to delete")
    await tenant.client.delete(TEARDOWNS, name, uid=uid)
    await object_watch.until_absent(room.client, TEARDOWNS, name)


async def test_a_user_who_may_create_teardowns_cannot_plant_a_record(room: Room, tenant: User) -> None:
    await room.config_map("mine")
    ref = ref_to(room, CONFIG_MAPS, "mine", namespace=room.name)
    uid = room.uids["mine"]
    for cause in ("ClusterDeleted", "Unjoined", "Withdrawn"):
        for name in (uid, f"request-{uid}"):
            with pytest.raises(ApiError, match=f"only the manager creates Teardowns with cause {cause}"):
                await tenant.client.create(TEARDOWNS, body(tenant, ref, "configmaps", name=name, cause=cause))
    with pytest.raises(ApiError, match="names that begin with request- are for cause Requested"):
        await tenant.client.create(TEARDOWNS, body(tenant, ref, "configmaps", name=uid))
    with pytest.raises(ApiError, match=r"only the manager writes spec\.plan"):
        await tenant.client.create(TEARDOWNS, body(tenant, ref, "configmaps", plan={}))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": uid}
    odd: list[dict[str, Any]] = [
        {"annotations": {RESOURCE_ANNOTATION: "configmaps", "unwind.dev/signature": "home:00"}},
        {"labels": {"unwind.dev/set-aside": "true"}},
        {"ownerReferences": [owner]},
    ]
    for metadata in odd:
        wanted = body(tenant, ref, "configmaps")
        with pytest.raises(ApiError, match="a request must not have ownerReferences"):
            await tenant.client.create(TEARDOWNS, wanted | {"metadata": wanted["metadata"] | metadata})
    with pytest.raises(ApiError, match="403"):
        await tenant.client.patch(TEARDOWNS, "any", {"status": {"phase": "Complete"}}, subresource="status")
