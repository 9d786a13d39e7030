"""API discovery: the resources that a server serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.concurrency import SingleFlight
from unwind.errors import UnwindError, UsageError
from unwind.kube.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.kube.client import Client


# Resolves `KIND/NAME` to an object with API discovery, as kubectl does.

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
    resource = await find_resource(discovery, kind)
    return Named(resource=resource, name=name, namespace=namespace if resource.namespaced else "")


async def find_resource(discovery: Discovery, kind: str) -> Resource:
    """The resource that a user means: `deploy`, `Deployment`, `deployments.apps`, `deployments.v1.apps`.

    Raises UnwindError if the server has none, or several equally likely ones.
    """
    for anew in (False, True):
        if found := choose(await discovery.kinds(anew=anew), kind):
            return found
    silent = await discovery.silent()
    if silent:
        # The resources of these API versions are unknown: it may be among them.
        remedy = f"it may belong to {', '.join(silent)}, whose server does not answer; see `kubectl get apiservices`"
        raise UnwindError(f"kind {kind!r} not found", remedy=remedy)
    raise UnwindError(f"kind {kind!r} not found in this cluster", remedy=_LISTS)


def choose(kinds: Iterable[ServedKind], text: str) -> Resource | None:
    """Which of these a user means, in order of preference; None if none of them (pure).

    An exact resource name comes before another resource's short name. If several groups have it, Kubernetes' own group
    comes first, as with kubectl; between two others it is ambiguous.
    """
    word, _, rest = text.lower().partition(".")
    fitting = [kind for kind in kinds if _of(kind.resource, rest)]
    named = [
        item.resource for item in fitting if word in (item.resource.plural, item.resource.kind.lower(), item.singular)
    ]
    found = named or [item.resource for item in fitting if word in item.short_names]
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


# Before Kubernetes 1.30 there is only v2beta1, which looks the same.
_AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)


class ServedKind(msgspec.Struct, frozen=True):
    """A resource as the server describes it."""

    resource: Resource
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()
    singular: str = ""


class _Scope(msgspec.Struct):
    kind: str = ""


class _Resource(msgspec.Struct, rename="camel"):
    resource: str
    response_kind: _Scope = msgspec.field(default_factory=_Scope)
    scope: str = ""
    singular_resource: str = ""
    verbs: list[str] = []
    short_names: list[str] = []


class _Version(msgspec.Struct):
    version: str
    resources: list[_Resource] = []
    freshness: str = "Current"


class _Name(msgspec.Struct):
    name: str = ""


class _Group(msgspec.Struct):
    metadata: _Name = msgspec.field(default_factory=_Name)
    versions: list[_Version] = []


class _Groups(msgspec.Struct):
    items: list[_Group]


class Discovery:
    """The resources of one server, read on first use and again if a resource is not found."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kinds: list[ServedKind] = []
        self._silent: list[str] = []
        self._reading: SingleFlight[None] = SingleFlight()

    async def kinds(self, *, anew: bool = False) -> list[ServedKind]:
        """All served resources, in the server's order of preference. `anew`: as read after this call began."""
        if anew or not self._kinds:
            await self._reading.ask("", self._read)
        return self._kinds

    async def _read(self) -> None:
        bodies = [await self._client.raw(path, accept=_AGGREGATED) for path in ("/api", "/apis")]
        try:
            groups = [group for body in bodies for group in msgspec.json.decode(body, type=_Groups).items]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableError(f"cannot decode the API discovery document (GET /api and /apis): {error}") from error
        self._kinds = list(_kinds(groups))
        self._silent = list(_silent(groups))

    async def silent(self) -> list[str]:
        """API versions whose servers do not answer, as `version.group`: their objects are unknown."""
        await self.kinds()
        return self._silent

    async def resource(self, kind: str, *, group: str = "", version: str | None = None) -> Resource:
        """The resource of a kind, in this version or the preferred one."""
        for anew in (False, True):
            for item in await self.kinds(anew=anew):
                it = item.resource
                if (it.kind, it.group) == (kind, group) and version in (None, it.version):
                    return it
        name = f"{group}/{version}" if version and group else version or group or "v1"
        raise UnwindError(
            f"kind {kind} of {name} is not served by this cluster", remedy="check that its CRD is installed"
        )

    async def named(self, name: str) -> Resource:
        """The resource with this name: `deploy`, `deployments.apps`, `ClusterProfile`."""
        return await find_resource(self, name)


def _kinds(groups: Iterable[_Group]) -> Iterator[ServedKind]:
    for group in groups:
        for version in group.versions:
            for resource in version.resources:
                yield ServedKind(
                    resource=Resource(
                        group.metadata.name,
                        version.version,
                        resource.resource,
                        resource.response_kind.kind,
                        namespaced=resource.scope == "Namespaced",
                    ),
                    verbs=frozenset(resource.verbs),
                    short_names=tuple(resource.short_names),
                    singular=resource.singular_resource,
                )


def _silent(groups: Iterable[_Group]) -> Iterator[str]:
    for group in groups:
        for version in group.versions:
            if version.freshness == "Stale":
                yield f"{version.version}.{group.metadata.name}"
