"""API discovery: the resources that a server serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import Resource
from unwind.errors import UnwindError
from unwind.kube import naming
from unwind.kube.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.kube.client import Client

# Before Kubernetes 1.30 there is only v2beta1, which looks the same.
_AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)


class Kind(msgspec.Struct, frozen=True):
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
        self._kinds: list[Kind] = []
        self._silent: list[str] = []
        self._reading = asyncio.Lock()

    async def kinds(self, *, anew: bool = False) -> list[Kind]:
        """All served resources, in the server's order of preference."""
        known = self._kinds
        async with self._reading:
            # Another task may have read them while this one waited.
            if not self._kinds or (anew and self._kinds is known):
                bodies = [await self._client.raw(path, accept=_AGGREGATED) for path in ("/api", "/apis")]
                try:
                    groups = [group for body in bodies for group in msgspec.json.decode(body, type=_Groups).items]
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise UnreadableError(f"cannot decode the API discovery document ({error})") from error
                self._kinds = list(_kinds(groups))
                self._silent = list(_silent(groups))
        return self._kinds

    async def silent(self) -> list[str]:
        """API versions whose servers do not answer, as `version.group`: their objects are unknown."""
        await self.kinds()
        return self._silent

    async def resource(self, kind: str, *, group: str = "", version: str | None = None) -> Resource:
        """The resource of a kind, in this version or the preferred one."""
        for anew in (False, True):
            for one in await self.kinds(anew=anew):
                it = one.resource
                if (it.kind, it.group) == (kind, group) and version in (None, it.version):
                    return it
        name = f"{group}/{version}" if version and group else version or group or "v1"
        raise UnwindError(
            f"kind {kind} of {name} is not served by this cluster", remedy="check that its CRD is installed"
        )

    async def named(self, name: str) -> Resource:
        """The resource with this name: `deploy`, `deployments.apps`, `ClusterProfile`."""
        return await naming.resource_of(self, name)


def _kinds(groups: Iterable[_Group]) -> Iterator[Kind]:
    for group in groups:
        for version in group.versions:
            for one in version.resources:
                yield Kind(
                    resource=Resource(
                        group.metadata.name,
                        version.version,
                        one.resource,
                        one.response_kind.kind,
                        namespaced=one.scope == "Namespaced",
                    ),
                    verbs=frozenset(one.verbs),
                    short_names=tuple(one.short_names),
                    singular=one.singular_resource,
                )


def _silent(groups: Iterable[_Group]) -> Iterator[str]:
    for group in groups:
        for version in group.versions:
            if version.freshness == "Stale":
                yield f"{version.version}.{group.metadata.name}"
