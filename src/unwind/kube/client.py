"""A client for one API server."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload
from urllib.parse import urlencode

import msgspec

from unwind.api.resources import NAMESPACES
from unwind.clock import ServerTime
from unwind.kube import absence, fencing
from unwind.kube.decoding import Page, WatchEvent, decode_response, model_of, object_of
from unwind.kube.errors import (
    AnotherClusterError,
    ApiError,
    NotFoundError,
    TooLargeAnswerError,
    UnreachableError,
    UnreadableError,
    error_of,
)
from unwind.kube.transport import HttpTransport, Pinning, ServerAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from unwind.api.resources import Resource
    from unwind.kube.absence import Sighting
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.kube.transport import Transport

Object = dict[str, Any]
Lines = list[bytes]
Patch = Object | list[Object]
T = TypeVar("T")

FIELD_MANAGER = "unwind"
PAGE = 500
DEADLINE = 30.0
# A watch sends a bookmark about once a minute: if nothing at all has come for longer, the connection is dead.
SILENCE = 100.0
_ASIDE = 3
# The maximum size of one list: an endless one would fill the memory.
MOST_LISTED = 1 << 30
_SHORTEST = 0.1
_JSON = {"Accept": "application/json"}
_METADATA_ONLY = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
_READ = nullcontext()
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"


class Client:
    """A client for one API server over pooled connections; use it as an async context manager.

    Every call ends: with a response, an ApiError or, after `deadline` seconds, an UnreachableError. Requests that the
    server throttles (429, or Retry-After) are retried within that time.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        *,
        user_agent: str = "unwind",
        transport: Transport | None = None,
        deadline: float = DEADLINE,
        observe: Callable[[str, str, int, float], None] = lambda *_: None,
    ) -> None:
        """`observe` is called for each request: verb, resource, status (0 for none), seconds."""
        self.connection = connection
        self.cluster = ""
        """The cluster that it is pinned to."""
        self._user_agent = user_agent
        self._transport = transport
        self._deadline = deadline
        self._observe = observe
        self.time = ServerTime()
        """The server's time, from the Date headers of its responses."""
        self.aside = asyncio.Semaphore(_ASIDE)
        """Limits background requests, so that others come first."""

    async def __aenter__(self) -> Self:
        self._transport = self._transport or HttpTransport(self.connection, user_agent=self._user_agent)
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._transport:
            await self._transport.close()

    # Reading

    @overload
    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object: ...
    @overload
    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, type: type[T]) -> T: ...
    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, type: Any = dict) -> Any:  # noqa: A002
        path = resource.path(name, namespace=namespace)
        body = await self._call("get", resource, "GET", path, name=name)
        return object_of(body, path) if type is dict else decode_response(body, type, path)

    async def get_metadata(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """An object with its metadata only, which spares the server the encoding of a large object."""
        path = resource.path(name, namespace=namespace)
        return object_of(await self._call("get", resource, "GET", path, name=name, headers=_METADATA_ONLY), path)

    async def list_of(
        self, resource: Resource, type_: type[T], *, namespace: str | None = None, labels: str = ""
    ) -> list[T]:
        """All objects as values of a model with `metadata`, which takes less time than dicts: managedFields are not
        decoded."""
        items: list[T] = []
        pages = self.pages(resource, namespace=namespace, labels=labels)
        async with aclosing(pages):
            async for page in pages:
                items += [model_of(item, type_, resource.plural) for item in page.items or ()]
        return items

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        limit: int = PAGE,
    ) -> list[Object]:
        """All objects, read in pages."""
        items: list[Object] = []
        pages = self.pages(resource, namespace=namespace, labels=labels, fields=fields, limit=limit)
        async with aclosing(pages):
            async for page in pages:
                items += [object_of(item, resource.plural, key="name") for item in page.items or ()]
        return items

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        limit: int = PAGE,
        accept: str = "application/json",
        ahead: bool = False,
    ) -> AsyncGenerator[Page, None]:
        """A consistent list, page by page. Raises ExpiredError if reading takes too long.

        `ahead`: request each page while the caller handles the one before, for callers that read all of them.
        """
        path, total = resource.path(namespace=namespace), 0

        async def read(token: str) -> tuple[Page, int]:
            nonlocal limit
            while True:
                query = {"limit": str(limit), "continue": token, "labelSelector": labels, "fieldSelector": fields}
                try:
                    body = await self._call("list", resource, "GET", path, query=query, headers={"Accept": accept})
                except TooLargeAnswerError:
                    if limit == 1:
                        raise
                    limit = max(1, limit // 8)
                else:
                    return decode_response(body, Page, path), len(body)

        token = ""
        coming: asyncio.Task[tuple[Page, int]] | None = None
        try:
            while True:
                page, size = await (coming or read(token))
                coming = None
                total += size
                # A CRD may name its list kind freely, but not like its items.
                other = page.kind in ("", "Status", resource.kind)
                if other or (page.metadata.continue_ and page.metadata.continue_ == token):
                    raise UnreadableError(
                        f"cannot list {resource.plural}: the response of {self.connection.server} to GET {path} "
                        "is not a list"
                    )
                if total > MOST_LISTED:
                    raise UnreadableError(
                        f"cannot list {resource.plural}: the list {path} is larger than {MOST_LISTED >> 20} MiB",
                        remedy=f"delete {resource.plural} that are not needed",
                    )
                token = page.metadata.continue_
                if token and ahead:
                    coming = asyncio.create_task(read(token))
                    await asyncio.sleep(0)  # the request is sent before the caller keeps the event loop busy
                yield page
                if not token:
                    return
        finally:
            if coming:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        name: str | None = None,
        since: str = "",
        bookmarks: bool = False,
    ) -> AsyncGenerator[WatchEvent, None]:
        """The existing objects (as ADDED) and their changes, until the server ends the stream.

        `since` a resourceVersion: only what has happened after it. `bookmarks`: also BOOKMARK events. Without them, a
        watch ends if nothing happens for a while.
        """
        fields = f"metadata.name={name}" if name else ""
        lines = self.watch_lines(resource, namespace=namespace, fields=fields, since=since, bookmarks=bookmarks)
        async with aclosing(lines):
            async for batch in lines:
                for line in batch:
                    yield decode_response(line, WatchEvent, resource.plural)

    async def watch_lines(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        since: str = "",
        bookmarks: bool = False,
        seconds: int = 0,
        accept: str = "application/json",
        silence: float = SILENCE,
    ) -> AsyncGenerator[Lines, None]:
        """The events of a watch, undecoded and in batches."""
        query = {
            "watch": "true",
            "labelSelector": labels,
            "fieldSelector": fields,
            "resourceVersion": since,
            "allowWatchBookmarks": "true" if bookmarks else "",
            "timeoutSeconds": str(seconds) if seconds else "",
        }
        target = _target(resource.path(namespace=namespace), query)
        assert self._transport  # noqa: S101 - for the type checker
        async with self._transport.stream(target, headers={"Accept": accept}, silence=silence) as answer:
            if isinstance(answer, ServerAnswer):
                raise error_of(answer.status, answer.body, request=f"watch {target}")
            async for lines in answer:
                yield lines

    async def sighting(
        self, resource: Resource, name: str, *, uid: str, namespace: str | None = None, cluster: str | None = None
    ) -> Sighting:
        """Check whether the object with this uid still exists.

        `cluster`: the uid of the kube-system namespace where it was created. An absence counts only from there.
        """
        assert self._transport  # noqa: S101 - for the type checker
        path = resource.path(name, namespace=namespace)
        try:
            answer = await self._transport.request("GET", path, headers=_JSON, within=self._deadline)
            seen = absence.from_answer(
                answer.status, answer.body, resource=resource, name=name, uid=uid, namespace=namespace or ""
            )
            # A pinned client has verified the connection that this came by.
            if seen.absent and cluster is not None and self.cluster != cluster:
                seen = absence.on_cluster(seen, expected=cluster, found=await self.cluster_uid())
        except (UnreachableError, ApiError) as error:
            return absence.Sighting(absence.Presence.UNKNOWN, str(error))
        return seen

    async def cluster_uid(self) -> str:
        """The identity of the cluster, independent of its address: the uid of its kube-system namespace."""
        uid: str = (await self.get(NAMESPACES, "kube-system"))["metadata"]["uid"]
        if self.cluster and uid != self.cluster:
            raise AnotherClusterError(self.connection.server, found=uid, expected=self.cluster)
        return uid

    def pin(self, cluster: str) -> None:
        """Accept from now on only the cluster with this uid: each connection is verified first.

        An address may lead to several clusters, with each connection to another one.
        """
        if isinstance(self._transport, Pinning):
            self.cluster = cluster
            self._transport.pin(cluster)

    async def healthy(self, path: str = "/readyz") -> bool:
        """Whether the server reports that it is healthy; False also if it is unreachable."""
        assert self._transport  # noqa: S101 - for the type checker
        try:
            answer = await self._transport.request("GET", path, headers=_JSON, within=2.0)
        except UnreachableError:
            return False
        return answer.status == 200

    # Writing

    async def create(self, resource: Resource, body: Object, *, field_manager: str = FIELD_MANAGER) -> Object:
        path = resource.path(namespace=body["metadata"].get("namespace"))
        return await self._write("create", resource, "POST", path, body, query={"fieldManager": field_manager})

    async def post(
        self, resource: Resource, name: str, subresource: str, body: Object, *, namespace: str | None = None
    ) -> Object:
        """Create a subresource of an object, such as a token or an eviction."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self._write("create", resource, "POST", path, body)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        force: bool = True,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply: set the fields of `body`, and own them.

        It is no proof of ownership: it also succeeds on objects of other owners. With `metadata.uid` in the body it
        changes only that object.
        """
        metadata = body["metadata"]
        path = resource.path(metadata["name"], namespace=metadata.get("namespace"), subresource=subresource)
        query = {
            "fieldManager": field_manager,
            "force": "true" if force else "false",
            "dryRun": "All" if dry_run else "",
        }
        return await self._write("apply", resource, "PATCH", path, body, query=query, content_type=_APPLY_PATCH)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        metadata_only: bool = False,
    ) -> Object:
        """Merge patch of an object; JSON patch if the patch is a list.

        Include the resourceVersion as a precondition, to be refused if the object has changed. `metadata_only`: return
        only the metadata, which spares the server the encoding of a large object.
        """
        return await self._write(
            "patch",
            resource,
            "PATCH",
            resource.path(name, namespace=namespace, subresource=subresource),
            patch,
            query={"fieldManager": field_manager},
            content_type=_JSON_PATCH if isinstance(patch, list) else _MERGE_PATCH,
            name=name,
            accept=_METADATA_ONLY if metadata_only else _JSON,
        )

    async def revise(
        self,
        resource: Resource,
        read: Object,
        patch: Object,
        *,
        subresource: str | None = None,
        metadata_only: bool = False,
    ) -> Object:
        """Merge patch with the version that was read as a precondition: a merge patch replaces lists as a whole and
        would otherwise remove what other clients have added meanwhile."""
        metadata = read["metadata"]
        guard = {key: metadata[key] for key in ("uid", "resourceVersion")}
        return await self.patch(
            resource,
            metadata["name"],
            patch | {"metadata": patch.get("metadata", {}) | guard},
            namespace=metadata.get("namespace"),
            subresource=subresource,
            metadata_only=metadata_only,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str,
        namespace: str | None = None,
        version: str | None = None,
        propagation: str | None = None,
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete exactly this object (uid precondition); raises ConflictError if its name belongs to another one.

        With `version`, its resourceVersion is a precondition as well. `grace`: seconds that a Pod has to end.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if version:
            options["preconditions"]["resourceVersion"] = version
        if propagation:
            options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        path = resource.path(name, namespace=namespace)
        return await self._write("delete", resource, "DELETE", path, options, name=name)

    async def raw(self, path: str, *, accept: str = "application/json") -> bytes:
        """GET a path: discovery, a table, a version."""
        return await self._call("get", None, "GET", path, headers={"Accept": accept})

    async def _write(
        self,
        verb: str,
        resource: Resource,
        method: str,
        path: str,
        body: Patch,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        name: str = "",
        accept: Mapping[str, str] = _JSON,
    ) -> Object:
        answer = await self._call(
            verb,
            resource,
            method,
            path,
            query=query,
            body=msgspec.json.encode(body),
            headers={**accept, "Content-Type": content_type},
            name=name,
        )
        decoded: Object = decode_response(answer, dict, path)
        if decoded.get("kind") != "Status" and not isinstance(decoded.get("metadata"), dict):
            raise UnreadableError(f"the response of {self.connection.server} to {method} {path} is not a JSON object")
        return decoded

    async def _call(
        self,
        verb: str,
        resource: Resource | None,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] = _JSON,
        name: str = "",
    ) -> bytes:
        """`name`: of the requested object. A NotFound about something else says nothing about it."""
        assert self._transport, "use the client as a context manager"  # noqa: S101 - a bug in the caller
        target = _target(path, query)
        began = time.monotonic()
        ends = began + self._deadline
        status = 0
        try:
            while True:
                remaining = max(0.001, ends - time.monotonic())
                with _READ if method == "GET" else fencing.fenced_write():
                    answer = await self._transport.request(method, target, body=body, headers=headers, within=remaining)
                status = answer.status
                self.time.observe(answer.date)
                if status < 300:
                    return answer.body
                patience = _patience(answer)
                if patience is None or time.monotonic() + patience > ends:
                    error = error_of(status, answer.body, request=f"{method} {path}")
                    if name and resource and isinstance(error, NotFoundError) and not error.names(resource, name):
                        raise ApiError(error.status, request=f"{method} {path}")
                    raise error
                await asyncio.sleep(patience)
        finally:
            self._observe(verb, resource.plural if resource else "", status, time.monotonic() - began)


def _patience(answer: ServerAnswer) -> float | None:
    """How long to wait before the request is retried; None if a retry would not help.

    With 429 the server has not started to process it; Retry-After says that it may be sent again.
    """
    if answer.status != 429 and (answer.retry_after is None or answer.status < 500):
        return None
    # Every client got the same number: jitter keeps them from coming back at the same moment.
    return max(answer.retry_after or 1.0, _SHORTEST) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret in it


def _target(path: str, query: Mapping[str, str] | None) -> str:
    given = {key: value for key, value in (query or {}).items() if value}
    return f"{path}?{urlencode(given)}" if given else path
