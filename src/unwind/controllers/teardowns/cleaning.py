"""What is taken away after a teardown: the accounts of nothing, and the hold on the credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import SECRETS
from unwind.fleet import credentials
from unwind.kube.errors import NotFoundError
from unwind.removing.inventories import ledgered

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.capi import Cluster
    from unwind.api.unwind import Teardown
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client, Object
    from unwind.removing.inventories import Inventories


async def clean(
    client: Client, inventories: Inventories, teardown: Teardown, target: Anchor, successor: Cluster | None = None
) -> None:
    """Take away what is needed no more. Done again after a crash, it finds nothing to do.

    `successor`: another cluster that has the target's name now.
    """
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    chunks = await inventories.owned(step.object.uid for step in steps)
    await inventories.discard_all(chunk for chunk in chunks if not ledgered(chunk))
    if successor and await _belongs_to(client, target, successor):
        return
    await credentials.let_go(client, target)


async def _belongs_to(client: Client, target: Anchor, successor: Cluster) -> bool:
    """Whether the Secret is the successor's: it has the same name, and what is on the successor needs it."""
    try:
        found = await client.get(SECRETS, target.secret, namespace=target.home)
    except NotFoundError:
        return False
    return is_successors(found, successor)


def is_successors(secret: Object, successor: Cluster) -> bool:
    """Whether a Secret is not what an earlier cluster of this name left behind."""
    meta = secret["metadata"]
    if meta.get("deletionTimestamp"):
        return False  # whoever it was made for, nobody gets a new one before it is gone
    owners = {owner["uid"] for owner in meta.get("ownerReferences") or ()}
    born = successor.metadata.creation_timestamp
    return successor.metadata.uid in owners or (born is not None and meta["creationTimestamp"] >= _written(born))


def _written(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
