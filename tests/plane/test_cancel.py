"""`unwind cancel` and `kubectl delete teardown`: a requested deletion stops, and what it had stopped is restored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import cluster_teardowns
from tests.plane.support.commands import kubectl
from tests.plane.support.controllers import HOLD, running_components
from tests.plane.support.requested_deletions import (
    Command,
    Room,
    User,
    allowed,
    manager,
    own_namespace,
    request_controller,
    user,
)
from tests.plane.support.transports import Delay, Life, delayed, mortal
from unwind.api.names import CANCEL_REASON_ANNOTATION, CANCEL_REASON_BY_ANNOTATION, SCALE_TO_ZERO_ANNOTATION, Finalizer
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICES, STATEFUL_SETS
from unwind.api.rights import Right
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Phase, Teardown
from unwind.cli.cancel import request_cancellation
from unwind.errors import UnwindError, UsageError
from unwind.kube import object_watch
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError
from unwind.kube.events import EVENTS, Recorder
from unwind.teardown.requests import whoami

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.local.plane import Plane

ANYTHING = Right("*", ("*",), ("get", "list", "watch", "delete", "patch"))
CANCELLING = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["delete", "patch", "get"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> AsyncIterator[str]:
    """Unwind's own namespace, with the policies of that manager."""
    async with own_namespace(plane, "unwind-cancel", ANYTHING) as name:
        yield name


async def stateful_set(room: Room, name: str, *, replicas: int = 2) -> None:
    """A StatefulSet that is scaled to zero before its deletion. Its Pods stay until their finalizer is removed."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "finalizers": [HOLD]},
        "spec": {"containers": [{"name": "c", "image": "c"}], "terminationGracePeriodSeconds": 0},
    }
    spec = {
        "serviceName": name,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": template,
    }
    await room.put(STATEFUL_SETS, name, metadata={"annotations": {SCALE_TO_ZERO_ANNOTATION: "true"}}, spec=spec)
    await scaled(room, name, replicas, status=True)


async def scaled(room: Room, name: str, replicas: int, *, status: bool = False) -> None:
    """Return when a StatefulSet has this many replicas."""

    def so(it: Any) -> bool:
        return bool(it and it["status" if status else "spec"].get("replicas", 0) == replicas)

    await object_watch.until(room.client, STATEFUL_SETS, name, so, f"scaled to {replicas}", namespace=room.name)


async def held(room: Room) -> Teardown:
    return await room.teardown(lambda it: it.phase is Phase.HELD, "held")


async def assert_kept(room: Room, resource: Resource, *names: str) -> None:
    for name in names:
        found = await room.client.get(resource, name, namespace=room.name if resource.namespaced else None)
        assert "deletionTimestamp" not in found["metadata"], name


async def test_a_cancelled_deletion_stops_and_says_what_is_gone(room: Room, command: Command, home: str) -> None:
    gadgets = await room.definition()
    await room.put(gadgets, "first")
    await room.put(
        SERVICES, "web", metadata={"finalizers": [HOLD]}, spec={"type": "LoadBalancer", "ports": [{"port": 80}]}
    )
    await room.config_map("settings")
    await room.ask(NAMESPACES, room.name, "namespace")
    recorder = Recorder(room.client, instance="test")
    async with manager(room.client, home, recorder=recorder), running_components((recorder,)):
        running = await room.teardown(lambda it: [one.object.name for one in it.status.blockers] == ["web"], "held")
        assert Finalizer.TEARDOWN in running.metadata.finalizers
        told = " ".join((await command.cancel(f"Namespace/{room.name}")).split())
        assert f"deletion of Namespace {room.name} cancelled: 1 of 4 objects are gone" in told
        assert f"(Gadget {room.name}/first), 1 are being deleted, which cannot be undone" in told
        assert f"(Service {room.name}/web), 2 stay" in told
        await object_watch.until_absent(room.client, TEARDOWNS, running.metadata.name)
        await object_watch.until_absent(room.client, INVENTORIES, f"{running.metadata.uid}-0", namespace=home)
        await room.let_go(SERVICES, "web")
        await object_watch.until_absent(room.client, SERVICES, "web", namespace=room.name)

        async def reported() -> list[Any]:
            events = await room.client.list(EVENTS)
            return [it for it in events if it["reason"] == "DeletionCancelled" and it["regarding"]["name"] == room.name]

        [event, *_] = await eventually(reported, "an Event on the target")
        assert "1 of 4 objects are gone" in event["note"]
    assert room.deleted() == ["first", "web"]
    await assert_kept(room, CONFIG_MAPS, "settings")
    await assert_kept(room, NAMESPACES, room.name)
    with pytest.raises(UnwindError, match=r"no teardown of .* found"):
        await command.cancel(running.metadata.name)


async def test_kubectl_delete_teardown_restores_workloads_that_were_scaled_to_zero(
    plane: Plane, room: Room, home: str
) -> None:
    await stateful_set(room, "db")
    await room.config_map("settings")
    await room.ask(NAMESPACES, room.name, "namespace")
    async with manager(room.client, home):
        await scaled(room, "db", 0)
        running = await held(room)
        done = await kubectl(plane.management.kubeconfig, "delete", "teardown", running.metadata.name)
        assert done.returncode == 0, done.stderr
        await scaled(room, "db", 2)
    assert "db" not in room.deleted()
    await assert_kept(room, STATEFUL_SETS, "db")
    await assert_kept(room, CONFIG_MAPS, "settings")
    await free_pods(room)


async def free_pods(room: Room) -> None:
    for pod in await room.client.list(PODS, namespace=room.name):
        await room.let_go(PODS, pod["metadata"]["name"])


async def test_a_teardown_that_is_deleted_while_no_manager_runs_is_cancelled_by_the_next(
    room: Room, command: Command, home: str
) -> None:
    await stateful_set(room, "db")
    await room.ask(NAMESPACES, room.name, "namespace")
    async with manager(room.client, home):
        await scaled(room, "db", 0)
        running = await held(room)
    await room.client.delete(TEARDOWNS, running.metadata.name, uid=running.metadata.uid)
    # The finalizer keeps it, and a new request is another one.
    assert (await room.client.get(TEARDOWNS, running.metadata.name))["metadata"]["deletionTimestamp"]
    again = await room.ask(NAMESPACES, room.name, "namespace")
    assert again.metadata.name == f"{running.metadata.name}-2"
    await room.client.delete(TEARDOWNS, again.metadata.name, uid=again.metadata.uid)
    async with manager(room.client, home):
        result = await command.cancel(running.metadata.name, output="json")
        told = msgspec.json.decode(result[result.index("{\n") : result.rindex("\n}") + 2])
    assert (told["phase"], told["kept"], told["target"]["name"]) == ("Cancelled", True, room.name)
    assert told["cancelled"]["restored"] == [f"StatefulSet {room.name}/db has 2 replicas again"]
    assert told["cancelled"]["kept"] >= 2
    await scaled(room, "db", 2)
    assert room.deleted() == []
    await free_pods(room)


async def test_a_manager_that_dies_at_each_write_of_a_cancel_completes_it(plane: Plane, room: Room, home: str) -> None:
    await stateful_set(room, "db")
    await room.ask(NAMESPACES, room.name, "namespace")
    async with manager(room.client, home):
        await scaled(room, "db", 0)
        running = await held(room)
    meta = running.metadata
    await room.client.delete(TEARDOWNS, meta.name, uid=meta.uid)
    over, lives = False, 0
    while not over and lives < 30:
        lives += 1
        life = Life(lives)
        async with mortal(plane.management, life, namespace=home) as client, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(managed(client, home)),
                group.create_task(object_watch.until_absent(room.client, TEARDOWNS, meta.name)),
                group.create_task(life.died.wait()),
            ]
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
            over = tasks[1].done()
            for task in tasks:
                task.cancel()
    assert over
    assert lives > 1
    await scaled(room, "db", 2)
    assert room.deleted() == []
    async with manager(room.client, home):
        await object_watch.until_absent(room.client, INVENTORIES, f"{meta.uid}-0", namespace=home)
    await free_pods(room)


async def managed(client: Client, home: str) -> None:
    async with request_controller(client, home) as parts, running_components(parts):
        await asyncio.Event().wait()


async def test_a_delete_that_is_on_its_way_is_awaited_and_reported(plane: Plane, room: Room, home: str) -> None:
    await room.config_map("first")
    await room.config_map("kept-back", finalizers=[HOLD])
    await room.ask(NAMESPACES, room.name, "namespace")
    delay = Delay(lambda method, target, _: method == "DELETE" and target.endswith("/configmaps/first"))
    async with (
        delayed(plane.management, delay, namespace=home) as client,
        request_controller(client, home) as (caches, controller),
        running_components((caches, controller)),
        asyncio.TaskGroup() as group,
    ):
        await delay.until_reached()
        found = await room.teardown(lambda it: it.spec.plan is not None, "planned")
        drain = controller._running._drains[Key("", found.metadata.name)]
        cancelled = group.create_task(room.teardown(lambda it: it.phase is Phase.CANCELLED, "cancelled"))
        await room.client.delete(TEARDOWNS, found.metadata.name, uid=found.metadata.uid)
        await eventually(lambda: drain._stopped, "the cancel")
        delay.go.set()
        done = (await cancelled).status.cancelled
    assert done
    assert "first" in [ref.name for ref in done.removed_objects]
    assert not await room.there(CONFIG_MAPS, "first")
    await assert_kept(room, NAMESPACES, room.name)


async def test_what_is_finished_or_cannot_be_undone_is_not_cancelled(
    plane: Plane, namespace: str, room: Room, command: Command, home: str
) -> None:
    await room.config_map("c")
    await room.ask(CONFIG_MAPS, "c", "c")
    async with manager(room.client, home):
        ended = await room.teardown(
            lambda it: it.finished and not it.metadata.finalizers, "finished, without a finalizer", target="c"
        )
    assert ended.phase is Phase.COMPLETE
    with pytest.raises(UnwindError, match=r"it is finished \(Complete\)") as raised:
        await command.cancel(ended.metadata.name)
    assert raised.value.exit_code == 1

    scene = await cluster_teardowns.scene(plane, namespace)
    await scene.add_on("web", objects=1, finalizers=(HOLD,))
    async with cluster_teardowns.manager(scene.client):
        await scene.delete()
        record = await scene.teardown(lambda it: it.phase is Phase.HELD, "held")
        with pytest.raises(UnwindError, match="Kubernetes cannot undo a deletion") as raised:
            await command.cancel(f"{scene.namespace}/{scene.name}")
        assert raised.value.exit_code == 1
        async with user(room, "operator", [CANCELLING]) as operator:
            with pytest.raises(ApiError, match=f"The deletion of Cluster {scene.name} cannot be cancelled"):
                await operator.client.delete(TEARDOWNS, record.metadata.name, uid=record.metadata.uid)
        await scene.unblock()
        assert (await scene.ended()).phase is Phase.COMPLETE
    await scene.let_go()


async def test_it_is_too_late_if_the_target_is_being_deleted(room: Room, command: Command, home: str) -> None:
    await room.config_map("c", finalizers=[HOLD])
    await room.ask(CONFIG_MAPS, "c", "c")
    async with manager(room.client, home):
        await room.teardown(lambda it: it.phase is Phase.HELD, "held", target="c")
        with pytest.raises(UnwindError, match="too late to keep ConfigMap") as raised:
            await command.cancel(f"{room.name}/c")
        assert raised.value.exit_code == 1
    await room.let_go(CONFIG_MAPS, "c")


async def test_the_requester_and_users_who_may_delete_the_target_may_cancel(room: Room, home: str) -> None:
    for name in ("one", "two"):
        await room.config_map(name, finalizers=[HOLD])
    here = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    for name in ("one", "two"):
        await room.ask(CONFIG_MAPS, name, name)
    async with (
        manager(room.client, home),
        user(room, "colleague", [CANCELLING], here=here) as colleague,
        user(room, "stranger", [CANCELLING]) as stranger,
    ):
        planned = await room.teardown(lambda it: it.phase is Phase.HELD, "held", target="one")
        meta = planned.metadata
        assert await allowed(stranger.client, CANCELLING, "")
        with pytest.raises(ApiError, match="may be cancelled by its requester"):
            await stranger.client.delete(TEARDOWNS, meta.name, uid=meta.uid)
        for who in (stranger, colleague):
            with pytest.raises(ApiError, match="only the manager changes"):
                await who.client.patch(TEARDOWNS, meta.name, {"metadata": {"finalizers": None}})
        await colleague.client.delete(TEARDOWNS, meta.name, uid=meta.uid)
        await object_watch.until_absent(room.client, TEARDOWNS, meta.name)
    for name in ("one", "two"):
        await room.let_go(CONFIG_MAPS, name)


async def test_the_reason_is_recorded_with_its_author(room: Room, command: Command, home: str) -> None:
    await room.config_map("settings", finalizers=[HOLD])
    await room.ask(NAMESPACES, room.name, "namespace")
    recorder = Recorder(room.client, instance="test")
    async with (
        manager(room.client, home, recorder=recorder),
        running_components((recorder,)),
        asyncio.TaskGroup() as group,
    ):
        await held(room)
        cancelled = group.create_task(room.teardown(lambda it: it.phase is Phase.CANCELLED, "cancelled"))
        with pytest.raises(UsageError, match="--reason is empty"):
            await command.cancel(f"Namespace/{room.name}", reason=" ")
        told = " ".join((await command.cancel(f"Namespace/{room.name}", reason="wrong\n namespace")).split())
        assert "the reason is not recorded" not in told
        status = (await cancelled).status

        async def reported() -> list[Any]:
            events = await room.client.list(EVENTS)
            return [it for it in events if it["reason"] == "DeletionCancelled" and it["regarding"]["name"] == room.name]

        [event, *_] = await eventually(reported, "an Event on the target")
    assert status.cancelled
    assert (status.cancelled.reason, status.cancelled.by) == ("wrong namespace", await whoami(room.client))
    said = f"reason given by {status.cancelled.by}: wrong namespace"
    assert said in told
    assert said in event["note"]
    [condition] = [it for it in status.conditions if it.type == "Cancelled"]
    assert condition.message.endswith(said)
    [end] = [it for it in status.timeline if it.event == "Finished"]
    assert (end.reason, end.message, end.by) == ("Cancelled", "wrong namespace", status.cancelled.by)
    await room.let_go(CONFIG_MAPS, "settings")


async def test_a_reason_is_written_only_by_users_who_may_cancel_and_in_their_own_name(room: Room, home: str) -> None:
    await room.config_map("c", finalizers=[HOLD])
    here = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    found = await room.ask(CONFIG_MAPS, "c", "c")
    name, uid = found.metadata.name, found.metadata.uid

    async def write(who: User, annotations: dict[str, str | None]) -> dict[str, str]:
        written = await who.client.patch(TEARDOWNS, name, {"metadata": {"uid": uid, "annotations": annotations}})
        return {key: value for key, value in written["metadata"]["annotations"].items() if "cancel-reason" in key}

    def reason(by: str, text: str = "x") -> dict[str, str | None]:
        return {CANCEL_REASON_ANNOTATION: text, CANCEL_REASON_BY_ANNOTATION: by}

    async with (
        user(room, "colleague", [CANCELLING], here=here) as colleague,
        user(room, "stranger", [CANCELLING]) as stranger,
    ):
        with pytest.raises(ApiError, match=f"cannot set {CANCEL_REASON_ANNOTATION}"):
            await write(stranger, reason(stranger.name))
        refused: list[dict[str, str | None]] = [
            reason(stranger.name),
            reason(colleague.name, ""),
            reason(colleague.name, "x" * 1001),
            {CANCEL_REASON_ANNOTATION: "x"},
            {CANCEL_REASON_BY_ANNOTATION: colleague.name},
        ]
        for annotations in refused:
            with pytest.raises(ApiError, match=f"cannot set {CANCEL_REASON_ANNOTATION}"):
                await write(colleague, annotations)
        with pytest.raises(ApiError, match="only the manager changes"):
            await write(colleague, reason(colleague.name) | {"unwind.dev/signature": "home:00"})
        assert await write(colleague, reason(colleague.name)) == reason(colleague.name)
        # It stands, and nothing is cancelled by it. Others do not change it, except in their own name.
        for who, annotations in (
            (stranger, reason(stranger.name)),
            (stranger, reason(colleague.name, "y")),
            (colleague, dict.fromkeys(reason(""))),
        ):
            with pytest.raises(ApiError, match=f"cannot set {CANCEL_REASON_ANNOTATION}"):
                await write(who, annotations)
        async with manager(room.client, home):
            running = await room.teardown(lambda it: it.phase is Phase.HELD, "held", target="c")
            assert not running.metadata.terminating
            assert running.metadata.annotations[CANCEL_REASON_BY_ANNOTATION] == colleague.name
            await colleague.client.delete(TEARDOWNS, name, uid=uid)
            await object_watch.until_absent(room.client, TEARDOWNS, name)
    await room.let_go(CONFIG_MAPS, "c")


async def test_without_the_right_to_record_the_reason_the_deletion_is_cancelled(room: Room, home: str) -> None:
    await room.config_map("c")
    found = await room.ask(CONFIG_MAPS, "c", "c")
    here = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    deleting = CANCELLING | {"verbs": ["delete", "list", "get", "watch"]}
    async with user(room, "deleter", [deleting], here=here) as deleter:
        remark = await request_cancellation(deleter.client, found, "the wrong object")
    assert "the reason is not recorded" in remark
    assert "cannot patch" in remark
    await object_watch.until_absent(room.client, TEARDOWNS, found.metadata.name)
    await assert_kept(room, CONFIG_MAPS, "c")


async def test_what_cannot_be_restored_is_named_with_the_command(room: Room, home: str) -> None:
    await stateful_set(room, "db")
    await room.ask(NAMESPACES, room.name, "namespace")
    async with manager(room.client, home):
        await scaled(room, "db", 0)
        meta = (await held(room)).metadata
    reading = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    records = {"apiGroups": ["unwind.dev"], "resources": ["*"], "verbs": ["*"]}
    async with user(room, "reader", [reading, records]) as reader, asyncio.TaskGroup() as group:
        cancelled = group.create_task(room.teardown(lambda it: it.phase is Phase.CANCELLED, "cancelled"))
        await room.client.delete(TEARDOWNS, meta.name, uid=meta.uid)
        running = group.create_task(managed(reader.client, home))
        done = (await cancelled).status.cancelled
        await object_watch.until_absent(room.client, TEARDOWNS, meta.name)
        running.cancel()
    assert done
    assert done.restored == ()
    [told] = done.not_restored
    assert f"run: kubectl scale -n {room.name} statefulsets/db --replicas=2" in told
    await scaled(room, "db", 0)
    await free_pods(room)
