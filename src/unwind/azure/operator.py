"""Whether Azure Service Operator is alive: then it deletes its objects' resources itself, and Unwind must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import AZURE_FINALIZER, Reason
from unwind.api.resources import DEPLOYMENTS
from unwind.azure import answers, identity
from unwind.azure.arm import ArmClient
from unwind.azure.identity import ArmId, NeverCreated
from unwind.deleting.outcomes import Gone, Kept, PermanentError, Severity
from unwind.deleting.registering import EARLY, deleter
from unwind.kube.absence import Presence

if TYPE_CHECKING:
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.kube.client import Client, Object

# What its makers' own manifests and chart call it; the label it has in every namespace.
_NAMESPACE, _NAME = "azureserviceoperator-system", "azureserviceoperator-controller-manager"
_LABEL = "app=azure-service-operator-v2"


@deleter("*.azure.com/*", "*", name="azure-operator-away", order=EARLY - 100)
async def azure_operator_away(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Leave what Azure Service Operator looks after to it for as long as it is alive."""
    # Before every other deleter of these kinds: some of them do things at Azure before they call `next`.
    found = None if ctx.absent else await alive(ctx.client)
    if found is None:
        return await next(ctx, obj)
    if AZURE_FINALIZER not in (obj["metadata"].get("finalizers") or ()):
        return await _left_by_it(ctx, obj, next)
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    raise PermanentError(
        f"Azure Service Operator runs here ({namespace}/{name}) and deletes {ctx.ref} itself",
        severity=Severity.WARNING,
        reason=Reason.HELD,
        remedy=f"to have Unwind delete it: kubectl -n {namespace} scale deployment {name} --replicas=0",
    )


async def _left_by_it(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """What became of an object that a living operator has let go, or never took: nothing is deleted in its place."""
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return await next(ctx, obj)
    reply = await ctx.client_of(ArmClient).get(target.id, api_version=target.api_version)
    seen = answers.sighting(reply, ArmId.parse(target.id))
    if seen.presence is Presence.UNKNOWN:
        raise reply.error(f"it is not known whether Azure Service Operator has deleted {ctx.ref}", ctx.clock.now())
    if seen.presence is Presence.ABSENT:
        return Gone(f"Azure Service Operator has let it go, and {seen.why}")
    # It goes by a policy that may stand nowhere but in its own settings.
    return Kept(
        Reason.KEPT_BY_POLICY,
        f"Azure Service Operator has let {ctx.ref} go, and {target.id} is still at Azure",
        by="Azure Service Operator",
    )


async def alive(client: Client) -> Object | None:
    """Its Deployment, if it is meant to run or still does."""
    # By lists only: to read single Deployments is no right that Unwind has.
    found = await client.list(DEPLOYMENTS, labels=_LABEL)
    home = await client.list(DEPLOYMENTS, namespace=_NAMESPACE)
    found += [one for one in home if one["metadata"]["name"] == _NAME]
    return next((one for one in found if _runs(one)), None)


def _runs(deployment: Object) -> bool:
    # One that does not run yet may run in the next moment: what counts is whether it is meant to.
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    return bool(wanted or (deployment.get("status") or {}).get("replicas", 0))
