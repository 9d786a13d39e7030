"""The end of the chain for Azure resources: deletes them and verifies their absence with Azure Resource Manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import MEMO_ANNOTATION, Reason
from unwind.deleters.outcomes import Gone, PermanentError
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.operations import AzureRemoval
from unwind.external.azure.resource_ids import ArmId, AzureTarget, NeverCreated
from unwind.kube.absence import Presence, Sighting

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext
    from unwind.external.azure.arm import ArmClient
    from unwind.external.azure.arm_responses import ArmReply
    from unwind.kube.client import Object

_TARGET = "target"


class ArmEnd:
    """Deletes the Azure resource of an object, and returns when Azure reports that it does not exist."""

    name = "arm"

    def __init__(self, arm: ArmClient) -> None:
        self._arm = arm

    @property
    def clients(self) -> tuple[object, ...]:
        return (self._arm,)

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        target = self._target(ctx, obj)
        if isinstance(target, NeverCreated):
            return Gone(target.why)
        removal = AzureRemoval(ctx, self._arm, target, what="the deletion")

        async def send() -> ArmReply:
            # From here on the recorded resource counts, even if the annotation changes.
            await ctx.memo.put(_TARGET, msgspec.json.encode(target).decode())
            ctx.log.info("azure deletion requested", resource=target.id)
            return await self._arm.delete(target.id, api_version=target.api_version)

        return await removal.carry_out(send)

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Check whether it still exists."""
        target = self._target(ctx.within(self.name), obj)
        if isinstance(target, NeverCreated):
            return Sighting(Presence.ABSENT, target.why)
        reply = await self._arm.get(target.id, api_version=target.api_version)
        return arm_responses.sighting(reply, ArmId.parse(target.id))

    def _target(self, ctx: DeleteContext, obj: Object) -> AzureTarget | NeverCreated:
        kept = ctx.memo.get(_TARGET)
        if kept is not None:
            try:
                return msgspec.json.decode(kept, type=AzureTarget)
            except (msgspec.DecodeError, msgspec.ValidationError):
                raise PermanentError(
                    f"cannot decode the memo of {ctx.ref}",
                    reason=Reason.HELD,
                    remedy=f"find out who changed its annotations {MEMO_ANNOTATION}*, and remove them to start over",
                ) from None
        if ctx.absent:
            raise PermanentError(
                f"cannot delete the Azure resource of {ctx.ref}: the object is gone and its ARM id was not recorded",
                reason=Reason.HELD,
                remedy="delete it at Azure if it still exists; `unwind release` ends a teardown that waits for it",
            )
        return resource_ids.target(obj, ctx.resource)
