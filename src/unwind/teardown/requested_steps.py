"""The step source for requests: all objects of one `unwind delete` are one step, owned by the Teardown itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.annotation_values import volume_policy
from unwind.api.fields import Unknown
from unwind.api.meta import ref_of
from unwind.api.names import MAX_OBJECTS_ANNOTATION, REQUEST_PREFIX, RESOURCE_ANNOTATION, VOLUMES_ANNOTATION, Reason
from unwind.api.unwind import TEARDOWNS, Effort, Teardown
from unwind.errors import UnwindError
from unwind.inventory.writer import Records
from unwind.kube.errors import NotFoundError
from unwind.planning.waves import Draft
from unwind.removal import deletion_scope, volume_claims
from unwind.removal.deletion_scope import Told
from unwind.teardown import requests
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_sources import SourceStep, SourceSteps, StepSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.removal.deletion_scope import DeletionScope
    from unwind.teardown.step_removers import RemovalDeps


class RequestRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused."""

    reason: Reason
    message: str
    objects: tuple[Told, ...] = ()


class RefusedError(UnwindError):
    """A request that is refused before anything is deleted."""

    def __init__(self, refusal: RequestRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Refusals(Protocol):
    """Finds the objects that may not be deleted."""

    async def __call__(self, member: Member, blast: DeletionScope, /) -> tuple[Told, ...]:
        """Each of them, with the reason."""


class RequestedSteps(StepSource):
    """The step of one request. Claims to delete are in its Inventory; a claim that is created later stays."""

    def __init__(self, client: Client, means: RemovalDeps, teardown: Teardown, *, refusals: Refusals) -> None:
        """`refusals`: the objects that may not be deleted, each with the reason."""
        self._client = client
        self._deps = means
        self._teardown = teardown
        self._owner = ref_of(TEARDOWNS, teardown.metadata)
        self._refusals = refusals

    @property
    def remover(self) -> InventoryRemover:
        return InventoryRemover()

    def owns(self, owner: ObjectRef) -> bool:
        return owner.uid == self._owner.uid

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        """Everything that is deleted with the requested object, as one step, after it is written into the Inventory.

        Raises RefusedError if the request is refused.
        """
        del target, gone  # the Teardown names it
        async with self._deps.fleet.management() as member:
            seen = await self._look(member)
            await self._record(member, seen)
        one = step(self._owner, self._teardown.spec.title, objects=len(seen.entries))
        return SourceSteps(steps=(one,), warnings=tuple(volume_claims.warnings(seen.retained)))

    async def _look(self, member: Member) -> DeletionScope:
        """Everything that would be deleted, read from the API server and not from a cache. Raises RefusedError."""
        teardown = self._teardown
        ref = teardown.spec.target
        # First: the API server has authorized the request by these fields alone.
        if invalid := invalid_request(teardown):
            raise RefusedError(RequestRefusal(reason=Reason.INVALID_TARGET, message=invalid))
        resource = await member.discovery.resource(ref.kind, group=ref.group, version=ref.version or None)
        said = teardown.metadata.annotations.get(RESOURCE_ANNOTATION, "")
        if invalid := invalid_target(ref, resource, said):
            raise RefusedError(RequestRefusal(reason=Reason.INVALID_TARGET, message=invalid))
        volumes = volume_policy(teardown.metadata.annotations)
        if isinstance(volumes, Unknown):
            raise RefusedError(
                RequestRefusal(reason=Reason.UNKNOWN_VALUE, message=f"annotation {VOLUMES_ANNOTATION}: {volumes}")
            )
        try:
            seen = await deletion_scope.look(
                member, resource, ref.name, namespace=ref.namespace, uid=ref.uid, volumes=volumes
            )
        except (NotFoundError, deletion_scope.AnotherError) as error:
            raise RefusedError(RequestRefusal(reason=Reason.TARGET_GONE, message=str(error))) from error
        if refusing := await self._refusals(member, seen):
            raise RefusedError(RequestRefusal(reason=Reason.PROTECTED, message=refused(refusing), objects=refusing))
        if too_many := exceeds(teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION), len(seen.everything)):
            raise RefusedError(RequestRefusal(reason=Reason.TOO_MANY_OBJECTS, message=too_many))
        if lacking := await requests.missing(self._client, seen.entries):
            raise RefusedError(RequestRefusal(reason=Reason.NO_RIGHT, message=requests.told(lacking)))
        return seen

    async def _record(self, member: Member, seen: DeletionScope) -> None:
        """Write the Inventory. It must name every object before the plan is written."""
        records = Records(self._deps.inventories, self._owner, member)
        await records.load(exactly=True)
        # Including the claims that stay: they go into the ledger.
        wanted = {entry.object.uid: entry for entry in (*seen.entries, *seen.retained)}
        # An earlier attempt may have been interrupted here, and objects may have changed since.
        await records.change({key: None for key in records.entries if key not in wanted})
        await records.put({key: entry for key, entry in wanted.items() if key not in records.entries})
        if records.entries.keys() != wanted.keys():
            raise UnwindError(
                f"cannot write the inventory of {self._owner}: it changed since it was written", remedy="will retry"
            )


def step(owner: ObjectRef, title: str, *, objects: int) -> SourceStep:
    """One step for all objects: the removal orders them by kind (pure)."""
    return SourceStep(
        draft=Draft(name=title, object=owner, kind=owner.kind, declared=title, effort=Effort.ENFORCE, objects=objects)
    )


def invalid_request(teardown: Teardown) -> str:
    """Why a request cannot be for exactly one object; empty if it is (pure)."""
    name, ref = teardown.metadata.name, teardown.spec.target
    if not name.startswith(REQUEST_PREFIX):
        return f"the name of a requested Teardown must begin with {REQUEST_PREFIX}; delete it and request it again"
    return "" if ref.uid and ref.name else "spec.target must have a name and a uid"


def invalid_target(ref: ObjectRef, resource: Resource, said: str) -> str:
    """How a target differs from the resource that the API server serves for its kind; empty if it matches (pure).

    `said`: the resource by which the API server authorized the request.
    """
    if said != resource.plural:
        return f"annotation {RESOURCE_ANNOTATION} is {said!r}, but the resource of {ref.kind} is {resource.plural!r}"
    if resource.namespaced and not ref.namespace:
        return f"{ref.kind} is namespaced, but spec.target.namespace is empty"
    if ref.namespace and not resource.namespaced:
        return f"{ref.kind} is cluster-scoped, but spec.target.namespace is {ref.namespace!r}"
    return ""


def refused(objects: Iterable[Told]) -> str:
    """Each object that may not be deleted, with the reason."""
    return "; ".join(f"{refusal.object}: {refusal.why}" for refusal in objects)


def exceeds(limit: str | None, objects: int) -> str:
    """The refusal if more objects would be deleted than the limit; empty if not. An invalid limit allows nothing."""
    if limit is None:
        return ""
    try:
        allowed = int(limit)
    except ValueError:
        return f"annotation {MAX_OBJECTS_ANNOTATION} is {limit!r}, which is not a number"
    return f"{objects} objects would be deleted, but the limit is {allowed}" if objects > allowed else ""
