"""The default end of a chain: deletes an object with a uid precondition and verifies its absence by watch."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.deleters.outcomes import Again, Gone, PermanentError, TransientError
from unwind.kube.absence import Presence
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext
    from unwind.kube.absence import Sighting
    from unwind.kube.client import Object
    from unwind.kube.decoding import Metadata

# The watch reports an object that the API server has removed within milliseconds. Longer waits happen outside.
PATIENCE = 5.0
# Only a safeguard: the watch reports what is waited for.
_LOOK_AGAIN = 600.0

# Kinds that own nothing. Everything else is deleted in the foreground, with its dependents: with background deletion a
# Deployment is gone while its Pods still run.
_CHILDLESS = frozenset(
    [
        ("", "ConfigMap"),
        ("", "Secret"),
        ("", "ServiceAccount"),
        ("", "Service"),
        ("", "Namespace"),
        ("", "PersistentVolume"),
        ("", "PersistentVolumeClaim"),
        ("", "ResourceQuota"),
        ("", "LimitRange"),
        ("", "Endpoints"),
        ("", "Pod"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("apiregistration.k8s.io", "APIService"),
        ("coordination.k8s.io", "Lease"),
        ("networking.k8s.io", "Ingress"),
        ("networking.k8s.io", "IngressClass"),
        ("networking.k8s.io", "NetworkPolicy"),
        ("policy", "PodDisruptionBudget"),
        ("scheduling.k8s.io", "PriorityClass"),
        ("storage.k8s.io", "StorageClass"),
    ]
)
_CHILDLESS_GROUPS = frozenset(["rbac.authorization.k8s.io", "admissionregistration.k8s.io"])


def propagation(resource: Resource) -> str:
    """The propagation policy: Foreground, unless the kind owns nothing."""
    childless = (resource.group, resource.kind) in _CHILDLESS or resource.group in _CHILDLESS_GROUPS
    return "Background" if childless else "Foreground"


class KubernetesEnd:
    """Deletes exactly the object with the recorded uid, and returns once it is verified absent."""

    name = "kubernetes"
    clients: tuple[object, ...] = ()

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        if ctx.absent:
            return Gone("already verified absent")
        ref = ctx.ref
        if not ref.uid:
            raise PermanentError(
                f"cannot delete {ref}: its uid is unknown, and nothing is deleted by name alone",
                remedy="check it and delete it with kubectl",
            )
        # Subscribe before the DELETE is sent, so that no event is missed.
        absence = await ctx.watches.absence(ctx.resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)
        ctx.entry.subscriptions.append(absence)
        left = obj if obj["metadata"].get("deletionTimestamp") else await self.send(ctx, obj)
        if left and left.get("kind") == "Status":
            # The server has removed it, and only the watch event is missing.
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await absence.wait()
        if not absence.happened and absence.seen is None:
            # The watch has not reported it yet, or reported its end before the subscription: only the server knows.
            seen = await self.sighting(ctx, obj)
            if seen.absent:
                return Gone(seen.why)
            if seen.presence is Presence.UNKNOWN:
                raise TransientError(f"cannot determine whether {ref} still exists: {seen.why}", remedy="will retry")
        if absence.happened:
            return Gone("the watch reported its deletion")
        raise Again(_awaited(ref, left, absence.seen), until=absence, after=_LOOK_AGAIN)

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Check whether it still exists."""
        ref = ctx.ref
        return await ctx.client.sighting(
            ctx.resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=ctx.cluster or None
        )

    async def send(self, ctx: DeleteContext, obj: Object, *, dry_run: bool = False) -> Object | None:
        """Send the DELETE. Returns the server's answer: the remaining object or a Status; None if it was already
        gone. `dry_run`: only ask whether it would be accepted now."""
        try:
            return await ctx.client.delete(
                ctx.resource,
                ctx.ref.name,
                uid=ctx.ref.uid,
                # The earlier deleters decided by this version: if the object has changed, the chain runs again.
                version=obj["metadata"].get("resourceVersion"),
                namespace=ctx.ref.namespace or None,
                propagation=propagation(ctx.resource),
                dry_run=dry_run,
            )
        except NotFoundError:
            return None
        except ConflictError:
            if (await self.sighting(ctx, obj)).presence is Presence.PRESENT:
                raise Again(f"will retry: {ctx.ref} was changed meanwhile", after=0) from None
            return None


def _awaited(ref: ObjectRef, left: Object | None, seen: Metadata | None) -> str:
    # The state of the watch may be from before the deletion.
    told = seen.finalizers if seen and seen.deletion_timestamp else ()
    finalizers = ", ".join(told or (left and left["metadata"].get("finalizers")) or ())
    return f"{ref} waits for finalizers {finalizers}" if finalizers else f"{ref} is being deleted"
