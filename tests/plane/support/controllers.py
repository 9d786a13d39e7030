"""Controllers that run in the process of a test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tests.owners import Owner
from unwind.addons.configuration_controller import ConfigurationController
from unwind.addons.moved_cluster_adoption import OwnerRecordController
from unwind.addons.profile_controller import ProfileController
from unwind.addons.summary_controller import SummaryController
from unwind.clock import SYSTEM
from unwind.deleters.builtin import BUILTIN
from unwind.external.member_ends import MemberEnds
from unwind.inventory.inventories import Inventories
from unwind.kube.controller import ControllerDeps
from unwind.kube.events import Recorder
from unwind.kube.metrics import Metrics
from unwind.members.members import Members
from unwind.teardown.signatures import RecordKeys
from unwind.teardown.step_removers import RemovalDeps
from unwind.teardown.withdrawal_records import WithdrawalRecords

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from unwind.addons.caches import AddonCaches
    from unwind.clock import Clock
    from unwind.components import Component
    from unwind.deleters.registry import Plugin
    from unwind.helm.program import Helm
    from unwind.kube.client import Client
    from unwind.kube.fencing import ShardOwner

HOLD = "example.dev/hold"
"""A finalizer that no controller removes."""


def controller_deps(
    client: Client,
    *,
    owner: ShardOwner | None = None,
    metrics: Metrics | None = None,
    recorder: Recorder | None = None,
    clock: Clock = SYSTEM,
) -> ControllerDeps:
    """What controllers share. By default they own all keys; Events are written only by a `recorder` that runs."""
    return ControllerDeps(
        client=client,
        owner=owner or Owner(),
        metrics=metrics or Metrics(CollectorRegistry()),
        recorder=recorder or Recorder(client, instance="test"),
        clock=clock,
    )


@asynccontextmanager
async def running_components(components: Iterable[Component]) -> AsyncIterator[None]:
    """Run components as long as the context lasts; what one of them raises is raised here."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(component.run()) for component in components]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def addon_controllers(
    client: Client,
    caches: AddonCaches,
    deps: RemovalDeps,
    *,
    owner: ShardOwner,
    metrics: Metrics,
    helm: Helm | None = None,
) -> tuple[Component, ...]:
    """The controllers of add-ons."""
    keys = RecordKeys(client, namespace=deps.inventories.namespace)
    shared = controller_deps(client, owner=owner, metrics=metrics, clock=deps.clock)
    records = WithdrawalRecords(shared, caches, deps, keys=keys)
    return (
        ProfileController(shared, caches, members=deps.members),
        records,
        SummaryController(shared, caches, deps, records=records, helm=helm),
        ConfigurationController(shared, caches, deps.inventories),
        # It collects what changes for a while: by a clock that stands still it would never write.
        OwnerRecordController(controller_deps(client, owner=owner, metrics=metrics), caches),
    )


@asynccontextmanager
async def removal_deps(
    client: Client,
    namespace: str,
    *,
    clock: Clock = SYSTEM,
    best_effort: float = 60.0,
    plugins: tuple[Plugin, ...] = (),
) -> AsyncIterator[RemovalDeps]:
    """What the controllers of a manager share. `namespace`: where the Inventories are."""
    ends = MemberEnds(client, namespace=namespace, clock=clock)
    async with Members(client, clock=clock) as members, ends:
        yield RemovalDeps(
            members=members,
            inventories=Inventories(client, namespace=namespace),
            deleters=BUILTIN,
            plugins=plugins,
            external_ends=ends,
            best_effort=best_effort,
            clock=clock,
        )
