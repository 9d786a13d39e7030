"""What a deleter is given beside the object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from unwind import logs
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.client import Client

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from unwind.api.fields import Unknown
    from unwind.api.meta import ObjectRef
    from unwind.api.policies import DeletePolicy
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.deleting.memo import Memo
    from unwind.deleting.outcomes import Event
    from unwind.deleting.resolver import Resolver
    from unwind.kube.watches import Subscription, Watches

C = TypeVar("C")


class Entry:
    """What belongs to one entry of the chain, and is shared by all its deleters."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the end of the chain was come to, and saw the object absent."""
        self.subscriptions: list[Subscription] = []

    def close(self, *, but: object = None) -> None:
        """Give up what was subscribed to and is not waited for."""
        for one in self.subscriptions:
            if one is not but:
                one.close()


class DeleteContext:
    """One entry of an object's chain: who the object is, what can be used, what was remembered."""

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
        """How the API serves the object."""
        self.ref = ref
        """Which object it is, with its uid; also when it is gone."""
        self.memo = memo
        self.resolver = resolver
        self.watches = watches
        self.clock = clock
        self.absent = absent
        """Whether the object was seen to be absent before: what is passed on is its tombstone, `metadata` with name,
        namespace and uid and nothing else. What needs more was put into the memo."""
        self.policy = policy
        """What the process does where neither the object nor its namespace says anything."""
        self.teardown = teardown
        """The Teardown that this deletion belongs to; empty if to none."""
        self.cluster = cluster
        """What the object's cluster is known by: the uid of its kube-system namespace."""
        self.deleter = deleter
        """The deleter whose turn it is."""
        self.entry = Entry()
        self._clients = clients
        self._log: FilteringBoundLogger | None = None

    @property
    def log(self) -> FilteringBoundLogger:
        """The log, with the object's name and uid in every line."""
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
        """The Kubernetes API server that the object is on."""
        return self.client_of(Client)

    def client_of(self, kind: type[C]) -> C:
        """A client of the target by its type: `ctx.client_of(ArmClient)`."""
        for client in self._clients:
            if isinstance(client, kind):
                return client
        has = ", ".join(type(client).__name__ for client in self._clients) or "none"
        raise UnwindError(f"there is no {kind.__name__} for {self.ref}", remedy=f"it has {has}")

    async def changes(self, resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Event:
        """Something that happens as soon as one of these objects changes, for `raise Again(…, until=…)`.

        Ask for it before you look at what is there: then nothing that happens in between is missed. The object that was
        handed to the deleter was looked at before, so it says nothing new: read it again.
        """
        changes = await self.watches.changes(resource, namespace=namespace, name=name)
        self.entry.subscriptions.append(changes)
        return changes

    def within(self, deleter: str) -> DeleteContext:
        """The same for another deleter, with its own memo."""
        other = object.__new__(DeleteContext)
        other.__dict__.update(self.__dict__)  # five times as fast as copy.copy, and it is done for every link
        other.deleter = deleter
        other.memo = self.memo.of(deleter)
        other._log = None
        return other

    def tombstone(self) -> dict[str, Any]:
        """What is left of an object that is gone: who it was."""
        ref = self.ref
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
        return {"apiVersion": self.resource.api_version, "kind": ref.kind, "metadata": metadata}
