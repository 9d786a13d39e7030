"""Built-in deleters: keep by policy, scale to zero, wait for dependents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeletePolicy
from unwind.api.fields import Unknown
from unwind.api.names import (
    DELETE_POLICY_ANNOTATION,
    RECONCILE_POLICY_ANNOTATION,
    SCALE_TO_ZERO_ANNOTATION,
    WAIT_FOR_DEPENDENTS_ANNOTATION,
    Reason,
)
from unwind.deleters.outcomes import Again, Kept, PermanentError
from unwind.deleters.registration import EARLY, FIRST, LATE, Kinds, Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Object


# Computes the deletion policy of an object from its annotations, its namespace and the default (pure).

_ANNOTATIONS = (DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION)
# If two annotations of one object disagree, the one that keeps more wins.
_KEEPING = (DeletePolicy.SKIP, DeletePolicy.DETACH_ON_DELETE, DeletePolicy.MANAGE)


class EffectivePolicy(msgspec.Struct, frozen=True):
    """A deletion policy, and what set it."""

    policy: DeletePolicy | Unknown
    by: str


def effective_policy(
    annotations: Mapping[str, str],
    *,
    namespace: Mapping[str, str] | None = None,
    default: DeletePolicy | Unknown | None = None,
) -> EffectivePolicy:
    """The policy for an object with these annotations, in a namespace with those.

    The object's annotations take precedence over its namespace's, then the default. An unknown value at any of these
    levels is returned as is: it blocks deletion.
    """
    for said, by in ((annotations, "the annotation {}"), (namespace or {}, "the annotation {} of its namespace")):
        words = {name: DeletePolicy.read(said[name]) for name in _ANNOTATIONS if name in said}
        for name, word in words.items():
            if isinstance(word, Unknown):
                return EffectivePolicy(word, by.format(name))
        for policy in _KEEPING:
            for name, word in words.items():
                if word is policy:
                    return EffectivePolicy(policy, by.format(name))
    return EffectivePolicy(default if default is not None else DeletePolicy.MANAGE, "the manager's default")


_SHOWN = 3
# The memo key with the replicas of a workload before it is scaled to zero.
_REPLICAS = "replicas"


def annotated(obj: Object) -> dict[str, str]:
    """The annotations of an object; empty if it has none."""
    found: dict[str, str] | None = obj["metadata"].get("annotations")
    return found or {}


async def keep_by_policy(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Keep the object if its policy is skip or detach-on-delete."""
    if ctx.absent:
        return await next(ctx, obj)
    namespace = await ctx.resolver.namespace(ctx.ref.namespace) if ctx.ref.namespace else None
    ruling = effective_policy(annotated(obj), namespace=annotated(namespace) if namespace else None, default=ctx.policy)
    if isinstance(ruling.policy, Unknown):
        raise PermanentError(
            f"cannot delete {ctx.ref}: its delete policy {ruling.policy}",
            reason=Reason.UNKNOWN_VALUE,
            remedy=f"correct {ruling.by}",
        )
    if ruling.policy is DeletePolicy.MANAGE:
        return await next(ctx, obj)
    return Kept(Reason.KEPT_BY_POLICY, f"its policy is {ruling.policy}, so it is left in place", by=ruling.by)


async def scale_to_zero(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Scale a workload to zero and wait until its Pods are gone before deleting it."""
    if ctx.absent or obj["metadata"].get("deletionTimestamp"):
        return await next(ctx, obj)
    said = annotated(obj).get(SCALE_TO_ZERO_ANNOTATION, "false")
    if said not in ("true", "false"):
        raise PermanentError(
            f"cannot delete {ctx.ref}: {SCALE_TO_ZERO_ANNOTATION} is {said!r}",
            reason=Reason.UNKNOWN_VALUE,
            remedy="use true or false",
        )
    if said == "false":
        return await next(ctx, obj)
    if _loses_claims(obj):
        ctx.log.info("scale to zero skipped", why="its claims must be retained")
        return await next(ctx, obj)
    replicas = obj["spec"].get("replicas", 1)
    if replicas and _REPLICAS not in ctx.memo:
        # Before the change, so that it can be reverted if the deletion is cancelled.
        await ctx.memo.put(_REPLICAS, str(replicas))
    changes = await ctx.changes(ctx.resource, namespace=ctx.ref.namespace, name=ctx.ref.name)
    # Also if it is already scaled, which changes nothing and returns its current state: the given object was read
    # before the watch was opened, and its last Pod may have gone in between.
    patch = {"metadata": {"uid": ctx.ref.uid}, "spec": {"replicas": 0}}
    now = await ctx.client.patch(ctx.resource, ctx.ref.name, patch, namespace=ctx.ref.namespace)
    if obj["spec"].get("replicas") != 0:
        ctx.log.info("scaled to zero")
    status = now.get("status") or {}
    observed = status.get("observedGeneration", 0) >= now["metadata"].get("generation", 0)
    running = status.get("replicas") or 0
    if running or not observed:
        raise Again(f"waiting for {running} Pods of {ctx.ref}, which is scaled to zero", until=changes)
    # Pass the object as it was given: earlier deleters decided by it, and if it has changed, the chain restarts.
    return await next(ctx, obj)


def replicas_before(memo: Mapping[str, str]) -> int | None:
    """The replicas that a workload had before it was scaled to zero, from the memo of its deletion; None if it was not
    (pure)."""
    said = memo.get(f"{SCALE_TO_ZERO.name}.{_REPLICAS}", "")
    return int(said) if said.isdigit() else None


def _loses_claims(obj: Object) -> bool:
    """Whether scaling down would delete the claims of a StatefulSet, which deleting it would retain."""
    retention = (obj.get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
    return retention.get("whenScaled") == "Delete" and retention.get("whenDeleted") != "Delete"


class WaitForDependents:
    """Waits until the object's dependents are gone before it continues."""

    def __init__(self, *resources: Resource, depends: Callable[[Object, Object], bool] | None = None) -> None:
        """`resources`: the resources to look for; by default those in the object's annotation. `depends(obj, other)`
        says whether the other object depends on it; by default whether it is owned by it."""
        self._resources = resources
        self._depends = depends

    async def delete(self, ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if ctx.absent or (self._depends is None and _owner_goes_first(obj)):
            return await next(ctx, obj)
        for resource in self._resources or await self._named(ctx, obj):
            namespace = ctx.ref.namespace or None
            changes = await ctx.changes(resource, namespace=namespace)
            left = [
                f"{resource.kind} {item['metadata']['name']}"
                for item in await ctx.client.list(resource, namespace=namespace)
                if (self._depends or _owns)(obj, item)
            ]
            if left:
                more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
                named = ", ".join(left[:_SHOWN])
                raise Again(f"waiting for dependents of {ctx.ref}: {named}{more}", until=changes)
        return await next(ctx, obj)

    async def _named(self, ctx: DeleteContext, obj: Object) -> list[Resource]:
        words = annotated(obj).get(WAIT_FOR_DEPENDENTS_ANNOTATION, "").replace(" ", "").split(",")
        return [await ctx.resolver.resource(word) for word in words if word]


def _owns(owner: Object, obj: Object) -> bool:
    uid = owner["metadata"]["uid"]
    return any(reference.get("uid") == uid for reference in obj["metadata"].get("ownerReferences") or ())


def _owner_goes_first(obj: Object) -> bool:
    """Whether the garbage collector deletes dependents only after the owner is gone: waiting for them would never
    end."""
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
    about="Keep the object if its policy is skip or detach-on-delete.",
)
WAIT_FOR_DEPENDENTS = Registration(
    name="wait-for-dependents",
    kinds=(Kinds("*", "*"),),
    delete=WaitForDependents().delete,
    order=EARLY,
    when=_bears(WAIT_FOR_DEPENDENTS_ANNOTATION),
    metadata_only=True,
    about="Wait until the object's dependents are gone, for the resources in its annotation.",
)
SCALE_TO_ZERO = Registration(
    name="scale-to-zero",
    kinds=(Kinds("apps/*", "Deployment"), Kinds("apps/*", "StatefulSet"), Kinds("apps/*", "ReplicaSet")),
    delete=scale_to_zero,
    order=LATE,
    when=_bears(SCALE_TO_ZERO_ANNOTATION),
    about="Scale a workload to zero and wait until its Pods are gone before deleting it.",
)
BUILTIN = (KEEP_BY_POLICY, WAIT_FOR_DEPENDENTS, SCALE_TO_ZERO)
