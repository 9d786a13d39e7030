"""The deleter of Azure subscription aliases: cancels the subscription before the alias is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import Reason
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import deleter
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.arm_client import ArmClient
from unwind.external.azure.resource_ids import GUID, ArmId, NeverCreated

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object


_SUBSCRIPTION_API = "2021-10-01"
_SUBSCRIPTIONS_API = "2022-12-01"
_CANCELLED = "cancelled"


@deleter("subscription.azure.com/*", "Alias", external=True)
async def cancel_subscription(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Cancel the subscription of an alias before the alias is deleted."""
    # The log lines are those of Azure Service Operator's own alias deleter, so that searches for them still work.
    # Recorded, because a deleted alias no longer tells its subscription.
    if ctx.absent or _CANCELLED in ctx.memo:
        return await next(ctx, obj)
    subscription = _subscription((obj.get("status") or {}).get("properties"))
    if not subscription:
        ctx.log.info("No subscription ID found, proceeding with alias deletion")
        return await next(ctx, obj)
    if not GUID.fullmatch(subscription):
        raise PermanentError(
            f"cannot delete {ctx.ref}: its status.properties.subscriptionId {subscription[:100]!r} is not a UUID",
            remedy="correct it with `kubectl edit --subresource=status`",
        )
    arm = ctx.client_of(ArmClient)
    await _agree(ctx, obj, arm, subscription)
    ctx.log.info("Canceling subscription", subscriptionId=subscription)
    reply = await arm.post(
        f"/subscriptions/{subscription}/providers/Microsoft.Subscription/cancel", api_version=_SUBSCRIPTION_API
    )
    # After a crash between the cancellation and its record, Azure refuses to cancel it twice.
    if not reply.ok and not await _over(arm, subscription):
        raise reply.error(f"cannot cancel subscription {subscription} of {ctx.ref}", ctx.clock.now())
    await ctx.memo.put(_CANCELLED, subscription)
    ctx.log.info("Subscription canceled, proceeding with alias deletion")
    return await next(ctx, obj)


async def _agree(ctx: DeleteContext, obj: Object, arm: ArmClient, subscription: str) -> None:
    """Raise if the alias has another subscription at Azure: a status can be edited, and a cancellation cannot be
    undone."""
    target = resource_ids.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return
    reply = await arm.get(target.id, api_version=target.api_version)
    if arm_responses.not_there(reply, ArmId.parse(target.id)):
        return  # the alias is already gone, and only the status is left
    if not reply.ok or reply.content is None:
        raise reply.error(f"cannot determine the subscription of {ctx.ref}", ctx.clock.now())
    known = _subscription(reply.content.get("properties"))
    if known.lower() != subscription.lower():
        raise PermanentError(
            f"cannot cancel the subscription of {ctx.ref}: {known or 'none'} at Azure, {subscription} in its status",
            reason=Reason.HELD,
            remedy="find out who changed the status; nothing is cancelled until they agree",
        )


def _subscription(properties: Any) -> str:
    found = properties.get("subscriptionId") if isinstance(properties, dict) else None
    return found if isinstance(found, str) else ""


async def _over(arm: ArmClient, subscription: str) -> bool:
    """Whether a subscription is already cancelled."""
    reply = await arm.get(f"/subscriptions/{subscription}", api_version=_SUBSCRIPTIONS_API)
    return reply.ok and (reply.content or {}).get("state") in ("Disabled", "Deleted")
