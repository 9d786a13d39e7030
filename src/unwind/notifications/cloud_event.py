"""The CloudEvent of a notification (pure).

Structured mode: all attributes are in the body, so that the signature covers them. In binary mode they would be
headers, which it does not cover.

It tells what the status of the Teardown tells in words of its own: names, times, numbers and reasons. Messages of
blockers are left out: they repeat what other controllers wrote, and nothing shows that no Secret's content is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.unwind import TEARDOWNS

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Teardown
    from unwind.notifications.delivery_schedule import Notice
    from unwind.notifications.sinks import Sink

CONTENT_TYPE = "application/cloudevents+json; charset=UTF-8"
TYPE = "dev.unwind.teardown"
"""Prefix of the type of each event, followed by the event in lower case."""
_BLOCKERS = 5
_TEXT = 1024


def cloud_event(teardown: Teardown, sink: Sink, notice: Notice) -> bytes:
    """The body of a notification."""
    meta, spec = teardown.metadata, teardown.spec
    event = {
        "specversion": "1.0",
        "id": notice.id(teardown),
        "source": f"/apis/{TEARDOWNS.api_version}/{TEARDOWNS.plural}/{meta.name}",
        "type": f"{TYPE}.{notice.event.lower()}",
        "subject": f"{spec.target.namespace}/{spec.target.name}".lstrip("/"),
        "time": notice.of,
        "datacontenttype": "application/json",
        "data": _data(teardown, sink, notice),
    }
    return msgspec.json.encode(event)


def _data(teardown: Teardown, sink: Sink, notice: Notice) -> dict[str, Any]:
    spec, status = teardown.spec, teardown.status
    data: dict[str, Any] = {
        "event": notice.event.value,
        "teardown": {"name": teardown.metadata.name, "uid": teardown.metadata.uid},
        "target": _object(spec.target),
        "cause": spec.cause,
        "policies": list(sink.policies),
        "phase": teardown.status.phase,
        "requestedBy": spec.requested_by[:_TEXT],
        "requestedAt": spec.requested_at,
        "startedAt": status.started_at,
        "finishedAt": status.finished_at,
        "wave": status.wave,
        "removed": status.removed,
        "left": status.left,
        "blockers": [
            {
                "object": _object(blocker.object),
                "step": blocker.step,
                "reason": blocker.reason,
                "actor": blocker.actor[:_TEXT],
                "since": blocker.since,
            }
            for blocker in status.blockers[:_BLOCKERS]
        ],
    }
    if release := status.release:
        data["release"] = {
            "reason": release.reason,
            "message": release.message[:_TEXT],
            "by": release.by[:_TEXT],
            "at": release.at,
        }
    return {name: value for name, value in data.items() if value not in (None, "", [])}


def _object(ref: ObjectRef) -> dict[str, str]:
    named = {"group": ref.group, "kind": ref.kind, "namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return {name: value for name, value in named.items() if value}
