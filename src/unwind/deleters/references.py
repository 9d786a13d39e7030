"""Resolves references of an object: other objects, Secrets, its namespace."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from typing import TYPE_CHECKING

from unwind.api.resources import NAMESPACES, SECRETS
from unwind.clock import SYSTEM
from unwind.deleters.outcomes import TransientError
from unwind.kube.discovery import Discovery
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from unwind.api.meta import Reference, SecretReference
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.client import Client, Object


class Resolver:
    """Resolves references of an object. Everything is read fresh except namespaces, which are cached for a while
    because many objects that are deleted together are in the same one."""

    def __init__(
        self,
        client: Client,
        *,
        discovery: Discovery | None = None,
        remembers: float = math.inf,
        clock: Clock = SYSTEM,
    ) -> None:
        """`remembers`: how long namespaces are cached, in seconds; forever for a resolver of a single pass."""
        self._client = client
        self._discovery = discovery or Discovery(client)
        self._remembers = remembers
        self._clock = clock
        self._namespaces: dict[str, tuple[float, Object | None]] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    async def resource(self, name: str) -> Resource:
        """The resource with this name: `pods`, `deploy`, `jobs.batch`."""
        return await self._discovery.named(name)

    async def object(self, reference: Reference, *, namespace: str = "") -> Object | None:
        """The referenced object; None if it does not exist. `namespace`: the default if the reference has none."""
        group, _, version = reference.api_version.rpartition("/")
        resource = await self._discovery.resource(reference.kind, group=group, version=version or None)
        where = (reference.namespace or namespace) if resource.namespaced else None
        try:
            return await self._client.get(resource, reference.name, namespace=where)
        except NotFoundError:
            return None

    async def secret(self, reference: SecretReference, key: str, *, namespace: str = "") -> str:
        """A value of a Secret. Raises TransientError if it does not exist, because it may still be created."""
        where = reference.namespace or namespace
        try:
            secret = await self._client.get(SECRETS, reference.name, namespace=where)
            return base64.b64decode((secret.get("data") or {})[key], validate=True).decode()
        except NotFoundError:
            raise TransientError(f"Secret {where}/{reference.name} not found", remedy="create it") from None
        except KeyError:
            raise TransientError(f"Secret {where}/{reference.name} has no key {key!r}", remedy="add it") from None
        except (binascii.Error, UnicodeDecodeError):
            # The value itself must never be shown.
            raise TransientError(
                f"cannot decode {key!r} of Secret {where}/{reference.name}: not UTF-8 text", remedy="correct the value"
            ) from None

    async def namespace(self, name: str) -> Object | None:
        """A namespace; None if it does not exist."""
        if not self._knows(name):
            # Many deletions may ask for the same namespace: only one reads it.
            async with self._reading.setdefault(name, asyncio.Lock()):
                if not self._knows(name):
                    asked = self._clock.monotonic()
                    self._namespaces[name] = asked, await self._read_namespace(name)
        return self._namespaces[name][1]

    def _knows(self, name: str) -> bool:
        read = self._namespaces.get(name)
        return read is not None and self._clock.monotonic() - read[0] < self._remembers

    async def _read_namespace(self, name: str) -> Object | None:
        try:
            return await self._client.get(NAMESPACES, name)
        except NotFoundError:
            return None
