"""A scripted `next`, and a wrapper that lets a proof crash at every call."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind.deleters.outcomes import Gone, Kept
from unwind.kube.absence import Presence, Sighting

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.deleters.context import DeleteContext

T = TypeVar("T")
Turn = Gone | Kept | BaseException
"""What a scripted `next` does: exceptions are raised, other values returned."""


async def checkpoint() -> None:
    """Suspend for a moment. A proof can crash here."""
    await asyncio.sleep(0)


class Call(msgspec.Struct, frozen=True):
    """The arguments of a call of `next`."""

    ctx: Any
    obj: Any


class Script:
    """A `next` that plays one turn per call and repeats the last one: `Script(Again("…", after=3), Gone())`."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = turns or (Gone("as scripted"),)
        self.calls: list[Call] = []

    async def __call__(self, ctx: DeleteContext, obj: Any) -> Gone | Kept:
        await checkpoint()
        turn = self.play(ctx, obj)
        await checkpoint()
        return said(turn)

    def play(self, ctx: DeleteContext, obj: Any) -> Turn:
        """The turn of this call, as a value."""
        turn = self.turns[min(len(self.calls), len(self.turns) - 1)]
        self.calls.append(Call(ctx, obj))
        return turn

    @property
    def last(self) -> Turn | None:
        """The last turn; None before the first call."""
        return self.turns[min(len(self.calls), len(self.turns)) - 1] if self.calls else None


def said(turn: Turn) -> Gone | Kept:
    """Return what a turn returns, or raise what it raises."""
    if isinstance(turn, BaseException):
        # Without the traceback of earlier raises.
        raise turn.with_traceback(None)
    return turn


class ScriptedEnd:
    """The end of a chain that plays a script; `gone` is called at the moment the object disappears."""

    name = "scripted"
    clients: tuple[object, ...] = ()

    def __init__(self, script: Script, gone: Callable[[], None] = lambda: None) -> None:
        self.script = script
        self._gone = gone

    async def delete(self, ctx: DeleteContext, obj: Any) -> Gone | Kept:
        await checkpoint()
        turn = self.script.play(ctx, obj)
        if isinstance(turn, Gone):
            self._gone()
        await checkpoint()
        return said(turn)

    async def sighting(self, ctx: DeleteContext, obj: Any) -> Sighting:
        """Check whether the script has reached `Gone`."""
        if isinstance(self.script.last, Gone):
            return Sighting(Presence.ABSENT, "as scripted")
        return Sighting(
            Presence.PRESENT, f"next said {self.script.last!r}" if self.script.calls else "next was not called"
        )


def interruptible(target: T) -> T:
    """The same object, but every `await` of one of its methods can be interrupted before and after it acts.

    For fakes that answer at once: otherwise no proof could crash between two of their calls. It is still an instance of
    its class.
    """
    made: Any = _Interruptible(target)
    return made  # type: ignore[no-any-return]


class _Interruptible:
    def __init__(self, target: object) -> None:
        object.__setattr__(self, "_target", target)

    # So that isinstance, which `ctx.client_of` uses, sees the class of the target.
    @property
    def __class__(self) -> type:
        return type(self._target)

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("cannot change the class of an interruptible object")

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._target, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(object.__getattribute__(self, "_target"), name)
        if not inspect.iscoroutinefunction(value):
            return value

        @wraps(value)
        async def call(*args: Any, **kwargs: Any) -> Any:
            await checkpoint()
            result = await value(*args, **kwargs)
            await checkpoint()
            return result

        return call
