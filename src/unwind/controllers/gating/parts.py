"""What stands between Cluster API and a cluster, and the add-ons that it is about, as parts of a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons.helm import Helm
from unwind.api.hooks import Hook
from unwind.api.resources import MUTATING_WEBHOOK_CONFIGURATIONS
from unwind.controllers.addons import parts as addons
from unwind.controllers.addons.caches import Caches
from unwind.controllers.gating import recording, ruling
from unwind.controllers.gating.asking import Asking
from unwind.controllers.gating.charting import Charts
from unwind.controllers.gating.registering import Registration
from unwind.controllers.gating.unarmed import Unarmed
from unwind.gating.registry import Registry, installed
from unwind.installing.registration import cluster_rules
from unwind.parts import Share, Trusting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.parts import Surroundings

# A rule that is badly written holds everybody's clusters, so Cluster API is told of the other hooks only where that is
# asked for. Whoever could switch these off would think that clusters wait, and they would not.
ALWAYS = (Hook.AFTER_CONTROL_PLANE_INITIALIZED, Hook.BEFORE_CLUSTER_DELETE)


def contribute(surroundings: Surroundings) -> Share:
    """What `unwind run` starts. Add-ons and the gate go by the same caches, in whichever role a process is."""
    client = surroundings.client
    caches = Caches(client, metrics=surroundings.metrics)
    hooks = switched_on(surroundings.features)
    owner, namespace = surroundings.shards, surroundings.namespace
    registration = Registration(
        client, caches, namespace=namespace, hooks=hooks, owner=owner, metrics=surroundings.metrics
    )
    unarmed = Unarmed(
        client,
        caches,
        registration,
        owner=owner,
        recorder=surroundings.recorder,
        metrics=surroundings.metrics,
        registry=surroundings.registry,
    )
    rooms = addons.contribute(surroundings, caches, registration)
    charts = Charts(_helm())
    builtin = ruling.builtin(caches, charts=charts, namespace=surroundings.namespace)
    registry = Registry(builtin, plugins=installed())
    asking = Asking(client, caches, namespace=surroundings.namespace, registry=registry, hooks=hooks)
    return Share(
        controllers=(*rooms.controllers, registration, unarmed),
        servants=(*rooms.servants, caches, registry, charts),
        routes=(*rooms.routes, *asking.routes(), recording.route(client, lambda: caches.clusters.resource)),
        trusting=(*rooms.trusting, Trusting(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(namespace))),
    )


def switched_on(features: Mapping[str, bool]) -> tuple[Hook, ...]:
    """The hooks that Cluster API is told of."""
    return tuple(hook for hook in Hook if hook in ALWAYS or features.get(hook.value, False))


def _helm() -> Helm | None:
    """One of its own, to look for charts: hooks cannot wait until all that is being deployed has come to its end."""
    program = shutil.which("helm")
    return Helm(Path(program)) if program else None
