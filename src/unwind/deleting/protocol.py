"""The protocols of deleters and of the ends of chains."""

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
"""The rest of the chain, ending with the deletion itself. It returns only when that has ended."""


class Deleter(Protocol[T]):
    """One link of the chain that every deletion goes through.

    It can act first, call `next`, and act again when the object is gone; or it can keep the object by not calling
    `next`. It runs again from the start after `Again`, an error or a restart, so it must be idempotent. It records what
    must not be repeated in `ctx.memo`.
    """

    async def delete(self, ctx: DeleteContext, obj: T, next: DeleteFunc[T]) -> Gone | Kept:  # noqa: A002 - its name
        """Delete the object, or do a part of it."""


class End(Protocol):
    """The end of a chain: performs the actual deletion for a kind."""

    @property
    def name(self) -> str:
        """Its name, which is also its scope in memos."""

    @property
    def clients(self) -> tuple[object, ...]:
        """Clients for `ctx.client_of(…)`, besides the Kubernetes client."""

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone | Kept:
        """Delete the object and return once it is verified absent; raise Again while it still exists."""

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Check whether the object still exists, without deleting anything."""


Delete = Callable[[DeleteContext, Any, DeleteFunc[Any]], Awaitable[Gone | Kept]]
