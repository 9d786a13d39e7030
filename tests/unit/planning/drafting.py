"""Creates steps for the tests of waves."""

from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort
from unwind.planning.waves import Draft


def draft(
    name: str,
    needs: str = "",
    *,
    effort: Effort = Effort.ENFORCE,
    kind: str = "ClusterProfile",
    namespace: str = "",
    declared: str = "",
    objects: int = 1,
    last: bool = False,
) -> Draft:
    """A profile on the cluster; `needs`: names, separated by spaces."""
    return Draft(
        name=name,
        object=ObjectRef(kind="ClusterSummary", namespace="fleet", name=f"{name}-capi-prod", uid=f"uid-{name}"),
        kind=kind,
        namespace=namespace,
        declared=declared or name,
        depends_on=tuple(needs.split()),
        effort=effort,
        objects=objects,
        last=last,
    )
