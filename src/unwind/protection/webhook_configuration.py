"""The webhooks in the ValidatingWebhookConfiguration of deletion protection: what the API server asks, and what it does
if the manager does not answer (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection import admission_policies
from unwind.protection.protected_kinds import EXEMPT, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.kube.client import Object
    from unwind.protection.protected_kinds import ProtectedKind

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


def webhook_manifest(calling: Callable[[str], Object], *, everything: bool) -> list[Object]:
    """The webhooks. `calling`: the client config for a path.

    `everything`: also for decisions that policies make if the API server has them.
    """
    deletions = calling(PROTECTION_PATH)
    # It has no label itself, but may contain something protected: a stopped manager never blocks it.
    unlabelled = _of_deletions("unlabelled", deletions, CONTAINERS, labelled=False, failurePolicy="Ignore")
    labelled = _of_deletions("labelled", deletions, KINDS if everything else CONTAINERS, failurePolicy="Fail")
    if not everything:
        return [labelled, unlabelled]
    # A webhook of its own: while no manager runs, only requests that could be denied are blocked.
    others = _of_deletions(
        "any-kind",
        deletions,
        None,
        conditions=[admission_policies.not_of((*KINDS, *EXEMPT)), admission_policies.UNCONTROLLED],
        selecting=[admission_policies.NOT_CASCADING],
        failurePolicy="Fail",
    )
    writing = _webhook(
        "labels",
        calling(LABELS_PATH),
        None,
        operations=("CREATE", "UPDATE"),
        labelled=True,
        conditions=[*admission_policies.NEW_VALUE, admission_policies.not_of(EXEMPT)],
        # An unknown value protects anyway, so writes do not wait for a stopped manager.
        failurePolicy="Ignore",
        timeoutSeconds=_SHORT,
        sideEffects="None",
    )
    return [labelled, unlabelled, others, writing]


def _of_deletions(
    name: str,
    client_config: Object,
    kinds: Iterable[ProtectedKind] | None,
    *,
    labelled: bool = True,
    conditions: Iterable[Object] = (),
    **more: Any,
) -> Object:
    """A webhook for DELETE requests. `conditions`: besides the one that the object is not being deleted already."""
    return _webhook(
        name,
        client_config,
        kinds,
        operations=("DELETE",),
        labelled=labelled,
        conditions=[admission_policies.STANDING, *conditions],
        timeoutSeconds=_PATIENCE,
        sideEffects="NoneOnDryRun",
        **more,
    )


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
        "rules": [admission_policies.any_rule(*operations)]
        if kinds is None
        else admission_policies.resource_rules(kinds, operations),
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {"matchExpressions": [exists, *selecting]},
        "matchConditions": conditions,
        "admissionReviewVersions": ["v1"],
        **more,
    }
