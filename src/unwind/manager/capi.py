"""What stands between Cluster API and a cluster, and the add-ons that it is about, as parts of a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons import hook_rules
from unwind.addons.caches import AddonCaches
from unwind.addons.chart_availability import ChartAvailability
from unwind.addons.gate_source import SummaryGateSource
from unwind.api.resources import MUTATING_WEBHOOK_CONFIGURATIONS
from unwind.capi import cluster_admission, hook_protocol
from unwind.capi.hook_handlers import HookHandlers
from unwind.capi.hook_registry import HookRegistry, installed
from unwind.capi.manifests import cluster_rules
from unwind.capi.registration_controller import RegistrationController
from unwind.capi.ungated_clusters import OkToDeleteController, UngatedClusterController
from unwind.components import Components
from unwind.helm.program import Helm
from unwind.manager import addons
from unwind.manager import karmada as members
from unwind.server.routes import CABundleTarget
from unwind.teardown.signatures import RecordKeys

if TYPE_CHECKING:
    from unwind.components import ManagerContext


def contribute(surroundings: ManagerContext) -> Components:
    """What `unwind run` starts. Add-ons and the gate go by the same caches, in whichever role a process is."""
    client = surroundings.client
    caches = AddonCaches(client, metrics=surroundings.metrics)
    hooks = hook_protocol.switched_on(surroundings.features)
    owner, namespace = surroundings.shards, surroundings.namespace
    registration = RegistrationController(
        client,
        caches,
        namespace=namespace,
        hooks=hooks,
        owner=owner,
        metrics=surroundings.metrics,
        segments=surroundings.segments,
    )
    source = SummaryGateSource(client, caches, namespace=namespace)
    unarmed = UngatedClusterController(
        client,
        caches,
        registration,
        source,
        owner=owner,
        recorder=surroundings.recorder,
        metrics=surroundings.metrics,
        registry=surroundings.registry,
    )
    marks = OkToDeleteController(
        client, caches, owner=owner, recorder=surroundings.recorder, metrics=surroundings.metrics
    )
    keys = RecordKeys(client, namespace=namespace)
    rooms = addons.contribute(surroundings, caches, registration, keys)
    joined = members.contribute(surroundings, caches, keys)
    charts = ChartAvailability(_helm())
    builtin = hook_rules.builtin(caches, charts=charts, namespace=surroundings.namespace)
    registry = HookRegistry(builtin, plugins=installed())
    asking = HookHandlers(
        client, caches, source, namespace=surroundings.namespace, registry=registry, hooks=hooks, keys=keys
    )
    return Components(
        controllers=(*rooms.controllers, *joined.controllers, registration, unarmed, marks),
        servants=(*rooms.servants, *joined.servants, caches, registry, charts),
        routes=(
            *rooms.routes,
            *joined.routes,
            *asking.routes(),
            cluster_admission.route(client, lambda: caches.clusters.resource),
        ),
        trusting=(
            *rooms.trusting,
            *joined.trusting,
            CABundleTarget(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(namespace)),
        ),
    )


def _helm() -> Helm | None:
    """One of its own, to look for charts: hooks cannot wait until all that is being deployed has come to its end."""
    program = shutil.which("helm")
    return Helm(Path(program)) if program else None
