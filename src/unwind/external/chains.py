"""Runs the deleter chain of an object with an external resource."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES, Inventory, InventorySpec, MemberRef
from unwind.deleters.attempt import Failed, attempt, enter
from unwind.deleters.builtin import keep_by_policy
from unwind.deleters.context import DeleteContext
from unwind.deleters.deletion import happened
from unwind.deleters.memo import on_object
from unwind.deleters.outcomes import Pace, Severity, TransientError
from unwind.deleters.references import Resolver
from unwind.errors import UnwindError
from unwind.inventory import ledger
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.plugins import Cancellation, described

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleters.attempt import Waiting
    from unwind.deleters.context import DeleteFunc, End
    from unwind.deleters.outcomes import Event, Gone, Kept, Outcome
    from unwind.deleters.registration import External
    from unwind.deleters.registry import DeleterRegistry
    from unwind.external.tracked_objects import ExternalTarget
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery
    from unwind.kube.watches import Watches


# The ledger of kept resources: Inventories in Unwind's own namespace


def name_of(ref: ObjectRef) -> str:
    """The name of an object's ledger: stable across retries, and unique to the object."""
    return f"kept-{ref.uid}"


def inventory(
    ref: ObjectRef, outcome: Kept, *, resource: Resource, namespace: str, cluster: str, at: datetime
) -> Inventory:
    """The ledger entry of a kept object (pure).

    It has neither owner nor finalizer, because it must outlast the object.
    """
    line = ledger.kept(ref, outcome, at=at)
    # Stands for the cluster that the manager runs in, which has no Cluster object.
    here = ObjectRef(version=NAMESPACES.version, kind=NAMESPACES.kind, name="kube-system", uid=cluster)
    return Inventory(
        metadata=ObjectMeta(name=name_of(ref), namespace=namespace),
        spec=InventorySpec(
            owner=ref,
            member=MemberRef(object=here, system_uid=cluster),
            entries={ref.uid: ledger.entry(line, resource=resource.plural)},
        ),
    )


async def write(client: Client, wanted: Inventory) -> None:
    """Create the ledger entry; an interrupted try may have created it already."""
    with suppress(AlreadyExistsError):
        await client.create(INVENTORIES, manifest(INVENTORIES, wanted))


async def withdraw(client: Client, ref: ObjectRef, *, namespace: str) -> None:
    """Delete the ledger entry: the object was not kept after all, because its policy changed at the last moment."""
    with suppress(NotFoundError, ConflictError):
        found = await client.get(INVENTORIES, name_of(ref), namespace=namespace)
        uid = found["metadata"]["uid"]
        await client.delete(INVENTORIES, name_of(ref), uid=uid, namespace=namespace)


# A deleter that waits leaves the chain with Again; one that stays inside for this long hangs.
_WITHIN = 600.0


class Chains:
    """Runs chains with everything that deleters need."""

    def __init__(
        self,
        registry: DeleterRegistry,
        watches: Watches,
        ends: Ends,
        *,
        discovery: Discovery,
        namespace: str,
        policy: DeletePolicy | None,
        clock: Clock,
    ) -> None:
        """`namespace`: the namespace of the ledger."""
        self._registry = registry
        self._watches = watches
        self._client = watches.client
        self._ends = ends
        self._discovery = discovery
        self._namespace = namespace
        self._policy = policy
        self._clock = clock

    async def read(self, resource: Resource, ref: ObjectRef) -> Object | None:
        """The current object; None if it does not exist, or was replaced by another."""
        try:
            obj = await self._client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            return None
        return obj if obj["metadata"]["uid"] == ref.uid else None

    async def enter(
        self, resource: Resource, end: External | Failed, ref: ObjectRef, obj: Object
    ) -> Gone | Kept | Waiting | Failed:
        """Run the object's chain once and return the result."""
        return end if isinstance(end, Failed) else await attempt(self._go(resource, end, ref, obj))

    async def note(self, resource: Resource, ref: ObjectRef, outcome: Kept) -> Kept | Failed:
        """Record in the ledger that it is kept; only then may the object go."""
        wanted = inventory(
            ref,
            outcome,
            resource=resource,
            namespace=self._namespace,
            cluster=self._watches.cluster,
            at=self._clock.now(),
        )
        try:
            await write(self._client, wanted)
        except (ApiError, UnreachableError) as error:
            told = f"cannot record the kept {ref} in the ledger: {error}"
            return Failed(told, Reason.FAILED, Severity.WARNING, Pace.FAST, error=error)
        return outcome

    async def unnote(self, ref: ObjectRef) -> None:
        """Delete the ledger entry: the resource is gone after all."""
        await withdraw(self._client, ref, namespace=self._namespace)

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
                f"the deleters of {ref} timed out after {_WITHIN:.0f}s; list them with `unwind deleters`, will retry",
                pace=Pace.SLOW,
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
    """The rest of a chain whose external system is unreachable. Keeping the resource needs no connection: with lost
    credentials the object can still be released."""

    async def refuse(ctx: DeleteContext, obj: Object) -> Outcome:
        raise error

    return refuse


# Open connections to external systems

log = logs.get(__name__)

# Credentials are looked for in several places, some of which are slow or never respond.
_OPENED_WITHIN = 60.0


class Ends:
    """Opens the connection to each external system on first use, and keeps it open."""

    def __init__(self, client: Client, tasks: asyncio.TaskGroup) -> None:
        """The connections are closed when the task group ends."""
        self._client = client
        self._tasks = tasks
        self._open: dict[External, asyncio.Future[End]] = {}

    async def get(self, external: External) -> End:
        """The open connection. Raises if it cannot be opened; the next call retries."""
        if external not in self._open:
            opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()
            self._open[external] = opened
            # In a task of its own: a context entered in one task must not be left in another, and the first caller may
            # be
            # cancelled.
            self._tasks.create_task(self._keep(external, opened))
        # Several callers may wait for it, and the cancellation of one must not cancel the others.
        return await asyncio.shield(self._open[external])

    async def _keep(self, external: External, opened: asyncio.Future[End]) -> None:
        cancellation = Cancellation()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(_OPENED_WITHIN):
                    end = await stack.enter_async_context(external.open(self._client))
                opened.set_result(end)
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - an end of another package may raise anything
            cancellation.check(error)
            self._open.pop(external, None)
            why = described(error)
            if opened.done():
                log.warning("external connection failed, reopened on next use", end=external.name, why=why)
                return
            remedy = "" if isinstance(error, UnwindError) else "see the log of the manager"
            opened.set_exception(TransientError(f"cannot connect to {external.name}: {why}", remedy=remedy))
            # The waiting caller may have been cancelled meanwhile.
            opened.exception()
        finally:
            opened.cancel()


# Waits of chains: `raise Again(…, until=…)`


class Waits:
    """One wait per object, ended when its chain runs again or the object is gone."""

    def __init__(self, tasks: asyncio.TaskGroup, again: Callable[[ExternalTarget], None], clock: Clock) -> None:
        """`again`: called with an object whose wait is over."""
        self._tasks = tasks
        self._clock = clock
        self._again = again
        self._waiting: dict[ExternalTarget, tuple[Waiting, asyncio.Task[None]]] = {}

    def begin(self, target: ExternalTarget, waiting: Waiting) -> None:
        """Wait for the event, if there is one."""
        self.give_up(target)
        if waiting.until is not None:
            self._waiting[target] = (waiting, self._tasks.create_task(self._wait(target, waiting.until)))

    def give_up(self, target: ExternalTarget) -> None:
        """End the wait of an object."""
        if found := self._waiting.pop(target, None):
            waiting, task = found
            task.cancel()
            waiting.close()

    async def _wait(self, target: ExternalTarget, event: Event) -> None:
        await happened(event, self._clock)
        self._again(target)
