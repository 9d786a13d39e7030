"""Proofs for deleters: a crash changes nothing, and no finalizer is removed too early."""

from __future__ import annotations

import asyncio
import inspect
from itertools import count
from pprint import pformat
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.deleters.attempt import Waiting, attempt
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, TransientError
from unwind.kube.client import Object
from unwind.testing.crashing import Died, Life
from unwind.testing.scripting import Script
from unwind.testing.worlds import Stuck

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.deleters.outcomes import Outcome
    from unwind.testing.worlds import Picture, World

ENTRIES = 25
STANDSTILL = 30.0


class Proof(msgspec.Struct, frozen=True):
    """The result of a proof."""

    end: Gone | Kept
    """The outcome of the deletion, the same in every run."""
    state: Any
    """The final result of `state`, the same in every run. Assert yourself that it is the expected one."""
    objects: dict[str, Object] | None
    """The remaining objects by path; None if they are on a real server."""
    crashes: tuple[str, ...]
    """The places of the crashes, each once."""


async def prove_idempotent(
    fresh: Callable[[], World | Awaitable[World]], *, entries: int = ENTRIES, standstill: float = STANDSTILL
) -> Proof:
    """Raise AssertionError unless the deletion has the same outcome and final state wherever it crashes.

    It runs to its end once. Then, each time in a fresh world, it crashes at its first await, its second, and so on to
    the last, resumes with only what was saved, and runs to the end; and then once more after the end. `fresh` creates a
    world and is called for every run. `entries`: how often the chain may run before it counts as endless; `standstill`:
    real seconds after which an await counts as hanging.
    """
    world = await _made(fresh)
    async with Life() as life:
        try:
            expected = await world.finish(life, entries=entries, within=standstill)
        except Stuck as stuck:
            raise AssertionError(f"without a crash: {stuck}") from None
    picture = await world.picture()
    await _the_same(world, expected, picture, "run once more after the end", entries, standstill)

    crashes = []
    for n in count(1):
        world = await _made(fresh)
        async with Life(dies_at=n) as life:
            try:
                end = await world.finish(life, entries=entries, within=standstill)
            except Died:
                where = world.where(life)
                told = f"crashed at {where} (await number {n}), then resumed"
                await _the_same(world, expected, picture, told, entries, standstill)
                await _the_same(world, expected, picture, f"{told}, and once more after the end", entries, standstill)
                crashes.append(where)
                continue
            except Stuck as stuck:
                raise AssertionError(f"without a crash, in a fresh world: {stuck}") from None
        await _compare(world, expected, picture, end, "run in a fresh world")
        break
    return Proof(expected, *picture, tuple(crashes))


async def prove_patient(
    fresh: Callable[[], World | Awaitable[World]],
    *,
    kept: bool = False,
    entries: int = ENTRIES,
    standstill: float = STANDSTILL,
) -> None:
    """Raise AssertionError unless the deleters return Gone only after `next` has, so that no finalizer is removed
    early.

    Instead of `next` they get every way in which a deletion can be incomplete: none of them may result in Gone or Kept.
    Then they get Gone: the result must be Gone, or with `kept` a Kept.
    """
    for unfinished in (
        Again("it is still there", after=1),
        RuntimeError("the server is on fire"),
        TransientError("not now"),
        PermanentError("not ever"),
        asyncio.CancelledError(),
    ):
        world = await _made(fresh)
        script = Script(unfinished)
        world.script(script)
        await _stays(world, script, unfinished, entries, standstill)
    world = await _made(fresh)
    script = Script(Gone("as scripted"))
    world.script(script)
    async with Life() as life:
        try:
            end = await world.finish(life, entries=entries, within=standstill)
        except Stuck as stuck:
            raise AssertionError(f"next returned Gone, but {stuck}") from None
    if isinstance(end, Kept) and script.calls and not kept:
        raise AssertionError(f"next returned Gone, but the result is {end!r}")


async def _stays(world: World, script: Script, unfinished: BaseException, entries: int, standstill: float) -> None:
    """Run the chain a few times while its end is never reached."""
    told, said = f"next raised {unfinished!r}", ""
    async with Life() as life:
        for _ in range(entries):
            calls = len(script.calls)
            try:
                result = await life.live(attempt(world.enter(believing=False)), within=standstill)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current and current.cancelling():
                    raise  # this task itself was cancelled
                return  # it passed the cancellation on
            except TimeoutError:
                raise AssertionError(f"{told}, and the deleter hangs at {world.where(life)}") from None
            if isinstance(result, Gone):
                how = told if len(script.calls) > calls else "next was not called"
                told = f"the deleter returned {result!r} although {how}: the finalizer would be removed too early"
                raise AssertionError(told)  # noqa: TRY004 - no type is wrong
            if isinstance(result, Kept):
                if not script.calls:
                    return  # it never meant to delete it
                raise AssertionError(
                    f"{told}, and the deleter returned {result!r}: the finalizer would be removed too early"
                )
            said = result.reason if isinstance(result, Waiting) else result.message
            if len(script.calls) > 1:
                return  # it reached the end twice, without a result
            try:
                await world.pause(result)
            except Stuck as stuck:
                raise AssertionError(f"{told}: {stuck}") from None
    if not script.calls:
        raise AssertionError(f"the chain ran {entries} times and never called next: {said}")


async def _the_same(
    world: World, expected: Outcome, picture: Picture, told: str, entries: int, standstill: float
) -> None:
    async with Life() as life:
        try:
            end = await world.finish(life, entries=entries, within=standstill)
        except Stuck as stuck:
            raise AssertionError(f"{told}: {stuck}") from None
    await _compare(world, expected, picture, end, told)


async def _compare(world: World, expected: Outcome, picture: Picture, end: Outcome, told: str) -> None:
    if _essence(end) != _essence(expected):
        raise AssertionError(f"{told}: the outcome is {end!r} instead of {expected!r}")
    for what, was, found in zip(("the state", "the remaining objects"), picture, await world.picture(), strict=True):
        if was != found:
            raise AssertionError(f"{told}: {what} should be\n{pformat(was)}\nbut is\n{pformat(found)}")


def _essence(end: Outcome) -> object:
    """What must be equal: how an absence is known may differ between runs."""
    return Gone if isinstance(end, Gone) else (end.reason, end.by)


async def _made(fresh: Callable[[], World | Awaitable[World]]) -> World:
    made = fresh()
    if inspect.isawaitable(made):
        return await made
    return made
