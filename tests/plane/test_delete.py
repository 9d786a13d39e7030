"""`unwind delete`: any object goes with what it holds and owns, in order; what refuses, refuses before that."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import cluster_teardowns, profiles
from tests.plane.support.controllers import HOLD, running_components
from tests.plane.support.removals import serve_finalizers
from tests.plane.support.requested_deletions import (
    ANYTHING,
    Command,
    Room,
    manager,
    policies,
    request_controller,
    tidy,
    user,
)
from tests.plane.support.transports import Life, mortal
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import AGGREGATE_LABEL, DELETE_POLICY_ANNOTATION, DELETE_PROTECTION_LABEL, RESOURCE_ANNOTATION
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    LEASES,
    NAMESPACES,
    PODS,
)
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.errors import TimedOutError, UnwindError
from unwind.install.running_managers import running_managers
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.shards import Shards
from unwind.teardown.requests import request_manifest
from unwind.testing.managers import granting, manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> AsyncIterator[str]:
    """Unwind's own namespace, for all tests here."""
    await profiles.install(plane.management.client)
    name = "unwind-requests"
    await plane.management.create_namespace(name)
    async with granting(plane.management.client, name, ANYTHING):
        yield name
    await tidy(plane.management.client)


async def test_a_namespace_goes_with_all_that_is_in_it_and_in_order(room: Room, command: Command, home: str) -> None:
    gadgets = await room.definition()
    await room.put(gadgets, "gadget")
    await room.deployment("operator")
    await room.config_map("settings")
    await room.service("web", type="LoadBalancer")
    async with manager(room.client, home):
        told = await command.delete(f"ns/{room.name}")
    assert f"Namespace {room.name} is gone" in told
    assert not await room.there(NAMESPACES, room.name, namespace=None)
    assert await room.there(CUSTOM_RESOURCE_DEFINITIONS, f"gadgets.{room.name}.dev", namespace=None)
    order = room.deleted()
    assert order[:3] == ["gadget", "web", "operator"]
    assert order[-1] == "namespace"
    assert room.unguarded() == []
    teardown = await room.teardown(lambda it: it.finished, "finished")
    assert (teardown.phase, teardown.spec.requested_by) == (Phase.COMPLETE, "admin")
    assert teardown.spec.plan
    assert teardown.status.removed == f"{teardown.spec.plan.objects}/{teardown.spec.plan.objects}"


async def test_what_appears_in_a_namespace_meanwhile_is_not_touched_and_keeps_it(
    room: Room, command: Command, home: str
) -> None:
    await room.config_map("held", finalizers=[HOLD])
    async with manager(room.client, home), asyncio.TaskGroup() as group:
        deleting = group.create_task(_failing(command, f"ns/{room.name}"))
        held = await room.teardown(lambda it: it.phase is Phase.HELD, "held")
        assert "waits for finalizers example.dev/hold" in held.status.blocked_by
        await room.config_map("newcomer")
        await room.let_go(CONFIG_MAPS, "held")
        error = await deleting
    assert error.exit_code == 1
    assert "was kept: it has foreign content: ConfigMap" in str(error)
    assert f"{room.name}/newcomer" in str(error)
    assert not await room.there(CONFIG_MAPS, "held")
    assert await room.there(CONFIG_MAPS, "newcomer")
    ended = await room.teardown(lambda it: it.finished, "finished")
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1)
    # Asked for once more, it is another request, and takes the newcomer, too.
    async with manager(room.client, home):
        await command.delete(f"ns/{room.name}")
    assert not await room.there(NAMESPACES, room.name, namespace=None)


async def _failing(command: Command, target: str, **options: object) -> UnwindError:
    with pytest.raises(UnwindError) as raised:
        await command.delete(target, **options)
    return raised.value


async def test_what_is_protected_refuses_before_anything_is_deleted(room: Room, command: Command, home: str) -> None:
    await room.config_map("plain")
    await room.config_map("precious", labels={DELETE_PROTECTION_LABEL: "Always"})
    async with manager(room.client, home):
        error = await _failing(command, f"ns/{room.name}")
        assert f"ConfigMap {room.name}/precious: blocked by label {DELETE_PROTECTION_LABEL}=Always" in str(error)
        # Who writes the Teardown by hand gets no further.
        await room.ask(NAMESPACES, room.name, "namespace")
        refused = await room.teardown(lambda it: it.finished, "finished")
    assert refused.phase is Phase.REFUSED
    assert [blocker.object.name for blocker in refused.status.blockers] == ["precious"]
    assert room.deleted() == []
    # What is said to be kept by its annotation stays, and is no reason not to take the rest.
    await room.client.patch(
        CONFIG_MAPS,
        "precious",
        {"metadata": {"labels": None, "annotations": {DELETE_POLICY_ANNOTATION: "skip"}}},
        namespace=room.name,
    )
    async with manager(room.client, home):
        error = await _failing(command, f"ns/{room.name}")
    assert "was kept" in str(error)
    assert room.deleted() == ["plain"]


async def test_an_unknown_protection_value_refuses_as_unknown_and_not_as_protected(room: Room, home: str) -> None:
    await room.config_map("typo", labels={DELETE_PROTECTION_LABEL: "Allways"})
    async with manager(room.client, home):
        await room.ask(NAMESPACES, room.name, "namespace")
        refused = await room.teardown(lambda it: it.finished, "finished")
    assert refused.phase is Phase.REFUSED
    [blocker] = refused.status.blockers
    assert (blocker.object.name, blocker.reason, blocker.actor) == ("typo", "UnknownValue", "the author of that value")
    assert [item.reason for item in refused.status.conditions if item.type == "Refused"] == ["UnknownValue"]
    assert room.deleted() == []


async def test_an_owner_goes_with_what_it_owns_and_leaves_what_others_own_too(
    room: Room, command: Command, home: str
) -> None:
    await room.deployment("web", replicas=2)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": room.uids["web"]}
    other = await room.config_map("other")
    second = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"]}
    await room.config_map("mine", ownerReferences=[owner])
    await room.config_map("shared", ownerReferences=[owner, second])
    await room.config_map("bystander")
    async with manager(room.client, home):
        outcome = await command.outcome("deploy/web", namespace=room.name)
    assert (outcome["gone"], outcome["removed"]) == (True, "1/1")
    assert outcome["objects"] == 5  # with a ReplicaSet, two Pods, and a ConfigMap
    left = {item["metadata"]["name"] for item in await room.client.list(CONFIG_MAPS, namespace=room.name)}
    assert left - {"kube-root-ca.crt"} == {"other", "shared", "bystander"}
    assert await room.client.list(PODS, namespace=room.name) == []


async def test_the_resources_of_a_definition_go_before_it_while_their_operator_runs(
    room: Room, command: Command, home: str
) -> None:
    gadgets = await room.definition()
    for name in ("one", "two"):
        await room.put(gadgets, name, metadata={"finalizers": [HOLD]})
    crd = f"gadgets.{room.name}.dev"
    async with manager(room.client, home), asyncio.TaskGroup() as group:
        operator = group.create_task(serve_finalizers(room.client, gadgets, HOLD))
        error = await _failing(command, f"crd/{crd}", max_objects=2)
        assert "3 objects would be deleted" in str(error)
        assert room.deleted() == []
        await command.delete(f"crd/{crd}", max_objects=3)
        operator.cancel()
    assert sorted(room.deleted()[:2]) == ["one", "two"]
    assert room.deleted()[2] == crd
    assert not await room.there(CUSTOM_RESOURCE_DEFINITIONS, crd, namespace=None)


async def test_more_objects_than_were_allowed_are_refused_by_the_manager_as_well(
    room: Room, command: Command, home: str
) -> None:
    await room.config_map("one")
    await room.ask(NAMESPACES, room.name, "namespace", max_objects=1)
    async with manager(room.client, home):
        refused = await room.teardown(lambda it: it.finished, "finished")
    assert refused.phase is Phase.REFUSED
    assert (
        refused.status.blocked_by
        == "2 objects would be deleted, but the limit is 1 (--max-objects); list them with `unwind plan`"
    )
    assert room.deleted() == []


async def test_killed_at_any_moment_and_started_again_it_goes_on(room: Room, command: Command, home: str) -> None:
    for number in range(3):
        await room.config_map(f"c-{number}", finalizers=[HOLD])
    await room.ask(NAMESPACES, room.name, "namespace")
    async with manager(room.client, home):
        await room.teardown(lambda it: it.spec.plan is not None, "planned")
    for number in range(3):
        async with manager(room.client, home):
            await room.teardown(lambda it: it.phase is Phase.HELD, "held")
            await room.let_go(CONFIG_MAPS, f"c-{number}")
    async with manager(room.client, home):
        ended = await room.teardown(lambda it: it.finished, "finished")
    assert ended.phase is Phase.COMPLETE
    assert not await room.there(NAMESPACES, room.name, namespace=None)
    assert room.unguarded() == []


async def test_a_process_that_dies_at_each_of_its_writes_loses_nothing_and_does_nothing_twice(
    plane: Plane, room: Room, home: str
) -> None:
    for number in range(2):
        await room.config_map(f"c-{number}")
    await room.ask(NAMESPACES, room.name, "namespace")
    over = False
    lives = 0
    while not over and lives < 40:
        lives += 1
        # One write further in each life: what was done in the one before is done again, or seen to be done.
        life = Life(lives)
        async with mortal(plane.management, life, namespace=home) as client, asyncio.TaskGroup() as group:
            running = group.create_task(_managed(client, home))
            finished = group.create_task(room.teardown(lambda it: it.finished, "finished"))
            died = group.create_task(life.died.wait())
            await asyncio.wait([finished, died], return_when=asyncio.FIRST_COMPLETED)
            over = finished.done()
            for task in (running, finished, died):
                task.cancel()
    assert over
    assert lives > 3
    ended = await room.teardown(lambda it: it.finished, "finished")
    assert ended.phase is Phase.COMPLETE
    assert not await room.there(NAMESPACES, room.name, namespace=None)
    sent = Counter(deletion.uid for deletion in room.cluster.audit.deletions() if deletion.uid in room.uids.values())
    assert sent == dict.fromkeys(room.uids.values(), 1)


async def _managed(client: Client, home: str) -> None:
    async with request_controller(client, home) as parts, running_components(parts):
        await asyncio.Event().wait()


async def test_who_takes_a_request_back_keeps_what_is_left(room: Room, command: Command, home: str) -> None:
    await room.config_map("held", finalizers=[HOLD])
    async with manager(room.client, home), asyncio.TaskGroup() as group:
        deleting = group.create_task(_failing(command, f"ns/{room.name}"))
        held = await room.teardown(lambda it: it.phase is Phase.HELD, "held")
        await room.client.delete(TEARDOWNS, held.metadata.name, uid=held.metadata.uid)
        assert "was cancelled" in str(await deleting)
        name = f"{held.metadata.uid}-0"
        await object_watch.until_absent(room.client, INVENTORIES, name, namespace=home)
        await room.let_go(CONFIG_MAPS, "held")
        await object_watch.until_absent(room.client, CONFIG_MAPS, "held", namespace=room.name)
    found = await room.client.get(NAMESPACES, room.name)
    assert "deletionTimestamp" not in found["metadata"]


async def test_without_a_manager_or_a_name_typed_nothing_is_asked_for(
    room: Room, command: Command, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.config_map("c")
    error = await _failing(command, "cm/c", namespace=room.name, unwind_namespace="default")
    assert "no manager is running in namespace default" in str(error)
    async with manager(room.client, home):
        error = await _failing(command, "cm/c", namespace=room.name, yes=False)
        assert "stdin is not a terminal" in str(error)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda *_: "another")
        error = await _failing(command, "cm/c", namespace=room.name, yes=False)
        assert "the answer is not 'c'" in str(error)
        error = await _failing(command, "cm/nothing", namespace=room.name)
        assert f"cannot delete ConfigMap {room.name}/nothing: not found" in str(error)
        for system in ("kube-system", home):
            assert "cannot delete" in str(await _failing(command, f"ns/{system}"))
    assert room.deleted() == []


async def test_the_time_may_be_over_and_it_goes_on_without_the_command(room: Room, command: Command, home: str) -> None:
    await room.config_map("held", finalizers=[HOLD])
    async with manager(room.client, home):
        with pytest.raises(TimedOutError) as raised:
            await command.delete("cm/held", namespace=room.name, timeout="2s")
        assert raised.value.exit_code == 3
        told = await command.delete("cm/held", namespace=room.name, wait=False)
        assert f"is being deleted, as Teardown request-{room.uids['held']}" in told
        await room.let_go(CONFIG_MAPS, "held")
        await room.teardown(lambda it: it.phase is Phase.COMPLETE, "complete", target="held")


async def test_the_manager_says_which_right_is_missing(plane: Plane, room: Room, command: Command, home: str) -> None:
    await room.config_map("c")
    user = f"manager-{room.name}"
    reading = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    records = {"apiGroups": ["unwind.dev", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    role = await room.put(CLUSTER_ROLES, user, namespace=None, rules=[reading, records])
    await room.put(
        CLUSTER_ROLE_BINDINGS,
        user,
        namespace=None,
        roleRef={"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": user},
        subjects=[{"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": user}],
    )
    async with Client(plane.management.connection(user)) as client, manager(client, home):
        error = await _failing(command, "cm/c", namespace=room.name)
        assert "the manager lacks the right to delete configmaps" in str(error)
        assert AGGREGATE_LABEL in str(error)
        assert await room.there(CONFIG_MAPS, "c")
        rules = [*role["rules"], {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
        await room.client.patch(CLUSTER_ROLES, user, {"rules": rules})
        async with asyncio.timeout(60):
            while await room.there(CONFIG_MAPS, "c"):  # the API server takes a moment to know of a right
                with suppress(UnwindError):
                    await command.delete("cm/c", namespace=room.name)
    assert room.deleted() == ["c"]


async def test_a_cluster_is_deleted_as_such_and_followed_until_it_is_gone(
    plane: Plane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("base")
    await scene.add_on("shop", depends_on=("base",))
    await scene.add_on("kept", behaviour="LeavePolicies", objects=1)
    command = Command(plane.management.kubeconfig, HOME, capsys)
    async with (
        manager_client(scene.client, HOME) as own,
        cluster_teardowns.manager(own),
        running_components([Shards(own, namespace=HOME, identity="test-clusters")]),
        asyncio.TaskGroup() as group,
    ):
        await eventually(lambda: running_managers(scene.client, HOME), "a live manager")
        deleting = group.create_task(command.outcome(f"cluster/{scene.name}", namespace=namespace))
        ended = await scene.ended()
        assert ended.phase is Phase.COMPLETE
        await scene.let_go()
        outcome = await deleting
    assert (outcome["gone"], outcome["teardown"], outcome["removed"]) == (True, scene.uid, "6/7")
    assert [item["object"]["name"] for item in outcome["left"]] == ["kept-0"]
    assert set(scene.deleted()[:3]) == {f"shop-{number}" for number in range(3)}
    for lease in await scene.client.list(LEASES, namespace=HOME):
        meta = lease["metadata"]
        await scene.client.delete(LEASES, meta["name"], uid=meta["uid"], namespace=HOME)


async def test_a_profile_is_deleted_as_such(room: Room, command: Command, home: str) -> None:
    name = f"profile-{room.name}"
    await room.put(CLUSTER_PROFILES, name, namespace=None, spec={})
    async with manager(room.client, home):
        told = await command.delete(f"clusterprofile/{name}")
    assert f"ClusterProfile {name} is gone" in told
    assert room.deleted() == [name]


@pytest_asyncio.fixture(loop_scope="session")
async def policy(plane: Plane, home: str) -> AsyncIterator[None]:
    """What `unwind install` has the API server hold requests against."""
    async with policies(plane.management.client, home):
        yield


@pytest.mark.usefixtures("policy")
async def test_who_may_not_delete_something_may_not_have_it_deleted(room: Room, home: str) -> None:
    """The manager could: so the API server looks at the rights of who asks."""
    await room.config_map("mine")
    await room.config_map("theirs")
    rules = [
        {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "list", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["delete"]},
    ]
    async with user(room, "ann", rules) as known:
        ann, client = known.name, known.client
        with pytest.raises(ApiError, match="may not delete ConfigMap theirs"):
            await _ask(room, client, "theirs", by=ann)
        with pytest.raises(ApiError, match="but the user is ann"):
            await _ask(room, client, "mine", by="somebody-else")
        with pytest.raises(ApiError, match="may not delete ConfigMap mine"):
            await _ask(room, client, "mine", by=ann, plural="secrets")
        asked = await _ask(room, client, "mine", by=ann)
        for patch in (
            {"spec": {"requestedBy": "somebody-else"}},
            {"metadata": {"annotations": {RESOURCE_ANNOTATION: "secrets"}}},
        ):
            with pytest.raises(ApiError, match="only the manager changes the spec"):
                await client.patch(TEARDOWNS, asked.metadata.name, patch)
    async with manager(room.client, home):
        ended = await room.teardown(lambda it: it.finished, "finished", target="mine")
    assert (ended.phase, ended.spec.requested_by) == (Phase.COMPLETE, ann)
    assert await room.there(CONFIG_MAPS, "theirs")


async def _ask(room: Room, client: Client, name: str, *, by: str, plural: str = "configmaps") -> Teardown:
    """Write a request as somebody would who writes it by hand."""
    ref = ObjectRef(version="v1", kind="ConfigMap", namespace=room.name, name=name, uid=room.uids[name])
    body = manifest(
        TEARDOWNS, request_manifest(ref, name=f"request-{room.uids[name]}", by=by, plural=plural, now=SYSTEM.now())
    )
    return msgspec.convert(await client.create(TEARDOWNS, body), Teardown)


async def test_an_object_that_is_protected_after_the_start_of_a_deletion_stays_until_it_is_not(
    room: Room, home: str
) -> None:
    gadgets = await room.definition()
    await room.put(gadgets, "first", metadata={"finalizers": [HOLD]})
    await room.config_map("precious")
    async with manager(room.client, home):
        await room.ask(NAMESPACES, room.name, "namespace")
        await room.teardown(lambda it: bool(it.status.blockers), "blocked")
        patch = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
        await room.client.patch(CONFIG_MAPS, "precious", patch, namespace=room.name, field_manager="jane")
        await room.let_go(gadgets, "first")
        held = await room.teardown(lambda it: any(one.reason == "Protected" for one in it.status.blockers), "held")
        # The custom resource may still be on its way out.
        [blocker] = [item for item in held.status.blockers if item.reason == "Protected"]
        assert f"to allow its deletion: unwind unprotect configmaps/precious -n {room.name}" in blocker.message
        assert "--cluster" not in blocker.message
        # The API server tracks no field managers of an object that was created without any field.
        assert "set by" not in blocker.message
        assert "precious" not in room.deleted()
        free = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}}
        await room.client.patch(CONFIG_MAPS, "precious", free, namespace=room.name)
        await room.teardown(lambda it: it.finished, "finished")
    assert not await room.there(CONFIG_MAPS, "precious")
