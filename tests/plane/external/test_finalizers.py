"""External objects: the external resource is deleted before the finalizer is removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from tests.plane.support.bucket_chains import events, group_of, link, remove_kind
from tests.plane.support.buckets import Buckets, Store, define, external, grant, ready, running
from unwind.api.names import MEMO_ANNOTATION, Finalizer
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, Severity, TransientError
from unwind.deleters.registry import Plugin
from unwind.kube import object_watch
from unwind.kube.shards import Shards
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


async def test_the_finalizer_is_added_first_and_others_stay(buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.claimed("plain")
        await buckets.claimed("shared", finalizers=["example.dev/theirs"])
    found = await buckets.get("shared")
    assert found["metadata"]["finalizers"] == ["example.dev/theirs", Finalizer.EXTERNAL]
    assert store.calls == []
    assert not store.open, "what is not needed is not opened"


async def test_the_external_resource_is_deleted_before_the_finalizer_is_removed(plane: Plane, buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))) as it:
        ref = await buckets.claimed("one")
        store.buckets.add("one")
        await buckets.delete(ref)
        await buckets.until_gone("one")
        kind = f"buckets.{group_of(buckets)}"
        await eventually(lambda: it.sample("unwind_deletions_total", kind=kind, end="gone") == 1)
        assert it.sample("unwind_deletion_seconds_count", kind=kind, end="gone") == 1
        assert it.sample("unwind_deletions_waiting", kind=kind) == 0
        told = await events(buckets, ref, 3)
    assert told == ["FinalizerSet", "DeletionStarted", "Gone"]
    assert store.calls == ["one"]
    assert store.buckets == set()
    assert Finalizer.EXTERNAL in store.seen[0]["metadata"]["finalizers"]
    assert store.closed
    [sent] = plane.management.audit.deletions(resource="buckets", namespace=buckets.namespace)
    assert sent.uid == ref.uid, "the only DELETE is the person's"


async def test_other_finalizers_do_not_delay_the_deletion_and_are_reported(buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("shared", finalizers=["example.dev/theirs"])
        await buckets.delete(ref)
        found = await buckets.until("shared", lambda it: "theirs" in ready(it).get("message", ""))
    assert found["metadata"]["finalizers"] == ["example.dev/theirs"]
    assert (
        ready(found)["message"]
        == f"the external resource of {ref} is deleted or kept; waiting for finalizers example.dev/theirs"
    )


async def test_an_object_that_is_deleted_before_it_was_claimed_is_ignored(buckets: Buckets) -> None:
    store = Store()
    made = await buckets.create("foreign", finalizers=["example.dev/theirs"])
    await buckets.delete(buckets.ref(made))
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.delete(await buckets.claimed("ours"))
        await buckets.until_gone("ours")
    assert store.calls == ["ours"]
    found = await buckets.get("foreign")
    assert found["metadata"]["finalizers"] == ["example.dev/theirs"]
    assert "status" not in found


async def test_a_wait_is_reported_and_ends_when_its_time_is_over(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.answers = [Again("the store takes its time", after=100), Again("the store takes its time", after=100)]
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock) as it:
        ref = await buckets.claimed("slow")
        await buckets.delete(ref)
        said = await buckets.until_said("slow", "Deleting")
        assert (said["status"], said["severity"], said["message"]) == ("False", "Info", "the store takes its time")
        await eventually(lambda: 100 in clock.waiting)
        assert it.sample("unwind_deletions_waiting", kind=f"buckets.{group_of(buckets)}") == 1
        version = (await buckets.get("slow"))["metadata"]["resourceVersion"]
        clock.advance(100)
        await eventually(lambda: len(store.calls) == 2)
        await eventually(lambda: 100 in clock.waiting)
        assert (await buckets.get("slow"))["metadata"]["resourceVersion"] == version, "the same is not written twice"
        clock.advance(100)
        await buckets.until_gone("slow")
    assert store.calls == ["slow"] * 3


async def test_own_writes_do_not_enter_the_chain_again(buckets: Buckets) -> None:
    store = Store()
    entered: list[str] = []

    async def remember(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Gone | Kept:  # noqa: A002
        entered.append(ctx.ref.name)
        if ctx.ref.name == "noisy":
            await ctx.memo.put("time", str(len(entered)))
            raise Again(f"entered {len(entered)} times", after=1000)
        return await next(ctx, obj)

    known = (external(store, group_of(buckets)), link(buckets, remember))
    async with running(buckets.client, buckets.namespace, *known):
        await buckets.delete(await buckets.claimed("noisy"))
        await buckets.until_said("noisy", "Deleting")
        # Everything that was written about the first is told before what happens to the second.
        await buckets.delete(await buckets.claimed("after"))
        await buckets.until_gone("after")
        assert entered == ["noisy", "after"]
        # What a person changes is one.
        await buckets.annotate("noisy", hello="there")
        await eventually(lambda: entered == ["noisy", "after", "noisy"])


async def test_a_wait_ends_when_its_event_happens(buckets: Buckets) -> None:
    store = Store()

    async def waits(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Gone | Kept:  # noqa: A002
        changes = await ctx.changes(CONFIG_MAPS, namespace=ctx.ref.namespace)
        found = await ctx.client.list(CONFIG_MAPS, namespace=ctx.ref.namespace)
        if not any(item["metadata"]["name"] == "allowed" for item in found):
            raise Again("a ConfigMap has to allow it", until=changes)
        return await next(ctx, obj)

    known = (external(store, group_of(buckets)), link(buckets, waits))
    async with running(buckets.client, buckets.namespace, *known):
        await buckets.delete(await buckets.claimed("waits"))
        await buckets.until_said("waits", "Deleting")
        assert store.calls == []
        metadata = {"name": "allowed", "namespace": buckets.namespace}
        await buckets.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        await buckets.until_gone("waits")


async def test_a_wait_without_event_ends_when_the_object_changes(buckets: Buckets) -> None:
    store = Store()

    async def waits(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Gone | Kept:  # noqa: A002
        if not any(condition["type"] == "Drained" for condition in (obj.get("status") or {}).get("conditions") or ()):
            raise Again("somebody has to say that it is drained")
        return await next(ctx, obj)

    known = (external(store, group_of(buckets)), link(buckets, waits))
    async with running(buckets.client, buckets.namespace, *known):
        await buckets.delete(await buckets.claimed("waits"))
        await buckets.until_said("waits", "Deleting")
        found = await buckets.get("waits")
        drained = {"type": "Drained", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        conditions = [*found["status"]["conditions"], drained]
        await buckets.patch("waits", {"status": {"conditions": conditions}}, subresource="status")
        await buckets.until_gone("waits")


async def test_a_failed_deletion_is_retried_with_backoff_and_the_finalizer_stays(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.answers = [
        ConnectionResetError("the line is dead"),
        TransientError("the store is busy", reason="Busy", retry_after=50.0),
    ]
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock):
        ref = await buckets.claimed("unlucky")
        await buckets.delete(ref)
        said = await buckets.until_said("unlucky", "ConnectionResetError")
        assert (said["severity"], said["message"]) == ("Warning", "the line is dead; will retry")
        await eventually(lambda: any(0.7 < item < 1.3 for item in clock.waiting))
        clock.advance(2)
        said = await buckets.until_said("unlucky", "Busy")
        assert Finalizer.EXTERNAL in (await buckets.get("unlucky"))["metadata"]["finalizers"]
        await eventually(lambda: 50 in clock.waiting)
        clock.advance(50)
        await buckets.until_gone("unlucky")
        told = await events(buckets, ref, 5)
    assert told == ["FinalizerSet", "DeletionStarted", "ConnectionResetError", "Busy", "Gone"]


async def test_a_permanent_error_is_reported_and_retried_when_the_object_is_changed(buckets: Buckets) -> None:
    store = Store()
    store.answers = [PermanentError("it is locked", severity=Severity.ERROR, reason="Locked", remedy="unlock it")]
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.delete(await buckets.claimed("locked"))
        said = await buckets.until_said("locked", "Locked")
        assert (said["status"], said["severity"]) == ("False", "Error")
        assert said["message"] == "it is locked; unlock it"
        assert said["observedGeneration"] == (await buckets.get("locked"))["metadata"]["generation"]
        await buckets.patch("locked", {"metadata": {"labels": {"unlocked": "true"}}})
        await buckets.until_gone("locked")


async def test_conditions_of_other_controllers_stay(buckets: Buckets) -> None:
    store = Store()
    store.answers = [Again("wait", after=1000)]
    theirs = {
        "type": "Synced",
        "status": "True",
        "note": "a field that Unwind does not know",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    before = {"type": "Ready", "status": "True", "reason": "Succeeded", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("told")
        await buckets.patch("told", {"status": {"conditions": [theirs, before]}}, subresource="status")
        await buckets.delete(ref)
        await buckets.until_said("told", "Deleting")
    first, second = (await buckets.get("told"))["status"]["conditions"]
    assert first == theirs
    assert (second["type"], second["status"]) == ("Ready", "False")


@pytest.mark.parametrize("more", [{"subresource": False}, {"status": {"phase": {"type": "string"}}}])
async def test_a_kind_without_conditions_gets_events_only(plane: Plane, namespace: str, more: dict[str, Any]) -> None:
    client = plane.management.client
    buckets = Buckets(client, await define(client, f"{namespace}.example.dev", **more), namespace)
    store, clock = Store(), StillClock()
    store.answers = [Again("wait", after=100)]
    async with running(client, namespace, external(store, group_of(buckets)), clock=clock):
        ref = await buckets.claimed("mute")
        await buckets.delete(ref)
        assert "Deleting" in await events(buckets, ref, 3)
        await eventually(lambda: 100 in clock.waiting)
        clock.advance(100)
        await buckets.until_gone("mute")
    await remove_kind(client, buckets)


async def test_a_restarted_manager_continues_a_deletion(buckets: Buckets) -> None:
    emptied: list[str] = []

    async def empty(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Gone | Kept:  # noqa: A002
        if "emptied" not in ctx.memo:
            emptied.append(ctx.ref.name)
            await ctx.memo.put("emptied")
        return await next(ctx, obj)

    store = Store()
    store.hold = asyncio.Event()
    known = (external(store, group_of(buckets)), link(buckets, empty, name="empty"))
    async with running(buckets.client, buckets.namespace, *known):
        await buckets.delete(await buckets.claimed("long"))
        await store.called.wait()
    assert f"{MEMO_ANNOTATION}empty.emptied" in (await buckets.get("long"))["metadata"]["annotations"]
    store.hold.set()
    async with running(buckets.client, buckets.namespace, *known):
        await buckets.until_gone("long")
    assert emptied == ["long"]
    assert store.calls == ["long", "long"]


async def test_objects_of_a_broken_plugin_are_held(buckets: Buckets) -> None:
    def broken() -> object:
        raise ImportError("no module named store")

    plugin = Plugin(f"{group_of(buckets)}/v1/Bucket", broken, source="store-deleters 1.0")
    held = await buckets.create("held", finalizers=[Finalizer.EXTERNAL])
    unclaimed = await buckets.create("unclaimed")
    async with running(buckets.client, buckets.namespace, plugins=(plugin,)):
        await buckets.delete(buckets.ref(held))
        said = await buckets.until_said("held", "Held")
    assert "cannot delete Bucket objects: plugin store-deleters 1.0 cannot be loaded" in said["message"]
    assert said["severity"] == "Error"
    assert Finalizer.EXTERNAL in (await buckets.get("held"))["metadata"]["finalizers"]
    assert (await buckets.get("unclaimed"))["metadata"]["resourceVersion"] == unclaimed["metadata"]["resourceVersion"]


async def test_an_external_system_that_cannot_be_opened_holds_its_objects(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.refuses = PermissionError("no credentials")
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock):
        await buckets.delete(await buckets.claimed("one"))
        said = await buckets.until_said("one", "Failed")
        assert "cannot connect to store: no credentials" in said["message"]
        store.refuses = None
        await eventually(lambda: any(item < 2 for item in clock.waiting))
        clock.advance(2)
        await buckets.until_gone("one")
        await buckets.delete(await buckets.claimed("two"))
        await buckets.until_gone("two")
    assert store.open == 1


async def test_kinds_are_followed_when_their_crd_is_created_and_deleted(plane: Plane, namespace: str) -> None:
    client, group, store = plane.management.client, f"{namespace}.example.dev", Store()
    await grant(client, group)
    async with running(client, namespace, external(store, group), clock=SYSTEM) as it:
        await eventually(lambda: it.controller.ready)
        for name in ("first", "second"):
            buckets = Buckets(client, await define(client, group), namespace)
            await buckets.delete(await buckets.claimed(name))
            await buckets.until_gone(name)
            # The API server deletes what is left of a kind before it gives it up: that, too, goes through the chain.
            await buckets.claimed(f"{name}-left")
            await _remove(client, f"buckets.{group}")
        await eventually(lambda: it.controller.ready)
    assert [call for call in store.calls if call != "probe"] == ["first", "first-left", "second", "second-left"]


async def _remove(client: Client, name: str) -> None:
    definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=definition["metadata"]["uid"])
    await object_watch.until_absent(client, CUSTOM_RESOURCE_DEFINITIONS, name)


async def test_two_replicas_share_the_deletions_and_repeat_none(buckets: Buckets) -> None:
    client, namespace = buckets.client, buckets.namespace
    stores = {name: Store() for name in "ab"}
    known = {name: external(store, group_of(buckets)) for name, store in stores.items()}
    names = [f"bucket-{number}" for number in range(20)]
    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        shards = {name: Shards(own, namespace=namespace, identity=name) for name in stores}
        tasks = {name: group.create_task(shards[name].run()) for name in stores}
        async with (
            running(client, namespace, known["a"], owner=shards["a"]),
            running(client, namespace, known["b"], owner=shards["b"]),
        ):
            await eventually(lambda: all(len(shard.owned) == 8 for shard in shards.values()))
            for name in names:
                await buckets.delete(await buckets.claimed(name))
            for name in names:
                await buckets.until_gone(name)
            assert sorted(stores["a"].calls + stores["b"].calls) == sorted(names)
            assert stores["a"].calls
            assert stores["b"].calls
            # One leaves: the other takes up what was its.
            for store in stores.values():
                store.stalls = "not now"
            left = [await buckets.claimed(f"left-{name}") for name in names]
            for ref in left:
                await buckets.delete(ref)
                await buckets.until_said(ref.name, "Deleting")
            for store in stores.values():
                store.stalls = ""
            tasks["b"].cancel()
            before = set(stores["b"].calls)
            for ref in left:
                if ref.name in before:
                    await buckets.until_gone(ref.name)
        tasks["a"].cancel()
