"""The warning for a user who deletes a Cluster: what happens to its add-ons, and whether the deletion waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.addons.step_source import is_on_cluster, step_of
from unwind.api.capi import Cluster
from unwind.api.names import OK_TO_DELETE_ANNOTATION, Finalizer
from unwind.members import targets
from unwind.members.targets import cluster_key
from unwind.teardown.deletion_warning import deletion_warning_text

if TYPE_CHECKING:
    from unwind.addons.caches import AddonCaches
    from unwind.members.targets import AddonTarget
    from unwind.teardown.deletion_gate import ChosenGates, GateStatus

_CLUSTER = msgspec.json.Decoder(Cluster)


def deletion_warning(caches: AddonCaches, gate: GateStatus, body: bytes, *, gates: ChosenGates | None = None) -> str:
    """The warning for the deletion of this Cluster, from the caches; empty if it has no add-ons."""
    cluster = _CLUSTER.decode(body)
    meta, target = cluster.metadata, targets.of_capi(cluster)
    same = sum(other.metadata.name == meta.name for other in caches.clusters.all())
    status = f"{meta.namespace}/{meta.name}" if same > 1 else meta.name
    if not caches.ready:
        return f"Unwind is starting and does not know its add-ons yet; follow with: unwind status {status}"
    found = [item for item in caches.summaries.cache.by("cluster", cluster_key(target)) if is_on_cluster(item, target)]
    steps = [
        step_of(summary)
        for summary in found
        # The manager deployed nothing for a summary that has neither a profile nor its finalizer.
        if Finalizer.SUMMARY in summary.metadata.finalizers or not caches.unbacked(summary, target)
    ]
    return deletion_warning_text(
        steps,
        subject="{}",
        noun="add-on",
        status=status,
        paused=cluster.paused,
        not_awaited=f"Cluster API does not wait for that: {why}" if (why := _unheld(target, gate, gates)) else "",
    )


def _unheld(target: AddonTarget, gate: GateStatus, gates: ChosenGates | None) -> str:
    """Why the deletion of a Cluster does not wait for its add-ons; empty if it does, or it is not known."""
    if gates and gates.holds(target):
        return ""
    if not target.gated:
        return "the Cluster has no ClusterClass"
    if OK_TO_DELETE_ANNOTATION in target.annotations:
        return f"the Cluster has the annotation {OK_TO_DELETE_ANNOTATION}"
    return str(gate.why_not(target.ref.namespace) or "") if gate.known else ""
