"""Compare-and-swap of an object that others change at the same time, and how soon a status is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

WORTH_TELLING = 0.5
"""Seconds that a wait has to last before a status reports it."""
IN_TIME = 2.0
"""Seconds after which a status reports what is not urgent."""
# Every conflict means that another client wrote the object. After so many in a row, the caller retries later.
_TRIES = 8


async def revise(
    client: Client,
    resource: Resource,
    read: Object,
    change: Callable[[Object], Object | None],
    *,
    subresource: str | None = None,
) -> Object | None:
    """The object with a change made to it; None if there was nothing to change, or it is gone.

    `change` makes a merge patch of the object as it is, or None. It is called again with what another client wrote
    meanwhile, and never with another object of the same name. Raises NotFoundError if the object is there and has
    no such subresource.
    """
    metadata = read["metadata"]
    tries = _TRIES
    while True:
        patch = change(read)
        if patch is None:
            return None
        try:
            return await client.revise(resource, read, patch, subresource=subresource)
        except (ConflictError, NotFoundError) as refusal:
            tries -= 1
            try:
                read = await client.get(resource, metadata["name"], namespace=metadata.get("namespace"))
            except NotFoundError:
                return None
            if read["metadata"]["uid"] != metadata["uid"]:
                return None
            if not tries or isinstance(refusal, NotFoundError):
                raise
