"""The context that a deleter gets besides the object, with a resolver of references to other objects."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unwind import logs
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import Gone, Kept, TransientError
from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.fields import Unknown
    from unwind.api.meta import ObjectRef, Reference, SecretReference
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleters.memo import Memo
    from unwind.deleters.outcomes import Event
    from unwind.kube.absence import Sighting
    from unwind.kube.client import Object
    from unwind.kube.watches import Subscription, Watches

C = TypeVar("C")


class Resolver:
    """Resolves references of an object. Everything is read fresh except namespaces, which are cached for a while
    because many objects that are deleted together are in the same one."""

    def __init__(
        self,
        client: Client,
        *,
        discovery: Discovery | None = None,
        remembers: float = math.inf,
        clock: Clock = SYSTEM,
    ) -> None:
        """`remembers`: how long namespaces are cached, in seconds; forever for a resolver of a single pass."""
        self._client = client
        self._discovery = discovery or Discovery(client)
        self._remembers = remembers
        self._clock = clock
        self._namespaces: dict[str, tuple[float, Object | None]] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    async def resource(self, name: str) -> Resource:
        """The resource with this name: `pods`, `deploy`, `jobs.batch`."""
        return await self._discovery.named(name)

    async def object(self, reference: Reference, *, namespace: str = "") -> Object | None:
        """The referenced object; None if it does not exist. `namespace`: the default if the reference has none."""
        group, _, version = reference.api_version.rpartition("/")
        resource = await self._discovery.resource(reference.kind, group=group, version=version or None)
        where = (reference.namespace or namespace) if resource.namespaced else None
        try:
            return await self._client.get(resource, reference.name, namespace=where)
        except NotFoundError:
            return None

    async def secret(self, reference: SecretReference, key: str, *, namespace: str = "") -> str:
        """A value of a Secret. Raises TransientError if it does not exist, because it may still be created."""
        where = reference.namespace or namespace
        try:
            secret = await self._client.get(SECRETS, reference.name, namespace=where)
            return base64.b64decode((secret.get("data") or {})[key], validate=True).decode()
        except NotFoundError:
            raise TransientError(f"Secret {where}/{reference.name} not found", remedy="create it") from None
        except KeyError:
            raise TransientError(f"Secret {where}/{reference.name} has no key {key!r}", remedy="add it") from None
        except (binascii.Error, UnicodeDecodeError):
            # The value itself must never be shown.
            raise TransientError(
                f"cannot decode {key!r} of Secret {where}/{reference.name}: not UTF-8 text", remedy="correct the value"
            ) from None

    async def namespace(self, name: str) -> Object | None:
        """A namespace; None if it does not exist."""
        if not self._knows(name):
            # Many deletions may ask for the same namespace: only one reads it.
            async with self._reading.setdefault(name, asyncio.Lock()):
                if not self._knows(name):
                    asked = self._clock.monotonic()
                    self._namespaces[name] = asked, await self._read_namespace(name)
        return self._namespaces[name][1]

    def _knows(self, name: str) -> bool:
        read = self._namespaces.get(name)
        return read is not None and self._clock.monotonic() - read[0] < self._remembers

    async def _read_namespace(self, name: str) -> Object | None:
        try:
            return await self._client.get(NAMESPACES, name)
        except NotFoundError:
            return None


class ChainEntry:
    """State of one pass through the chain, shared by all its deleters."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the end of the chain was reached and verified that the object is absent."""
        self.subscriptions: list[Subscription] = []

    def close(self, *, but: object = None) -> None:
        """Cancel subscriptions that nothing waits for."""
        for subscription in self.subscriptions:
            if subscription is not but:
                subscription.close()


class DeleteContext:
    """One pass through an object's chain: the object's identity, clients, and memo."""

    def __init__(
        self,
        *,
        resource: Resource,
        ref: ObjectRef,
        memo: Memo,
        resolver: Resolver,
        watches: Watches,
        clients: tuple[object, ...],
        clock: Clock = SYSTEM,
        absent: bool = False,
        policy: DeletePolicy | Unknown | None = None,
        teardown: str = "",
        cluster: str = "",
        deleter: str = "",
    ) -> None:
        self.resource = resource
        """The resource of the object."""
        self.ref = ref
        """The object, with its uid; also set after it is gone."""
        self.memo = memo
        self.resolver = resolver
        self.watches = watches
        self.clock = clock
        self.absent = absent
        """Whether the object was already verified absent. The deleters then get its tombstone: only `metadata` with
        name, namespace and uid. Whatever else they need must be in the memo."""
        self.policy = policy
        """The default policy if neither the object nor its namespace sets one."""
        self.teardown = teardown
        """The Teardown that this deletion belongs to; empty if none."""
        self.cluster = cluster
        """The identity of the object's cluster: the uid of its kube-system namespace."""
        self.deleter = deleter
        """The deleter that is running."""
        self.entry = ChainEntry()
        self._clients = clients
        self._log: FilteringBoundLogger | None = None

    @property
    def log(self) -> FilteringBoundLogger:
        """A logger with the object's name and uid in every line."""
        if self._log is None:
            ref = self.ref
            where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
            self._log = logs.get("unwind.deleting").bind(object=f"{ref.kind}/{where}", uid=ref.uid)
            if self.teardown:
                self._log = self._log.bind(teardown=self.teardown)
            if self.deleter:
                self._log = self._log.bind(deleter=self.deleter)
        return self._log

    @property
    def client(self) -> Client:
        """The client of the cluster that the object is on."""
        return self.client_of(Client)

    def client_of(self, kind: type[C]) -> C:
        """A client by its type: `ctx.client_of(ArmClient)`."""
        for client in self._clients:
            if isinstance(client, kind):
                return client
        has = ", ".join(type(client).__name__ for client in self._clients) or "none"
        raise UnwindError(
            f"cannot delete {self.ref}: no client of type {kind.__name__}",
            remedy=f"fix the deleter: the clients of this kind are {has}",
        )

    async def changes(self, resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Event:
        """An event that is set when one of these objects changes, for `raise Again(…, until=…)`.

        Call this before you read the current state, so that no change in between is missed. The object that the deleter
        got was read earlier: read it again.
        """
        changes = await self.watches.changes(resource, namespace=namespace, name=name)
        self.entry.subscriptions.append(changes)
        return changes

    def within(self, deleter: str) -> DeleteContext:
        """The same context for another deleter, with its own memo."""
        other = object.__new__(DeleteContext)
        other.__dict__.update(self.__dict__)  # five times as fast as copy.copy, and runs for every deleter
        other.deleter = deleter
        other.memo = self.memo.of(deleter)
        other._log = None
        return other

    def with_clients(self, clients: tuple[object, ...]) -> DeleteContext:
        """The same context with further clients for `client_of`."""
        other = object.__new__(DeleteContext)
        other.__dict__.update(self.__dict__)
        other._clients = (*self._clients, *clients)
        return other

    def with_memo(self, memo: Memo) -> DeleteContext:
        """The same context with another memo."""
        other = self.within(self.deleter)
        other.memo = memo
        return other

    def tombstone(self) -> dict[str, Any]:
        """What remains of an object that is gone: its identity."""
        ref = self.ref
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
        return {"apiVersion": self.resource.api_version, "kind": ref.kind, "metadata": metadata}


# The protocols of deleters and of the ends of chains.

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
