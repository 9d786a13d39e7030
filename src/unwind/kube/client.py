"""A client for one API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from unwind.kube.errors import UnreachableError, error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from unwind.api.resources import Resource
    from unwind.kube.kubeconfig import Connection

Object = dict[str, Any]

_FIELD_MANAGER = "unwind"
_CALL_TIMEOUT = 30.0
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"


class Event(msgspec.Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: Object


class Client:
    """Talks to one API server over pooled connections; use it as an async context manager."""

    def __init__(self, connection: Connection, *, user_agent: str = "unwind") -> None:
        self.connection = connection
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self.connection.server,
            connector=aiohttp.TCPConnector(ssl=self.connection.ssl_context(), limit=0),
            headers={"User-Agent": self._user_agent, "Accept": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session:
            await self._session.close()

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        return await self._call("GET", resource.path(name, namespace=namespace))

    async def list(self, resource: Resource, *, namespace: str | None = None, limit: int = 500) -> list[Object]:
        """Every object, read in pages."""
        items: list[Object] = []
        token = ""
        while True:
            page = await self._call(
                "GET", resource.path(namespace=namespace), params={"limit": str(limit), "continue": token}
            )
            items += page["items"] or []
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    async def create(self, resource: Resource, body: Object) -> Object:
        path = resource.path(namespace=body["metadata"].get("namespace"))
        return await self._call("POST", path, body=body, params={"fieldManager": _FIELD_MANAGER})

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        """Server-side apply: set the fields of `body`, and own them."""
        metadata = body["metadata"]
        return await self._call(
            "PATCH",
            resource.path(metadata["name"], namespace=metadata.get("namespace"), subresource=subresource),
            body=body,
            params={"fieldManager": _FIELD_MANAGER, "force": "true"},
            content_type=_APPLY_PATCH,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Merge `patch` into the object; carry its resourceVersion to be refused if it changed meanwhile."""
        return await self._call(
            "PATCH",
            resource.path(name, namespace=namespace, subresource=subresource),
            body=patch,
            params={"fieldManager": _FIELD_MANAGER},
            content_type=_MERGE_PATCH,
        )

    async def delete(self, resource: Resource, name: str, *, uid: str, namespace: str | None = None) -> Object:
        """Ask for the deletion of exactly this object."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        return await self._call("DELETE", resource.path(name, namespace=namespace), body=options)

    async def healthy(self, url: str = "/readyz") -> bool:
        """Whether the server there says that it is well; False also when it cannot be reached."""
        assert self._session  # noqa: S101 - for the type checker
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def watch(
        self, resource: Resource, *, namespace: str | None = None, name: str | None = None, since: str = ""
    ) -> AsyncIterator[Event]:
        """What is there (as ADDED) and what happens to it, until the server ends the stream.

        With `since`, a resourceVersion: what has happened after it, and nothing of what was there already.
        """
        params = {"watch": "true"}
        if since:
            params["resourceVersion"] = since
        if name:
            params["fieldSelector"] = f"metadata.name={name}"
        assert self._session  # noqa: S101 - for the type checker
        path = resource.path(namespace=namespace)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_TIMEOUT)
        try:
            # A Secret may hold 1 MB on one line.
            async with self._session.get(path, params=params, timeout=timeout, read_bufsize=2**22) as answer:
                if answer.status != 200:
                    raise error_of(answer.status, await answer.read(), request=f"watch {path}")
                async for line in answer.content:
                    yield msgspec.json.decode(line, type=Event)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise UnreachableError(
                f"{self.connection.server} does not answer (watch {path}: {type(error).__name__} {error})"
            ) from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        assert self._session  # noqa: S101 - for the type checker
        request = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                path,
                params={key: value for key, value in (params or {}).items() if value},
                data=None if body is None else msgspec.json.encode(body),
                headers={} if body is None else {"Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(total=_CALL_TIMEOUT),
            ) as answer:
                payload = await answer.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise UnreachableError(
                f"{self.connection.server} does not answer ({request}: {type(error).__name__} {error})"
            ) from error
        if answer.status >= 300:
            raise error_of(answer.status, payload, request=request)
        decoded: Object = msgspec.json.decode(payload)
        return decoded
