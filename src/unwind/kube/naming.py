"""What a person means by `KIND/NAME`, found out from what the server serves, the way kubectl does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.errors import UnwindError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.discovery import Discovery, Kind

_OF_KUBERNETES = ".k8s.io"
_LISTS = "`kubectl api-resources` lists what it knows"


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """One object, as a person named it."""

    resource: Resource
    name: str
    namespace: str = ""
    """Where it is; empty for an object of the whole cluster."""

    @property
    def where(self) -> str | None:
        """The namespace, as a client wants it."""
        return self.namespace or None

    def __str__(self) -> str:
        return (
            f"{self.resource.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.resource.kind} {self.name}"
        )


def split(text: str) -> tuple[str, str]:
    """Kind and name of `KIND/NAME`. Raises UsageError if it is something else."""
    kind, slash, name = text.strip().partition("/")
    if not slash or not kind or not name or "/" in name:
        raise UsageError(f"{text!r} names no object", remedy="write KIND/NAME, such as deploy/web or ns/shop")
    return kind, name


async def resolve(discovery: Discovery, text: str, *, namespace: str = "default") -> Named:
    """The object that `KIND/NAME` means: whether it is there is another question.

    `namespace`: where it is, if its kind is one that lives in namespaces.
    """
    kind, name = split(text)
    resource = await resource_of(discovery, kind)
    return Named(resource=resource, name=name, namespace=namespace if resource.namespaced else "")


async def resource_of(discovery: Discovery, kind: str) -> Resource:
    """The resource that a person means: `deploy`, `Deployment`, `deployments.apps`, `deployments.v1.apps`.

    Raises UnwindError if the server knows none, or several that are equally likely.
    """
    for anew in (False, True):
        if found := choose(await discovery.kinds(anew=anew), kind):
            return found
    silent = await discovery.silent()
    if silent:
        # What they serve is not known: it may be among it.
        remedy = f"it may be of {', '.join(silent)}, whose server does not answer"
        raise UnwindError(f"this cluster knows no {kind!r} just now", remedy=remedy)
    raise UnwindError(f"this cluster knows no {kind!r}", remedy=_LISTS)


def choose(kinds: Iterable[Kind], text: str) -> Resource | None:
    """Which of these a person means, in their order of preference; None if it is none of them (pure).

    A name that is exactly a resource's comes before one that is a short name of another. If several groups have it,
    Kubernetes' own comes first, as it does for kubectl; between two others nobody can tell which one is meant.
    """
    word, _, rest = text.lower().partition(".")
    fitting = [one for one in kinds if _of(one.resource, rest)]
    named = [one.resource for one in fitting if word in (one.resource.plural, one.resource.kind.lower(), one.singular)]
    found = named or [one.resource for one in fitting if word in one.short_names]
    # The first version of each is the one that the server prefers.
    groups = {it.group: it for it in reversed(found)}
    if len(groups) < 2:
        return found[0] if found else None
    if rest in groups:
        return groups[rest]
    if own := [it for it in found if "." not in it.group or it.group.endswith(_OF_KUBERNETES)]:
        return own[0]
    several = sorted(f"{it.plural}.{it.group}" for it in groups.values())
    raise UnwindError(f"{text!r} may mean {' or '.join(several)}", remedy="write one of these")


def _of(resource: Resource, qualifier: str) -> bool:
    """Whether a resource is of what stands behind the first dot: its group, the beginning of that, or its version."""
    if not qualifier or resource.group == qualifier or resource.group.startswith(f"{qualifier}."):
        return True
    return qualifier == f"{resource.version}.{resource.group}".rstrip(".")
