"""Minimal objects and CRDs, and steps that many tests take with them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from unwind.api.meta import ObjectMeta, ref_of
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.kube import object_watch
from unwind.kube.errors import AlreadyExistsError, ApiError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Client, Object

ANY_SCHEMA: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def new_object(resource: Resource, name: str, namespace: str | None = None, **fields: Any) -> Object:
    """An object with a name, and these fields. `metadata` adds to its metadata."""
    metadata: Object = {"name": name} | ({"namespace": namespace} if namespace else {}) | fields.pop("metadata", {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}


def teardown_policy(name: str, labels: Mapping[str, str], *sources: Object, **spec: Any) -> Object:
    """A TeardownPolicy for the Clusters with these labels."""
    selector = {"clusterSelector": {"matchLabels": dict(labels)}}
    given = {"sources": list(sources)} if sources else {}
    return new_object(TEARDOWN_POLICIES, name, spec={**selector, **given, **spec})


def ref(resource: Resource, obj: Object) -> ObjectRef:
    """A reference to an object."""
    return ref_of(resource, msgspec.convert(obj["metadata"], ObjectMeta))


def crd(resource: Resource, *versions: str, schema: Object | None = None, **spec: Any) -> Object:
    """A CRD that accepts any object, unless there is a schema. The last of several versions is the stored one."""
    versions = versions or (resource.version,)
    names = {
        "kind": resource.kind,
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "listKind": f"{resource.kind}List",
    }
    content: Object = {
        "group": resource.group,
        "names": names,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "versions": [
            {
                "name": version,
                "served": True,
                "storage": version == versions[-1],
                "schema": {"openAPIV3Schema": schema or ANY_SCHEMA},
            }
            for version in versions
        ],
    }
    return new_object(CUSTOM_RESOURCE_DEFINITIONS, f"{resource.plural}.{resource.group}", spec=content | spec)


def api_service_without_server(group: str) -> Object:
    """An APIService whose server does not exist."""
    spec = {
        "group": group,
        "version": "v1",
        "service": {"name": "away", "namespace": "default"},
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
    }
    return new_object(API_SERVICES, f"v1.{group}", spec=spec)


async def define(client: Client, definition: Object) -> Object:
    """Create a CRD unless it exists, and return it once it is established, and its objects can be created."""
    with suppress(AlreadyExistsError):  # another test was first
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    name = definition["metadata"]["name"]
    made = await object_watch.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established")
    return await _established_long_ago(client, made)


async def _established_long_ago(client: Client, definition: Object) -> Object:
    # For two seconds after a CRD is established, the API server delays each creation of its objects by two seconds, so
    # that other API servers have seen the CRD, too. Here there is only one.
    conditions = [
        {**condition, "lastTransitionTime": "2020-01-01T00:00:00Z"} for condition in definition["status"]["conditions"]
    ]
    if conditions == definition["status"]["conditions"]:
        return definition
    patch = {"status": {"conditions": conditions}}
    return await client.patch(CUSTOM_RESOURCE_DEFINITIONS, definition["metadata"]["name"], patch, subresource="status")


async def delete(
    client: Client, resource: Resource, name: str, namespace: str | None = None, *, dry_run: bool = False
) -> str:
    """Delete an object by its uid, and return the uid."""
    uid: str = (await client.get(resource, name, namespace=namespace))["metadata"]["uid"]
    await client.delete(resource, name, uid=uid, namespace=namespace, dry_run=dry_run)
    return uid


async def absent(client: Client, resource: Resource, name: str, namespace: str | None = None) -> bool:
    """Whether no object has this name."""
    try:
        await client.get(resource, name, namespace=namespace)
    except NotFoundError:
        return True
    return False


async def until_refused(act: Callable[[], Awaitable[object]], words: str = "", *, within: float = 60.0) -> ApiError:
    """Repeat a request until the API server refuses it with these words: policies take effect after a moment."""

    async def refusal() -> ApiError | None:
        try:
            await act()
        except ApiError as error:
            # For a moment after a CRD was created, every policy that reads its objects refuses.
            if "not yet synced" not in str(error) and words in str(error):
                return error
        return None

    error = await eventually(refusal, f"a refusal with {words!r}" if words else "a refusal", within=within, every=0.05)
    assert error
    return error


async def until_allowed(act: Callable[[], Awaitable[object]], *, within: float = 60.0) -> None:
    """Repeat a request until the API server accepts it: rights, policies and CRDs take effect after a moment."""
    last: list[ApiError] = []

    async def accepted() -> bool:
        try:
            await act()
        except ApiError as error:
            last[:] = [error]
            return False
        return True

    try:
        await eventually(accepted, "an accepted request", within=within, every=0.05)
    except AssertionError as timed_out:
        raise timed_out from (last[0] if last else None)


async def until_there(
    client: Client,
    resource: Resource,
    name: str,
    holds: Callable[[Object], bool] = lambda _: True,
    *,
    namespace: str,
    within: float = 60.0,
) -> Object:
    """The object, once it exists and is so."""
    found = await object_watch.until(
        client, resource, name, lambda it: it is not None and holds(it), "there", namespace=namespace, within=within
    )
    assert found
    return found
