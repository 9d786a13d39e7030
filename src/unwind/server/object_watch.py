"""Watch one object by name."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.errors import UnwindError
from unwind.kube.responses import WatchEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

log = logs.get(__name__)
_PATIENCE = (1.0, 30.0)
# The minimal interval between watches, for a server that closes each at once.
_BREATH = 0.5


async def follow(
    client: Client, resource: Resource, name: str, *, namespace: str | None = None
) -> AsyncGenerator[Object | None, None]:
    """Yields the object now and after every change; None while it does not exist. Never ends; errors are retried.

    Reads a single name, so that RBAC can be restricted to it.
    """
    fields, failures = f"metadata.name={name}", 0
    while True:
        try:
            pages = client.pages(resource, namespace=namespace, fields=fields)
            async with aclosing(pages):
                page = await anext(pages)
            yield msgspec.json.decode(page.items[0]) if page.items else None
            failures = 0
            batches = client.watch_lines(
                resource, namespace=namespace, fields=fields, since=page.metadata.resource_version, bookmarks=True
            )
            async with aclosing(batches):
                async for batch in batches:
                    for line in batch:
                        event = msgspec.json.decode(line, type=WatchEvent)
                        if event.type == "ERROR":
                            break  # most likely an expired resourceVersion, which ends the watch
                        if event.type != "BOOKMARK":
                            yield None if event.type == "DELETED" else event.object
            await asyncio.sleep(_BREATH)
        except UnwindError as error:
            failures += 1
            if failures == 1:
                about = f"{resource.kind}/{namespace}/{name}" if namespace else f"{resource.kind}/{name}"
                log.warning("watch failed, will retry", object=about, why=str(error))
            await backoff(failures)


async def backoff(failures: int) -> None:
    """Sleep after consecutive failures, with exponential backoff and jitter."""
    first, longest = _PATIENCE
    await asyncio.sleep(min(longest, first * 2.0 ** min(failures - 1, 10)) * random.uniform(0.8, 1.2))  # noqa: S311
