"""The end of the chain for an object with an external resource: which one is chosen, and what it does after a crash."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL, Finalizer, Reason
from unwind.api.resources import Resource
from unwind.deleters.external_end import ExternalEnd, ExternalObjects
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, TransientError
from unwind.deleters.registration import External, Kinds
from unwind.deleters.registry import EXTERNAL_SCOPE
from unwind.kube.absence import Presence, Sighting
from unwind.testing.contexts import context
from unwind.testing.objects import Objects
from unwind.testing.proofs import World, prove_idempotent
from unwind.testing.scripts import interruptible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.deleters.context import DeleteContext, End
    from unwind.deleters.external_end import ReleasedFinalizers
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Client, Object

THEIRS = "operator.example.dev/finalizer"
BUCKETS = Resource("example.dev", "v1", "buckets", "Bucket")
MEMBER = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="fleet", name="prod", uid="c-1")
NOW = "2026-01-01T00:00:00Z"


class Store:
    """What is outside: the buckets, and how often their deletion was requested."""

    def __init__(self, *buckets: str) -> None:
        self.buckets = set(buckets)
        self.running: set[str] = set()

    async def request(self, name: str) -> None:
        self.running.add(name)

    async def finish(self, name: str) -> None:
        self.buckets.discard(name)

    async def has(self, name: str) -> bool:
        return name in self.buckets


class StoreEnd:
    """Requests a deletion, and completes it in the next pass."""

    name = "store"
    clients: tuple[object, ...] = ()

    def __init__(self, store: Store, *, lies: bool = False, keeps: bool = False) -> None:
        self._store = interruptible(store)
        self._lies = lies
        self._keeps = keeps

    async def delete(self, ctx: DeleteContext, obj: Object) -> Outcome:
        if self._lies:
            return Gone("believe me")
        if self._keeps:
            return Kept(message="it is needed")
        if "requested" not in ctx.memo:
            await self._store.request(ctx.ref.name)
            await ctx.memo.put("requested")
            raise Again("deletion in progress", after=1)
        await self._store.finish(ctx.ref.name)
        return Gone("the store has it no more")

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        there = await self._store.has(ctx.ref.name)
        return Sighting(Presence.PRESENT if there else Presence.ABSENT, "the store was asked")


class Ends:
    """The ends of members, and the ledger."""

    def __init__(self, end: End | Exception, *, home: str = "the management cluster") -> None:
        self.end = end
        self.home = home
        self.ledger: dict[str, str] = {}
        self.opened: list[tuple[ObjectRef, str]] = []

    async def is_home(self, system_uid: str) -> bool:
        return system_uid == self.home

    async def open(self, external: External, *, cluster: ObjectRef, namespace: str) -> End:
        self.opened.append((cluster, namespace))
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    async def record(self, released: ReleasedFinalizers) -> None:
        self.ledger[released.object.uid] = released.message

    async def withdraw(self, ref: ObjectRef) -> None:
        self.ledger.pop(ref.uid, None)


class Operator:
    """An operator that runs or does not."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    async def running(self, _: Client) -> str:
        return self.name


def external(operator: Operator | None = None) -> External:
    @asynccontextmanager
    async def opened(_: Client | Mapping[str, str]) -> AsyncIterator[End]:
        raise AssertionError("not opened by itself")
        yield

    running = (operator or Operator()).running
    return External(
        name="store", kinds=(Kinds("example.dev/*", "Bucket"),), open=opened, operator=running, finalizers=(THEIRS,)
    )


def bucket(*finalizers: str, terminating: bool = False) -> Object:
    metadata: Object = {"name": "photos", "namespace": "default", "finalizers": list(finalizers)}
    if terminating:
        metadata["deletionTimestamp"] = NOW
    return {"apiVersion": "example.dev/v1", "kind": "Bucket", "metadata": metadata, "spec": {}}


# What the end does


@pytest.mark.parametrize(
    ("obj", "released"),
    [(bucket(THEIRS), True), (bucket(THEIRS, terminating=True), True), (bucket(), False)],
    ids=["held by the operator", "terminating", "held by nothing"],
)
async def test_a_process_that_dies_anywhere_leaves_no_resource_and_no_finalizer_behind(
    obj: Object, released: bool
) -> None:
    def world() -> World:
        store = Store("photos", "other")
        ends = Ends(StoreEnd(store))
        end = ExternalEnd(external(), ends.end, interruptible(ends), MEMBER)  # type: ignore[arg-type]
        return World(copy.deepcopy(obj), next=end, state=lambda: (store.buckets, sorted(ends.ledger.values())))

    proof = await prove_idempotent(world)
    assert isinstance(proof.end, Gone)
    told = f"removed the finalizer {THEIRS}: its operator is not running, and the store was asked"
    assert proof.state == ({"other"}, [told] if released else [])
    assert proof.objects is not None
    assert not [path for path in proof.objects if "buckets" in path]


class Passes:
    """Single passes through the end, on a simulated API server."""

    def __init__(self, obj: Object, end: End, operator: Operator | None = None) -> None:
        self.objects = Objects()
        self.objects.put(obj)
        self.ends = Ends(end)
        self.operator = operator or Operator()
        self.kept: dict[str, str] = {}
        self._end = ExternalEnd(external(self.operator), end, self.ends, MEMBER)

    async def enter(self, seen: Object | None = None) -> Outcome:
        """`seen`: the object as this pass has read it."""
        obj = seen or self.now
        assert obj
        ctx = context(obj, objects=self.objects, kept=self.kept, deleter=EXTERNAL_SCOPE)
        return await self._end.delete(ctx, obj)

    @property
    def now(self) -> Object | None:
        return self.objects.get(BUCKETS, "photos", namespace="default")

    def left_to_the_operator(self) -> None:
        """Assert that its finalizer was not removed."""
        assert self.now
        assert self.now["metadata"]["finalizers"] == [THEIRS]
        assert self.ends.ledger == {}


async def test_the_object_is_deleted_first_and_the_finalizer_of_the_operator_keeps_it() -> None:
    store = Store("photos")
    passes = Passes(bucket(THEIRS), StoreEnd(store))
    with pytest.raises(Again):
        await passes.enter()
    assert passes.now
    assert passes.now["metadata"]["deletionTimestamp"]
    assert store.running == set(), "nothing is requested outside before that"
    with pytest.raises(Again) as again:
        await passes.enter()
    assert again.value.code == Reason.EXTERNAL_RESOURCE
    assert THEIRS in passes.now["metadata"]["finalizers"]


async def test_an_end_that_reports_too_early_does_not_remove_the_finalizer() -> None:
    passes = Passes(bucket(THEIRS, terminating=True), StoreEnd(Store("photos"), lies=True))
    with pytest.raises(TransientError, match="the store was asked"):
        await passes.enter()
    passes.left_to_the_operator()


async def test_an_operator_that_starts_meanwhile_keeps_its_finalizer() -> None:
    passes = Passes(bucket(THEIRS, terminating=True), StoreEnd(Store()), Operator("Bucket Operator"))
    with pytest.raises(Again):
        await passes.enter()
    with pytest.raises(Again, match="Bucket Operator is running again"):
        await passes.enter()
    passes.left_to_the_operator()


async def test_a_resource_that_is_kept_keeps_the_object_and_its_finalizers() -> None:
    passes = Passes(bucket(THEIRS, terminating=True), StoreEnd(Store("photos"), keeps=True))
    assert isinstance(await passes.enter(), Kept)
    assert passes.now
    assert passes.now["metadata"]["finalizers"] == [THEIRS]


async def test_nothing_outside_is_deleted_for_an_object_that_was_changed_after_it_was_read() -> None:
    store = Store("photos")
    passes = Passes(bucket(), StoreEnd(store))
    seen = passes.now
    labels = {"labels": {DELETE_PROTECTION_LABEL: "Always"}}
    passes.objects.change(BUCKETS, "photos", {"metadata": labels})
    with pytest.raises(Again, match="was changed meanwhile"):
        await passes.enter(seen)
    assert store.running == set()
    assert passes.kept == {}, "nothing was begun"


async def test_nothing_outside_is_deleted_for_an_object_that_is_gone_meanwhile() -> None:
    store = Store("photos")
    passes = Passes(bucket(), StoreEnd(store))
    seen = passes.now
    passes.objects.remove(BUCKETS, "photos")
    with pytest.raises(Again):
        await passes.enter(seen)
    assert store.running == set()


# Which end is chosen


async def choose(
    obj: Object,
    ends: Ends | None,
    *,
    operator: Operator | None = None,
    kept: dict[str, str] | None = None,
    absent: bool = False,
) -> tuple[End, bool]:
    objects = Objects()
    obj = objects.put(obj)
    ctx = context(obj, objects=objects, kept=kept, absent=absent)
    return await ExternalObjects(ends, MEMBER).choose(external(operator), ctx, obj)


async def refusal(end: End, obj: Object) -> Exception:
    with pytest.raises((PermanentError, TransientError)) as raised:
        await end.delete(context(obj), obj)
    return raised.value


async def test_without_an_operator_the_external_end_of_the_member_and_the_namespace_is_chosen() -> None:
    ends = Ends(StoreEnd(Store()))
    end, left_to_others = await choose(bucket(THEIRS), ends)
    assert isinstance(end, ExternalEnd)
    assert not left_to_others
    assert ends.opened == [(MEMBER, "default")]


@pytest.mark.parametrize("obj", [bucket(THEIRS), bucket(THEIRS, terminating=True)], ids=["live", "terminating"])
async def test_a_running_operator_that_has_claimed_the_object_needs_no_credentials(obj: Object) -> None:
    ends = Ends(TransientError("no credentials"))
    end, left_to_others = await choose(obj, ends, operator=Operator("Bucket Operator"))
    assert isinstance(end, KubernetesEnd)
    assert left_to_others
    assert ends.opened == []


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (StoreEnd(Store("photos")), "Bucket Operator is running but has not added its finalizer"),
        (TransientError("no credentials"), "no credentials"),
    ],
)
async def test_an_object_that_a_running_operator_has_not_claimed_is_held(end: End | Exception, told: str) -> None:
    chosen, left_to_others = await choose(bucket(), Ends(end), operator=Operator("Bucket Operator"))
    assert left_to_others
    assert told in str(await refusal(chosen, bucket()))


async def test_an_object_that_a_running_operator_has_not_claimed_goes_if_it_has_no_resource() -> None:
    objects = Objects()
    obj = objects.put(bucket())
    ctx = context(obj, objects=objects)
    ends, operator = Ends(StoreEnd(Store())), Operator("Bucket Operator")
    end, _ = await ExternalObjects(ends, MEMBER).choose(external(operator), ctx, obj)
    with pytest.raises(Again, match="Bucket Operator is running"):
        await end.delete(ctx, obj)
    objects.settle()
    assert objects.get(BUCKETS, "photos", namespace="default") is None


@pytest.mark.parametrize("ends", [None, Ends(TransientError("no credentials"))])
async def test_without_an_end_the_object_is_held(ends: Ends | None) -> None:
    end, left_to_others = await choose(bucket(THEIRS), ends)
    assert left_to_others, "deleters that keep the object are still asked"
    await refusal(end, bucket())


async def test_an_object_that_is_gone_before_anything_was_begun_needs_no_end() -> None:
    ends = Ends(TransientError("no credentials"))
    end, _ = await choose(bucket(), ends, absent=True)
    assert isinstance(end, KubernetesEnd)
    assert ends.opened == []


async def test_an_object_that_is_gone_after_the_deletion_was_begun_is_still_verified_outside() -> None:
    end, _ = await choose(bucket(), Ends(StoreEnd(Store())), absent=True, kept={f"{EXTERNAL_SCOPE}.begun": "true"})
    assert isinstance(end, ExternalEnd)


async def test_an_operator_that_starts_again_takes_the_object_over() -> None:
    ends = Ends(StoreEnd(Store()))
    kept = {f"{EXTERNAL_SCOPE}.begun": "true", f"{EXTERNAL_SCOPE}.released": THEIRS}
    obj = bucket(THEIRS, terminating=True)
    ends.ledger["uid-1"] = "removed"
    obj["metadata"]["uid"] = "uid-1"
    end, left_to_others = await choose(obj, ends, operator=Operator("Bucket Operator"), kept=kept)
    assert isinstance(end, KubernetesEnd)
    assert left_to_others
    assert kept == {}
    assert ends.ledger == {}


async def test_on_the_management_cluster_the_object_waits_for_the_finalizer_of_the_manager() -> None:
    objects = Objects()
    obj = objects.put(bucket())
    ctx = context(obj, objects=objects)
    ends = Ends(TransientError("not needed"), home=ctx.cluster)
    end, left_to_others = await ExternalObjects(ends, MEMBER).choose(external(), ctx, obj)
    assert left_to_others
    with pytest.raises(Again, match="waits for the finalizer") as again:
        await end.delete(ctx, obj)
    assert again.value.code == Reason.EXTERNAL_RESOURCE
    assert not (objects.get(BUCKETS, "photos", namespace="default") or {})["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("finalizer", [Finalizer.EXTERNAL.value, THEIRS])
async def test_on_the_management_cluster_a_claimed_object_is_deleted_and_waited_for(finalizer: str) -> None:
    objects = Objects()
    obj = objects.put(bucket(finalizer))
    ctx = context(obj, objects=objects)
    ends = Ends(TransientError("not needed"), home=ctx.cluster)
    end, _ = await ExternalObjects(ends, MEMBER).choose(external(), ctx, obj)
    with pytest.raises(Again):
        await end.delete(ctx, obj)
    now: Any = objects.get(BUCKETS, "photos", namespace="default")
    assert now["metadata"]["deletionTimestamp"]
    message = "Azure does not answer"
    now["status"] = {"conditions": [{"type": "Ready", "status": "False", "message": message}]}
    with pytest.raises(Again, match=message):
        await end.delete(ctx, now)
