"""The deleter of Azure API Management products: deletes their subscriptions with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleters.registration import deleter
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.arm_client import ArmClient
from unwind.external.azure.resource_ids import ArmId, NeverCreated

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object


@deleter("apimanagement.azure.com/*", "Product", external=True)
async def product_with_subscriptions(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Delete an API Management product together with its subscriptions, which would otherwise block it."""
    if ctx.absent:
        return await next(ctx, obj)
    target = resource_ids.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return await next(ctx, obj)
    # Not recorded: the next pass sees by itself that it is gone.
    reply = await ctx.client_of(ArmClient).delete(
        target.id, api_version=target.api_version, query={"deleteSubscriptions": "true"}, headers={"If-Match": "*"}
    )
    if not reply.ok and not arm_responses.not_there(reply, ArmId.parse(target.id)):
        raise reply.error(f"cannot delete {ctx.ref} with its subscriptions", ctx.clock.now())
    return await next(ctx, obj)
