"""Wrong requests of a manager in an audit log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from unwind.api.names import MANAGER_USER_AGENT
from unwind.local.audit_log import AuditLog
from unwind.testing.managers import check_requests, expecting_refusals, manager_user

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.cluster import LocalCluster


def logged(path: Path, *entries: dict[str, Any]) -> LocalCluster:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return cast("LocalCluster", SimpleNamespace(name="management", audit=AuditLog(path)))


def request(
    *, groups: tuple[str, ...] = (), agent: str = MANAGER_USER_AGENT, forbidden: bool = False
) -> dict[str, Any]:
    return {
        "verb": "create",
        "user": {"username": manager_user("home"), "groups": list(groups)},
        "userAgent": agent,
        "objectRef": {"resource": "configmaps", "namespace": "shop", "name": "a"},
        "responseStatus": {"code": 403},
        "requestReceivedTimestamp": datetime.now(UTC).isoformat(),
        "annotations": {"authorization.k8s.io/decision": "forbid" if forbidden else "allow"},
    }


def test_a_request_that_rbac_refused_is_reported(tmp_path: Path) -> None:
    cluster = logged(tmp_path / "log", request(forbidden=True), request(forbidden=True, agent="another"))
    with pytest.raises(
        AssertionError, match=r"2 times: refused by RBAC: create configmaps a in namespace shop, as system:serv"
    ):
        check_requests(cluster)


def test_a_request_that_admission_refused_is_not(tmp_path: Path) -> None:
    check_requests(logged(tmp_path / "log", request()))


def test_a_refusal_that_a_test_expects_is_not(tmp_path: Path) -> None:
    with expecting_refusals("configmaps"):
        entry = request(forbidden=True)
    check_requests(logged(tmp_path / "log", entry))
    with expecting_refusals("secrets"):
        entry = request(forbidden=True)
    with pytest.raises(AssertionError):
        check_requests(logged(tmp_path / "log", entry))


def test_a_manager_with_all_rights_is_reported_and_a_person_with_all_rights_is_not(tmp_path: Path) -> None:
    entry = request(groups=("system:masters", "system:authenticated"))
    entry["user"]["username"] = "admin"
    with pytest.raises(AssertionError, match="with all permissions: create configmaps, as admin"):
        check_requests(logged(tmp_path / "log", entry))
    check_requests(logged(tmp_path / "log", entry | {"userAgent": "kubectl"}))
