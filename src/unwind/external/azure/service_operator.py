"""Detects a running Azure Service Operator, which then deletes its resources itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import AZURE_FINALIZER, Reason
from unwind.api.resources import DEPLOYMENTS
from unwind.deleters.outcomes import Gone, Kept, PermanentError, Severity
from unwind.deleters.registration import EARLY, deleter
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.arm_client import ArmClient
from unwind.external.azure.resource_ids import ArmId, NeverCreated
from unwind.kube.absence import Presence

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Client, Object

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
