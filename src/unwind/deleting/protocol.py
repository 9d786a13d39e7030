"""What a deleter is, and what it is given for the rest of the chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unwind.deleting.context import DeleteContext
from unwind.deleting.outcomes import Gone, Kept

if TYPE_CHECKING:
    from unwind.kube.absence import Sighting
    from unwind.kube.client import Object

T = TypeVar("T")

DeleteFunc = Callable[[DeleteContext, T], Awaitable[Gone | Kept]]
"""The rest of the chain, in the end the deletion itself. It returns only when that has come to its end."""


class Deleter(Protocol[T]):
    """One link of the chain that every deletion goes through.

    It may do something first, call `next`, and do something when the thing is gone; or not call `next` and say that the
    thing is kept. It is entered again from the top after `Again`, an error or a restart, so whatever it does, it can do
    twice; what it must not, it remembers in `ctx.memo`.
    """

    async def delete(self, ctx: DeleteContext, obj: T, next: DeleteFunc[T]) -> Gone | Kept:  # noqa: A002 - its name
        """Delete the object, or a part of the work."""


class End(Protocol):
    """Where a chain ends: how a thing of some kind is really deleted."""

    @property
    def name(self) -> str:
        """What it is called; what it remembers in memos is found by it."""

    @property
    def clients(self) -> tuple[object, ...]:
        """What `ctx.client_of(…)` finds, beside the Kubernetes client."""

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone | Kept:
        """Delete it, and return when it was seen to be absent; raise Again while it is still there."""

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Look whether it is still there, and delete nothing."""


Delete = Callable[[DeleteContext, Any, DeleteFunc[Any]], Awaitable[Gone | Kept]]
