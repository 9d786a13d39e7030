"""Events that a manager reports: a recorder for tests, and what was recorded."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.eventually import eventually
from unwind.api.rights import HOME
from unwind.kube.events import EVENTS, Recorder
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Client, Object


@asynccontextmanager
async def recording(client: Client) -> AsyncIterator[Recorder]:
    """A recorder with the rights of the manager."""
    async with manager_client(client, HOME) as own, asyncio.TaskGroup() as group:
        recorder = Recorder(own, instance="test-0")
        task = group.create_task(recorder.run())
        yield recorder
        task.cancel()


async def events_of(client: Client, uid: str, namespace: str = "default", *, reason: str = "") -> list[Object]:
    """The Events on an object."""
    return [
        event
        for event in await client.list(EVENTS, namespace=namespace)
        if event["regarding"].get("uid") == uid and reason in ("", event["reason"])
    ]


async def until_event(client: Client, uid: str, namespace: str = "default", *, reason: str = "") -> Object:
    """The first Event on an object, with this reason."""
    found = await eventually(lambda: events_of(client, uid, namespace, reason=reason), f"an Event {reason}", within=30)
    return found[0]
