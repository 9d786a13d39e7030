"""The controllers of members, as parts of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import SECRETS
from unwind.components import Components
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.registry import installed
from unwind.karmada.caches import KarmadaCaches
from unwind.karmada.cluster_controller import ClusterController
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.karmada.work_controller import WorkController
from unwind.kube.server_time import ServerClock

if TYPE_CHECKING:
    from unwind.components import ManagerContext
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.teardown.signatures import RecordKeys


def contribute(surroundings: ManagerContext, caches: ClusterCaches, keys: RecordKeys) -> Components:
    """What `unwind run` starts. `caches`: which have the Teardowns and the Secrets. `keys`: by which our
    Teardowns are recognised."""
    client, metrics, owner = surroundings.client, surroundings.metrics, surroundings.shards
    # Deadlines count from times that the API server wrote.
    clock = ServerClock(client.time)
    members = KarmadaCaches(client, metrics=metrics)
    return Components(
        controllers=(
            members,
            ClusterController(
                client,
                members,
                caches.sources[SECRETS.kind],
                owner=owner,
                metrics=metrics,
                recorder=surroundings.recorder,
            ),
            WorkController(
                client,
                members,
                caches.sources[SECRETS.kind],
                namespace=surroundings.namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=installed(),
            ),
            UnjoinController(
                client,
                members,
                caches.teardowns,
                caches.sources[SECRETS.kind],
                namespace=surroundings.namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=installed(),
                best_effort=surroundings.best_effort,
                keep=surroundings.keep_teardowns,
                keys=keys,
                clock=clock,
                recorder=surroundings.recorder,
            ),
        ),
    )
