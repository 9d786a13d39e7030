"""All served kinds, to find Unwind's finalizers on objects of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.errors import UnwindError
from unwind.kube.discovery import Discovery, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unwind.api.resources import Resource
    from unwind.kube.client import Client

# An aggregated API server may not support PartialObjectMetadata.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class _Partial(msgspec.Struct):
    metadata: ObjectMeta


async def served(client: Client) -> list[Kind]:
    """Each kind once, in the server's preferred version."""
    discovery = Discovery(client)
    for silent in await discovery.silent():
        # Its objects may carry our finalizers: unknown must not count as none.
        raise UnwindError(
            f"cannot list the kinds of APIService {silent}: it does not answer",
            remedy=f"see `kubectl get apiservice {silent}`",
        )
    found: dict[tuple[str, str], Kind] = {}
    for kind in await discovery.kinds():
        found.setdefault((kind.resource.group, kind.resource.plural), kind)
    return list(found.values())


async def metadata(
    client: Client, resource: Resource, *, namespace: str | None = None
) -> AsyncGenerator[ObjectMeta, None]:
    """The metadata of all objects of a kind."""
    async for page in client.pages(resource, namespace=namespace, accept=_METADATA_ONLY):
        for item in page.items or []:
            yield msgspec.json.decode(item, type=_Partial).metadata
