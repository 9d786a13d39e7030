"""Kinds of CRDs that need not be installed: only the absence of its CRD proves that there are no objects of a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

# An API server answers this for a kind that it does not serve.
_NOT_SERVED = 404


async def is_installed(client: Client, resource: Resource) -> bool:
    """Whether the CRD of a kind is installed. Raises if that is unknown."""
    try:
        # Without the schema, which is 100 KB for a Kustomization.
        await client.get_metadata(CUSTOM_RESOURCE_DEFINITIONS, _crd(resource))
    except NotFoundError:
        return False
    return True


async def list_if_installed(client: Client, resource: Resource, *, namespace: str | None = None) -> list[Object]:
    """All objects of a kind, or those in a namespace; none if its CRD is not installed. Raises if that is unknown."""
    try:
        return await client.list(resource, namespace=namespace)
    except ApiError as error:
        if (
            error.code == _NOT_SERVED
            and (await client.sighting(CUSTOM_RESOURCE_DEFINITIONS, _crd(resource), uid="")).absent
        ):
            return []
        raise


def _crd(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}"
