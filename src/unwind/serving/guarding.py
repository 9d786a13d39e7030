"""Watch the path key Secret, so that rotation and deletion take effect without a restart."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.resources import SECRETS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.installing import path_keys
from unwind.installing.path_keys import NAME
from unwind.serving.following import backoff, follow

if TYPE_CHECKING:
    from unwind.clock import Clock
    from unwind.installing.path_keys import PathKeys
    from unwind.kube.client import Client
    from unwind.segments import Segments

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
        keys = await path_keys.obtain(self._client, self._namespace, now=now, known=self._known)
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
                            if path_keys.read(found) != self._known:
                                break
            except TimeoutError:
                pass  # the previous key has expired
            except UnwindError as error:
                failures += 1
                log.warning("path key watch failed, will retry", why=str(error))
                await backoff(failures)
