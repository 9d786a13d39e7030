"""The objects of the demo, and a simulated database operator that handles the finalizers of deleted Databases."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unwind.api.annotation_values import DeleteProtection
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import DEPLOYMENTS, Resource
from unwind.api.sveltos import CLUSTER_PROFILES, ClusterDeletionBehavior
from unwind.api.unwind import (
    Blocker,
    Effort,
    Phase,
    Plan,
    StepState,
    StepStatus,
    Teardown,
    TeardownSpec,
    TeardownStatus,
    TimelineEntry,
    TimelineEvent,
)
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.planning import waves
from unwind.planning.waves import Draft

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.kube.client import Client

Object = dict[str, Any]

FILES = Path(__file__).parent / "files"
NAMESPACE = "shops"
CLUSTER = "prod"
# The time that the cleanup of a database takes.
_CLEANING = 1.5
_RETRY = 0.3
LABELS = {"shop": "open"}
"""The label that the profiles select clusters by."""
PROTECTED = "payments"
"""A protected namespace."""

DATABASES = Resource("example.dev", "v1", "databases", "Database")
HELD, HELD_IN = "orders", "databases"
"""The Database whose backup finalizer has no controller."""
BACKUP = "backup.example.dev/last-backup"
CLEANUP = "databases.example.dev/cleanup"
OPERATOR = "databases-operator"

_ENFORCE, _REMOVE, _LEAVE = (
    ClusterDeletionBehavior.ENFORCE.value,
    ClusterDeletionBehavior.REMOVE.value,
    ClusterDeletionBehavior.LEAVE.value,
)
PROFILES: dict[str, tuple[str, tuple[str, ...]]] = {
    # The behaviour on cluster deletion, and the dependencies.
    "operator": (_ENFORCE, ()),
    "databases": (_ENFORCE, ("operator",)),
    "ingress": (_ENFORCE, ()),
    "shop": (_ENFORCE, ("databases", "ingress")),
    "monitoring": (_REMOVE, ("shop",)),
    "audit": (_LEAVE, ()),
}
_OBJECTS = {"operator": 4, "databases": 3, "ingress": 3, "shop": 6, "monitoring": 4, "audit": 1}
CHART, CHART_VERSION = "shop", "3.2.0"
"""The add-on that is a Helm chart."""


def sources() -> list[Object]:
    """The ConfigMaps with the manifests of the add-ons."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"all.yaml": (FILES / f"{name}.yaml").read_text()},
        }
        for name in PROFILES
        if name != CHART
    ]


def chart() -> dict[str, str]:
    """The files of the chart."""
    return {str(path.relative_to(FILES / CHART)): path.read_text() for path in (FILES / CHART).rglob("*.yaml")}


def profiles(repository: str) -> list[Object]:
    """The ClusterProfiles that deploy the add-ons; `repository`: of the chart."""
    return [_profile(name, behaviour, needs, repository) for name, (behaviour, needs) in PROFILES.items()]


def protected() -> Object:
    """The protected namespace."""
    labels = {DELETE_PROTECTION_LABEL: DeleteProtection.ALWAYS.value}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROTECTED, "labels": labels}}


def _profile(name: str, behaviour: str, needs: tuple[str, ...], repository: str) -> Object:
    spec: Object = {
        "clusterSelector": {"matchLabels": LABELS},
        "clusterDeletionBehavior": behaviour,
        "dependsOn": list(needs),
    }
    if name == CHART:
        spec["helmCharts"] = [
            {
                "repositoryURL": repository,
                "repositoryName": "demo",
                "chartName": CHART,
                "chartVersion": CHART_VERSION,
                "releaseName": CHART,
                "releaseNamespace": "shop",
            }
        ]
    else:
        spec["policyRefs"] = [{"kind": "ConfigMap", "namespace": NAMESPACE, "name": name}]
    return {
        "apiVersion": CLUSTER_PROFILES.api_version,
        "kind": CLUSTER_PROFILES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def plan() -> Plan:
    """The teardown plan, as the planner makes it."""
    efforts = {_ENFORCE: Effort.ENFORCE, _REMOVE: Effort.TRY, _LEAVE: Effort.LEAVE}
    return waves.plan(
        Draft(
            name=f"{CLUSTER_PROFILES.kind}/{name}",
            object=ObjectRef(kind="ClusterSummary", namespace=NAMESPACE, name=f"{name}-capi-{CLUSTER}"),
            kind=CLUSTER_PROFILES.kind,
            declared=name,
            depends_on=needs,
            effort=efforts[behaviour],
            objects=_OBJECTS[name],
        )
        for name, (behaviour, needs) in PROFILES.items()
    )


def held_teardown(plan: Plan) -> Teardown:
    """The teardown while a finalizer without controller blocks a Database."""
    states = {"audit": StepState.LEFT, "monitoring": StepState.REMOVED, "shop": StepState.REMOVED}
    under_way = {"databases": 2, "ingress": 1}
    steps = []
    for step in plan.steps:
        name = step.name.rpartition("/")[2]
        state = StepState.REMOVING if name in under_way else states.get(name, StepState.WAITING)
        removed = step.objects if state is StepState.REMOVED else under_way.get(name, 0)
        steps.append(StepStatus(name=step.name, state=state.value, removed=removed))
    database = ObjectRef(kind=DATABASES.kind, group=DATABASES.group, namespace=HELD_IN, name=HELD)
    message = f"{database}: blocked by finalizer {BACKUP} (no controller found)"
    blocker = Blocker(
        object=database,
        step=f"{CLUSTER_PROFILES.kind}/databases",
        reason=Reason.FINALIZER_NOT_SERVED.value,
        message=message,
    )
    status = TeardownStatus(phase=Phase.HELD.value, steps=tuple(steps), blockers=(blocker,))
    return Teardown(spec=TeardownSpec(plan=plan), status=status)


BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""When the teardown of `timed_teardown` began."""
# When each step started and ended, in seconds.
_COURSE = {
    "audit": (1, 1),
    "monitoring": (1, 24),
    "shop": (24, 41),
    "ingress": (41, 88),
    "databases": (41, 165),
    "operator": (165, 181),
}
_BLOCKED = (57, 149)


def timed_teardown(plan: Plan) -> Teardown:
    """The same teardown after its end: the backup was switched on again, and the finalizer was removed."""

    def at(seconds: int) -> datetime:
        return BEGAN + timedelta(seconds=seconds)

    held = held_teardown(plan)
    steps = []
    for step in plan.steps:
        start, end = _COURSE[step.name.rpartition("/")[2]]
        state = StepState.LEFT if step.effort == Effort.LEAVE else StepState.REMOVED
        steps.append(
            StepStatus(name=step.name, state=state.value, removed=step.objects, started_at=at(start), since=at(end))
        )
    [blocker] = held.status.blockers
    blocked = TimelineEntry(
        at=at(_BLOCKED[0]),
        until=at(_BLOCKED[1]),
        event=TimelineEvent.BLOCKED.value,
        step=blocker.step,
        object=blocker.object,
        reason=blocker.reason,
        message=blocker.message,
        by="the controller of example.dev",
    )
    end = max(end for _, end in _COURSE.values()) + 1
    status = TeardownStatus(
        phase=Phase.COMPLETE.value,
        steps=tuple(steps),
        started_at=at(1),
        finished_at=at(end),
        timeline=(blocked,),
    )
    spec = TeardownSpec(title=f"Cluster {NAMESPACE}/{CLUSTER}", requested_at=BEGAN, plan=plan)
    return Teardown(spec=spec, status=status)


async def operate(
    client: Client, databases: Resource = DATABASES, *, runs: Callable[[], Awaitable[bool]] | None = None
) -> None:
    """Reconcile the Databases of a cluster until cancelled. `runs`: whether the operator is running."""
    async with asyncio.TaskGroup() as group:
        cleaning: set[str] = set()
        while True:
            try:
                async with aclosing(client.watch(databases)) as events:
                    async for event in events:
                        metadata = event.object.get("metadata") or {}
                        doomed = "deletionTimestamp" in metadata and CLEANUP in metadata.get("finalizers", ())
                        if event.type in ("ADDED", "MODIFIED") and doomed and metadata["uid"] not in cleaning:
                            cleaning.add(metadata["uid"])
                            group.create_task(_clean(client, databases, event.object, runs or partial(_runs, client)))
            except (ApiError, UnreachableError):
                pass  # the CRD does not exist yet, or any more
            await asyncio.sleep(_RETRY)


async def _clean(client: Client, databases: Resource, database: Object, runs: Callable[[], Awaitable[bool]]) -> None:
    metadata = database["metadata"]
    await asyncio.sleep(_CLEANING)
    while True:
        try:
            if await runs():
                found = await client.get(databases, metadata["name"], namespace=metadata["namespace"])
                left = [finalizer for finalizer in found["metadata"].get("finalizers", ()) if finalizer != CLEANUP]
                await client.revise(databases, found, {"metadata": {"finalizers": left}})
                return
        except NotFoundError:
            return
        except (ConflictError, ApiError, UnreachableError):
            pass  # will retry
        await asyncio.sleep(_RETRY)


async def _runs(client: Client) -> bool:
    """Whether its Deployment has a Pod: an operator that was removed too early cannot clean up."""
    try:
        deployment = await client.get(DEPLOYMENTS, OPERATOR, namespace=HELD_IN)
    except NotFoundError:
        return False
    return bool((deployment.get("status") or {}).get("readyReplicas"))
