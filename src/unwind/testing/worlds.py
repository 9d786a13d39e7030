"""A world for proofs, in which one object is deleted: run, interrupted, resumed."""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import Finalizer
from unwind.deleters.attempt import Waiting, attempt, enter
from unwind.deleters.kubernetes import KubernetesEnd
from unwind.deleters.outcomes import Gone, Kept
from unwind.deleters.registration import Kinds, Registration, registrations
from unwind.deleters.registry import DeleterRegistry
from unwind.errors import UnwindError
from unwind.kube.absence import Presence
from unwind.kube.client import Object
from unwind.kube.errors import NotFoundError
from unwind.testing.clock import StillClock
from unwind.testing.contexts import context
from unwind.testing.objects import Objects
from unwind.testing.scripting import Script, ScriptedEnd, checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.fields import Unknown
    from unwind.api.resources import Resource
    from unwind.deleters.attempt import Failed
    from unwind.deleters.context import DeleteContext, End
    from unwind.deleters.outcomes import Event, Outcome
    from unwind.kube.client import Client
    from unwind.kube.watches import Watches
    from unwind.testing.crashing import Life

# How many turns other tasks get before an event counts as one that never happens.
_TURNS = 10


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
