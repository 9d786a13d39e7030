"""The Secret with the path key: created, rotated, and watched so that changes take effect without a restart."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api import names
from unwind.api.resources import SECRETS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from unwind.kube.object_watch import backoff, follow
from unwind.server.path_segments import new_key

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.kube.client import Client
    from unwind.server.path_segments import Segments


# The Secret with the key of the secret segments in webhook and hook paths.

Object = dict[str, Any]

NAME = "unwind-paths"
OVERLAP = dt.timedelta(minutes=10)
"""How long the previous key is accepted."""


class PathKeys(msgspec.Struct, frozen=True):
    """The current and the previous key."""

    current: bytes
    previous: bytes = b""
    rotated: dt.datetime | None = None

    def __repr__(self) -> str:
        return "PathKeys(…)"

    def rotate(self, now: dt.datetime) -> PathKeys:
        return PathKeys(new_key(), self.current, now.replace(microsecond=0))

    def overlap(self, now: dt.datetime) -> float:
        """The seconds for which the previous key is still accepted."""
        if not self.previous or self.rotated is None:
            return 0.0
        return max(0.0, (self.rotated + OVERLAP - now).total_seconds())

    def accepted(self, now: dt.datetime) -> tuple[bytes, ...]:
        return (self.current, self.previous) if self.overlap(now) else (self.current,)


def read_keys(secret: Object | None) -> PathKeys | None:
    """The keys in a Secret; None if there are none in it."""
    current = _field(secret, "key")
    if not current:
        return None
    try:
        rotated = dt.datetime.fromisoformat(_field(secret, "rotated").decode())
    except ValueError:
        rotated = None
    return PathKeys(current, _field(secret, "previous"), rotated)


def keys_secret(namespace: str, keys: PathKeys | None = None) -> Object:
    """The Secret with these keys, or without data if only its name is needed."""
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND}
    metadata = {"name": NAME, "namespace": namespace, "labels": labels}
    written = {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "metadata": metadata}
    return written | ({"data": _data(keys)} if keys else {})


async def obtain(
    client: Client, namespace: str, *, now: dt.datetime, known: PathKeys | None = None, rotate: bool = False
) -> PathKeys:
    """The keys in the Secret, which is created if it does not exist.

    `known`: the keys that were in it before; they stay accepted for a while if the Secret was deleted. `rotate`:
    replace the current key, which stays accepted for a while.
    """
    while True:
        found = await _get(client, namespace)
        if found is not None and not _is_ours(found):
            raise UnwindError(
                f"cannot use Secret {namespace}/{NAME}: it was not created by Unwind",
                remedy=f"delete it, or label it {names.MANAGED_BY_LABEL}={names.MANAGED_BY_UNWIND}",
            )
        keys = read_keys(found)
        if keys and not rotate:
            return keys
        keys = keys or known
        wanted = keys.rotate(now) if keys else PathKeys(new_key())
        try:
            await _write(client, namespace, found, wanted)
        except (AlreadyExistsError, ConflictError):
            continue  # another replica wrote it first
        return wanted


async def exists(client: Client, namespace: str) -> bool:
    return await _get(client, namespace) is not None


async def _get(client: Client, namespace: str) -> Object | None:
    try:
        return await client.get(SECRETS, NAME, namespace=namespace)
    except NotFoundError:
        return None


async def _write(client: Client, namespace: str, found: Object | None, keys: PathKeys) -> None:
    if found is not None:
        await client.revise(SECRETS, found, {"data": _data(keys)})
        return
    try:
        await client.create(SECRETS, keys_secret(namespace, keys))
    except AlreadyExistsError:
        raise
    except ApiError as error:
        if error.code not in (403, 404):
            raise
        raise UnwindError(
            f"cannot create Secret {namespace}/{NAME}: {error.status.message}",
            remedy="run `unwind install` for this namespace, or choose another one with --namespace",
        ) from error


def _is_ours(secret: Object) -> bool:
    labels = secret["metadata"].get("labels") or {}
    return bool(labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_UNWIND)


def _data(keys: PathKeys) -> Object:
    rotated = keys.rotated.isoformat() if keys.rotated else ""
    fields = {"key": keys.current, "previous": keys.previous, "rotated": rotated.encode()}
    return {name: base64.b64encode(value).decode() for name, value in fields.items()}


def _field(secret: Object | None, name: str) -> bytes:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(name) or "", validate=True)
    except binascii.Error:
        return b""


log = logs.get(__name__)


class SharedPathKeys:
    """The path keys in the Secret: created if missing, and watched for rotation."""

    name = "path-keys"
    ready = True

    def __init__(self, client: Client, segments: Segments, *, namespace: str, clock: Clock = SYSTEM) -> None:
        self._client = client
        self._segments = segments
        self._namespace = namespace
        self._clock = clock
        self._known: PathKeys | None = None

    async def obtain(self) -> None:
        """Read or create the keys at startup. Raises UnwindError."""
        now = self._clock.now()
        keys = await obtain(self._client, self._namespace, now=now, known=self._known)
        if self._known and keys != self._known:
            log.info("path segments rotated", object=f"Secret/{self._namespace}/{NAME}")
        self._known = keys
        self._segments.use(*keys.accepted(now))

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.obtain()
                overlap = self._known.overlap(self._clock.now()) if self._known else 0.0
                async with asyncio.timeout(overlap or None):
                    secrets = follow(self._client, SECRETS, NAME, namespace=self._namespace)
                    async with aclosing(secrets):
                        async for found in secrets:
                            failures = 0
                            if read_keys(found) != self._known:
                                break
            except TimeoutError:
                pass  # the previous key has expired
            except UnwindError as error:
                failures += 1
                log.warning(f"Secret {NAME} not read, its known webhook paths stay in use, will retry", why=str(error))
                await backoff(failures)
