"""Deletes external resources of objects on the management cluster: runs the deleter chain, and writes the ledger.

The ledger is in Inventories in Unwind's namespace, one for each object. `kept-UID`: the external resource stays.
`released-UID`: Unwind removed the finalizers of an operator. They have neither owner nor finalizer, because they must
outlast the object.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.meta import ObjectMeta, ObjectRef, manifest, named_ref
from unwind.api.names import Reason
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES, Entry, EntryState, Inventory, InventorySpec, LedgerNote, MemberRef
from unwind.deleters.builtin import keep_by_policy
from unwind.deleters.chain_attempt import Failed, attempt, enter
from unwind.deleters.context import DeleteContext, Resolver
from unwind.deleters.deletion import happened
from unwind.deleters.external_end import ReleasedFinalizers, running_operator, verified_absent
from unwind.deleters.memo import on_object
from unwind.deleters.outcomes import Again, Pace, PermanentError, Severity, TransientError
from unwind.errors import UnwindError
from unwind.external import credential_secrets
from unwind.inventory import ledger
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.plugins import TaskCancellation, error_message

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleters.chain_attempt import Waiting
    from unwind.deleters.context import DeleteFunc, End
    from unwind.deleters.outcomes import Event, Gone, Kept, Outcome
    from unwind.deleters.registration import External
    from unwind.deleters.registry import DeleterRegistry
    from unwind.external.credential_secrets import CredentialsSecret
    from unwind.external.tracked_objects import ExternalTarget
    from unwind.kube.client import Client, Object
    from unwind.kube.discovery import Discovery
    from unwind.kube.watches import Watches

# A deleter that waits leaves the chain with Again; one that stays inside for this long hangs.
_WITHIN = 600.0
OPERATOR_AGAIN = 30.0
"""Seconds after which an object that its operator deletes is checked again. Nothing reports that an operator stops."""


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
        wanted = kept_entry(
            ref,
            outcome,
            resource=resource,
            namespace=self._namespace,
            cluster=self._watches.cluster,
            at=self._clock.now(),
        )
        try:
            await write_entry(self._client, wanted)
        except (ApiError, UnreachableError) as error:
            told = f"cannot record in the ledger that {ref} is kept: {error}; will retry"
            return Failed(told, Reason.FAILED, Severity.WARNING, Pace.FAST, error=error)
        return outcome

    async def release(self, resource: Resource, external: External, ref: ObjectRef, obj: Object) -> tuple[str, ...]:
        """The finalizers of the operator that may be removed from an object whose external resource is gone: none while
        the operator is running. Recorded in the ledger first. Raises if the resource is not verified absent."""
        held = tuple(name for name in obj["metadata"].get("finalizers") or () if name in external.finalizers)
        if not held or await running_operator(external, self._client):
            return ()
        end = await self._end(external, obj)
        why = await verified_absent(end, self._context(resource, ref, obj, *end.clients), obj)
        record = ReleasedFinalizers(
            object=ref,
            resource=resource,
            cluster=home(self._watches.cluster),
            system_uid=self._watches.cluster,
            finalizers=held,
            external=external.name,
            why=why,
        )
        wanted = released_entry(record, namespace=self._namespace, at=self._clock.now())
        await write_entry(self._client, wanted)
        return held

    async def operator(self, external: External) -> str:
        """The operator of these kinds, if it is running; else an empty string."""
        return await running_operator(external, self._client)

    async def unnote(self, ref: ObjectRef) -> None:
        """Delete the ledger entry: the resource is gone after all."""
        await withdraw(self._client, kept_name(ref), namespace=self._namespace)

    async def _go(self, resource: Resource, external: External, ref: ObjectRef, obj: Object) -> Outcome:
        held = any(name in external.finalizers for name in obj["metadata"].get("finalizers") or ())
        if held and (running := await running_operator(external, self._client)):
            told = f"{running} is running and deletes {ref} itself; to let Unwind delete it, stop the operator"
            wait = _refusal(Again(told, after=OPERATOR_AGAIN))
            return await keep_by_policy(self._context(resource, ref, obj), obj, wait)
        try:
            end = await self._end(external, obj)
        except (TransientError, PermanentError) as error:
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

    async def _end(self, external: External, obj: Object) -> End:
        """The connection for an object: with the credentials in its namespace, else with the identity of the
        manager."""
        secret = await credential_secrets.of_namespace(self._client, external, obj)
        return await (self._ends.get_with(external, secret) if secret else self._ends.get(external))

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


def _refusal(error: TransientError | PermanentError | Again) -> DeleteFunc[Object]:
    """The rest of a chain whose external system is unreachable, or whose operator deletes the resource. Keeping the
    resource needs no connection: with lost credentials the object can still be released."""

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
        self._open: dict[Hashable, asyncio.Future[End]] = {}
        self._keeping: dict[Hashable, asyncio.Task[None]] = {}
        self._used: dict[tuple[External, str], tuple[External, str, str]] = {}
        """The last connection by each Secret."""

    async def get(self, external: External) -> End:
        """The open connection. Raises if it cannot be opened; the next call retries."""
        return await self._get(external, external.name, lambda: external.open(self._client))

    async def get_with(self, external: External, secret: CredentialsSecret) -> End:
        """The same with the credentials in a Secret."""
        if external.open_with is None:
            raise PermanentError(
                f"{external.name} takes no credentials",
                reason=Reason.HELD,
                remedy="use a version of this plugin that takes them",
            )
        open_with, values = external.open_with, secret.values()
        # A Secret that changed is a new connection, and the old credentials may be revoked.
        key = (external, secret.metadata.uid, secret.metadata.resource_version)
        last = self._used.get(key[:2])
        if last is not None and last != key:
            self.close(last)
        self._used[key[:2]] = key
        return await self._get(key, external.name, lambda: open_with(values))

    async def _get(
        self,
        key: Hashable,
        name: str,
        open: Callable[[], AbstractAsyncContextManager[End]],  # noqa: A002
    ) -> End:
        if key not in self._open:
            opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()
            self._open[key] = opened
            # In a task of its own: a context entered in one task must not be left in another, and the first caller may
            # be cancelled.
            self._keeping[key] = self._tasks.create_task(self._keep(key, name, open, opened))
        # Several callers may wait for it, and the cancellation of one must not cancel the others.
        return await asyncio.shield(self._open[key])

    def close(self, key: Hashable) -> None:
        """Close a connection."""
        self._open.pop(key, None)
        if task := self._keeping.pop(key, None):
            task.cancel()

    def close_all(self) -> None:
        """Close all connections."""
        for key in list(self._keeping):
            self.close(key)

    async def _keep(
        self,
        key: Hashable,
        name: str,
        open: Callable[[], AbstractAsyncContextManager[End]],  # noqa: A002
        opened: asyncio.Future[End],
    ) -> None:
        cancellation = TaskCancellation()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(_OPENED_WITHIN):
                    end = await stack.enter_async_context(open())
                opened.set_result(end)
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - an end of another package may raise anything
            cancellation.check(error)
            self._open.pop(key, None)
            self._keeping.pop(key, None)
            why = error_message(error)
            if opened.done():
                log.warning("external connection failed, reopened on next use", end=name, why=why)
                return
            remedy = "" if isinstance(error, UnwindError) else "see the log of the manager"
            opened.set_exception(TransientError(f"cannot connect to {name}: {why}", remedy=remedy))
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


def home(system_uid: str) -> ObjectRef:
    """Represents the management cluster, which has no Cluster object."""
    return named_ref(NAMESPACES, "kube-system", uid=system_uid)


def kept_name(ref: ObjectRef) -> str:
    """The name of the entry of a kept resource: stable across retries, and unique to the object."""
    return f"kept-{ref.uid}"


def kept_entry(
    ref: ObjectRef, outcome: Kept, *, resource: Resource, namespace: str, cluster: str, at: datetime
) -> Inventory:
    """The entry of a kept resource of an object on the management cluster (pure)."""
    entry = ledger.entry(ledger.kept(ref, outcome, at=at), resource=resource.plural)
    return _inventory(kept_name(ref), namespace, entry, MemberRef(object=home(cluster), system_uid=cluster))


def released_name(ref: ObjectRef) -> str:
    """The name of the entry of removed finalizers."""
    return f"released-{ref.uid}"


def released_entry(it: ReleasedFinalizers, *, namespace: str, at: datetime) -> Inventory:
    """The entry of removed finalizers (pure)."""
    note = LedgerNote(
        reason=Reason.FINALIZER_REMOVED,
        message=it.message,
        by=f"unwind ({it.external})",
        at=at.replace(microsecond=0),
    )
    entry = Entry(object=it.object, resource=it.resource.plural, state=EntryState.REMOVED.value, ledger=note)
    member = MemberRef(object=it.cluster, system_uid=it.system_uid)
    return _inventory(released_name(it.object), namespace, entry, member)


def _inventory(name: str, namespace: str, entry: Entry, member: MemberRef) -> Inventory:
    return Inventory(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=InventorySpec(owner=entry.object, member=member, entries={entry.object.uid: entry}),
    )


async def write_entry(client: Client, wanted: Inventory) -> None:
    """Create an entry; an interrupted attempt may have created it already."""
    with suppress(AlreadyExistsError):
        await client.create(INVENTORIES, manifest(INVENTORIES, wanted))


async def withdraw(client: Client, name: str, *, namespace: str) -> None:
    """Delete an entry: what it records was not done after all."""
    with suppress(NotFoundError, ConflictError):
        found = await client.get(INVENTORIES, name, namespace=namespace)
        await client.delete(INVENTORIES, name, uid=found["metadata"]["uid"], namespace=namespace)
