"""Entering the chain of an object that stands for something outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.api.names import Reason
from unwind.controllers.external import ledgers
from unwind.deleting.builtin import keep_by_policy
from unwind.deleting.context import DeleteContext
from unwind.deleting.entering import Failed, attempt, enter
from unwind.deleting.memo import on_object
from unwind.deleting.outcomes import Pace, Severity, TransientError
from unwind.deleting.resolver import Resolver
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.policies import DeletePolicy
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.controllers.external.ends import Ends
    from unwind.deleting.entering import Waiting
    from unwind.deleting.outcomes import Gone, Kept, Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.deleting.registering import External
    from unwind.deleting.registry import Registry
    from unwind.kube.client import Object
    from unwind.kube.discovery import Discovery
    from unwind.kube.watches import Watches

# A deleter that waits for something leaves the chain with Again; one that stays inside for so long hangs.
_WITHIN = 600.0


class Chains:
    """Enters chains with all that deleters are given."""

    def __init__(
        self,
        registry: Registry,
        watches: Watches,
        ends: Ends,
        *,
        discovery: Discovery,
        namespace: str,
        policy: DeletePolicy | None,
        clock: Clock,
    ) -> None:
        """`namespace`: where the ledger is."""
        self._registry = registry
        self._watches = watches
        self._client = watches.client
        self._ends = ends
        self._discovery = discovery
        self._namespace = namespace
        self._policy = policy
        self._clock = clock

    async def read(self, resource: Resource, ref: ObjectRef) -> Object | None:
        """The object as it is now; None if its name is free, or belongs to another."""
        try:
            obj = await self._client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            return None
        return obj if obj["metadata"]["uid"] == ref.uid else None

    async def enter(
        self, resource: Resource, end: External | Failed, ref: ObjectRef, obj: Object
    ) -> Gone | Kept | Waiting | Failed:
        """Go through the object's chain once, and tell what came of it."""
        return end if isinstance(end, Failed) else await attempt(self._go(resource, end, ref, obj))

    async def note(self, resource: Resource, ref: ObjectRef, outcome: Kept) -> Kept | Failed:
        """Write into the ledger that it is kept; only then may the object go."""
        wanted = ledgers.inventory(
            ref,
            outcome,
            resource=resource,
            namespace=self._namespace,
            cluster=self._watches.cluster,
            at=self._clock.now(),
        )
        try:
            await ledgers.write(self._client, wanted)
        except (ApiError, UnreachableError) as error:
            told = f"{ref} is kept, and that cannot be written into the ledger: {error}"
            return Failed(told, Reason.FAILED, Severity.WARNING, Pace.FAST, error=error)
        return outcome

    async def unnote(self, ref: ObjectRef) -> None:
        """Take that back: it is gone after all."""
        await ledgers.withdraw(self._client, ref, namespace=self._namespace)

    async def _go(self, resource: Resource, external: External, ref: ObjectRef, obj: Object) -> Outcome:
        try:
            end = await self._ends.get(external)
        except TransientError as error:
            return await keep_by_policy(self._context(resource, ref, obj), obj, _refusal(error))
        ctx = self._context(resource, ref, obj, *end.clients)
        limit = asyncio.timeout(_WITHIN)
        try:
            async with limit:
                return await enter(self._registry, end, ctx, obj)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TransientError(
                f"the deleters of {ref} did not come back within {_WITHIN:.0f} s", pace=Pace.SLOW
            ) from None

    def _context(self, resource: Resource, ref: ObjectRef, obj: Object, *clients: object) -> DeleteContext:
        return DeleteContext(
            resource=resource,
            ref=ref,
            memo=on_object(self._client, resource, obj),
            resolver=Resolver(self._client, discovery=self._discovery),
            watches=self._watches,
            clients=(self._client, *clients),
            clock=self._clock,
            policy=self._policy,
            cluster=self._watches.cluster,
        )


def _refusal(error: TransientError) -> DeleteFunc[Object]:
    """The rest of a chain whose end cannot be reached. What is to be kept needs no end: whoever has lost the
    credentials for good can still let the object go."""

    async def refuse(ctx: DeleteContext, obj: Object) -> Outcome:
        raise error

    return refuse
