"""Outcomes of one pass through a chain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.deleters.making import OBJECT, FakeEnd, context
from unwind.api.fields import Model
from unwind.api.meta import ObjectMeta
from unwind.deleters.chain_attempt import Failed, Waiting, attempt, enter
from unwind.deleters.outcomes import Again, Gone, Kept, Pace, PermanentError, Severity, TransientError
from unwind.deleters.registration import Kinds, Registration
from unwind.deleters.registry import DeleterRegistry
from unwind.kube.errors import UnreachableError, UnwatchedError
from unwind.plugins import contained

if TYPE_CHECKING:
    from unwind.deleters.context import Delete, DeleteContext, DeleteFunc, End
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object


def registry(*deletes: Delete, **more: Any) -> DeleterRegistry:
    kinds = (Kinds("*", "*"),)
    return DeleterRegistry(
        [
            Registration(name=f"link-{n}", kinds=kinds, delete=delete, order=n, **more)
            for n, delete in enumerate(deletes)
        ]
    )


async def entered(end: End, *deletes: Delete, **more: Any) -> Outcome | Waiting | Failed:
    return await attempt(enter(registry(*deletes, **more), end, context(), OBJECT))


async def pass_on(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    return await next(ctx, obj)


async def careless(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    try:
        return await next(ctx, obj)
    except Exception:  # noqa: BLE001 - that is what is shown here
        return Gone("who cares")


async def test_what_stands_after_next_runs_only_when_the_end_is_reached() -> None:
    purged: list[str] = []

    async def purge(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        outcome = await next(ctx, obj)
        purged.append(ctx.ref.name)
        return outcome

    end = FakeEnd(Again("an hour to go", after=60), TransientError("not yet"), Gone("seen"))
    assert await entered(end, purge) == Waiting("an hour to go", after=60)
    assert isinstance(await entered(end, purge), Failed)
    assert purged == []
    assert await entered(end, purge) == Gone("seen")
    assert purged == ["one"]


async def test_a_careless_except_does_not_swallow_that_there_is_more_to_do() -> None:
    assert await entered(FakeEnd(Again("wait")), careless) == Waiting("wait")


async def test_a_deleter_that_says_gone_of_what_is_still_there_is_not_believed() -> None:
    result = await entered(FakeEnd(TransientError("no"), there=True), careless)
    assert isinstance(result, Failed)
    assert "is gone, but the server returned it" in result.message


async def test_a_deleter_that_deleted_by_itself_is_believed_when_it_is_gone() -> None:
    async def by_itself(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        return Gone("by myself")

    end = FakeEnd()
    assert await entered(end, by_itself) == Gone("by myself")
    assert end.calls == 0


async def test_a_deleter_may_keep_the_object_and_nobody_behind_it_is_asked() -> None:
    async def keep(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        return Kept("Precious", "it is precious", by="a test")

    end = FakeEnd()
    assert await entered(end, pass_on, keep, careless) == Kept("Precious", "it is precious", by="a test")
    assert end.calls == 0


@pytest.mark.parametrize("returned", [None, True, "Gone", Gone])
async def test_what_is_neither_gone_nor_kept_lets_nothing_go(returned: Any) -> None:
    async def odd(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        await next(ctx, obj)
        return returned  # type: ignore[no-any-return]

    result = await entered(FakeEnd(), odd)
    assert isinstance(result, Failed)
    assert "instead of Gone or Kept" in result.message


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (ValueError("odd"), Failed("odd; will retry", "ValueError", Severity.WARNING, Pace.SLOW)),
        (KeyError(), Failed("KeyError; will retry", "KeyError", Severity.WARNING, Pace.SLOW)),
        (UnreachableError("no answer"), Failed("no answer; will retry", "Unreachable", Severity.WARNING, Pace.FAST)),
        (UnwatchedError("one kind"), Failed("one kind; will retry", "Failed", Severity.WARNING, Pace.FAST)),
        (
            TransientError("busy", reason="Throttled", pace=Pace.SLOW, retry_after=7.0),
            Failed("busy; will retry", "Throttled", Severity.WARNING, Pace.SLOW, 7.0),
        ),
        (TransientError("busy", remedy="wait"), Failed("busy; wait", "Failed", Severity.WARNING, Pace.FAST)),
        (TransientError("will retry: busy"), Failed("will retry: busy", "Failed", Severity.WARNING, Pace.FAST)),
        (
            PermanentError("locked", severity=Severity.INFO, reason="Locked", remedy="unlock it"),
            Failed("locked; unlock it", "Locked", Severity.INFO, Pace.VERY_SLOW),
        ),
    ],
)
async def test_every_failure_is_told_with_its_reason_severity_and_pace(error: Exception, failed: Failed) -> None:
    result = await entered(FakeEnd(error), pass_on)
    assert isinstance(result, Failed)
    assert result.error is error
    told = (result.message, result.reason, result.severity, result.pace, result.retry_after)
    assert told == (failed.message, failed.reason, failed.severity, failed.pace, failed.retry_after)


@pytest.mark.parametrize("plugin", [False, True])
@pytest.mark.parametrize("swallowed", [False, True])
async def test_an_entry_that_is_cancelled_from_outside_ends_as_cancelled(*, plugin: bool, swallowed: bool) -> None:
    began = asyncio.Event()

    async def wait(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallowed:
                raise
        return await next(ctx, obj)

    task = asyncio.create_task(entered(FakeEnd(Gone("seen")), contained(wait) if plugin else wait))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancel_oneself(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)
    return await next(ctx, obj)


def raising(error: BaseException) -> Delete:
    async def fail(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        raise error

    return fail


@pytest.mark.parametrize(
    ("delete", "message"),
    [
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(GeneratorExit()), "GeneratorExit"),
        (raising(asyncio.CancelledError()), "CancelledError"),
        (raising(BaseExceptionGroup("", [Again("x"), SystemExit(1)])), "SystemExit: 1"),
        (raising(ExceptionGroup("", [ValueError("a"), TransientError("b")])), "b (and 1 more); will retry"),
        (raising(Again("x", after="soon")), "after='soon'"),  # type: ignore[arg-type]
        (raising(Again("x", after=float("nan"))), "after=nan"),
        (raising(Again("x", until=object())), "has no wait()"),  # type: ignore[arg-type]
        (cancel_oneself, "CancelledError"),
    ],
)
async def test_whatever_a_plugin_raises_is_a_failure_of_this_deletion(delete: Delete, message: str) -> None:
    result = await entered(FakeEnd(Gone("seen")), contained(delete))
    assert isinstance(result, Failed)
    assert message in result.message


async def test_errors_with_nonsense_in_their_fields_are_retried_slowly() -> None:
    error = TransientError("x", pace="fast", retry_after="later")  # type: ignore[arg-type]
    result = await entered(FakeEnd(Gone("seen")), contained(raising(error)))
    assert isinstance(result, Failed)
    assert (result.pace, result.retry_after) == (Pace.SLOW, 0.0)


async def test_again_in_a_task_group_is_a_wait() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def both(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        raise BaseExceptionGroup("", [Again("a", until=first), BaseExceptionGroup("", [Again("b", until=second)])])

    async def one(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        async def wait() -> None:
            raise Again("a", after=7, until=first)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
        return Gone()

    assert await entered(FakeEnd(Gone("seen")), contained(one)) == Waiting("a", 7, first)
    assert await entered(FakeEnd(Gone("seen")), contained(both)) == Waiting("a; b", 5.0, first)


async def test_each_deleter_reads_the_object_as_it_likes() -> None:
    class Mode(Model, frozen=True, kw_only=True):
        metadata: ObjectMeta = ObjectMeta()
        data: dict[str, str] = msgspec.field(default_factory=dict)

    seen: list[Any] = []

    async def typed(ctx: DeleteContext, obj: Mode, next: DeleteFunc[Mode]) -> Outcome:  # noqa: A002
        seen.append((obj.metadata.name, obj.data["mode"]))
        return await next(ctx, obj)

    class End(FakeEnd):
        async def delete(self, ctx: DeleteContext, obj: Object) -> Outcome:
            seen.append(obj)
            return await super().delete(ctx, obj)

    assert await entered(End(), typed, model=Mode) == Gone()
    assert seen == [("one", "Purge"), OBJECT]


_ends = st.sampled_from(
    [
        Gone("g"),
        Kept("K"),
        Again("a"),
        TransientError("t"),
        PermanentError("p"),
        ValueError("v"),
        UnreachableError("u"),
    ]
)


@settings(deadline=None)
@given(end=_ends, links=st.lists(st.sampled_from(["pass", "careless", "keep"]), max_size=6))
async def test_nothing_is_let_go_unless_the_end_or_a_keeper_says_so(end: Any, links: list[str]) -> None:
    async def keep(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        return Kept("Keeper")

    choices: dict[str, Delete] = {"pass": pass_on, "careless": careless, "keep": keep}
    result = await entered(FakeEnd(end, there=end != Gone("g")), *(choices[link] for link in links))
    if "keep" in links:
        assert result == Kept("Keeper")
    else:
        # A careless deleter may turn an error into a Gone; it is not accepted.
        assert isinstance(result, Gone) == (end == Gone("g"))
        assert isinstance(result, Kept) == (end == Kept("K"))
