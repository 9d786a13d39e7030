"""Snapshots: which claims of StatefulSets stay when a deployer deletes what it deployed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry
from unwind.companions import snapshots
from unwind.kube.errors import APIStatus, NotFoundError

SET = Entry(object=ObjectRef(group="apps", kind="StatefulSet", namespace="shop", name="db", uid="u-db"))
NAMESPACE = Entry(object=ObjectRef(kind="Namespace", name="shop", uid="u-shop"))
CLAIM = Entry(object=ObjectRef(kind="PersistentVolumeClaim", namespace="shop", name="data-db-0", uid="u-data-db-0"))


def member(*claims: str, uid: str = "u-db", **spec: Any) -> Any:
    """A member with the StatefulSet and these claims. `uid`: of the StatefulSet; none if it is empty."""
    found = {
        "metadata": {"name": "db", "namespace": "shop", "uid": uid},
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}], "selector": {}, **spec},
    }
    owners = [{"uid": "u-db"}] if spec else []
    made = [{"metadata": {"name": name, "uid": f"u-{name}", "ownerReferences": owners}} for name in claims]
    gone = NotFoundError(APIStatus(code=404, reason="NotFound"), request="GET")
    get = AsyncMock(return_value=found) if uid else AsyncMock(side_effect=gone)
    return SimpleNamespace(client=SimpleNamespace(get=get, list=AsyncMock(return_value=made)))


async def staying(there: Any, *entries: Entry) -> list[str]:
    found = await snapshots.staying_claims(cast("Any", there), entries)
    assert all(entry.kept for entry in found.values())
    return [entry.object.name for entry in found.values()]


async def test_claims_of_a_stateful_set_stay_and_say_why() -> None:
    assert await staying(member("data-db-0", "data-db-1", "data-web-0"), SET) == ["data-db-0", "data-db-1"]
    [entry] = (await snapshots.staying_claims(member("data-db-0"), [SET])).values()
    assert "a claim of StatefulSet db is not deployed with it" in snapshots.why_kept(entry)


@pytest.mark.parametrize(
    ("there", "entries"),
    [
        (member("data-db-0", persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"}), [SET]),
        (member("data-db-0"), [SET, NAMESPACE]),
        (member("data-db-0"), [SET, CLAIM]),
        (member("data-db-0", uid="another"), [SET]),
        (member("data-db-0", uid=""), [SET]),
    ],
    ids=["deleted with it", "in a namespace that goes", "deployed itself", "another StatefulSet", "it is gone"],
)
async def test_other_claims_do_not_stay_or_are_not_known(there: Any, entries: list[Entry]) -> None:
    assert await staying(there, *entries) == []
