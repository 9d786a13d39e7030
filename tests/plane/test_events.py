"""Events on the real server: seen by `kubectl describe`, told once however often they happen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.plane.test_informers import until
from tests.plane.test_plane import manifest
from unwind.api.resources import CONFIG_MAPS
from unwind.api.rights import HOME
from unwind.kube.events import EVENTS, Recorder, Regarding
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane


@asynccontextmanager
async def recording(plane: Plane) -> AsyncIterator[Recorder]:
    async with manager_client(plane.management.client, HOME) as own, asyncio.TaskGroup() as group:
        recorder = Recorder(own, instance="test-0")
        task = group.create_task(recorder.run())
        yield recorder
        task.cancel()


async def about(plane: Plane, uid: str, namespace: str) -> list[Object]:
    events = await plane.management.client.list(EVENTS, namespace=namespace)
    return [event for event in events if event["regarding"].get("uid") == uid]


async def test_an_event_that_happens_often_is_one_event_with_a_count(plane: Plane, namespace: str) -> None:
    created = await plane.management.client.create(CONFIG_MAPS, manifest(CONFIG_MAPS, "it", namespace))
    uid = created["metadata"]["uid"]
    it = Regarding("v1", "ConfigMap", "it", uid, namespace)
    async with recording(plane) as recorder:
        for _ in range(3):
            recorder.report(it, "Removing", "waiting for 2 objects", action="Remove")
            await asyncio.sleep(0.1)
        recorder.report(it, "Blocked", "finalizer example.com/held", action="Remove", type="Warning")
        async with asyncio.timeout(20):
            while len(events := await about(plane, uid, namespace)) < 2:
                await asyncio.sleep(0.05)
        by_reason = {event["reason"]: event for event in events}
        assert by_reason["Removing"]["series"]["count"] == 3
        assert by_reason["Blocked"]["type"] == "Warning"
        assert by_reason["Blocked"]["note"] == "finalizer example.com/held"


async def test_reporting_about_something_in_a_namespace_that_is_gone_hurts_nobody(plane: Plane) -> None:
    nowhere = Regarding("v1", "ConfigMap", "it", "1", "no-such-namespace")
    async with recording(plane) as recorder:
        recorder.report(nowhere, "Removed", "seen absent", action="Remove")
        await until(lambda: recorder.dropped == 1)
