"""Deleters for Azure kinds that need more than a DELETE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import Reason
from unwind.azure import answers, identity
from unwind.azure.arm import ArmClient
from unwind.azure.identity import GUID, ArmId, NeverCreated
from unwind.deleting.outcomes import PermanentError
from unwind.deleting.registering import deleter

if TYPE_CHECKING:
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.kube.client import Object

_SUBSCRIPTION_API = "2021-10-01"
_SUBSCRIPTIONS_API = "2022-12-01"
_CANCELLED = "cancelled"


@deleter("subscription.azure.com/*", "Alias")
async def cancel_subscription(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Cancel the subscription of an alias before the alias is deleted."""
    # Recorded, because a deleted alias no longer tells its subscription.
    if ctx.absent or _CANCELLED in ctx.memo:
        return await next(ctx, obj)
    subscription = _subscription((obj.get("status") or {}).get("properties"))
    if not subscription:
        return await next(ctx, obj)
    if not GUID.fullmatch(subscription):
        raise PermanentError(f"cannot delete {ctx.ref}: {subscription[:100]!r} in its status is not a subscription id")
    arm = ctx.client_of(ArmClient)
    await _agree(ctx, obj, arm, subscription)
    ctx.log.info("subscription cancellation requested", subscription=subscription)
    reply = await arm.post(
        f"/subscriptions/{subscription}/providers/Microsoft.Subscription/cancel", api_version=_SUBSCRIPTION_API
    )
    # After a crash between the cancellation and its record, Azure refuses to cancel it twice.
    if not reply.ok and not await _over(arm, subscription):
        raise reply.error(f"cannot cancel subscription {subscription} of {ctx.ref}", ctx.clock.now())
    await ctx.memo.put(_CANCELLED, subscription)
    return await next(ctx, obj)


async def _agree(ctx: DeleteContext, obj: Object, arm: ArmClient, subscription: str) -> None:
    """Raise if the alias has another subscription at Azure: a status can be edited, and a cancellation cannot be
    undone."""
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return
    reply = await arm.get(target.id, api_version=target.api_version)
    if answers.not_there(reply, ArmId.parse(target.id)):
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


@deleter("apimanagement.azure.com/*", "Product")
async def product_with_subscriptions(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Delete an API Management product together with its subscriptions, which would otherwise block it."""
    if ctx.absent:
        return await next(ctx, obj)
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return await next(ctx, obj)
    # Not recorded: the next pass sees by itself that it is gone.
    reply = await ctx.client_of(ArmClient).delete(
        target.id, api_version=target.api_version, query={"deleteSubscriptions": "true"}, headers={"If-Match": "*"}
    )
    if not reply.ok and not answers.not_there(reply, ArmId.parse(target.id)):
        raise reply.error(f"cannot delete {ctx.ref} with its subscriptions", ctx.clock.now())
    return await next(ctx, obj)
