"""Looks up what exists in place of our manifests, and which kinds the server serves."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.meta import ObjectMeta
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, VALIDATING_ADMISSION_POLICIES, Resource
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.capi.manifests import VERSIONS
from unwind.errors import UnwindError
from unwind.install.contributions import REGISTER
from unwind.install.manifests import called, resource_of
from unwind.kube.discovery import Discovery, ServedKind
from unwind.kube.errors import ApiError, NotFoundError
from unwind.server.manager_names import is_ours

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from unwind.kube.client import Client


# An aggregated API server may not support PartialObjectMetadata.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


class _Partial(msgspec.Struct):
    metadata: ObjectMeta


async def require_admission_policies(client: Client, aim: str) -> str:
    """The version of the API server; raises UnwindError if it is too old to serve admission policies."""
    version: str = msgspec.json.decode(await client.raw("/version"))["gitVersion"]
    try:
        await client.list(VALIDATING_ADMISSION_POLICIES)
    except ApiError as error:
        if error.code != 404:
            raise
        raise UnwindError(
            f"cannot {aim}: Kubernetes {version} does not serve ValidatingAdmissionPolicies",
            remedy="use a cluster with Kubernetes 1.30 or later",
        ) from error
    return version


async def served_kinds(client: Client) -> list[ServedKind]:
    """Each kind once, in the server's preferred version."""
    discovery = Discovery(client)
    for silent in await discovery.silent():
        # Its objects may carry our finalizers: unknown must not count as none.
        raise UnwindError(
            f"cannot list the kinds of APIService {silent}: it does not answer",
            remedy=f"see `kubectl get apiservice {silent}`",
        )
    found: dict[tuple[str, str], ServedKind] = {}
    for kind in await discovery.kinds():
        found.setdefault((kind.resource.group, kind.resource.plural), kind)
    return list(found.values())


async def list_metadata(
    client: Client, resource: Resource, *, namespace: str | None = None
) -> AsyncGenerator[ObjectMeta, None]:
    """The metadata of all objects of a kind."""
    async for page in client.pages(resource, namespace=namespace, accept=_METADATA_ONLY):
        for item in page.items or []:
            yield msgspec.json.decode(item, type=_Partial).metadata


async def bearers(
    client: Client, kind: ServedKind, bears: Callable[[ObjectMeta], object]
) -> list[tuple[Resource, ObjectMeta]]:
    """The objects of a kind that bear something of ours, such as a finalizer."""
    if not kind.verbs >= {"list", "patch"}:
        return []
    async with aclosing(list_metadata(client, kind.resource)) as found:
        return [(kind.resource, it) async for it in found if bears(it)]


def our_finalizers(metadata: ObjectMeta) -> list[str]:
    return [finalizer for finalizer in metadata.finalizers if finalizer.startswith(names.PREFIX)]


async def unfinished_teardowns(client: Client) -> list[Teardown]:
    """The teardowns that are running, or will run."""
    return [it for it in await teardowns(client) if not it.finished]


async def teardowns(client: Client) -> list[Teardown]:
    """All teardowns, without those that the manager ignores."""
    try:
        await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{TEARDOWNS.plural}.{TEARDOWNS.group}")
    except NotFoundError:
        return []
    found = [msgspec.convert(obj, Teardown) for obj in await client.list(TEARDOWNS)]
    return [it for it in found if names.SET_ASIDE_LABEL not in it.metadata.labels]


# Look up the existing object of a manifest, and whether its kind is served.

Object = dict[str, Any]


class ExistingObject(msgspec.Struct, frozen=True):
    """A manifest and the existing object of its name."""

    resource: Resource
    """Its kind, in the served version."""
    manifest: Object
    existing: Object | None = None
    unserved: str = ""
    """The note for a kind that is not served; empty if it is served."""

    @property
    def name(self) -> str:
        return called(self.manifest)

    @property
    def foreign(self) -> bool:
        return self.existing is not None and not is_ours(self.existing)


async def look(client: Client, manifest: Object) -> ExistingObject:
    """The existing object; raises ApiError if a required kind is not served."""
    wanted, metadata = resource_of(manifest), manifest["metadata"]
    notes = {kind: note for contribution in REGISTER for kind, note in contribution.optional.items()}
    for resource in VERSIONS if wanted in VERSIONS else (wanted,):
        written = manifest | {"apiVersion": resource.api_version}
        try:
            existing = await client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
        except NotFoundError:
            return ExistingObject(resource, written)
        except ApiError as error:
            # For a kind that is not served the API server answers 404 in plain text, not with a Status.
            if error.code != 404 or wanted not in notes:
                raise
        else:
            return ExistingObject(resource, written, existing)
    return ExistingObject(wanted, manifest, unserved=notes[wanted])
