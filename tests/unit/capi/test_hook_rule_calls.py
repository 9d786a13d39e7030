"""Rules at a hook are asked side by side, and none of them lets a cluster go on by failing."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from tests.unit.capi.asked import body
from unwind.api.hooks import Hook
from unwind.capi import hook_protocol
from unwind.capi.hook_rule_calls import ask_rules, together
from unwind.hooks import HookContext, Rule, Wait
from unwind.testing.objects import Objects

HOOK = Hook.BEFORE_CLUSTER_UPGRADE


class Freeze(msgspec.Struct):
    """What a rule may want to be told."""

    frozen: bool = False
    days: int = 0


def rule(name: str, decide: Any, settings: type | None = None) -> Rule:
    return Rule(name=name, hook=HOOK, decide=decide, settings=settings, source="others 1.0")


async def asked(*rules: Rule, settings: dict[str, str] | None = None, within: float = 30.0) -> list[Wait]:
    request = hook_protocol.hook_request(HOOK, body(HOOK, settings=settings or {}))
    return await ask_rules(rules, request, client=Objects().client, within=within)


async def fine(request: Any, ctx: HookContext[Any]) -> None:
    return None


async def test_rules_that_say_nothing_let_it_go_on() -> None:
    assert await asked() == []
    assert await asked(rule("one", fine), rule("two", fine)) == []


async def test_they_are_asked_side_by_side() -> None:
    met = asyncio.Barrier(3)

    async def meet(request: Any, ctx: HookContext[Any]) -> Wait:
        await met.wait()
        return Wait("met")

    assert await asked(*(rule(name, meet) for name in "abc")) == [Wait("met")] * 3


def test_the_shortest_wait_wins_and_what_is_told_has_one_order() -> None:
    waits = [Wait("b", 7), Wait("a", 9), Wait("b", 3)]
    assert together(waits) == together(reversed(waits)) == Wait("a; b", 3)
    assert together([]) is None


async def test_a_rule_is_given_its_settings_in_its_type() -> None:
    seen = []

    async def look(request: Any, ctx: HookContext[Any]) -> None:
        seen.append((ctx.settings, ctx.remaining, request.cluster.metadata.name))

    await asked(rule("typed", look, Freeze), rule("plain", look), settings={"frozen": "true", "days": "3", "x": "y"})
    assert seen == [
        (Freeze(frozen=True, days=3), 30.0, "prod-7"),
        ({"frozen": "true", "days": "3", "x": "y"}, 30.0, "prod-7"),
    ]


async def test_settings_that_cannot_be_read_hold_it_and_say_so() -> None:
    [wait] = await asked(rule("freeze", fine, Freeze), settings={"days": "many"})
    assert wait.seconds == 10
    assert wait.why.startswith("hook rule freeze of others 1.0 blocks the cluster: cannot read its settings: ")
    assert "$.days" in wait.why


async def raising(request: Any, ctx: HookContext[Any]) -> None:
    raise ValueError("no\nidea")


async def leaving(request: Any, ctx: HookContext[Any]) -> None:
    raise SystemExit(1)


async def cancelled(request: Any, ctx: HookContext[Any]) -> None:
    raise asyncio.CancelledError


async def interrupted(request: Any, ctx: HookContext[Any]) -> None:
    raise KeyboardInterrupt


async def closed(request: Any, ctx: HookContext[Any]) -> None:
    raise GeneratorExit


async def several(request: Any, ctx: HookContext[Any]) -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), asyncio.CancelledError()])


async def cancelling_itself(request: Any, ctx: HookContext[Any]) -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)


async def wrong(request: Any, ctx: HookContext[Any]) -> bool:
    return True


async def silent(request: Any, ctx: HookContext[Any]) -> None:
    await asyncio.Event().wait()


async def endless(request: Any, ctx: HookContext[Any]) -> Wait:
    return Wait("for ever", float("inf"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (raising, "failed: ValueError: no idea; see the log of the manager"),
        (leaving, "failed: SystemExit: 1"),
        (cancelled, "cancelled"),
        (cancelling_itself, "cancelled"),
        (interrupted, "failed: KeyboardInterrupt"),
        (closed, "failed: GeneratorExit"),
        (several, "failed: BaseExceptionGroup: several"),
        (wrong, "returned bool instead of None or Wait; install a corrected version of it"),
        (endless, "failed: OverflowError"),
    ],
)
async def test_a_rule_that_breaks_holds_it_and_nobody_else(decide: Any, said: str) -> None:
    async def other(request: Any, ctx: HookContext[Any]) -> Wait:
        return Wait("for others", 2)

    broken, fine_one = await asked(rule("broken", decide), rule("other", other))
    assert broken.why.startswith(f"hook rule broken of others 1.0 blocks the cluster: {said}")
    assert (broken.seconds, fine_one) == (10, Wait("for others", 2))


async def test_a_rule_that_gives_no_answer_in_time_holds_it() -> None:
    [wait] = await asked(rule("silent", silent), within=0.0)
    assert wait == Wait("hook rule silent of others 1.0 blocks the cluster: timed out; it is called again", 10)


async def test_a_rule_that_swallows_its_timeout_holds_it() -> None:
    async def late(request: Any, ctx: HookContext[Any]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    [wait] = await asked(rule("late", late), within=0.0)
    assert wait == Wait("hook rule late of others 1.0 blocks the cluster: timed out; it is called again", 10)


@pytest.mark.parametrize(("seconds", "bounded"), [(-5, 1), (0, 1), (3, 3), (600, 10)])
async def test_what_a_rule_wants_is_kept_within_bounds(seconds: int, bounded: int) -> None:
    async def wait(request: Any, ctx: HookContext[Any]) -> Wait:
        return Wait("for it", seconds)

    [told] = await asked(rule("wait", wait))
    answer = json.loads(hook_protocol.wait(HOOK, told.why, told.seconds).body)
    assert answer["retryAfterSeconds"] == bounded
