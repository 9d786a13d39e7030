"""The pause of the gate Admission: Cluster API is paused for a Cluster that is deleted, until its gate opens.

The API server refuses to delete the Cluster unless Cluster API is paused for it, by the annotation
cluster.x-k8s.io/paused with a value of our own. Cluster API looks at it before it looks at the deletion. Only the
Cluster itself is paused: its Machines are still replaced. `unwind delete` and `cluster_webhook` pause it.
`machine_gate_controller` has the annotation removed when the gate opens. If the Cluster is not deleted after it was
paused, because the DELETE failed or was never sent, it is removed after a while.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.names import DELETE_FIELD_MANAGER, MACHINES_FIELD_MANAGER, PAUSED_ANNOTATION, PAUSED_BY_GATE
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.updates import annotate

if TYPE_CHECKING:
    from unwind.api.meta import ObjectMeta
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

log = logs.get(__name__)

PAUSE_LASTS = timedelta(minutes=10)
"""How long Cluster API stays paused for a Cluster that is not deleted after all."""
# Seconds until a Cluster that was changed meanwhile is read again.
_SOON = 0.5


async def unpause(
    client: Client, resource: Resource, cluster: ObjectMeta, *, field_manager: str = MACHINES_FIELD_MANAGER
) -> None:
    """Let Cluster API continue with a Cluster that it was paused for."""
    await annotate(client, resource, cluster, {PAUSED_ANNOTATION: None}, field_manager=field_manager)


async def end_pause(client: Client, resource: Resource, cluster: ObjectMeta, *, now: datetime) -> float | None:
    """Let Cluster API continue with a Cluster that was paused to be deleted, and was not. Seconds until then; None if
    there is nothing to do. Not if a user paused it: then the user deletes it, or unpauses it."""
    try:
        found = await client.get(resource, cluster.name, namespace=cluster.namespace)
    except NotFoundError:
        return None  # the change comes as an event
    meta = found["metadata"]
    since = paused_since(found)
    if meta["uid"] != cluster.uid or meta.get("deletionTimestamp") or since is None:
        return None
    left = (since + PAUSE_LASTS - now).total_seconds()
    if left > 0:
        return left
    # Only if it is unchanged: from its deletion on, the pause holds it.
    guard = {"uid": cluster.uid, "resourceVersion": meta["resourceVersion"]}
    patch = {"metadata": guard | {"annotations": {PAUSED_ANNOTATION: None}}}
    try:
        await client.patch(
            resource, cluster.name, patch, namespace=cluster.namespace, field_manager=MACHINES_FIELD_MANAGER
        )
    except (NotFoundError, ConflictError):
        return _SOON
    log.info("cluster unpaused, it was not deleted", cluster=f"{cluster.namespace}/{cluster.name}", uid=cluster.uid)
    return None


def paused_since(cluster: Object) -> datetime | None:
    """When Unwind paused Cluster API for a Cluster, to delete it; None if it did not (pure)."""
    metadata = cluster["metadata"]
    if (metadata.get("annotations") or {}).get(PAUSED_ANNOTATION) != PAUSED_BY_GATE:
        return None
    written = [
        entry["time"]
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == DELETE_FIELD_MANAGER and entry.get("time") and _writes_pause(entry)
    ]
    return datetime.fromisoformat(max(written)) if written else None


def _writes_pause(entry: Object) -> bool:
    of_metadata = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
    return f"f:{PAUSED_ANNOTATION}" in (of_metadata.get("f:annotations") or {})
