"""The results of `unwind delete`, and what is checked before anything is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Phase
from unwind.cli import console, plan
from unwind.cli.ledger import LedgerRow, of_inventory
from unwind.errors import UnwindError
from unwind.install.running_managers import running_managers, start_manager
from unwind.inventory.inventories import Inventories
from unwind.kube.errors import ForbiddenError

if TYPE_CHECKING:
    from unwind.api.unwind import Teardown
    from unwind.kube.client import Client
    from unwind.preview.object_preview import Foreseen

_SHOWN = 3


class DeleteResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of a deletion, for JSON output."""

    target: ObjectRef
    objects: int
    teardown: str = ""
    phase: str = ""
    removed: str = ""
    gone: bool = False
    """Whether the target was verified absent."""
    refused: str = ""
    left: tuple[LedgerRow, ...] = ()
    """Objects left behind, each with its reason."""


def refuse(seen: Foreseen, max_objects: int | None, *, aim: str = "delete") -> None:
    """Raise UnwindError if the deletion is refused, would be blocked, or exceeds `max_objects`. `aim`: what the user
    asked for, for the message."""
    if refusals := (*seen.refusals, *seen.blocked):
        told = "; ".join(f"{refusal.object}: {refusal.why}" for refusal in refusals[:_SHOWN])
        more = f"; and {len(refusals) - _SHOWN} more" if len(refusals) > _SHOWN else ""
        raise UnwindError(f"cannot {aim} {seen.title}: {told}{more}", remedy="nothing was changed; see `unwind plan`")
    going = plan.total(seen)
    if max_objects is not None and going > max_objects:
        raise UnwindError(
            f"cannot {aim} {seen.title}: {going} objects would be deleted, more than --max-objects {max_objects}",
            remedy="list them with `unwind plan`",
        )


async def check_manager(client: Client, home: str, aim: str) -> None:
    """Raise UnwindError if no manager runs. `aim`: what the user asked for, for the message."""
    if not await running_managers(client, home):
        raise UnwindError(f"cannot {aim}: no manager is running in namespace {home}", remedy=start_manager(home))


async def left_behind(client: Client, home: str, teardown: Teardown) -> tuple[LedgerRow, ...]:
    """The objects left behind, from the ledger."""
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    if not teardown.status.left or not steps:
        return ()
    try:
        chunks = await Inventories(client, namespace=home).owned(step.object.uid for step in steps)
    except ForbiddenError as error:
        console.announce(
            f"cannot read the ledger of {teardown.status.left} objects left behind: {error}; see `unwind ledger` as a"
            " user who may list Inventories"
        )
        return ()
    return tuple(left for chunk in chunks for left in of_inventory(chunk))


def outcome_of(
    seen: Foreseen, teardown: Teardown | None, *, gone: bool = False, left: tuple[LedgerRow, ...] = ()
) -> DeleteResult:
    """The result of a deletion (pure). `gone`: the target was verified absent."""
    kept = any(row.object.uid == seen.target.uid for row in left)
    complete = teardown is not None and teardown.phase in (Phase.COMPLETE, Phase.TARGET_GONE)
    return DeleteResult(
        target=seen.target,
        objects=plan.total(seen),
        teardown=teardown.metadata.name if teardown else "",
        phase=str(teardown.phase) if teardown else "",
        removed=teardown.status.removed if teardown else "",
        gone=gone or (seen.requested and complete and not kept),
        refused=teardown.status.blocked_by if teardown and teardown.phase is Phase.REFUSED else "",
        left=left,
    )
