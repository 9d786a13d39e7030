"""What stands where something of ours should be, and whether such a thing can stand there at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.resources import Resource
from unwind.installing.contributions import REGISTER
from unwind.installing.manifests import called, is_ours, resource_of
from unwind.installing.registration import VERSIONS
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from unwind.kube.client import Client

Object = dict[str, Any]


class Found(msgspec.Struct, frozen=True):
    """A manifest, and what stands in its place."""

    resource: Resource
    """Its kind, in the version that is served."""
    manifest: Object
    existing: Object | None = None
    unserved: str = ""
    """What is said of it where its kind is not served; empty where it is."""

    @property
    def name(self) -> str:
        return called(self.manifest)

    @property
    def foreign(self) -> bool:
        return self.existing is not None and not is_ours(self.existing)


async def look(client: Client, manifest: Object) -> Found:
    """What is there now; raises ApiError for a kind that has to be served and is not."""
    wanted, metadata = resource_of(manifest), manifest["metadata"]
    notes = {kind: note for contribution in REGISTER for kind, note in contribution.optional.items()}
    for resource in VERSIONS if wanted in VERSIONS else (wanted,):
        written = manifest | {"apiVersion": resource.api_version}
        try:
            existing = await client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
        except NotFoundError:
            return Found(resource, written)
        except ApiError as error:
            # What is not served is not found either, but not in the words of the API (FACTS: as plain text).
            if error.code != 404 or wanted not in notes:
                raise
        else:
            return Found(resource, written, existing)
    return Found(wanted, manifest, unserved=notes[wanted])
