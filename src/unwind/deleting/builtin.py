"""The deleters that come along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.names import SCALE_TO_ZERO_ANNOTATION, WAIT_FOR_DEPENDENTS_ANNOTATION, Reason
from unwind.api.policies import DeletePolicy
from unwind.deleting import policies
from unwind.deleting.kinds import Kinds
from unwind.deleting.outcomes import Again, Kept, PermanentError
from unwind.deleting.registering import EARLY, FIRST, LATE, Registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.kube.client import Object

_SHOWN = 3


def annotated(obj: Object) -> dict[str, str]:
    """What is annotated, which may be nothing."""
    found: dict[str, str] | None = obj["metadata"].get("annotations")
    return found or {}


async def keep_by_policy(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Keep what a policy says is to be kept: skip and detach-on-delete."""
    if ctx.absent:
        return await next(ctx, obj)
    namespace = await ctx.resolver.namespace(ctx.ref.namespace) if ctx.ref.namespace else None
    ruling = policies.ruling(annotated(obj), namespace=annotated(namespace) if namespace else None, default=ctx.policy)
    if isinstance(ruling.policy, Unknown):
        raise PermanentError(
            f"the policy {ruling.policy}, said by {ruling.by}, so {ctx.ref} is not deleted",
            reason=Reason.UNKNOWN_VALUE,
            remedy=f"use one of {', '.join(DeletePolicy)}",
        )
    if ruling.policy is DeletePolicy.MANAGE:
        return await next(ctx, obj)
    return Kept(Reason.KEPT_BY_POLICY, f"its policy is {ruling.policy}", by=ruling.by)


async def scale_to_zero(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Scale a workload to zero and wait for its Pods before it is deleted."""
    if ctx.absent or obj["metadata"].get("deletionTimestamp"):
        return await next(ctx, obj)
    said = annotated(obj).get(SCALE_TO_ZERO_ANNOTATION, "false")
    if said not in ("true", "false"):
        raise PermanentError(
            f"{SCALE_TO_ZERO_ANNOTATION} of {ctx.ref} is {said!r}, so it is not deleted",
            reason=Reason.UNKNOWN_VALUE,
            remedy="use true or false",
        )
    if said == "false":
        return await next(ctx, obj)
    if _loses_claims(obj):
        ctx.log.info("not scaled to zero: its claims would be deleted, and are to be retained")
        return await next(ctx, obj)
    changes = await ctx.changes(ctx.resource, namespace=ctx.ref.namespace, name=ctx.ref.name)
    # Also where it is scaled already, which changes nothing and tells how it stands: the object that we were given was
    # read before anybody listened, and its last Pod may have gone in between.
    patch = {"metadata": {"uid": ctx.ref.uid}, "spec": {"replicas": 0}}
    now = await ctx.client.patch(ctx.resource, ctx.ref.name, patch, namespace=ctx.ref.namespace)
    if obj["spec"].get("replicas") != 0:
        ctx.log.info("scaled to zero")
    status = now.get("status") or {}
    observed = status.get("observedGeneration", 0) >= now["metadata"].get("generation", 0)
    running = status.get("replicas") or 0
    if running or not observed:
        raise Again(f"{ctx.ref} is scaled to zero, and {running} of its Pods are still there", until=changes)
    # As it was given: the deleters before this one have decided by it, and if it has changed, they are asked again.
    return await next(ctx, obj)


def _loses_claims(obj: Object) -> bool:
    """Whether a StatefulSet would lose volume claims by being scaled down that it retains when it is deleted."""
    retention = (obj.get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
    return retention.get("whenScaled") == "Delete" and retention.get("whenDeleted") != "Delete"


class WaitForDependents:
    """Wait until what depends on the object is gone; then go on."""

    def __init__(self, *resources: Resource, depends: Callable[[Object, Object], bool] | None = None) -> None:
        """`resources`: where to look; without any, those in the object's annotation. `depends(obj, other)` says whether
        the other needs the object; without one, what is owned by it does."""
        self._resources = resources
        self._depends = depends

    async def delete(self, ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if ctx.absent or (self._depends is None and _owner_goes_first(obj)):
            return await next(ctx, obj)
        for resource in self._resources or await self._named(ctx, obj):
            namespace = ctx.ref.namespace or None
            changes = await ctx.changes(resource, namespace=namespace)
            left = [
                f"{resource.kind} {one['metadata']['name']}"
                for one in await ctx.client.list(resource, namespace=namespace)
                if (self._depends or _owns)(obj, one)
            ]
            if left:
                more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
                named = ", ".join(left[:_SHOWN])
                raise Again(f"{ctx.ref} waits for what depends on it: {named}{more}", until=changes)
        return await next(ctx, obj)

    async def _named(self, ctx: DeleteContext, obj: Object) -> list[Resource]:
        words = annotated(obj).get(WAIT_FOR_DEPENDENTS_ANNOTATION, "").replace(" ", "").split(",")
        return [await ctx.resolver.resource(word) for word in words if word]


def _owns(owner: Object, obj: Object) -> bool:
    uid = owner["metadata"]["uid"]
    return any(one.get("uid") == uid for one in obj["metadata"].get("ownerReferences") or ())


def _owner_goes_first(obj: Object) -> bool:
    """Whether the garbage collector takes what is owned only when the owner is gone: waiting for it would never end."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and "foregroundDeletion" not in (metadata.get("finalizers") or ())


def _bears(annotation: str) -> Callable[[Object], bool]:
    return lambda obj: annotation in annotated(obj)


KEEP_BY_POLICY = Registration(
    name="keep-by-policy",
    kinds=(Kinds("*", "*"),),
    delete=keep_by_policy,
    order=FIRST,
    metadata_only=True,
    about="Keep what a policy says is to be kept: skip and detach-on-delete.",
)
WAIT_FOR_DEPENDENTS = Registration(
    name="wait-for-dependents",
    kinds=(Kinds("*", "*"),),
    delete=WaitForDependents().delete,
    order=EARLY,
    when=_bears(WAIT_FOR_DEPENDENTS_ANNOTATION),
    metadata_only=True,
    about="Wait until what the object owns, of the resources in its annotation, is gone.",
)
SCALE_TO_ZERO = Registration(
    name="scale-to-zero",
    kinds=(Kinds("apps/*", "Deployment"), Kinds("apps/*", "StatefulSet"), Kinds("apps/*", "ReplicaSet")),
    delete=scale_to_zero,
    order=LATE,
    when=_bears(SCALE_TO_ZERO_ANNOTATION),
    about="Scale a workload to zero and wait for its Pods before it is deleted.",
)
BUILTIN = (KEEP_BY_POLICY, WAIT_FOR_DEPENDENTS, SCALE_TO_ZERO)
