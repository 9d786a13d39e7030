"""Why a request for deletion is refused: invalid target, protected objects, too many objects, missing rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.annotation_values import volume_policy
from unwind.api.fields import Unknown
from unwind.api.names import MAX_OBJECTS_ANNOTATION, REQUEST_PREFIX, RESOURCE_ANNOTATION, VOLUMES_ANNOTATION, Reason
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.removal import deletion_scope
from unwind.removal.deletion_scope import Told
from unwind.teardown import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.removal.deletion_scope import DeletionScope


_AGAIN = "delete this Teardown and request the deletion with `unwind delete`"


class RequestRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused."""

    reason: Reason
    message: str
    objects: tuple[Told, ...] = ()


class RefusedError(UnwindError):
    """A request that is refused before anything is deleted."""

    def __init__(self, reason: Reason, message: str, objects: Iterable[Told] = ()) -> None:
        super().__init__(message)
        self.refusal = RequestRefusal(reason=reason, message=message, objects=tuple(objects))


class Refusals(Protocol):
    """Finds the objects that may not be deleted."""

    async def __call__(self, member: Member, blast: DeletionScope, /) -> tuple[Told, ...]:
        """Each of them, with the reason."""


async def check(teardown: Teardown, client: Client, member: Member, *, protected: Refusals) -> DeletionScope:
    """Everything that would be deleted, read from the API server and not from a cache. Raises RefusedError.

    `protected`: the objects that may not be deleted, each with the reason.
    """
    ref = teardown.spec.target
    resource = await check_target(teardown, member)
    volumes = volume_policy(teardown.metadata.annotations)
    if isinstance(volumes, Unknown):
        raise RefusedError(Reason.UNKNOWN_VALUE, f"annotation {VOLUMES_ANNOTATION}: {volumes}")
    try:
        seen = await deletion_scope.scope_of(
            member, resource, ref.name, namespace=ref.namespace, uid=ref.uid, volumes=volumes
        )
    except (NotFoundError, deletion_scope.AnotherError) as error:
        raise RefusedError(Reason.TARGET_GONE, str(error)) from error
    check_protected(await protected(member, seen))
    if too_many := exceeds(teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION), len(seen.deleted)):
        raise RefusedError(Reason.TOO_MANY_OBJECTS, too_many)
    if lacking := await requests.missing(client, seen.entries):
        raise RefusedError(Reason.NO_RIGHT, requests.told(lacking))
    return seen


def check_protected(refusing: Sequence[Told]) -> None:
    """Raise RefusedError if there are objects that may not be deleted."""
    if refusing:
        unknown = all(it.reason is Reason.UNKNOWN_VALUE for it in refusing)
        reason = Reason.UNKNOWN_VALUE if unknown else Reason.PROTECTED
        raise RefusedError(reason, refused_objects(refusing), refusing)


async def check_target(teardown: Teardown, member: Member) -> Resource:
    """The resource of the target. Raises RefusedError if the API server may have authorized another one.

    This comes first: the API server has authorized the request by these fields alone.
    """
    ref = teardown.spec.target
    if invalid := invalid_request(teardown):
        raise RefusedError(Reason.INVALID_TARGET, invalid)
    resource = await member.discovery.resource(ref.kind, group=ref.group, version=ref.version or None)
    said = teardown.metadata.annotations.get(RESOURCE_ANNOTATION, "")
    if invalid := invalid_target(ref, resource, said):
        raise RefusedError(Reason.INVALID_TARGET, invalid)
    return resource


def invalid_request(teardown: Teardown) -> str:
    """Why a request cannot be for exactly one object; empty if it is (pure)."""
    name, ref = teardown.metadata.name, teardown.spec.target
    if not name.startswith(REQUEST_PREFIX):
        return f"the name of a requested Teardown must begin with {REQUEST_PREFIX}; {_AGAIN}"
    return "" if ref.uid and ref.name else f"spec.target must have a name and a uid; {_AGAIN}"


def invalid_target(ref: ObjectRef, resource: Resource, said: str) -> str:
    """How a target differs from the resource that the API server serves for its kind; empty if it matches (pure).

    `said`: the resource by which the API server authorized the request.
    """
    if said != resource.plural:
        return (
            f"annotation {RESOURCE_ANNOTATION} is {said!r}, but the resource of {ref.kind} is {resource.plural!r};"
            f" {_AGAIN}"
        )
    if resource.namespaced and not ref.namespace:
        return f"{ref.kind} is namespaced, but spec.target.namespace is empty; {_AGAIN}"
    if ref.namespace and not resource.namespaced:
        return f"{ref.kind} is cluster-scoped, but spec.target.namespace is {ref.namespace!r}; {_AGAIN}"
    return ""


def refused_objects(objects: Iterable[Told]) -> str:
    """Each object that may not be deleted, with the reason."""
    return "; ".join(f"{refusal.object}: {refusal.why}" for refusal in objects)


def exceeds(limit: str | None, objects: int) -> str:
    """The refusal if more objects would be deleted than the limit; empty if not. An invalid limit allows nothing."""
    if limit is None:
        return ""
    try:
        allowed = int(limit)
    except ValueError:
        return f"annotation {MAX_OBJECTS_ANNOTATION} is {limit!r}, which is not a number; {_AGAIN}"
    return (
        f"{objects} objects would be deleted, but the limit is {allowed} (--max-objects); list them with `unwind plan`"
        if objects > allowed
        else ""
    )
