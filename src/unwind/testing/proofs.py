"""Proofs for deleters: a world in which one object is deleted, interrupted and resumed, and what must hold in it."""

from __future__ import annotations

import asyncio
import copy
import inspect
from itertools import count
from pprint import pformat
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import Finalizer
from unwind.deleters.chain_attempt import Waiting, attempt, enter
from unwind.deleters.kubernetes_end import KubernetesEnd
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError, TransientError
from unwind.deleters.registration import Kinds, Registration, registrations
from unwind.deleters.registry import DeleterRegistry
from unwind.errors import UnwindError
from unwind.kube.absence import Presence
from unwind.kube.client import Object
from unwind.kube.errors import NotFoundError
from unwind.testing.clock import StillClock
from unwind.testing.contexts import context
from unwind.testing.crashes import Died, Life
from unwind.testing.objects import Objects
from unwind.testing.scripts import Script, ScriptedEnd, checkpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.fields import Unknown
    from unwind.api.resources import Resource
    from unwind.deleters.chain_attempt import Failed
    from unwind.deleters.context import DeleteContext, End
    from unwind.deleters.outcomes import Event, Outcome
    from unwind.kube.client import Client
    from unwind.kube.watches import Watches

# How many turns other tasks get before an event counts as one that never happens.
_TURNS = 10


ENTRIES = 25
STANDSTILL = 30.0
Picture = tuple[Any, dict[str, Object] | None]
"""The state of a world: the result of `state`, and the remaining objects."""


class Stuck(Exception):  # noqa: N818 - what a proof finds out
    """The deletion does not end."""


class HastyClock(StillClock):
    """A clock on which every sleep advances the time at once."""

    async def sleep(self, seconds: float) -> None:
        await checkpoint()
        self.advance(seconds)
        await checkpoint()


class World:
    """One object that some deleters delete, and everything that survives a crash.

    Survives: the objects, the memo, the clock. Created for each run: the context, the resolver, the chain.
    """

    def __init__(
        self,
        obj: Object,
        *deleters: object,
        next: Script | End | None = None,  # noqa: A002 - its name
        objects: Iterable[Object] | Objects = (),
        clients: tuple[object, ...] = (),
        external: bool = False,
        policy: DeletePolicy | Unknown | None = None,
        state: Callable[[], object] = lambda: None,
        meanwhile: Callable[[], object] = lambda: None,
        live: tuple[Client, Watches, Resource] | None = None,
    ) -> None:
        """`deleters`: functions, classes, instances, registrations, in the order of the chain.

        `next`: what follows them; by default the object is deleted as on a cluster, with its finalizers and dependents.
        `objects`: other objects. `clients`: found by `ctx.client_of(…)`. `external`: the object represents an external
        resource, has Unwind's finalizer and exists until the end; otherwise it is gone once it is deleted, and the
        deleters get its tombstone. `state`: the state of the world besides its objects, compared with `==`.
        `meanwhile`: what others do while the deletion waits, called at every wait. Both may be coroutine functions.
        `live`: run on a real server; `obj` is what was created there.
        """
        self.clock = HastyClock()
        self.objects = objects if isinstance(objects, Objects) else Objects(*objects, clock=self.clock)
        if external:
            obj = _terminating(obj)
        self.obj = obj if live else self.objects.put(obj)
        self.resource = live[2] if live else self.objects.resource(self.obj)
        self.links = [link for obj in deleters for link in _links(obj)]
        self.memo: dict[str, str] = {}
        """The memo of the deleters, by `deleter.key`."""
        self.state = state
        self.meanwhile = meanwhile
        self.patience = 30.0 if live else 0.0
        """Real seconds to wait for an event."""
        self._clients = clients
        self._external = external
        self._policy = policy
        self._live = live
        if isinstance(next, Script):
            # From its start: it may have been played in another world.
            next = Script(*next.turns)  # noqa: A001 - its name
        self.end: End = self._as_end(next) if next is not None else KubernetesEnd()

    def script(self, script: Script) -> None:
        """Play this script at the end of the chain from now on."""
        self.end = self._as_end(script)

    def _as_end(self, it: Script | End) -> End:
        return ScriptedEnd(it, self._take_away) if isinstance(it, Script) else it

    def _take_away(self) -> None:
        if not self._external:
            metadata = self.obj["metadata"]
            self.objects.remove(self.resource, metadata["name"], namespace=metadata.get("namespace", ""))

    async def enter(self, *, believing: bool = True) -> Outcome:
        """Run the chain once, from the start, with only what was saved.

        Without `believing`, the result of the deleters is returned unchecked.
        """
        obj = await self._look()
        ctx = self._context(absent=obj is None)
        given, registry = obj if obj is not None else ctx.tombstone(), DeleterRegistry(self.links)
        if believing:
            return await enter(registry, self.end, ctx, given)
        through = await registry.chain(ctx, given, self.end)
        return await through(ctx, given)

    async def pause(self, result: Waiting | Failed) -> None:
        """Let happen what the deletion waits for. Raises Stuck if it does not happen."""
        met = self.meanwhile()
        if inspect.isawaitable(met):
            await met
        self.objects.settle()
        if not isinstance(result, Waiting):
            self.clock.advance(max(result.retry_after, 1.0))
            return
        if result.until is not None and not await self._happens(result.until) and result.after is None:
            raise Stuck(f"it waits for an event that does not happen: {result.reason}")
        result.close()
        self.clock.advance(result.after or 0.0)

    async def finish(self, life: Life, *, entries: int, within: float) -> Outcome:
        """Run the chain until it ends. Raises Stuck if it does not end within so many runs, Died if the process crashes
        first."""
        said = ""
        for _ in range(entries):
            try:
                result = await life.live(attempt(self.enter()), within=within)
            except TimeoutError:
                raise Stuck(f"it hangs at {self.where(life)}") from None
            if isinstance(result, Gone | Kept):
                return result
            said = result.reason if isinstance(result, Waiting) else result.message
            await self.pause(result)
        raise Stuck(f"the chain ran {entries} times without an end; the last result: {said}")

    async def picture(self) -> Picture:
        """The state of the world: the result of `state`, and the remaining objects."""
        state = self.state()
        if inspect.isawaitable(state):
            state = await state
        # A copy: the world goes on, and the state may be a mutable value of the test.
        return copy.deepcopy((state, None if self._live else self.objects.left()))

    def where(self, life: Life) -> str:
        """The line of a deleter that was reached; if none, the innermost line."""
        codes = [getattr(link.delete, "__code__", None) for link in self.links]
        deleters = {code.co_filename for code in codes if code}
        for files in (deleters, {inspect.getfile(type(self.end))}):
            for place in reversed(life.places):
                if place.file in files:
                    return str(place)
        return f"{life.places[-1]}, outside of the deleters" if life.places else "its start"

    async def _look(self) -> Object | None:
        """The object as it is now; None if it is verified absent."""
        metadata = self.obj["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        if self._live is None:
            found = self.objects.get(self.resource, name, namespace=namespace)
            return found if found and found["metadata"]["uid"] == metadata["uid"] else None
        client, _, resource = self._live
        try:
            obj = await client.get(resource, name, namespace=namespace or None)
            return obj if obj["metadata"]["uid"] == metadata["uid"] else None
        except NotFoundError:
            seen = await client.sighting(resource, name, uid=metadata["uid"], namespace=namespace or None)
            if seen.presence is not Presence.ABSENT:
                raise
            return None

    def _context(self, *, absent: bool) -> DeleteContext:
        client, watches, _ = self._live or (None, None, None)
        return context(
            self.obj,
            objects=self.objects,
            kept=self.memo,
            clients=(*self._clients, *self.end.clients),
            clock=self.clock,
            absent=absent,
            policy=self._policy,
            resource=self.resource,
            client=client,
            watches=watches,
        )

    async def _happens(self, event: Event) -> bool:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_wait(event))
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            await asyncio.wait({waiting}, timeout=self.patience)
            happened = waiting.done()
            waiting.cancel()
        return happened


def _terminating(obj: Object) -> Object:
    """The object as after a DELETE, kept by Unwind's finalizer."""
    metadata = obj["metadata"]
    finalizers = dict.fromkeys([*(metadata.get("finalizers") or ()), str(Finalizer.EXTERNAL)])
    mark = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [*finalizers]}
    return {**obj, "metadata": {**metadata, **mark}}


async def _wait(event: Event) -> None:
    await event.wait()


def _links(it: Any) -> list[Registration]:
    """A deleter in any form, as links of a chain."""
    try:
        return [
            registration for registration in registrations(it, source="test") if isinstance(registration, Registration)
        ]
    except UnwindError:
        # Not registered, or an instance of a registered class.
        delete = getattr(it, "delete", it)
        kind = it if inspect.isfunction(it) else type(it)
    try:
        [marked] = registrations(kind, source="test")
    except (UnwindError, TypeError):
        name = kind.__name__.lower().replace("_", "-").strip("-")[:32]
        return [Registration(name=name, kinds=(Kinds("*", "*"),), delete=delete, source="test")]
    return [msgspec.structs.replace(marked, delete=delete)] if isinstance(marked, Registration) else []


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
