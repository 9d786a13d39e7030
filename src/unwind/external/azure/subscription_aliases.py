"""Deleters for Azure kinds that need more than a DELETE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import AZURE_FINALIZER, Reason
from unwind.api.resources import DEPLOYMENTS
from unwind.deleters.outcomes import Gone, Kept, PermanentError, Severity
from unwind.deleters.registration import EARLY, deleter
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.arm import ArmClient
from unwind.external.azure.resource_ids import GUID, ArmId, NeverCreated
from unwind.kube.absence import Presence

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Client, Object


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


# Detects a running Azure Service Operator, which then deletes its resources itself.

# Its name in its own manifests and chart; the label it has in every namespace.
_NAMESPACE, _NAME = "azureserviceoperator-system", "azureserviceoperator-controller-manager"
_LABEL = "app=azure-service-operator-v2"


@deleter("*.azure.com/*", "*", name="azure-operator-away", order=EARLY - 100, external=True)
async def azure_operator_away(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Leave the object to Azure Service Operator while it is running."""
    # Before every other deleter of these kinds: some of them change things at Azure before they call `next`.
    found = None if ctx.absent else await operator_deployment(ctx.client)
    if found is None:
        return await next(ctx, obj)
    if AZURE_FINALIZER not in (obj["metadata"].get("finalizers") or ()):
        return await _left_by_it(ctx, obj, next)
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    raise PermanentError(
        f"Azure Service Operator is running ({namespace}/{name}) and deletes {ctx.ref} itself",
        severity=Severity.WARNING,
        reason=Reason.HELD,
        remedy=f"to let Unwind delete it: kubectl -n {namespace} scale deployment {name} --replicas=0",
    )


async def _left_by_it(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """The outcome for an object that a running operator has released, or never managed: nothing is deleted in its
    place."""
    target = resource_ids.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return await next(ctx, obj)
    reply = await ctx.client_of(ArmClient).get(target.id, api_version=target.api_version)
    seen = arm_responses.sighting(reply, ArmId.parse(target.id))
    if seen.presence is Presence.UNKNOWN:
        raise reply.error(f"cannot determine whether Azure Service Operator has deleted {ctx.ref}", ctx.clock.now())
    if seen.presence is Presence.ABSENT:
        return Gone(f"Azure Service Operator has released it, and {seen.why}")
    # Its policy may exist only in its own settings.
    return Kept(
        Reason.KEPT_BY_POLICY,
        f"Azure Service Operator has released {ctx.ref}, and {target.id} still exists at Azure; "
        "delete it there if it is not needed",
        by="Azure Service Operator",
    )


async def running_operator(client: Client) -> str:
    """The name of Azure Service Operator on this cluster, if it is running; else an empty string."""
    found = await operator_deployment(client)
    if found is None:
        return ""
    return f"Azure Service Operator ({found['metadata']['namespace']}/{found['metadata']['name']})"


async def operator_deployment(client: Client) -> Object | None:
    """Its Deployment, if it has replicas or is meant to."""
    # By list only: Unwind has no permission to get single Deployments.
    found = await client.list(DEPLOYMENTS, labels=_LABEL)
    home = await client.list(DEPLOYMENTS, namespace=_NAMESPACE)
    found += [item for item in home if item["metadata"]["name"] == _NAME]
    return next((item for item in found if _runs(item)), None)


def _runs(deployment: Object) -> bool:
    # A Deployment that is not running yet may start at any moment: its desired replicas count.
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    return bool(wanted or (deployment.get("status") or {}).get("replicas", 0))
