"""Who needs what: the register of what the parts of Unwind want to have in a cluster.

A part that needs rights or objects says so in a Contribution of its own and is entered here; install and uninstall
know no other list. Rights are as narrow as what the code really does: add a verb with the code that uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names, unwind
from unwind.api.resources import SERVICES
from unwind.api.rights import READ, Contribution, Right, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE = "unwind"
"""The Service of a manager that runs in the cluster: unwind.NAMESPACE.svc."""
_LISTENS_ON = 9443


def _service(setting: Setting) -> list[dict[str, Any]]:
    if setting.url:
        return []
    return [
        {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": {"name": SERVICE, "namespace": setting.namespace},
            "spec": {
                "selector": {names.NAME_LABEL: "unwind"},
                "ports": [{"name": "https", "port": 443, "targetPort": _LISTENS_ON, "protocol": "TCP"}],
            },
        }
    ]


MACHINERY = Contribution(
    name="machinery",
    everywhere=(
        # Kinds come and go: informers wait for the CRDs of theirs.
        Right("apiextensions.k8s.io", ("customresourcedefinitions",), READ),
        # The manager does not start where another system's controller is alive.
        Right("apps", ("deployments", "statefulsets"), ("list",)),
        Right("coordination.k8s.io", ("leases",), ("list",)),
        # Which cluster this is: the uid of kube-system.
        Right("", ("namespaces",), ("get",), ("kube-system",)),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    ),
    at_home=(
        Right("coordination.k8s.io", ("leases",), (*READ, "create", "patch", "delete")),
        # The authority that signs our serving certificates is shared by the replicas in a Secret.
        Right("", ("secrets",), (*READ, "create", "patch")),
    ),
    kinds=(SERVICES,),
    manifests=_service,
)
RECORDS = Contribution(
    name="records",
    everywhere=(
        Right(unwind.GROUP, ("teardowns",), (*READ, "create", "patch", "delete")),
        Right(unwind.GROUP, ("teardowns/status",), ("patch",)),
    ),
    at_home=(Right(unwind.GROUP, ("inventories",), (*READ, "create", "patch", "delete")),),
)

REGISTER: Sequence[Contribution] = (MACHINERY, RECORDS)
