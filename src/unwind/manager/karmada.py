"""The controllers of members, as parts of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import SECRETS
from unwind.components import Share
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.registry import installed
from unwind.karmada.caches import MemberCaches
from unwind.karmada.cluster_controller import Clusters
from unwind.karmada.unjoin_controller import Unjoining
from unwind.karmada.work_controller import Works
from unwind.kube.server_time import ServerClock

if TYPE_CHECKING:
    from unwind.components import Surroundings
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.teardown.signatures import RecordKeys


def contribute(surroundings: Surroundings, caches: ClusterCaches, keys: RecordKeys) -> Share:
    """What `unwind run` starts. `caches`: which have the Teardowns and the Secrets. `keys`: by which our
    Teardowns are recognised."""
    client, metrics, owner = surroundings.client, surroundings.metrics, surroundings.shards
    # Deadlines count from times that the API server wrote.
    clock = ServerClock(client.time)
    members = MemberCaches(client, metrics=metrics)
    return Share(
        controllers=(
            members,
            Clusters(
                client,
                members,
                caches.sources[SECRETS.kind],
                owner=owner,
                metrics=metrics,
                recorder=surroundings.recorder,
            ),
            Works(
                client,
                members,
                caches.sources[SECRETS.kind],
                namespace=surroundings.namespace,
                owner=owner,
                metrics=metrics,
                deleters=BUILTIN,
                plugins=installed(),
            ),
            Unjoining(
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
