"""Which of the kinds that a server serves have an external end, each in one version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.deleting.entering import Failed
from unwind.deleting.outcomes import PermanentError
from unwind.deleting.registering import External

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.deleting.registry import Registry
    from unwind.kube.discovery import Kind

# Not patch, although finalizers are patched: of a CRD that is being deleted the server no longer says that it takes
# patches, and takes them. That is just when its objects wait for us.
_NEEDED = frozenset(["get", "list", "watch"])


class Found(msgspec.Struct, frozen=True):
    """A kind that is looked after."""

    resource: Resource
    end: External | Failed
    """How what its objects stand for is reached; or why nobody knows: then they are held."""


def candidates(served: Iterable[Kind], *, removed: Collection[str] = ()) -> dict[tuple[str, str], list[Resource]]:
    """The versions of each kind that can be looked after, the server's favourite first.

    `removed`: CRDs (`plural.group`) that are gone, of which the server has not taken notice everywhere.
    """
    kinds: dict[tuple[str, str], list[Resource]] = {}
    for one in served:
        resource = one.resource
        if one.verbs >= _NEEDED and crd_name(resource) not in removed:
            kinds.setdefault((resource.group, resource.kind), []).append(resource)
    return kinds


async def survey(
    registry: Registry, served: Iterable[Kind], *, defined: Collection[str], removed: Collection[str] = ()
) -> list[Found]:
    """The kinds with an external end, and those of which it cannot be said; `defined`: the CRDs that there are."""
    found = []
    for versions in candidates(served, removed=removed).values():
        ends = [Found(resource, end) for resource in versions if (end := await _end(registry, resource)) is not None]
        # An end may be for one of several versions only: then the objects are read in that one.
        chosen = next((one for one in ends if isinstance(one.end, External)), ends[0] if ends else None)
        # A plugin that does not even say which kinds it is for holds all of them; of those that the API server itself
        # brings along, none ever got our finalizer.
        if chosen and (isinstance(chosen.end, External) or crd_name(chosen.resource) in defined):
            found.append(chosen)
    return found


def unserved(defined: Iterable[str], served: Iterable[Kind]) -> set[str]:
    """The CRDs whose kinds the server does not serve, or not yet."""
    return set(defined) - {crd_name(one.resource) for one in served}


def crd_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}"


async def _end(registry: Registry, resource: Resource) -> External | Failed | None:
    try:
        return await registry.external(resource)
    except PermanentError as error:
        return Failed(str(error), error.reason, error.severity, error.pace, error.retry_after)
