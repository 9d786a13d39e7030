"""The cleanup after the teardown of a Cluster: empty Inventories, and our finalizer on the credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import SECRETS
from unwind.api.unwind import Phase
from unwind.inventory.inventories import ledgered
from unwind.kube.errors import NotFoundError
from unwind.members import credentials

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.capi import Cluster
    from unwind.api.unwind import Teardown
    from unwind.inventory.inventories import Inventories
    from unwind.kube.client import Client, Object
    from unwind.members.targets import ClusterTarget


async def clean(
    client: Client,
    inventories: Inventories,
    teardown: Teardown,
    target: ClusterTarget,
    successor: Cluster | None = None,
    *,
    with_credentials: bool,
) -> None:
    """Delete what the teardown no longer needs. Idempotent, so it can run again after a crash.

    `successor`: a new cluster with the target's name. `with_credentials`: remove our finalizer from them.
    """
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    chunks = await inventories.owned(step.object.uid for step in steps)
    await inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))
    if not with_credentials or teardown.phase is Phase.MOVED:
        return  # after a move, the credentials belong to a cluster that exists
    if await secret_of(client, target, successor):
        await credentials.let_go(client, target)


async def secret_of(client: Client, target: ClusterTarget, successor: Cluster | None) -> Object | None:
    """The Secret with the credentials of a deleted cluster; None if it is gone, also if the successor has one of the
    same name."""
    try:
        found = await client.get(SECRETS, target.secret, namespace=target.home)
    except NotFoundError:
        return None
    return None if successor and is_successors(found, successor) else found


def is_successors(secret: Object, successor: Cluster) -> bool:
    """Whether a Secret belongs to the successor, not to an earlier cluster of this name."""
    meta = secret["metadata"]
    if meta.get("deletionTimestamp"):
        return False  # terminating: a new one cannot be created before it is gone
    owners = {owner["uid"] for owner in meta.get("ownerReferences") or ()}
    if not owners:
        # Nothing deletes it together with the earlier cluster, and the successor uses the Secret of this name. The
        # times do not tell: Velero restores Secrets before Clusters.
        return True
    born = successor.metadata.creation_timestamp
    return successor.metadata.uid in owners or (born is not None and meta["creationTimestamp"] >= _written(born))


def _written(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
