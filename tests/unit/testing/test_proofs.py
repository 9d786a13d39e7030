"""Good deleters are proven, bad ones are detected, and the failing line is named."""

# ruff: noqa: A002 - `next` is what a deleter calls it

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from unwind import Again, DeleteContext, DeleteFunc, Gone, Kept, deleter
from unwind.testing import Script, World, interruptible, prove_idempotent, prove_patient

Obj = dict[str, Any]
Next = DeleteFunc[Obj]
BUCKET = {
    "apiVersion": "example.dev/v1",
    "kind": "Bucket",
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"deleteMode": "Purge"},
}


class Store:
    """The buckets outside the cluster."""

    def __init__(self) -> None:
        self.bills: list[str] = []
        self.disabled = False
        self.readers = 2
        self.trash = {"b"}

    async def bill(self, name: str) -> None:
        self.bills.append(name)

    async def disable(self) -> None:
        self.disabled = True

    async def purge(self, name: str) -> None:
        self.trash.discard(name)


def worlds(delete: object, **more: Any) -> Any:
    """Creates the same world again and again."""

    def fresh() -> World:
        store = Store()

        def fewer() -> None:
            store.readers = max(0, store.readers - 1)

        def state() -> object:
            return store.bills, store.disabled, store.trash

        return World(dict(BUCKET), delete, clients=(store,), state=state, meanwhile=fewer, **more)

    return fresh


async def purge(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    if not ctx.absent and obj["spec"].get("deleteMode") == "Purge":
        await ctx.memo.put("purge")
    outcome = await next(ctx, obj)
    if "purge" in ctx.memo:
        await ctx.client_of(Store).purge(ctx.ref.name)
    return outcome


async def in_steps(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    store = ctx.client_of(Store)
    if not store.disabled:
        await store.disable()
    if store.readers:
        raise Again(f"{store.readers} still read it", after=10)
    return await next(ctx, obj)


async def keep(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    return Kept(message="for ever", by="me")


async def bill_every_time(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    await ctx.client_of(Store).bill(ctx.ref.name)
    return await next(ctx, obj)


async def bill_then_remember(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    if "billed" not in ctx.memo:
        await ctx.client_of(Store).bill(ctx.ref.name)
        await ctx.memo.put("billed")
    return await next(ctx, obj)


async def forget_to_purge(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    outcome = await next(ctx, obj)
    if obj.get("spec", {}).get("deleteMode") == "Purge":
        await ctx.client_of(Store).purge(ctx.ref.name)
    return outcome


async def gone_when_begun(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    if "begun" in ctx.memo:
        return Gone("it was begun before")
    await ctx.memo.put("begun")
    return await next(ctx, obj)


async def gone_at_once(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    await ctx.client_of(Store).disable()
    return Gone("I think")


async def swallow(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    try:
        return await next(ctx, obj)
    except BaseException:  # noqa: BLE001 - that is what is wrong with it
        return Gone("whatever")


async def give_up(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
    try:
        return await next(ctx, obj)
    except Exception:  # noqa: BLE001 - that is what is wrong with it
        return Kept(message="it did not work", by="give-up")


def line_of(function: Any, offset: int) -> str:
    return f"test_proofs.py:{function.__code__.co_firstlineno + offset} in {function.__name__}"


@pytest.mark.parametrize("good", [purge, in_steps, keep], ids=lambda one: one.__name__)
async def test_a_good_deleter_is_proven(good: Any) -> None:
    proof = await prove_idempotent(worlds(good))
    assert isinstance(proof.end, Kept if good is keep else Gone)
    await prove_patient(worlds(good))


async def test_the_process_dies_before_and_after_everything_that_a_deleter_awaits() -> None:
    proof = await prove_idempotent(worlds(purge, next=Script(Gone())))
    for offset, times in ((2, 2), (3, 2), (5, 2)):
        assert sum(line_of(purge, offset) in crash for crash in proof.crashes) == times, proof.crashes
    assert len(proof.crashes) == 6


async def test_it_dies_in_every_entry_not_only_in_the_first() -> None:
    proof = await prove_idempotent(worlds(in_steps, next=Script(Again("not yet", after=1), RuntimeError("oh"), Gone())))
    # Twice in the first pass, where it disables the store, and twice in each of the three that reach next.
    assert [crash.rpartition(":")[2].split()[0] for crash in proof.crashes] == [
        str(in_steps.__code__.co_firstlineno + offset) for offset in (3, 3, 6, 6, 6, 6, 6, 6)
    ]


@pytest.mark.parametrize(
    ("bad", "offset", "told"),
    [
        (bill_every_time, 1, "the state should be"),
        (bill_then_remember, 2, "the state should be"),
        (forget_to_purge, 1, "the state should be"),
        (gone_when_begun, 3, "reports that Bucket default/b is gone"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_a_bad_deleter_is_found_out_and_the_line_is_named(bad: Any, offset: int, told: str) -> None:
    # The object stays until it is removed, so that an error without a crash is not what is found.
    with pytest.raises(AssertionError) as found:
        await prove_idempotent(worlds(bad, next=Script(Gone()), external=bad is bill_then_remember))
    assert told in str(found.value)
    if bad is not bill_every_time:  # which is detected without a crash
        assert line_of(bad, offset) in str(found.value)


async def test_what_is_done_at_every_entry_is_found_out_by_entering_once_more() -> None:
    with pytest.raises(AssertionError, match="run once more after the end: the state should be"):
        await prove_idempotent(worlds(bill_every_time))


async def test_a_purge_that_was_not_remembered_is_lost_when_the_object_is_gone() -> None:
    with pytest.raises(AssertionError, match=r"crashed at .*forget_to_purge"):
        await prove_idempotent(worlds(forget_to_purge, next=Script(Gone())))
    # An external object exists until the end, and can be read.
    await prove_idempotent(worlds(forget_to_purge, next=Script(Gone()), external=True))


async def test_a_deletion_that_never_ends_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"the chain ran 25 times without an end; the last result: later"):
        await prove_idempotent(worlds(purge, next=Script(Again("later", after=1))))


async def test_an_event_that_does_not_happen_is_found_out() -> None:
    with pytest.raises(AssertionError, match="waits for an event that does not happen: the moon"):
        await prove_idempotent(worlds(purge, next=Script(Again("the moon", until=asyncio.Event()))))


async def test_an_await_that_does_not_return_is_found_out_and_named() -> None:
    async def stand_still(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        await asyncio.Event().wait()
        return await next(ctx, obj)

    with pytest.raises(AssertionError, match=r"hangs at .* in stand_still"):
        await prove_idempotent(worlds(stand_still), standstill=0.05)


async def test_tasks_side_by_side_die_as_well() -> None:
    class Parts:
        def __init__(self) -> None:
            self.left = {1, 2}
            self.calls = 0

        async def remove(self, part: int) -> None:
            self.calls += 1
            self.left.discard(part)

    crashed: list[set[int]] = []

    async def remove_all(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        parts = ctx.client_of(Parts)
        crashed.append(set(parts.left))
        async with asyncio.TaskGroup() as group:
            for part in sorted(parts.left):
                group.create_task(parts.remove(part))
        return await next(ctx, obj)

    def fresh() -> World:
        parts = Parts()
        return World(dict(BUCKET), remove_all, clients=(parts,), next=Script(Gone()), state=lambda: parts.left)

    proof = await prove_idempotent(fresh)
    assert isinstance(proof.end, Gone)
    assert {2} in crashed, "it died between the two"


async def test_a_deleter_that_sleeps_holds_no_proof_up() -> None:
    async def sleepy(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        await ctx.clock.sleep(3600)
        return await next(ctx, obj)

    await prove_idempotent(worlds(sleepy))


@deleter("example.dev/v1", "Bucket", when=lambda obj: obj["spec"].get("deleteMode") == "Purge")
class Purge:
    """Purge what was deleted."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()

    async def delete(self, ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        outcome = await next(ctx, obj)
        await self.store.purge(ctx.ref.name)
        return outcome


async def test_a_deleter_with_a_predicate_stays_when_the_object_is_gone() -> None:
    def fresh() -> World:
        store = Store()
        return World(dict(BUCKET), Purge(interruptible(store)), state=lambda: store.trash)

    proof = await prove_idempotent(fresh)
    assert any("in delete" in crash and "test_proofs.py" in crash for crash in proof.crashes)
    assert fresh().links[0].name == "purge"


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (swallow, r"although next raised Again\('it is still there'\)"),
        (give_up, r"next raised RuntimeError\('the server is on fire'\), and the deleter returned Kept"),
        (gone_at_once, "though next was not called"),
        (gone_when_begun, r"though next was not called"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_a_finalizer_that_would_go_too_early_is_found_out(bad: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        await prove_patient(worlds(bad))


async def test_only_cancellation_swallowed_is_found_out_too() -> None:
    async def stubborn(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        try:
            return await next(ctx, obj)
        except asyncio.CancelledError:
            return Gone("cancelled")

    with pytest.raises(AssertionError, match="CancelledError"):
        await prove_patient(worlds(stubborn))


async def test_kept_after_gone_is_found_out_unless_it_is_meant() -> None:
    async def archive(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        await next(ctx, obj)
        return Kept(message="in the archive until 2030", by="archive")

    with pytest.raises(AssertionError, match="next returned Gone, but the result is Kept"):
        await prove_patient(worlds(archive))
    await prove_patient(worlds(archive), kept=True)


async def test_a_deleter_that_never_comes_to_next_is_found_out() -> None:
    async def wait_for_ever(ctx: DeleteContext, obj: Obj, next: Next) -> Gone | Kept:
        raise Again("the time is not right", after=1)

    with pytest.raises(AssertionError, match="never called next: the time is not right"):
        await prove_patient(worlds(wait_for_ever))
