"""The warning for a user who deletes a member Cluster: what happens to the objects of its Works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.karmada import Cluster, Work
from unwind.api.names import Finalizer
from unwind.karmada.remove_strategy import steps_of
from unwind.teardown.deletion_warning import deletion_warning_text

if TYPE_CHECKING:
    from unwind.karmada.caches import KarmadaCaches

_CLUSTER = msgspec.json.Decoder(Cluster)


def unjoin_warning(caches: KarmadaCaches, body: bytes) -> str:
    """The warning for the deletion of this Cluster, from the caches; empty without Works, or if Unwind does not manage
    it (pull mode)."""
    cluster = _CLUSTER.decode(body)
    name = cluster.metadata.name
    if Finalizer.MEMBER not in cluster.metadata.finalizers:
        return ""
    known = caches.works.synced
    # A process without controllers does not watch Works: then their number is not known.
    works = caches.works_of(cluster) if known else [Work()]
    found = steps_of(cluster, works)
    return deletion_warning_text(
        found.steps,
        subject="the objects of {}" if known else "the objects of its Works",
        noun="Work",
        status=name,
        said=found.said,
    )
