"""When a hook has ended, and how."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.deploy.helm_hooks import succeeded, why_failed


def _job(**conditions: str) -> dict[str, Any]:
    found = [{"type": type_, "status": status, "reason": "Late"} for type_, status in conditions.items()]
    return {"status": {"conditions": found}}


@pytest.mark.parametrize(
    ("there", "done", "why"),
    [
        ({}, False, ""),
        ({"status": {}}, False, ""),
        ({"status": {"conditions": None}}, False, ""),
        (_job(Suspended="True"), False, ""),
        (_job(Complete="False", Failed="False"), False, ""),
        (_job(Complete="True"), True, ""),
        (_job(SuccessCriteriaMet="True"), False, ""),
        (_job(Failed="True"), False, "Late"),
        ({"status": {"phase": "Running"}}, False, ""),
        ({"status": {"phase": "Succeeded"}}, True, ""),
        ({"status": {"phase": "Failed"}}, False, "its containers have failed"),
        ({"status": {"phase": "Failed", "message": "evicted"}}, False, "evicted"),
    ],
)
def test_jobs_and_pods_end_as_helm_sees_it(there: dict[str, Any], done: bool, why: str) -> None:
    assert (succeeded(there), why_failed(there)) == (done, why)
