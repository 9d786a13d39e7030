"""Events on the real server: seen by `kubectl describe`, told once however often they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.eventually import eventually
from tests.plane.support.events import events_of, recording, until_event
from tests.plane.support.objects import new_object
from unwind.api.resources import CONFIG_MAPS
from unwind.kube.events import Regarding

if TYPE_CHECKING:
    from unwind.local.plane import Plane


async def test_an_event_that_happens_often_is_one_event_with_a_count(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    created = await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "it", namespace))
    uid = created["metadata"]["uid"]
    it = Regarding("v1", "ConfigMap", "it", uid, namespace)
    async with recording(client) as recorder:
        recorder.report(it, "Removing", "waiting for 2 objects", action="Remove")
        await until_event(client, uid, namespace, reason="Removing")
        for _ in range(2):
            recorder.report(it, "Removing", "waiting for 2 objects", action="Remove")
        recorder.report(it, "Blocked", "finalizer example.com/held", action="Remove", type="Warning")
        # Events are written in the order of their reports: this one is the last.
        await until_event(client, uid, namespace, reason="Blocked")
        events = await events_of(client, uid, namespace)
        assert len(events) == 2
        by_reason = {event["reason"]: event for event in events}
        assert by_reason["Removing"]["series"]["count"] == 3
        assert by_reason["Blocked"]["type"] == "Warning"
        assert by_reason["Blocked"]["note"] == "finalizer example.com/held"


async def test_reporting_about_something_in_a_namespace_that_is_gone_hurts_nobody(plane: Plane) -> None:
    nowhere = Regarding("v1", "ConfigMap", "it", "1", "no-such-namespace")
    async with recording(plane.management.client) as recorder:
        recorder.report(nowhere, "Removed", "seen absent", action="Remove")
        await eventually(lambda: recorder.dropped == 1)
