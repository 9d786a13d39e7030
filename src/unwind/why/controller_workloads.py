"""Reads the workloads of controllers on a cluster: Deployments, StatefulSets and DaemonSets, and whether they run.

All of them, for `finalizers`, which tells which one removes a finalizer; the one behind the Service of a webhook, also
of the conversion webhook of a CRD; and Unwind's own manager, by its Leases.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    LEASES,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, NotFoundError
from unwind.kube.shards import REPLICA_LEASES, Timing
from unwind.why import facts
from unwind.why.answers import Thing
from unwind.why.facts import Unlisted
from unwind.why.reachable_clusters import as_thing, moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Client
    from unwind.why.facts import ControllerWorkload
    from unwind.why.reachable_clusters import ReachableCluster

_CONVERTED = "conversion webhook"
_WORKLOADS = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS)


async def manager_runs(place: ReachableCluster, *, now: datetime) -> bool | None:
    """Whether a manager of Unwind has recently renewed its Lease; None if that cannot be read."""
    try:
        leases = await place.client.list(LEASES)
    except UnwindError as error:
        place.unseen("Leases of Unwind's manager", error)
        return None
    signs = [
        moment((lease.get("spec") or {}).get("renewTime"))
        for lease in leases
        if lease["metadata"]["name"].startswith(REPLICA_LEASES)
    ]
    return any(sign and now - sign < timedelta(seconds=2 * Timing().lasts) for sign in signs)


async def conversion_of(place: ReachableCluster, resource: Resource, error: ApiError) -> Unlisted:
    """A kind that could not be read: whether its objects need conversion, and by which webhook."""
    name = f"{resource.plural}.{resource.group}"
    bare = Unlisted(definition=None, kind=resource.kind, error=error.status.message)
    try:
        found = await place.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    except UnwindError:
        return bare  # without a CRD, or permission to read it, there is only the error itself to report
    way = ((found["spec"].get("conversion") or {}).get("webhook") or {}).get("clientConfig") or {}
    service = way.get("service")
    converts = f"Service {service['namespace']}/{service['name']}" if service else str(way.get("url", ""))
    definition = Thing(resource=CUSTOM_RESOURCE_DEFINITIONS, name=name, uid=found["metadata"]["uid"])
    if _CONVERTED not in error.status.message:
        return msgspec.structs.replace(bare, definition=definition)
    workload = await behind_service(place, service["namespace"], service["name"]) if service else None
    return msgspec.structs.replace(bare, definition=definition, converts=converts, workload=workload)


async def behind_service(place: ReachableCluster, namespace: str, name: str) -> ControllerWorkload | None:
    """The workload whose Pods a Service selects; None if there is none or it cannot be read."""
    try:
        service = await place.client.get(SERVICES, name, namespace=namespace)
        selector: dict[str, str] = service["spec"].get("selector") or {}
        for resource in _WORKLOADS if selector else ():
            for item in await place.client.list(resource, namespace=namespace):
                labels = item["spec"]["template"]["metadata"].get("labels") or {}
                if selector.items() <= labels.items():
                    return facts.workload(as_thing(resource, item).ref, item)
    except NotFoundError:
        return None
    except UnwindError as error:
        place.unseen(f"Service {namespace}/{name}", error)
    return None


async def workloads(place: ReachableCluster) -> tuple[ControllerWorkload, ...]:
    """All workloads of a cluster, any of which may be the controller of a finalizer. Read once per diagnosis."""
    if place.workloads is None:
        place.workloads = await workloads_of(place.client, place.unseen)
    return place.workloads


async def workloads_of(client: Client, unseen: Callable[[str, UnwindError], object]) -> tuple[ControllerWorkload, ...]:
    """All workloads of a cluster. `unseen` is called with what could not be read."""
    found: list[ControllerWorkload] = []

    async def look(resource: Resource) -> None:
        try:
            items = await client.list(resource)
        except UnwindError as error:
            unseen(resource.plural, error)
            return
        found.extend(facts.workload(as_thing(resource, item).ref, item) for item in items)

    await gather_limited((look(resource) for resource in _WORKLOADS), limit=len(_WORKLOADS))
    return tuple(sorted(found, key=lambda one: str(one.object)))
