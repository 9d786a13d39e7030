"""A scripted `next`, and contexts without a cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unwind import Again, Gone, Kept, PermanentError
from unwind.api.meta import Reference, SecretReference
from unwind.api.resources import CONFIG_MAPS
from unwind.testing import Objects, Script, StillClock, context, interruptible

BUCKET = {"apiVersion": "example.dev/v1", "kind": "Bucket", "metadata": {"name": "b", "namespace": "default"}}


async def test_each_call_plays_the_next_turn_and_the_last_one_repeats() -> None:
    script, ctx = Script(Again("wait", after=3), RuntimeError("oh"), Gone("over")), context(BUCKET)
    with pytest.raises(Again, match="wait"):
        await script(ctx, BUCKET)
    with pytest.raises(RuntimeError, match="oh"):
        await script(ctx, BUCKET)
    assert [await script(ctx, BUCKET) for _ in range(2)] == [Gone("over")] * 2
    assert [call.obj for call in script.calls] == [BUCKET] * 4


async def test_a_script_of_nothing_says_gone() -> None:
    assert isinstance(await Script()(context(BUCKET), BUCKET), Gone)


async def test_a_memo_outlives_its_context() -> None:
    kept: dict[str, str] = {}
    await context(BUCKET, kept=kept, deleter="purge").memo.put("mode", "Purge")
    assert context(BUCKET, kept=kept, deleter="purge").memo["mode"] == "Purge"
    assert "mode" not in context(BUCKET, kept=kept, deleter="other").memo


async def test_the_resolver_finds_what_is_there() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "data": {"token": "czNjcjN0"}}
    ctx = context(BUCKET, objects=Objects(BUCKET, secret))
    assert await ctx.resolver.secret(SecretReference(name="key"), "token", namespace="default") == "s3cr3t"
    found = await ctx.resolver.object(
        Reference(api_version="example.dev/v1", kind="Bucket", name="b"), namespace="default"
    )
    assert found
    assert found["metadata"]["uid"] == ctx.ref.uid
    assert await ctx.resolver.resource("configmaps") == CONFIG_MAPS


async def test_changes_are_told_when_an_object_changes_or_the_test_says_so() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    objects = Objects(config, BUCKET)
    ctx = context(BUCKET, objects=objects)
    mine = await ctx.watches.changes(CONFIG_MAPS, namespace="default", name="c")
    other = await ctx.watches.changes(CONFIG_MAPS, namespace="default", name="d")
    objects.change(CONFIG_MAPS, "c", {"data": {"a": "b"}})
    assert (mine.happened, other.happened) == (True, False)
    objects.watches.fire()
    assert other.happened


async def test_an_interruptible_client_is_found_by_its_type_and_does_what_it_did() -> None:
    class Store:
        def __init__(self) -> None:
            self.size = 3

        async def empty(self) -> int:
            self.size = 0
            return 1

    store = Store()
    found = context(BUCKET, clients=(store,)).client_of(Store)
    assert await found.empty() == 1
    assert (store.size, found.size) == (0, 0)
    interruptible(store).size = 5
    assert store.size == 5


async def test_the_clock_of_a_context_stands_still() -> None:
    clock = StillClock()
    ctx = context(BUCKET, clock=clock)
    began = ctx.clock.now()
    clock.advance(60)
    assert (ctx.clock.now() - began).total_seconds() == 60


def test_who_writes_a_deleter_needs_no_control_plane() -> None:
    wanted = "import sys, unwind.testing.fixtures, unwind.testing; sys.exit('unwind.local' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", wanted], check=False).returncode == 0


async def test_turns_may_be_any_end() -> None:
    with pytest.raises(PermanentError):
        await Script(PermanentError("never"))(context(BUCKET), BUCKET)
    assert await Script(Kept(by="me"))(context(BUCKET), BUCKET) == Kept(by="me")


def test_the_fixtures_give_contexts_on_one_clock(deleting, still_clock: StillClock) -> None:  # type: ignore[no-untyped-def]
    assert deleting(BUCKET).clock is still_clock
