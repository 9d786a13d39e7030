"""Resolves `KIND/NAME` to an object with API discovery, as kubectl does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.errors import UnwindError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.discovery import Discovery, Kind

_OF_KUBERNETES = ".k8s.io"
_LISTS = "list the available kinds with `kubectl api-resources`"


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """One object, as a user named it."""

    resource: Resource
    name: str
    namespace: str = ""
    """Its namespace; empty for a cluster-scoped object."""

    @property
    def where(self) -> str | None:
        """The namespace, as the client expects it."""
        return self.namespace or None

    def __str__(self) -> str:
        return (
            f"{self.resource.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.resource.kind} {self.name}"
        )


def split(text: str) -> tuple[str, str]:
    """Kind and name of `KIND/NAME`. Raises UsageError for anything else."""
    kind, slash, name = text.strip().partition("/")
    if not slash or not kind or not name or "/" in name:
        raise UsageError(f"invalid object {text!r}", remedy="use KIND/NAME, such as deploy/web or ns/shop")
    return kind, name


async def resolve(discovery: Discovery, text: str, *, namespace: str = "default") -> Named:
    """The object that `KIND/NAME` means; it need not exist.

    `namespace`: its namespace, if its kind is namespaced.
    """
    kind, name = split(text)
    resource = await resource_of(discovery, kind)
    return Named(resource=resource, name=name, namespace=namespace if resource.namespaced else "")


async def resource_of(discovery: Discovery, kind: str) -> Resource:
    """The resource that a user means: `deploy`, `Deployment`, `deployments.apps`, `deployments.v1.apps`.

    Raises UnwindError if the server has none, or several equally likely ones.
    """
    for anew in (False, True):
        if found := choose(await discovery.kinds(anew=anew), kind):
            return found
    silent = await discovery.silent()
    if silent:
        # The resources of these API versions are unknown: it may be among them.
        remedy = f"it may belong to {', '.join(silent)}, whose server does not answer"
        raise UnwindError(f"kind {kind!r} not found", remedy=remedy)
    raise UnwindError(f"kind {kind!r} not found in this cluster", remedy=_LISTS)


def choose(kinds: Iterable[Kind], text: str) -> Resource | None:
    """Which of these a user means, in order of preference; None if none of them (pure).

    An exact resource name comes before another resource's short name. If several groups have it, Kubernetes' own group
    comes first, as with kubectl; between two others it is ambiguous.
    """
    word, _, rest = text.lower().partition(".")
    fitting = [one for one in kinds if _of(one.resource, rest)]
    named = [one.resource for one in fitting if word in (one.resource.plural, one.resource.kind.lower(), one.singular)]
    found = named or [one.resource for one in fitting if word in one.short_names]
    # The first version of each is the preferred one.
    groups = {it.group: it for it in reversed(found)}
    if len(groups) < 2:
        return found[0] if found else None
    if rest in groups:
        return groups[rest]
    if own := [it for it in found if "." not in it.group or it.group.endswith(_OF_KUBERNETES)]:
        return own[0]
    several = sorted(f"{it.plural}.{it.group}" for it in groups.values())
    raise UnwindError(f"{text!r} is ambiguous: {' or '.join(several)}", remedy="use one of these")


def _of(resource: Resource, qualifier: str) -> bool:
    """Whether a resource matches what follows the first dot: its group, the beginning of that, or its version."""
    if not qualifier or resource.group == qualifier or resource.group.startswith(f"{qualifier}."):
        return True
    return qualifier == f"{resource.version}.{resource.group}".rstrip(".")
