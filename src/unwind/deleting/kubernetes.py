"""The end of most chains: an object's deletion by the API server, and its absence by watch."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from unwind.deleting.outcomes import Again, Gone, PermanentError, TransientError
from unwind.kube.absence import Presence
from unwind.kube.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.deleting.context import DeleteContext
    from unwind.kube.absence import Sighting
    from unwind.kube.client import Object
    from unwind.kube.views import Metadata

# What the API server has removed is told by the watch within milliseconds; whoever takes longer is waited for outside.
PATIENCE = 5.0
# Only an insurance: what is waited for is told by the watch.
_LOOK_AGAIN = 600.0

# Kinds that own nothing. Everything else goes with what it owns: deleted in the background, a Deployment is gone while
# its Pods still run.
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
    """How what an object owns goes: with it, unless its kind owns nothing anyway."""
    childless = (resource.group, resource.kind) in _CHILDLESS or resource.group in _CHILDLESS_GROUPS
    return "Background" if childless else "Foreground"


class KubernetesEnd:
    """Deletes exactly the object with the recorded uid, and returns when it was seen to be absent."""

    name = "kubernetes"
    clients: tuple[object, ...] = ()

    async def delete(self, ctx: DeleteContext, obj: Object) -> Gone:
        if ctx.absent:
            return Gone("it was seen to be absent before")
        ref = ctx.ref
        if not ref.uid:
            raise PermanentError(f"the uid of {ref} is not known, and nothing is deleted by its name alone")
        # Before the deletion is sent, so that nothing is missed.
        absence = await ctx.watches.absence(ctx.resource, name=ref.name, uid=ref.uid, namespace=ref.namespace)
        ctx.entry.subscriptions.append(absence)
        left = obj if obj["metadata"].get("deletionTimestamp") else await self._send(ctx, obj)
        if left and left.get("kind") == "Status":
            # The server is done with it, and only the watch has still to tell.
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await absence.wait()
        if not absence.happened and absence.seen is None:
            # The watch has not told of it yet, or told of its end before it was asked: only the server knows.
            seen = await self.sighting(ctx, obj)
            if seen.absent:
                return Gone(seen.why)
            if seen.presence is Presence.UNKNOWN:
                raise TransientError(f"it is not known whether {ref} is still there: {seen.why}")
        if absence.happened:
            return Gone("the watch told of its end")
        raise Again(_awaited(ref, left, absence.seen), until=absence, after=_LOOK_AGAIN)

    async def sighting(self, ctx: DeleteContext, obj: Object) -> Sighting:
        """Look whether it is still there."""
        ref = ctx.ref
        return await ctx.client.sighting(
            ctx.resource, ref.name, uid=ref.uid, namespace=ref.namespace or None, cluster=ctx.cluster or None
        )

    async def _send(self, ctx: DeleteContext, obj: Object) -> Object | None:
        """Send the deletion; the server's answer: what is left of it, or a Status. None: it was gone already."""
        try:
            return await ctx.client.delete(
                ctx.resource,
                ctx.ref.name,
                uid=ctx.ref.uid,
                # The deleters before this one have decided by what they saw: if that has changed, they are asked again.
                version=obj["metadata"].get("resourceVersion"),
                namespace=ctx.ref.namespace or None,
                propagation=propagation(ctx.resource),
            )
        except NotFoundError:
            return None
        except ConflictError:
            if (await self.sighting(ctx, obj)).presence is Presence.PRESENT:
                raise Again(f"{ctx.ref} has changed since it was looked at", after=0) from None
            return None


def _awaited(ref: ObjectRef, left: Object | None, seen: Metadata | None) -> str:
    # What the watch has told may be from before the deletion.
    told = seen.finalizers if seen and seen.deletion_timestamp else ()
    finalizers = ", ".join(told or (left and left["metadata"].get("finalizers")) or ())
    return f"{ref} waits for {finalizers}" if finalizers else f"{ref} is being deleted"
