"""The rights that the manager needs for its records: Teardowns and Inventories."""

from __future__ import annotations

from unwind.api import unwind
from unwind.api.rights import READ, Contribution, Right
from unwind.installing.policies import MANAGE

RECORDS = Contribution(
    name="records",
    everywhere=(
        Right(unwind.GROUP, ("teardowns",), (*READ, "create", "patch", "delete")),
        Right(unwind.GROUP, ("teardowns/status",), ("patch",)),
        MANAGE,
    ),
    at_home=(Right(unwind.GROUP, ("inventories",), (*READ, "create", "patch", "delete")),),
)
