"""Look up the existing object of a manifest, and whether its kind is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.resources import Resource
from unwind.installing.addressing import is_ours
from unwind.installing.contributions import REGISTER
from unwind.installing.manifests import called, resource_of
from unwind.installing.registration import VERSIONS
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from unwind.kube.client import Client

Object = dict[str, Any]


class Found(msgspec.Struct, frozen=True):
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


async def look(client: Client, manifest: Object) -> Found:
    """The existing object; raises ApiError if a required kind is not served."""
    wanted, metadata = resource_of(manifest), manifest["metadata"]
    notes = {kind: note for contribution in REGISTER for kind, note in contribution.optional.items()}
    for resource in VERSIONS if wanted in VERSIONS else (wanted,):
        written = manifest | {"apiVersion": resource.api_version}
        try:
            existing = await client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
        except NotFoundError:
            return Found(resource, written)
        except ApiError as error:
            # For a kind that is not served the API server answers 404 in plain text, not with a Status.
            if error.code != 404 or wanted not in notes:
                raise
        else:
            return Found(resource, written, existing)
    return Found(wanted, manifest, unserved=notes[wanted])
