"""Our finalizer on handles of deployers that are on members themselves: an uninstall removes it there, too.

A step removes it when it is verified. It stays if the step was given up or released, or if the handle would have been
created again. Usually it goes with the cluster, but a cluster may outlive its Cluster API object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api import names
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.meta import ObjectMeta
from unwind.companions import flux_rules, handle_finalizer
from unwind.errors import UnwindError
from unwind.install.existing_objects import teardowns
from unwind.kube.errors import ApiError, NotFoundError
from unwind.members import targets
from unwind.members.members import Members

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Client
    from unwind.members.member import Member

# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404


async def release_on_members(client: Client, announce: Callable[[str], None]) -> tuple[int, list[str]]:
    """Remove our finalizer from the handles of all teardowns whose Cluster still exists; how many were released, and
    where it could not be done."""
    released, failed = 0, list[str]()
    async with Members(client) as members:
        for teardown in await teardowns(client):
            steps = teardown.spec.plan.steps if teardown.spec.plan else ()
            handles = [step.object for step in steps if flux_rules.is_handle(step.object)]
            cluster = await _cluster(client, teardown.spec.target) if handles else None
            if cluster is None:
                continue
            try:
                async with members.member(targets.of_capi(cluster)) as member:
                    for ref in await _release(member, handles):
                        released += 1
                        announce(f"finalizer removed from {ref} on {teardown.spec.target}")
            except UnwindError as error:
                failed.append(
                    f"finalizer {names.Finalizer.HANDLE} of Kustomizations and HelmReleases on {teardown.spec.target}:"
                    f" {error}; remove it there with `kubectl edit`"
                )
    return released, failed


async def _cluster(client: Client, ref: ObjectRef) -> Cluster | None:
    """The Cluster of a teardown; None if it is gone."""
    if (ref.group, ref.kind) != (CLUSTERS.group, CLUSTERS.kind):
        return None
    resource = msgspec.structs.replace(CLUSTERS, version=ref.version or CLUSTERS.version)
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace, type=Cluster)
    except NotFoundError:
        return None
    except ApiError as error:
        if error.code == _NOT_SERVED:
            return None
        raise
    return found if found.metadata.uid == ref.uid else None


async def _release(member: Member, handles: Sequence[ObjectRef]) -> list[ObjectRef]:
    released: list[ObjectRef] = []
    for ref in handles:
        resource = flux_rules.resource_of(ref)
        try:
            found = await member.client.get(resource, ref.name, namespace=ref.namespace)
        except ApiError as error:
            if error.code == _NOT_SERVED:
                continue  # it is gone, is on the management cluster, or Flux is not on this member
            raise
        meta = msgspec.convert(found["metadata"], ObjectMeta)
        if meta.uid == ref.uid and names.Finalizer.HANDLE in meta.finalizers:
            await handle_finalizer.release(member.client, resource, found, flux_rules.before_stay)
            released.append(ref)
    return released
