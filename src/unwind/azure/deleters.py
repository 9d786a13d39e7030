"""Deleters for kinds that a plain DELETE at Azure does not do justice to."""

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
    """Cancel the subscription that an alias stands for, before the alias goes."""
    # Remembered, because an alias that is gone tells nobody any more which subscription it was.
    if ctx.absent or _CANCELLED in ctx.memo:
        return await next(ctx, obj)
    subscription = _subscription((obj.get("status") or {}).get("properties"))
    if not subscription:
        return await next(ctx, obj)
    if not GUID.fullmatch(subscription):
        raise PermanentError(f"{subscription[:100]!r} in the status of {ctx.ref} is no id of a subscription")
    arm = ctx.client_of(ArmClient)
    await _agree(ctx, obj, arm, subscription)
    ctx.log.info("cancelling the subscription", subscription=subscription)
    reply = await arm.post(
        f"/subscriptions/{subscription}/providers/Microsoft.Subscription/cancel", api_version=_SUBSCRIPTION_API
    )
    # If we died after it was cancelled and before that was written down, Azure refuses to do it twice.
    if not reply.ok and not await _over(arm, subscription):
        raise reply.error(f"subscription {subscription} of {ctx.ref} was not cancelled", ctx.clock.now())
    await ctx.memo.put(_CANCELLED, subscription)
    return await next(ctx, obj)


async def _agree(ctx: DeleteContext, obj: Object, arm: ArmClient, subscription: str) -> None:
    """Raise if Azure knows the alias by another subscription: a status can be edited, and a cancellation cannot."""
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return
    reply = await arm.get(target.id, api_version=target.api_version)
    if answers.not_there(reply, ArmId.parse(target.id)):
        return  # the alias went without us, and the status is all that is left of it
    if not reply.ok or reply.content is None:
        raise reply.error(f"it is not known which subscription {ctx.ref} stands for", ctx.clock.now())
    known = _subscription(reply.content.get("properties"))
    if known.lower() != subscription.lower():
        raise PermanentError(
            f"{ctx.ref} stands for subscription {known or 'none'} at Azure, and for {subscription} in its status",
            reason=Reason.HELD,
            remedy="find out who changed the status; nothing is cancelled before they agree",
        )


def _subscription(properties: Any) -> str:
    found = properties.get("subscriptionId") if isinstance(properties, dict) else None
    return found if isinstance(found, str) else ""


async def _over(arm: ArmClient, subscription: str) -> bool:
    """Whether a subscription is cancelled already."""
    reply = await arm.get(f"/subscriptions/{subscription}", api_version=_SUBSCRIPTIONS_API)
    return reply.ok and (reply.content or {}).get("state") in ("Disabled", "Deleted")


@deleter("apimanagement.azure.com/*", "Product")
async def product_with_subscriptions(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Delete an API Management product together with its subscriptions, without which it cannot go."""
    if ctx.absent:
        return await next(ctx, obj)
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return await next(ctx, obj)
    # Not remembered: if it is gone, it is not there, and whoever comes next sees that for themselves.
    reply = await ctx.client_of(ArmClient).delete(
        target.id, api_version=target.api_version, query={"deleteSubscriptions": "true"}, headers={"If-Match": "*"}
    )
    if not reply.ok and not answers.not_there(reply, ArmId.parse(target.id)):
        raise reply.error(f"{ctx.ref} was not deleted with its subscriptions", ctx.clock.now())
    return await next(ctx, obj)
