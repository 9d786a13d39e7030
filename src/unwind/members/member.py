"""A member cluster with an open connection."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import TYPE_CHECKING, Self

from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.deleters.context import Resolver
from unwind.kube.discovery import Discovery
from unwind.kube.errors import AnotherClusterError, ApiError, UnreachableError
from unwind.kube.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.errors import UnwindError
    from unwind.kube.client import Client


RECENT = 2.0
"""Seconds for which an answer of a member is reused: any request may fail a moment later anyway."""

# Each namespace is dozens of lists.
_LISTED_AT_ONCE = 2


class Member:
    """A cluster with add-ons or Works: its identity, client and watches. Use it as an async context manager."""

    def __init__(
        self,
        ref: ObjectRef,
        client: Client,
        *,
        system_uid: str,
        answered: bool = False,
        clock: Clock = SYSTEM,
        troubled: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`ref`: the object that represents it. `system_uid`: its identity, the uid of its kube-system namespace.
        `answered`: whether the member itself has just confirmed that."""
        self.ref = ref
        self.client = client
        self.system_uid = system_uid
        self._clock = clock
        self._answers: SingleFlight[float] = SingleFlight()
        self._answered = [clock.monotonic() if answered else -math.inf]
        """When its identity was last verified; shared by all objects that represent it."""
        self.watches = Watches(client, cluster=system_uid, clock=clock, troubled=troubled)
        self.discovery = Discovery(client)
        self.resolver = Resolver(client, discovery=self.discovery, remembers=RECENT, clock=clock)
        self.listing = asyncio.Semaphore(_LISTED_AT_ONCE)
        """For callers that list whole namespaces repeatedly."""

    async def __aenter__(self) -> Self:
        await self.watches.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.watches.__aexit__(*raised)

    def standing_for(self, ref: ObjectRef) -> Member:
        """The same member for another object that represents it; everything else is shared."""
        other = copy.copy(self)
        other.ref = ref
        return other

    async def verify(self, *, within: float = 0.0) -> None:
        """Raise UnreachableError if it does not answer, or if another cluster answers.

        `within`: an answer of so many seconds ago is enough.
        """
        if self._clock.monotonic() - self._answered[0] >= within:
            # A caller that needs a new answer does not join one that accepts an earlier one.
            answered = await self._answers.ask(within, lambda: self._ask(within))
            self._answered[0] = max(answered, self._answered[0])

    async def _ask(self, within: float) -> float:
        asked = self._clock.monotonic()
        if asked - self._answered[0] < within:
            return self._answered[0]  # an answer came while this call waited for its turn
        found = await self.client.cluster_uid()
        if found != self.system_uid:
            raise AnotherClusterError(f"the address of {self.ref}", found=found, expected=self.system_uid)
        return asked


def unreachable(ref: ObjectRef, error: UnwindError) -> UnreachableError:
    """The error of a member that does not answer. `ref`: the object that represents it."""
    # The server may have answered but refused: an expired token, a user without permissions.
    refused = isinstance(error, ApiError)
    how, remedy = ("refused access", "credentials for it") if refused else ("does not answer", "connection to it")
    return UnreachableError(f"{ref} {how}: {error}", remedy="" if error.remedy else f"check the {remedy}")
