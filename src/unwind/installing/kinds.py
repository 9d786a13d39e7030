"""Every kind that an API server serves, to look for what Unwind left on objects of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.resources import Resource
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unwind.kube.client import Client

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
# An API server of somebody else's may not know the short form.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class Kind(msgspec.Struct, frozen=True):
    """A kind that is served, and what may be asked of it."""

    resource: Resource
    verbs: frozenset[str]


class _ResponseKind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Resource(msgspec.Struct, rename="camel"):
    resource: str
    scope: str = ""
    verbs: frozenset[str] = frozenset()
    response_kind: _ResponseKind = _ResponseKind()


class _Version(msgspec.Struct):
    version: str
    resources: list[_Resource] = []
    freshness: str = ""


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _Group(msgspec.Struct):
    metadata: _Name = _Name()
    versions: list[_Version] = []


class _Discovery(msgspec.Struct):
    items: list[_Group] = []


class _Partial(msgspec.Struct):
    metadata: ObjectMeta


async def served(client: Client) -> list[Kind]:
    """Each kind once, in the version that the server prefers."""
    found: dict[tuple[str, str], Kind] = {}
    for path in ("/api", "/apis"):
        answer = msgspec.json.decode(await client.raw(path, accept=_DISCOVERY), type=_Discovery)
        for group in answer.items:
            for version in group.versions:
                if version.freshness == "Stale":
                    # What is behind it may carry our finalizers as well: not to know is not to find nothing.
                    raise UnwindError(
                        f"{group.metadata.name}/{version.version} does not answer, so it is not known what is in it",
                        remedy=f"`kubectl get apiservice {version.version}.{group.metadata.name}` says why",
                    )
                for one in version.resources:
                    kind = Kind(
                        Resource(
                            group.metadata.name,
                            version.version,
                            one.resource,
                            one.response_kind.kind,
                            namespaced=one.scope == "Namespaced",
                        ),
                        one.verbs,
                    )
                    found.setdefault((group.metadata.name, one.resource), kind)
    return list(found.values())


async def metadata(
    client: Client, resource: Resource, *, namespace: str | None = None
) -> AsyncGenerator[ObjectMeta, None]:
    """The metadata of every object of a kind."""
    async for page in client.pages(resource, namespace=namespace, accept=_METADATA_ONLY):
        for item in page.items or []:
            yield msgspec.json.decode(item, type=_Partial).metadata
