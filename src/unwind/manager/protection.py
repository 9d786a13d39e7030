"""Deletion protection's webhook, as parts of a process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.resources import VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.rights import Setting
from unwind.clock import SYSTEM
from unwind.components import FEATURE, Components
from unwind.install.manifests import policies
from unwind.protection.controller import ProtectionController
from unwind.protection.lookup import ProtectionLookup
from unwind.protection.manifests import protection_rules
from unwind.protection.namespace_cache import PodAndClaimCounts, ProtectedObjects
from unwind.protection.webhook import DenialReporter, ProtectionWebhook, RestoreReporter
from unwind.server.routes import CABundleTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.components import ManagerContext
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer
    from unwind.kube.metrics import Metrics

log = logs.get(__name__)


class ProtectionCaches:
    """What is known without asking, as one part of the process."""

    name = "protection's caches"

    def __init__(self, client: Client, *, metrics: Metrics | None = None, clock: Clock = SYSTEM) -> None:
        self._troubles: dict[Resource, str] = {}
        self.counts = PodAndClaimCounts(client, clock=clock, troubled=self._troubled)
        self.guards = ProtectedObjects(client, clock=clock, troubled=self._troubled)
        if metrics:
            for informer in self.counts.informers:
                metrics.informer(informer)

    @property
    def ready(self) -> bool:
        """Whether it is known what there is. A kind that may not be read holds nobody else up."""
        return all(informer.synced or informer.view.resource in self._troubles for informer in self._informers())

    @property
    def synced(self) -> bool:
        """Whether all of it is known."""
        return all(informer.synced for informer in self._informers())

    async def run(self) -> None:
        """Follow the server until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.guards.run())
            for informer in self.counts.informers:
                tasks.create_task(informer.run())

    def _informers(self) -> tuple[Informer[Any], ...]:
        return (*self.counts.informers, *self.guards.informers)

    def _troubled(self, resource: Resource) -> Callable[[Exception], None]:
        def troubled(error: Exception) -> None:
            if self._troubles.get(resource) != str(error):
                log.warning("a kind cannot be followed", kind=resource.kind, api=resource.api_version, why=str(error))
            self._troubles[resource] = str(error)

        return troubled


def contribute(surroundings: ManagerContext) -> Components:
    """What `unwind run` starts. While the feature is off, nothing is followed and nothing answered: there is only
    somebody who takes away what had the API server ask."""
    client, namespace = surroundings.client, surroundings.namespace
    on = surroundings.features.get(FEATURE, False)
    keeper = ProtectionController(
        client,
        namespace=namespace,
        on=on,
        mode=surroundings.protection.mode,
        owner=surroundings.shards,
        metrics=surroundings.metrics,
        policies=policies(Setting(namespace=namespace)),
        restored=RestoreReporter(registry=surroundings.registry, recorder=surroundings.recorder).report,
        segments=surroundings.segments,
    )
    if not on:
        return Components(controllers=(keeper,))
    caches = ProtectionCaches(client, metrics=surroundings.metrics)
    answering = ProtectionWebhook(
        counts=caches.counts,
        guards=caches.guards,
        looking=ProtectionLookup(client, groups=surroundings.protection.groups),
        telling=DenialReporter(registry=surroundings.registry, recorder=surroundings.recorder),
    )
    return Components(
        controllers=(keeper,),
        servants=(caches,),
        routes=answering.routes(),
        trusting=(CABundleTarget(VALIDATING_WEBHOOK_CONFIGURATIONS, protection_rules(namespace)),),
    )
