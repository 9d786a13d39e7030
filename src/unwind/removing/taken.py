"""Objects that another profile with a lower tier has taken over since the inventory was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import OWNER_LABEL, SVELTOS_OWNER_ANNOTATION, Reason
from unwind.deleting.kinds import Kinds
from unwind.deleting.outcomes import Kept
from unwind.deleting.registering import FIRST, Registration

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.kube.client import Object


def keep_taken(owners: Collection[str]) -> Registration:
    """Keeps what carries the mark of an owner that is none of these.

    Who takes an object over changes nothing but its mark: the entry of who lost it stays until that one looks. The mark
    is changed in one write and the DELETE carries the version it was read in, so there is no moment in between.
    """

    async def delete(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        metadata = obj["metadata"]
        owner = (metadata.get("labels") or {}).get(OWNER_LABEL, "")
        if ctx.absent or not owner or owner in owners:
            return await next(ctx, obj)
        annotations = metadata.get("annotations") or {}
        kind, name = (annotations.get(f"{SVELTOS_OWNER_ANNOTATION}{field}", "") for field in ("kind", "name"))
        message = f"it was taken over by {f'{kind} {name}'.strip() or owner}"
        ctx.log.info("kept", why=message)
        return Kept(Reason.NOT_OURS, message, by="unwind")

    return Registration(
        name="keep-taken",
        kinds=(Kinds("*", "*"),),
        delete=delete,
        order=FIRST,
        metadata_only=True,
        about="Keep what another profile has taken over.",
    )
