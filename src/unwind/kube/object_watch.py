"""Watch one object by name: follow its changes, or wait until it reaches a state."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.errors import TimedOutError, UnwindError
from unwind.kube.decoding import WatchEvent
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

log = logs.get(__name__)
_PATIENCE = (1.0, 30.0)
# The minimal interval between watches, for a server that closes each at once.
_BREATH = 0.5
_RETRY = 0.2


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


async def until_true(
    client: Client, resource: Resource, name: str, condition: str, *, namespace: str | None = None, within: float = 60.0
) -> Object:
    """Return an object as soon as one of its conditions is true."""
    found = await until(
        client, resource, name, lambda it: has_condition(it, condition), condition, namespace=namespace, within=within
    )
    return found or {}


async def until_absent(
    client: Client, resource: Resource, name: str, *, namespace: str | None = None, within: float = 60.0
) -> None:
    """Return as soon as the object is absent."""
    await until(client, resource, name, lambda it: it is None, "absent", namespace=namespace, within=within)


async def until(
    client: Client,
    resource: Resource,
    name: str,
    state: Callable[[Object | None], bool],
    called: str,
    *,
    namespace: str | None = None,
    within: float = 60.0,
) -> Object | None:
    """Return an object as soon as it is in a state; on timeout, raise TimedOutError with its conditions."""
    last: Object | None = None
    try:
        async with asyncio.timeout(within), aclosing(_states(client, resource, name, namespace)) as states:
            async for last in states:
                if state(last):
                    return last
    except TimeoutError:
        pass
    where = f"{namespace}/{name}" if namespace else name
    space = f" -n {namespace}" if namespace else ""
    raise TimedOutError(
        f"timed out after {within:.0f}s waiting for {resource.kind} {where} to be {called}",
        remedy=f"{conditions_text(last, called)}; see `kubectl{space} describe {resource.plural} {name}`, then retry",
    )


def has_condition(obj: Object | None, condition: str) -> bool:
    """Whether the object exists and the condition is True."""
    return any(item["type"] == condition and item["status"] == "True" for item in _conditions(obj))


def conditions_text(obj: Object | None, condition: str = "") -> str:
    """The message of a condition, or of all conditions, in one line."""
    if obj is None:
        return "it does not exist"
    told = {
        condition[
            "type"
        ]: f"{condition['type']} is {condition['status']} ({condition.get('reason', '')}): {condition['message']}"
        for condition in _conditions(obj)
        if condition.get("message")
    }
    # A summary condition contains the messages of others, as a multi-line list.
    words = told.get(condition) or "; ".join(told.values())
    return " ".join(words.split()) or "its conditions give no reason"


def _conditions(obj: Object | None) -> list[Object]:
    # A new CustomResourceDefinition has null conditions.
    conditions: list[Object] | None = (obj or {}).get("status", {}).get("conditions")
    return conditions or []


async def _states(
    client: Client, resource: Resource, name: str, namespace: str | None
) -> AsyncGenerator[Object | None, None]:
    """Yields an object now and after each change, None while absent; resumes after the server was unavailable."""
    while True:
        try:
            current = await client.get(resource, name, namespace=namespace)
            yield current
            since = current["metadata"]["resourceVersion"]
            async for event in client.watch(resource, namespace=namespace, name=name, since=since):
                if event.type not in ("ADDED", "MODIFIED", "DELETED"):
                    break
                yield None if event.type == "DELETED" else event.object
        except NotFoundError:
            yield None
        except (ApiError, UnreachableError):
            pass
        await asyncio.sleep(_RETRY)
