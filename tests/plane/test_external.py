"""Resources that stand for something outside the cluster, on a real API server: it goes before they do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.plane.support.buckets import Buckets, Store, define, external, grant, ready, running
from unwind.api.annotation_values import DeletePolicy
from unwind.api.names import DELETE_POLICY_ANNOTATION, MEMO_ANNOTATION, RECONCILE_POLICY_ANNOTATION, Finalizer
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, Severity, TransientError
from unwind.deleters.registration import Kinds, Registration
from unwind.deleters.registry import Plugin
from unwind.install.manifests import crds
from unwind.inventory import ledger
from unwind.kube.client import Client
from unwind.kube.errors import AlreadyExistsError, ApiError, APIStatus
from unwind.kube.events import EVENTS
from unwind.kube.shards import Shards
from unwind.local import waiting
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client, manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.meta import ObjectRef
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.kube.client import Object
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def buckets(plane: Plane, namespace: str) -> AsyncIterator[Buckets]:
    """A kind of this test's own; whatever is left of it in the end is let go."""
    client = plane.management.client
    resource = await define(client, f"{namespace}.example.dev")
    yield Buckets(client, resource, namespace)
    await _let_go(client, Buckets(client, resource, namespace))


async def _let_go(client: Client, buckets: Buckets) -> None:
    for left in await client.list(buckets.resource, namespace=buckets.namespace):
        await buckets.patch(left["metadata"]["name"], {"metadata": {"finalizers": None}})
    name = f"buckets.{buckets.resource.group}"
    definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=definition["metadata"]["uid"])


@pytest_asyncio.fixture(loop_scope="session")
async def records(plane: Plane) -> None:
    """The CRDs of Unwind itself, for the ledger."""
    client = plane.management.client
    for body in crds("unwind.dev"):
        with suppress(AlreadyExistsError):  # another test was first
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
        await waiting.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, body["metadata"]["name"], "Established")


def group_of(buckets: Buckets) -> str:
    return buckets.resource.group


def link(buckets: Buckets, delete: Any, *, name: str = "link") -> Registration:
    return Registration(name=name, kinds=(Kinds(f"{group_of(buckets)}/*", "Bucket"),), delete=delete)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


async def written_down(buckets: Buckets, ref: ObjectRef) -> ledger.Line:
    """The line of the ledger about an object."""
    found = await buckets.client.get(INVENTORIES, f"kept-{ref.uid}", namespace=buckets.namespace, type=Inventory)
    assert (found.metadata.finalizers, found.metadata.owner_references) == ((), ()), "it outlasts the object"
    [entry] = found.spec.entries.values()
    line = ledger.line(entry)
    assert line
    assert found.spec.owner == ref
    return line


async def test_the_finalizer_is_set_first_and_others_stay(buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.claimed("plain")
        await buckets.claimed("shared", finalizers=["example.dev/theirs"])
    found = await buckets.get("shared")
    assert found["metadata"]["finalizers"] == ["example.dev/theirs", Finalizer.EXTERNAL]
    assert store.calls == []
    assert not store.open, "what is not needed is not opened"


async def test_what_is_outside_goes_before_the_finalizer_does(plane: Plane, buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))) as it:
        ref = await buckets.claimed("one")
        store.buckets.add("one")
        await buckets.delete(ref)
        await buckets.until_gone("one")
        kind = f"buckets.{group_of(buckets)}"
        await until(lambda: it.sample("unwind_deletions_total", kind=kind, end="gone") == 1)
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


async def events(buckets: Buckets, ref: ObjectRef, count: int) -> list[str]:
    """The reasons of the Events on an object, in order, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            found = await buckets.client.list(EVENTS, namespace=buckets.namespace)
            ours = [item for item in found if item["regarding"]["uid"] == ref.uid]
            if len(ours) >= count:
                return [one["reason"] for one in sorted(ours, key=lambda one: str(one["eventTime"]))]
            await asyncio.sleep(0.05)


async def test_other_finalizers_are_waited_for_by_others_and_that_is_said(buckets: Buckets) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("shared", finalizers=["example.dev/theirs"])
        await buckets.delete(ref)
        found = await buckets.until("shared", lambda it: "theirs" in ready(it).get("message", ""))
    assert found["metadata"]["finalizers"] == ["example.dev/theirs"]
    assert (
        ready(found)["message"] == f"the external resource of {ref} is done; waiting for finalizers example.dev/theirs"
    )


async def test_what_is_going_and_was_never_claimed_is_not_ours(buckets: Buckets) -> None:
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


async def test_a_wait_is_named_and_over_when_its_time_has_come(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.answers = [Again("the store takes its time", after=100), Again("the store takes its time", after=100)]
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock) as it:
        ref = await buckets.claimed("slow")
        await buckets.delete(ref)
        said = await buckets.until_said("slow", "Deleting")
        assert (said["status"], said["severity"], said["message"]) == ("False", "Info", "the store takes its time")
        await until(lambda: 100 in clock.waiting)
        assert it.sample("unwind_deletions_waiting", kind=f"buckets.{group_of(buckets)}") == 1
        version = (await buckets.get("slow"))["metadata"]["resourceVersion"]
        clock.advance(100)
        await until(lambda: len(store.calls) == 2)
        await until(lambda: 100 in clock.waiting)
        assert (await buckets.get("slow"))["metadata"]["resourceVersion"] == version, "the same is not written twice"
        clock.advance(100)
        await buckets.until_gone("slow")
    assert store.calls == ["slow"] * 3


async def test_our_own_writes_are_no_reason_to_enter_the_chain_again(buckets: Buckets) -> None:
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
        await until(lambda: entered == ["noisy", "after", "noisy"])


async def test_a_wait_is_over_when_what_is_waited_for_has_happened(buckets: Buckets) -> None:
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


async def test_a_wait_for_nothing_in_particular_is_over_when_the_object_changes(buckets: Buckets) -> None:
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


async def test_what_fails_is_tried_again_after_a_while_and_the_finalizer_stays(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.answers = [
        ConnectionResetError("the line is dead"),
        TransientError("the store is busy", reason="Busy", retry_after=50.0),
    ]
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock):
        ref = await buckets.claimed("unlucky")
        await buckets.delete(ref)
        said = await buckets.until_said("unlucky", "ConnectionResetError")
        assert (said["severity"], said["message"]) == ("Warning", "the line is dead")
        await until(lambda: any(0.7 < item < 1.3 for item in clock.waiting))
        clock.advance(2)
        said = await buckets.until_said("unlucky", "Busy")
        assert Finalizer.EXTERNAL in (await buckets.get("unlucky"))["metadata"]["finalizers"]
        await until(lambda: 50 in clock.waiting)
        clock.advance(50)
        await buckets.until_gone("unlucky")
        told = await events(buckets, ref, 5)
    assert told == ["FinalizerSet", "DeletionStarted", "ConnectionResetError", "Busy", "Gone"]


async def test_what_a_person_has_to_mend_is_said_and_taken_up_when_they_have(buckets: Buckets) -> None:
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


async def test_others_conditions_stay_as_they_are(buckets: Buckets) -> None:
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
async def test_a_kind_that_takes_no_conditions_has_events_only(
    plane: Plane, namespace: str, more: dict[str, Any]
) -> None:
    client = plane.management.client
    buckets = Buckets(client, await define(client, f"{namespace}.example.dev", **more), namespace)
    store, clock = Store(), StillClock()
    store.answers = [Again("wait", after=100)]
    async with running(client, namespace, external(store, group_of(buckets)), clock=clock):
        ref = await buckets.claimed("mute")
        await buckets.delete(ref)
        assert "Deleting" in await events(buckets, ref, 3)
        await until(lambda: 100 in clock.waiting)
        clock.advance(100)
        await buckets.until_gone("mute")
    await _let_go(client, buckets)


@pytest.mark.parametrize("annotation", [DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION])
@pytest.mark.parametrize("policy", ["skip", "detach-on-delete"])
@pytest.mark.usefixtures("records")
async def test_a_policy_of_the_object_keeps_what_is_outside(buckets: Buckets, annotation: str, policy: str) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))) as it:
        ref = await buckets.claimed("kept", annotations={annotation: policy})
        await buckets.delete(ref)
        await buckets.until_gone("kept")
        line = await written_down(buckets, ref)
        assert await events(buckets, ref, 3) == ["FinalizerSet", "DeletionStarted", "Kept"]
        assert it.sample("unwind_deletions_total", kind=f"buckets.{group_of(buckets)}", end="kept") == 1
    assert store.calls == []
    assert (line.object, line.fate, line.reason) == (ref, ledger.Fate.KEPT, "KeptByPolicy")
    assert (line.message, line.by) == (f"its policy is {policy}", f"the annotation {annotation}")


@pytest.mark.usefixtures("records")
async def test_the_policy_of_the_namespace_and_then_of_the_process_holds(buckets: Buckets) -> None:
    store, client = Store(), buckets.client
    known = external(store, group_of(buckets))
    async with running(client, buckets.namespace, known, policy=DeletePolicy.SKIP):
        by_process = await buckets.claimed("by-process")
        await buckets.delete(by_process)
        await buckets.until_gone("by-process")
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "detach-on-delete"}}}
        )
        by_namespace = await buckets.claimed("by-namespace")
        managed = await buckets.claimed("managed", annotations={DELETE_POLICY_ANNOTATION: "manage"})
        for ref in (by_namespace, managed):
            await buckets.delete(ref)
            await buckets.until_gone(ref.name)
    assert store.calls == ["managed"]
    assert (await written_down(buckets, by_process)).by == "the manager's default"
    line = await written_down(buckets, by_namespace)
    assert line.by == f"the annotation {DELETE_POLICY_ANNOTATION} of its namespace"


async def test_a_policy_that_is_not_known_holds_until_it_is_put_right(buckets: Buckets) -> None:
    store, client = Store(), buckets.client
    async with running(client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.delete(await buckets.claimed("typo", annotations={DELETE_POLICY_ANNOTATION: "Manage"}))
        said = await buckets.until_said("typo", "UnknownValue")
        assert "'Manage' is not known" in said["message"]
        assert said["severity"] == "Error"
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "kepp"}}}
        )
        await buckets.delete(await buckets.claimed("by-namespace"))
        said = await buckets.until_said("by-namespace", "UnknownValue")
        assert "'kepp' is not known" in said["message"]
        assert store.calls == []
        await buckets.annotate("typo", **{DELETE_POLICY_ANNOTATION: "manage"})
        await buckets.until_gone("typo")
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: None}}}
        )
        await buckets.until_gone("by-namespace")
    assert store.calls == ["typo", "by-namespace"]


class Dying(Client):
    """A client whose process dies before it takes a finalizer off."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.died = asyncio.Event()

    async def revise(self, resource: Any, read: Object, patch: Object, *, subresource: str | None = None) -> Object:
        if patch.get("metadata", {}).get("finalizers") == []:
            self.died.set()
            await asyncio.Event().wait()
        return await super().revise(resource, read, patch, subresource=subresource)


@asynccontextmanager
async def dying(plane: Plane, namespace: str) -> AsyncIterator[Dying]:
    async with Dying(await manager_connection(plane.management.client, namespace)) as client:
        yield client


@pytest.mark.usefixtures("records")
async def test_what_is_kept_is_in_the_ledger_before_the_finalizer_goes(plane: Plane, buckets: Buckets) -> None:
    known = external(Store(), group_of(buckets))
    async with dying(plane, buckets.namespace) as client, running(client, buckets.namespace, known):
        ref = await buckets.claimed("kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
        await buckets.delete(ref)
        await client.died.wait()
    line = await written_down(buckets, ref)
    assert Finalizer.EXTERNAL in (await buckets.get("kept"))["metadata"]["finalizers"]
    async with running(buckets.client, buckets.namespace, known):
        await buckets.until_gone("kept")
    assert await written_down(buckets, ref) == line, "the second try finds what the first has written"


@pytest.mark.usefixtures("records")
async def test_who_changes_their_mind_in_the_last_moment_is_heard(plane: Plane, buckets: Buckets) -> None:
    store = Store()

    class Late(Dying):
        """Somebody else is faster, once."""

        async def revise(self, resource: Any, read: Object, patch: Object, *, subresource: str | None = None) -> Object:
            if patch.get("metadata", {}).get("finalizers") == [] and not self.died.is_set():
                self.died.set()
                await buckets.annotate("kept", **{DELETE_POLICY_ANNOTATION: "manage"})
            return await Client.revise(self, resource, read, patch, subresource=subresource)

    connection = await manager_connection(plane.management.client, buckets.namespace)
    async with Late(connection) as client, running(client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
        await buckets.delete(ref)
        await buckets.until_gone("kept")
    assert store.calls == ["kept"]
    await waiting.until_absent(buckets.client, INVENTORIES, f"kept-{ref.uid}", namespace=buckets.namespace)


async def test_an_object_that_the_api_server_does_not_let_go_says_so(plane: Plane, buckets: Buckets) -> None:
    clock = StillClock()

    class Refused(Dying):
        """A webhook of somebody else's is in the way, once."""

        async def revise(self, resource: Any, read: Object, patch: Object, *, subresource: str | None = None) -> Object:
            if patch.get("metadata", {}).get("finalizers") == [] and not self.died.is_set():
                self.died.set()
                raise ApiError(APIStatus(code=500, message="a webhook does not answer"), request="PATCH bucket")
            return await Client.revise(self, resource, read, patch, subresource=subresource)

    connection = await manager_connection(plane.management.client, buckets.namespace)
    known = external(Store(), group_of(buckets))
    async with Refused(connection) as client, running(client, buckets.namespace, known, clock=clock):
        ref = await buckets.claimed("stuck")
        await buckets.delete(ref)
        said = await buckets.until_said("stuck", "Failed")
        assert said["message"].startswith(f"cannot remove the finalizer from {ref}: ")
        await until(lambda: any(item < 2 for item in clock.waiting))
        clock.advance(2)
        await buckets.until_gone("stuck")


async def test_a_manager_that_is_stopped_in_the_middle_goes_on_when_it_is_back(buckets: Buckets) -> None:
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


async def test_what_a_broken_plugin_has_a_say_in_is_held(buckets: Buckets) -> None:
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


async def test_an_end_that_cannot_be_opened_holds_its_objects_until_it_can(buckets: Buckets) -> None:
    store, clock = Store(), StillClock()
    store.refuses = PermissionError("no credentials")
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets)), clock=clock):
        await buckets.delete(await buckets.claimed("one"))
        said = await buckets.until_said("one", "Failed")
        assert "cannot connect to store: no credentials" in said["message"]
        store.refuses = None
        await until(lambda: any(item < 2 for item in clock.waiting))
        clock.advance(2)
        await buckets.until_gone("one")
        await buckets.delete(await buckets.claimed("two"))
        await buckets.until_gone("two")
    assert store.open == 1


@pytest.mark.usefixtures("records")
async def test_who_has_lost_the_credentials_can_still_let_an_object_go(buckets: Buckets) -> None:
    store = Store()
    store.refuses = PermissionError("no credentials")
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("one")
        await buckets.delete(ref)
        await buckets.until_said("one", "Failed")
        await buckets.annotate("one", **{DELETE_POLICY_ANNOTATION: "detach-on-delete"})
        await buckets.until_gone("one")
    assert (await written_down(buckets, ref)).fate is ledger.Fate.KEPT


async def test_kinds_that_come_and_go_are_followed(plane: Plane, namespace: str) -> None:
    client, group, store = plane.management.client, f"{namespace}.example.dev", Store()
    await grant(client, group)
    async with running(client, namespace, external(store, group), clock=SYSTEM) as it:
        await until(lambda: it.controller.ready)
        for name in ("first", "second"):
            buckets = Buckets(client, await define(client, group), namespace)
            await buckets.delete(await buckets.claimed(name))
            await buckets.until_gone(name)
            # The API server deletes what is left of a kind before it gives it up: that, too, goes through the chain.
            await buckets.claimed(f"{name}-left")
            await _remove(client, f"buckets.{group}")
        await until(lambda: it.controller.ready)
    assert [call for call in store.calls if call != "probe"] == ["first", "first-left", "second", "second-left"]


async def _remove(client: Client, name: str) -> None:
    definition = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name, uid=definition["metadata"]["uid"])
    await waiting.until_absent(client, CUSTOM_RESOURCE_DEFINITIONS, name)


async def test_two_replicas_share_the_work_and_do_nothing_twice(buckets: Buckets) -> None:
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
            await until(lambda: all(len(shard.owned) == 8 for shard in shards.values()))
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
