"""Removals on a real member: everything goes, is seen to be absent, and nothing goes that is not ours."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import msgspec

from tests.eventually import eventually
from tests.plane.support.objects import api_service_without_server
from tests.plane.support.removals import CLUSTER, RemovalLog, RemovalScene, everything_by
from unwind.api import names
from unwind.api.meta import ObjectRef
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SERVICES,
)
from unwind.api.unwind import INVENTORIES, Entry
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until_absent

if TYPE_CHECKING:
    from unwind.api.resources import Resource


async def exists(scene: RemovalScene, resource: Resource, name: str, namespace: str | None = None) -> bool:
    try:
        await scene.client.get(resource, name, namespace=namespace)
    except NotFoundError:
        return False
    return True


async def test_everything_goes_and_is_seen_to_be_absent_while_the_clock_stands_still(
    scene: RemovalScene, room: str
) -> None:
    namespace = await scene.namespace(room)
    refs = [await scene.config_map(room, f"c-{number}") for number in range(5)]
    workload = await scene.deployment(room, "web", replicas=2)
    removal = await scene.remove()
    assert (removal.progress.total, removal.progress.removed, removal.progress.left) == (7, 7, 0)
    assert removal.progress.waits == {}
    assert removal.removed == {namespace.uid, workload.uid, *(ref.uid for ref in refs)}
    assert not await exists(scene, NAMESPACES, room)
    assert {entry.state for entry in (await scene.account()).values()} == {"Removed"}
    assert {item.uid for item in scene.deleted()} == removal.removed
    assert scene.order()[0] == "deployments/web"
    assert scene.order()[-1] == f"namespaces/{room}"


async def test_two_thousand_objects_cost_a_handful_of_writes_to_the_inventory(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await everything_by([scene.config_map(room, f"c-{number}") for number in range(2000)])
    removal = await scene.remove()
    assert removal.progress.removed == 2000
    names = {chunk.metadata.name for chunk in await scene.read()}
    written = scene.management.audit.entries(verbs=("patch", "update"), resource=INVENTORIES.plural)
    writes = [item for item in written if item.object_ref.name in names]
    assert len(names) == 4
    assert 4 <= len(writes) <= 16
    assert {entry.state for entry in (await scene.account()).values()} == {"Removed"}


async def test_an_object_that_somebody_created_anew_under_the_same_name_survives(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    ours = await scene.config_map(room, "taken")
    await scene.client.delete(CONFIG_MAPS, "taken", uid=ours.uid, namespace=room)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken", "namespace": room}}
    theirs = await scene.client.create(CONFIG_MAPS, body)
    removal = await scene.remove()
    assert removal.progress.removed == 1
    found = await scene.client.get(CONFIG_MAPS, "taken", namespace=room)
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert scene.cluster.audit.deletions(resource="configmaps", namespace=room)[1:] == []


async def test_an_intended_object_goes_if_it_carries_our_mark_and_stays_if_not(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    for name, owner in (("ours", scene.owner.uid), ("theirs", "somebody-else")):
        metadata = {"name": name, "namespace": room, "labels": {OWNER_LABEL: owner}}
        await scene.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    for name in ("ours", "theirs", "never-created"):
        body = {"metadata": {"name": name, "namespace": room}}
        scene.enter(CONFIG_MAPS, body, state="Intended", key=name)
    uid = (await scene.client.get(CONFIG_MAPS, "ours", namespace=room))["metadata"]["uid"]
    removal = await scene.remove()
    assert removal.progress.removed == 3
    assert not await exists(scene, CONFIG_MAPS, "ours", room)
    assert await exists(scene, CONFIG_MAPS, "theirs", room)
    account = await scene.account()
    assert {key: entry.state for key, entry in account.items()} == dict.fromkeys(account, "Removed")
    assert account["ours"].object.uid == uid
    [sent] = scene.cluster.audit.deletions(resource="configmaps", namespace=room)
    assert sent.uid == uid


async def test_what_a_policy_keeps_is_in_the_ledger_and_so_is_the_namespace_around_it(
    scene: RemovalScene, room: str
) -> None:
    namespace = await scene.namespace(room, key="namespace")
    annotations = {names.DELETE_POLICY_ANNOTATION: "skip"}
    kept = await scene.config_map(room, "kept", metadata={"annotations": annotations}, key="kept")
    gone = await scene.config_map(room, "gone", key="gone")
    removal = await scene.remove(going=lambda: [scene.owner.uid])
    assert (removal.progress.removed, removal.progress.left) == (1, 2)
    assert await scene.there(CONFIG_MAPS, kept)
    assert await scene.there(NAMESPACES, namespace)
    assert not await scene.there(CONFIG_MAPS, gone)
    account = await scene.account()
    assert account["kept"].kept
    assert account["kept"].ledger
    assert account["kept"].ledger.reason == "KeptByPolicy"
    assert account["kept"].ledger.by == f"the annotation {names.DELETE_POLICY_ANNOTATION}"
    assert account["namespace"].ledger
    assert account["namespace"].ledger.reason == "ForeignContent"
    assert f"ConfigMap {room}/kept" in account["namespace"].ledger.message


async def test_what_was_adopted_is_released_and_stays_as_it_is(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    metadata = {
        "name": "theirs",
        "namespace": room,
        "labels": {OWNER_LABEL: scene.owner.uid, "colour": "blue"},
        "annotations": {"projectsveltos.io/owner-name": "base", "theirs": "too"},
    }
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}
    scene.enter(CONFIG_MAPS, await scene.client.create(CONFIG_MAPS, body), adopted=True, key="theirs")
    removal = await scene.remove()
    assert removal.progress.left == 1
    found = await scene.client.get(CONFIG_MAPS, "theirs", namespace=room)
    assert found["metadata"]["labels"] == {"colour": "blue"}
    assert found["metadata"]["annotations"] == {"theirs": "too"}
    assert found["data"] == {"a": "b"}
    ledger = (await scene.account())["theirs"].ledger
    assert ledger
    assert ledger.reason == "NotOurs"


async def test_a_namespace_with_somebodys_object_in_it_stays_and_names_it(scene: RemovalScene, room: str) -> None:
    namespace = await scene.namespace(room, key="namespace")
    ours = await scene.config_map(room, "ours")
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": room}}
    await scene.client.create(CONFIG_MAPS, foreign)
    await scene.remove()
    assert not await scene.there(CONFIG_MAPS, ours)
    assert await scene.there(NAMESPACES, namespace)
    assert await exists(scene, CONFIG_MAPS, "theirs", room)
    ledger = (await scene.account())["namespace"].ledger
    assert ledger
    assert ledger.message == f"it has foreign content: ConfigMap {room}/theirs; it is left in place with it"


async def test_a_definition_with_somebodys_resource_stays_and_names_it(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    gadgets = await scene.definition(f"{room}.dev", key="definition")
    ours = await scene.put(gadgets, {"metadata": {"name": "ours", "namespace": room}})
    body = {"apiVersion": gadgets.api_version, "kind": "Gadget", "metadata": {"name": "theirs", "namespace": room}}
    await scene.client.create(gadgets, body)
    await scene.remove()
    assert not await scene.there(gadgets, ours)
    assert await exists(scene, gadgets, "theirs", room)
    ledger = (await scene.account())["definition"].ledger
    assert ledger
    assert ledger.message == f"it has foreign content: Gadget {room}/theirs; it is left in place with it"


async def test_take_along_takes_foreign_content_along(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": room}}
    await scene.client.create(CONFIG_MAPS, foreign)
    removal = await scene.remove(take_along=True)
    assert (removal.progress.removed, removal.progress.left) == (1, 0)
    assert not await exists(scene, NAMESPACES, room)


async def test_what_another_step_is_removing_is_waited_for(scene: RemovalScene, room: str) -> None:
    namespace = await scene.namespace(room)
    await scene.write()
    other = scene.another()
    # With a Pod: what belongs to the other step's objects is not marked as its.
    theirs = await other.deployment(room, "theirs")
    told = RemovalLog()
    async with scene.removal(told=told, going=lambda: [other.owner.uid]) as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        await told.until("waits for content that is being removed", "Deployment")
        assert await scene.there(NAMESPACES, namespace)
        await other.remove()
        await removing
    assert removal.progress.removed == 1
    assert not await exists(scene, NAMESPACES, room)
    [sent] = other.deleted()
    assert sent.uid == theirs.uid


async def test_what_another_step_kept_in_the_end_is_foreign(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room, key="namespace")
    await scene.write()
    other = scene.another()
    await other.config_map(room, "kept", metadata={"annotations": {names.DELETE_POLICY_ANNOTATION: "skip"}})
    going = {other.owner.uid}
    told = RemovalLog()
    async with scene.removal(told=told, going=lambda: going) as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        await told.until("waits for content that is being removed")
        await other.remove()
        going.clear()
        removal.look_again()
        await removing
    ledger = (await scene.account())["namespace"].ledger
    assert ledger
    assert f"ConfigMap {room}/kept" in ledger.message


async def test_what_another_step_keeps_while_it_is_looked_at_is_foreign(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room, key="namespace")
    await scene.write()
    other = scene.another()
    await other.config_map(room, "kept", metadata={"annotations": {names.DELETE_POLICY_ANNOTATION: "skip"}})
    asked: list[frozenset[str]] = []
    told = RemovalLog()

    def going() -> frozenset[str]:
        """The other is over right after somebody has asked for the second time, and before anything waits for it."""
        asked.append(frozenset({other.owner.uid} if len(asked) < 2 else ()))
        if len(asked) == 2:
            removal.look_again()
        return asked[-1]

    async with asyncio.timeout(60), scene.removal(told=told, going=going) as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        await told.until("waits for content that is being removed")
        removal.look_again()
        await removing
    assert (await scene.account())["namespace"].ledger


async def test_a_kind_whose_definition_is_gone_counts_as_removed(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    gadgets = await scene.definition(f"{room}.dev", owned=False)
    await scene.put(gadgets, {"metadata": {"name": "one", "namespace": room}})
    name = f"gadgets.{room}.dev"
    found = await scene.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await scene.client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=found["metadata"]["uid"])
    await until_absent(scene.client, CUSTOM_RESOURCE_DEFINITIONS, name)
    removal = await scene.remove()
    assert removal.progress.removed == 1


async def test_a_kind_of_a_server_that_is_away_is_held(scene: RemovalScene, room: str) -> None:
    group = f"{room}.dev"
    made = await scene.client.create(API_SERVICES, api_service_without_server(group))
    try:
        scene.entries["one"] = entry_of(group)
        await scene.write()
        told = RemovalLog()
        async with scene.removal(told=told) as removal, asyncio.TaskGroup() as tasks:
            removing = tasks.create_task(removal.run())
            await told.until("cannot watch gadgets")
            removing.cancel()
        # Nor does anybody know whether something of that kind is in here.
        other = scene.another()
        namespace = await other.namespace(room)
        await other.write()
        async with other.removal(told=told) as removal, asyncio.TaskGroup() as tasks:
            removing = tasks.create_task(removal.run())
            await told.until(f"v1.{group}", "cannot list the contents of")
            assert removal.progress.left == 0
            removing.cancel()
        assert await scene.there(NAMESPACES, namespace)
    finally:
        await scene.client.delete(API_SERVICES, f"v1.{group}", uid=made["metadata"]["uid"])

        async def answered() -> bool:
            return not await Discovery(scene.client).silent()

        await eventually(answered, "discovery without the APIService", within=30)  # it would hold other tests, too


def entry_of(group: str) -> Entry:
    ref = ObjectRef(group=group, version="v1", kind="Gadget", namespace="default", name="one", uid="u-1")
    return Entry(object=ref, resource="gadgets", state="Confirmed")


async def test_a_finalizer_that_nobody_serves_is_told_and_waited_for(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    ref = await scene.config_map(room, "held", metadata={"finalizers": ["example.dev/hold"]})
    await scene.config_map(room, "free")
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told) as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        await told.until("waits for finalizers example.dev/hold")
        assert list(removal.progress.waits) == [ref]
        await until_absent(scene.client, CONFIG_MAPS, "free", namespace=room)
        await scene.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=room)
        await removing
    assert removal.progress.removed == 2


async def test_nothing_is_touched_when_another_cluster_answers(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    ref = await scene.config_map(room, "plain")
    adopted = await scene.config_map(room, "adopted", adopted=True)
    scene.enter(CONFIG_MAPS, {"metadata": {"name": "intended", "namespace": room}}, state="Intended")
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told, system_uid="another-cluster") as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        said = await told.until("another cluster answers")
        removing.cancel()
    assert str(CLUSTER) in said
    assert removal.progress.removed == 0
    assert await scene.there(CONFIG_MAPS, ref)
    found = await scene.client.get(CONFIG_MAPS, "adopted", namespace=room)
    assert found["metadata"]["uid"] == adopted.uid
    assert OWNER_LABEL in found["metadata"]["labels"]
    assert {item.state for item in (await scene.account()).values()} == {"Confirmed", "Intended"}


async def test_pods_that_belong_to_nothing_any_more_are_waited_for(scene: RemovalScene, room: str) -> None:
    """Somebody deletes the Deployment so that it is gone while its Pods still run."""
    await scene.namespace(room)
    ref = await scene.deployment(room, "web")
    [pod] = await scene.client.list(PODS, namespace=room)
    patch = {"metadata": {"finalizers": ["example.dev/slow"]}}
    await scene.client.patch(PODS, pod["metadata"]["name"], patch, namespace=room)
    await scene.client.delete(DEPLOYMENTS, "web", uid=ref.uid, namespace=room, propagation="Background")
    await until_absent(scene.client, DEPLOYMENTS, "web", namespace=room)
    await scene.write()
    told = RemovalLog()
    async with scene.removal(told=told) as removal, asyncio.TaskGroup() as group:
        removing = group.create_task(removal.run())
        await told.until("waits for content that is being removed", f"Pod {room}/")
        await scene.client.patch(PODS, pod["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace=room)
        await removing
    assert (removal.progress.removed, removal.progress.left) == (2, 0)


async def test_a_service_leaves_nothing_that_holds_its_namespace(scene: RemovalScene, room: str) -> None:
    await scene.namespace(room)
    await scene.deployment(room, "web")
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await scene.put(SERVICES, {"metadata": {"name": "web", "namespace": room}, "spec": spec})
    removal = await scene.remove()
    assert (removal.progress.removed, removal.progress.left) == (3, 0)


async def test_the_lock_of_a_removed_operator_holds_no_namespace_and_another_lock_does(
    scene: RemovalScene, room: str
) -> None:
    await scene.namespace(room, key="namespace")
    await scene.deployment(room, "operator")
    [pod] = await scene.client.list(PODS, namespace=room)
    for name, holder in (("operator-lock", pod["metadata"]["name"]), ("their-lock", "somebody-else")):
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": name, "namespace": room}}
        await scene.client.create(LEASES, body | {"spec": {"holderIdentity": f"{holder}_{uuid.uuid4()}"}})
    await scene.remove()
    ledger = (await scene.account())["namespace"].ledger
    assert ledger
    assert ledger.message == f"it has foreign content: Lease {room}/their-lock; it is left in place with it"


async def test_a_chunk_is_discarded_only_by_its_uid(scene: RemovalScene, room: str) -> None:
    await scene.cluster.create_namespace(room)
    await scene.config_map(room, "one")
    [chunk] = await scene.write()
    other = msgspec.structs.replace(chunk, metadata=msgspec.structs.replace(chunk.metadata, uid="another"))
    await scene.inventories.discard(other)
    assert await scene.read()
    await scene.inventories.discard(chunk)
    assert await scene.read() == []
    await scene.inventories.discard(chunk)
