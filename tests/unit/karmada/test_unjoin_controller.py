"""Who changed what becomes of a member, as far as it can be known."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.karmada import RemoveStrategy
from unwind.api.names import REMOVE_STRATEGY_ANNOTATION, REMOVE_STRATEGY_BY_ANNOTATION, UNKNOWN_USER
from unwind.karmada.unjoin_controller import who_changed

FIELD: dict[str, Any] = {"f:spec": {"f:removeStrategy": {}}}
ANNOTATION: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{REMOVE_STRATEGY_ANNOTATION}": {}}}}


@pytest.mark.parametrize(
    ("noted", "field", "who"),
    [
        ("Needless by jane", "Needless", "jane"),
        ("Needless by jane by night", "Needless", "jane by night"),
        # Of an earlier change: nobody was there to note the last one.
        ("Required by joe", "Needless", f"{UNKNOWN_USER} (field manager kubectl)"),
        ("", "Needless", f"{UNKNOWN_USER} (field manager kubectl)"),
        ("Needless by ", "Needless", f"{UNKNOWN_USER} (field manager kubectl)"),
        ("", None, f"{UNKNOWN_USER} (field manager script)"),
    ],
)
def test_the_user_is_named_or_else_it_is_not_known(noted: str, field: str | None, who: str) -> None:
    cluster: dict[str, Any] = {
        "metadata": {
            "annotations": {REMOVE_STRATEGY_BY_ANNOTATION: noted},
            "managedFields": [
                {"manager": "kubectl", "time": "1", "fieldsV1": FIELD},
                {"manager": "script", "time": "2", "fieldsV1": ANNOTATION},
            ],
        },
        "spec": {"removeStrategy": field} if field else {},
    }
    assert who_changed(cluster, RemoveStrategy.NEEDLESS) == who
