"""The audit log of an API server, as tests read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unwind.local.audit_log import AuditLog

if TYPE_CHECKING:
    from pathlib import Path


def line(resource: str, received: str, *, code: int = 200) -> str:
    event = {
        "verb": "delete",
        "user": {"username": "jane"},
        "objectRef": {"resource": resource, "namespace": "shop", "name": "a"},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-05-01T12:00:{received}Z",
    }
    return json.dumps(event, separators=(",", ":")) + "\n"


def test_deletions_are_in_the_order_in_which_they_were_received(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    # A controller deleted what belongs to the Cluster before the response to the first DELETE was logged.
    log.write_text(line("secrets", "00.500000") + line("clusters", "00.100000") + line("pods", "00.050000", code=404))
    assert [entry.object_ref.resource for entry in AuditLog(log).deletions(namespace="shop")] == ["clusters", "secrets"]
