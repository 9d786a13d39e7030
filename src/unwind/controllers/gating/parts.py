"""What stands between Cluster API and a cluster, and the add-ons that it is about, as parts of a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unwind.addons.helm import Helm
from unwind.api.resources import MUTATING_WEBHOOK_CONFIGURATIONS
from unwind.controllers.addons import parts as addons
from unwind.controllers.addons.caches import Caches
from unwind.controllers.addons.gate_source import SummaryGateSource
from unwind.controllers.gating import recording, ruling
from unwind.controllers.gating.asking import Asking
from unwind.controllers.gating.charting import Charts
from unwind.controllers.gating.marking import Marks
from unwind.controllers.gating.registering import Registration
from unwind.controllers.gating.unarmed import Unarmed
from unwind.controllers.members import parts as members
from unwind.controllers.teardowns.signing import RecordKeys
from unwind.gating import protocol
from unwind.gating.registry import Registry, installed
from unwind.installing.registration import cluster_rules
from unwind.parts import Share
from unwind.routes import Trusting

if TYPE_CHECKING:
    from unwind.parts import Surroundings


def contribute(surroundings: Surroundings) -> Share:
    """What `unwind run` starts. Add-ons and the gate go by the same caches, in whichever role a process is."""
    client = surroundings.client
    caches = Caches(client, metrics=surroundings.metrics)
    hooks = protocol.switched_on(surroundings.features)
    owner, namespace = surroundings.shards, surroundings.namespace
    registration = Registration(
        client,
        caches,
        namespace=namespace,
        hooks=hooks,
        owner=owner,
        metrics=surroundings.metrics,
        segments=surroundings.segments,
    )
    source = SummaryGateSource(client, caches, namespace=namespace)
    unarmed = Unarmed(
        client,
        caches,
        registration,
        source,
        owner=owner,
        recorder=surroundings.recorder,
        metrics=surroundings.metrics,
        registry=surroundings.registry,
    )
    marks = Marks(client, caches, owner=owner, recorder=surroundings.recorder, metrics=surroundings.metrics)
    keys = RecordKeys(client, namespace=namespace)
    rooms = addons.contribute(surroundings, caches, registration, keys)
    joined = members.contribute(surroundings, caches, keys)
    charts = Charts(_helm())
    builtin = ruling.builtin(caches, charts=charts, namespace=surroundings.namespace)
    registry = Registry(builtin, plugins=installed())
    asking = Asking(client, caches, source, namespace=surroundings.namespace, registry=registry, hooks=hooks, keys=keys)
    return Share(
        controllers=(*rooms.controllers, *joined.controllers, registration, unarmed, marks),
        servants=(*rooms.servants, *joined.servants, caches, registry, charts),
        routes=(
            *rooms.routes,
            *joined.routes,
            *asking.routes(),
            recording.route(client, lambda: caches.clusters.resource),
        ),
        trusting=(
            *rooms.trusting,
            *joined.trusting,
            Trusting(MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(namespace)),
        ),
    )


def _helm() -> Helm | None:
    """One of its own, to look for charts: hooks cannot wait until all that is being deployed has come to its end."""
    program = shutil.which("helm")
    return Helm(Path(program)) if program else None
