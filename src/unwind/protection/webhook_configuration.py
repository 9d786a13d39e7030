"""The ValidatingWebhookConfiguration of deletion protection (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection import policies
from unwind.protection.kinds import EXEMPT, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.kube.client import Object
    from unwind.protection.kinds import ProtectedKind

PROTECTION_PATH = "/admit/deletions"
"""The path of the webhook for DELETE requests."""
LABELS_PATH = "/admit/labels"
"""The path of the webhook for label values, used without policies."""
CONTAINERS: tuple[ProtectedKind, ...] = tuple(kind for kind in KINDS if kind.rest)
"""The kinds that contain others, whose contents decide."""

# Seconds. A DELETE waits for a read of everything in the namespace, or of all resources of the CRD. The same without a
# label: on a timeout the API server allows the DELETE.
_PATIENCE = 10
# Seconds that the write of a label waits for a manager that does not respond.
_SHORT = 3


def asking(calling: Callable[[str], Object], *, everything: bool) -> list[Object]:
    """The webhooks. `calling`: the client config for a path.

    `everything`: also for decisions that policies make if the API server has them.
    """
    unlabelled = _webhook(
        "unlabelled",
        calling(PROTECTION_PATH),
        CONTAINERS,
        operations=("DELETE",),
        labelled=False,
        conditions=[policies.STANDING],
        # It has no label itself, but may contain something protected: a stopped manager never blocks it.
        failurePolicy="Ignore",
        timeoutSeconds=_PATIENCE,
        sideEffects="NoneOnDryRun",
    )
    labelled = _webhook(
        "labelled",
        calling(PROTECTION_PATH),
        KINDS if everything else CONTAINERS,
        operations=("DELETE",),
        labelled=True,
        conditions=[policies.STANDING],
        failurePolicy="Fail",
        timeoutSeconds=_PATIENCE,
        sideEffects="NoneOnDryRun",
    )
    if not everything:
        return [labelled, unlabelled]
    # A webhook of its own: while no manager runs, only requests that could be denied are blocked.
    others = _webhook(
        "any-kind",
        calling(PROTECTION_PATH),
        None,
        operations=("DELETE",),
        labelled=True,
        conditions=[policies.STANDING, policies.not_of((*KINDS, *EXEMPT)), policies.UNCONTROLLED],
        selecting=[policies.NOT_CASCADING],
        failurePolicy="Fail",
        timeoutSeconds=_PATIENCE,
        sideEffects="NoneOnDryRun",
    )
    writing = _webhook(
        "labels",
        calling(LABELS_PATH),
        None,
        operations=("CREATE", "UPDATE"),
        labelled=True,
        conditions=[*policies.NEW_VALUE, policies.not_of(EXEMPT)],
        # An unknown value protects anyway, so writes do not wait for a stopped manager.
        failurePolicy="Ignore",
        timeoutSeconds=_SHORT,
        sideEffects="None",
    )
    return [labelled, unlabelled, others, writing]


def _webhook(
    name: str,
    client_config: Object,
    kinds: Iterable[ProtectedKind] | None,
    *,
    operations: tuple[str, ...],
    labelled: bool,
    conditions: list[Object],
    selecting: Iterable[Object] = (),
    **more: Any,
) -> Object:
    """`kinds`: None for all. `selecting`: a further requirement on the label."""
    # The API server's defaults are explicit, so that the stored object can be compared.
    exists = {"key": DELETE_PROTECTION_LABEL, "operator": "Exists" if labelled else "DoesNotExist"}
    return {
        "name": f"{name}.protection.unwind.dev",
        "clientConfig": client_config,
        "rules": [policies.any_rule(*operations)] if kinds is None else policies.rules(kinds, operations),
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {"matchExpressions": [exists, *selecting]},
        "matchConditions": conditions,
        "admissionReviewVersions": ["v1"],
        **more,
    }
