"""Wait by watch until an object reaches a state."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from unwind.errors import TimedOutError
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

_RETRY = 0.2


async def until_true(
    client: Client, resource: Resource, name: str, condition: str, *, namespace: str | None = None, within: float = 60.0
) -> Object:
    """Return an object as soon as one of its conditions is true."""
    found = await until(
        client, resource, name, lambda it: is_true(it, condition), condition, namespace=namespace, within=within
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
        remedy=f"{account(last, called)}; see `kubectl{space} describe {resource.plural} {name}`, then retry",
    )


def is_true(obj: Object | None, condition: str) -> bool:
    """Whether the object exists and the condition is True."""
    return any(item["type"] == condition and item["status"] == "True" for item in _conditions(obj))


def account(obj: Object | None, condition: str = "") -> str:
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
