"""How the API server asks the manager about deletions, as a ValidatingWebhookConfiguration (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection import policies
from unwind.protection.kinds import EXEMPT, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.protection.kinds import ProtectedKind

    Object = dict[str, Any]

PROTECTION_PATH = "/admit/deletions"
"""Where the API server asks whether something may be deleted."""
LABELS_PATH = "/admit/labels"
"""Where it asks about a new value of the label, if no policy looks at it."""
CONTAINERS: tuple[ProtectedKind, ...] = tuple(kind for kind in KINDS if kind.rest)
"""The kinds that hold others: the rest of the cluster has a say about them."""

# Seconds. A DELETE waits for a read of all that is in the namespace, or of all resources of the CRD. The same without a
# label: if the time runs out, the API server lets the DELETE pass.
_PATIENCE = 10
# Seconds that the write of a label waits for a manager that does not answer.
_SHORT = 3


def asking(calling: Callable[[str], Object], *, everything: bool) -> list[Object]:
    """Who is asked about what. `calling`: how the manager is called at a path.

    `everything`: also about what policies decide where there are some.
    """
    unlabelled = _webhook(
        "unlabelled",
        calling(PROTECTION_PATH),
        CONTAINERS,
        operations=("DELETE",),
        labelled=False,
        conditions=[policies.STANDING],
        # It may hold something protected, and nobody has said that it is itself: a dead manager never keeps it.
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
    # In a webhook of its own: while no manager runs, only what could be refused is held.
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
        # A value that got in protects all the same, and nobody's writes wait for a manager that is not there.
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
    """`kinds`: None for all of them. `selecting`: what the label must be, besides."""
    # What the API server would add is said, so that what it has can be compared with what it should have.
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
