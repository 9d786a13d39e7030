"""Proofs for deleters: that a crash changes nothing, and that no finalizer goes too early."""

from __future__ import annotations

import asyncio
import inspect
from itertools import count
from pprint import pformat
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.deleting.entering import Waiting, attempt
from unwind.deleting.outcomes import Again, Gone, Kept, PermanentError, TransientError
from unwind.kube.client import Object
from unwind.testing.crashing import Died, Life
from unwind.testing.scripting import Script
from unwind.testing.worlds import Stuck

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.deleting.outcomes import Outcome
    from unwind.testing.worlds import Picture, World

ENTRIES = 25
STANDSTILL = 30.0


class Proof(msgspec.Struct, frozen=True):
    """What was proven."""

    end: Gone | Kept
    """How the deletion ends, every time."""
    state: Any
    """What `state` of the world says in the end, every time. That it is what was wanted is for you to say."""
    objects: dict[str, Object] | None
    """The objects that are left in the end, by their paths; None if they are on a real server."""
    crashes: tuple[str, ...]
    """Where the process died, once each."""


async def prove_idempotent(
    fresh: Callable[[], World | Awaitable[World]], *, entries: int = ENTRIES, standstill: float = STANDSTILL
) -> Proof:
    """Raise AssertionError unless the deletion ends the same way, and leaves the same world, wherever it is crashed.

    It is run to its end once. Then, in a fresh world for each, it dies at its first await, its second, and so on to the
    last, is entered again with nothing but what was written down, and run to the end; and then once more after the end.
    `fresh` makes a world; it is called for every run. `entries`: how often the chain may be entered before it counts as
    one that does not end; `standstill`: real seconds after which an await counts as one that does not return.
    """
    world = await _made(fresh)
    async with Life() as life:
        try:
            expected = await world.finish(life, entries=entries, within=standstill)
        except Stuck as stuck:
            raise AssertionError(f"without any crash: {stuck}") from None
    picture = await world.picture()
    await _the_same(world, expected, picture, "entered once more after the end", entries, standstill)

    crashes = []
    for n in count(1):
        world = await _made(fresh)
        async with Life(dies_at=n) as life:
            try:
                end = await world.finish(life, entries=entries, within=standstill)
            except Died:
                where = world.where(life)
                told = f"crashed at {where} (await number {n}), and entered again"
                await _the_same(world, expected, picture, told, entries, standstill)
                await _the_same(world, expected, picture, f"{told}, and once more after the end", entries, standstill)
                crashes.append(where)
                continue
            except Stuck as stuck:
                raise AssertionError(f"without any crash, in a fresh world: {stuck}") from None
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
    """Raise AssertionError unless the deleters say Gone only after `next` has, so that no finalizer goes too early.

    In place of `next` they are given every way in which a deletion can be unfinished: none of them may come out as Gone
    or Kept. Then they are given Gone: that is what has to come out, or with `kept` a Kept.
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
            raise AssertionError(f"next says Gone, and {stuck}") from None
    if isinstance(end, Kept) and script.calls and not kept:
        raise AssertionError(f"next says Gone, and what comes out is {end!r}")


async def _stays(world: World, script: Script, unfinished: BaseException, entries: int, standstill: float) -> None:
    """Enter the chain a few times, the end of which is never come to."""
    told, said = f"next says {unfinished!r}", ""
    async with Life() as life:
        for _ in range(entries):
            calls = len(script.calls)
            try:
                result = await life.live(attempt(world.enter(believing=False)), within=standstill)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current and current.cancelling():
                    raise  # it was ourselves who were cancelled
                return  # it let through what cancels it
            except TimeoutError:
                raise AssertionError(f"{told}, and it stands still at {world.where(life)}") from None
            if isinstance(result, Gone):
                how = told if len(script.calls) > calls else "next was not called"
                told = f"it says {result!r}, though {how}: the finalizer would go too early"
                raise AssertionError(told)  # noqa: TRY004 - no type is wrong
            if isinstance(result, Kept):
                if not script.calls:
                    return  # it never meant to delete it
                raise AssertionError(f"{told}, and it says {result!r}: the finalizer would go too early")
            said = result.reason if isinstance(result, Waiting) else result.message
            if len(script.calls) > 1:
                return  # entered twice up to the end, and nothing came of it
            try:
                await world.pause(result)
            except Stuck as stuck:
                raise AssertionError(f"{told}: {stuck}") from None
    if not script.calls:
        raise AssertionError(f"it was entered {entries} times and never called next: {said}")


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
        raise AssertionError(f"{told}: it ends with {end!r}, and not with {expected!r}")
    for what, was, found in zip(("the state", "the objects left"), picture, await world.picture(), strict=True):
        if was != found:
            raise AssertionError(f"{told}: {what} should be\n{pformat(was)}\nand is\n{pformat(found)}")


def _essence(end: Outcome) -> object:
    """What counts of an end: how it is known that something is gone may differ from one run to the next."""
    return Gone if isinstance(end, Gone) else (end.reason, end.by)


async def _made(fresh: Callable[[], World | Awaitable[World]]) -> World:
    made = fresh()
    if inspect.isawaitable(made):
        return await made
    return made
