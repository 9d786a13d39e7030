"""A member, while somebody works with it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

from unwind.clock import SYSTEM
from unwind.kube.discovery import Discovery
from unwind.kube.errors import UnreachableError
from unwind.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.kube.client import Client


class Member:
    """A cluster that add-ons or Works are on: who it is, how it is spoken to. Use it as an async context manager."""

    def __init__(
        self,
        ref: ObjectRef,
        client: Client,
        *,
        system_uid: str,
        clock: Clock = SYSTEM,
        troubled: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`ref`: the object that stands for it. `system_uid`: what it is known by, the uid of its kube-system."""
        self.ref = ref
        self.client = client
        self.system_uid = system_uid
        self.watches = Watches(client, cluster=system_uid, clock=clock, troubled=troubled)
        self.discovery = Discovery(client)

    async def __aenter__(self) -> Self:
        await self.watches.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.watches.__aexit__(kind, error, traceback)

    def standing_for(self, ref: ObjectRef) -> Member:
        """The same member with another object that stands for it; all else is shared."""
        other = copy.copy(self)
        other.ref = ref
        return other

    async def verify(self) -> None:
        """Raise UnreachableError if it does not answer, or another cluster does in its place."""
        found = await self.client.cluster_uid()
        if found != self.system_uid:
            raise UnreachableError(f"another cluster answers at the address of {self.ref} ({found})")
