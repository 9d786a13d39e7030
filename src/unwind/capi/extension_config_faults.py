"""Whether Cluster API calls the BeforeClusterDelete hook, according to Unwind's ExtensionConfig and its status (pure).

Cluster API drops an extension silently: no field of a Cluster shows that the hook is not called. Unwind reports it
(GateNotArmed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.capi import FailurePolicy
from unwind.api.hooks import Hook
from unwind.api.meta import find
from unwind.api.names import OK_TO_DELETE_ANNOTATION, Reason
from unwind.server.path_segments import redacted
from unwind.teardown.deletion_gate import GateFault

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from unwind.api.capi import ExtensionConfig


DISCOVERED = "Discovered"
"""Cluster API's own condition on an ExtensionConfig."""

MARKED = GateFault(
    Reason.MARKED_OK_TO_DELETE,
    f"the Cluster carries the annotation {OK_TO_DELETE_ANNOTATION}, so Cluster API calls no hook; remove it",
)
"""Cluster API calls no hook for a Cluster with this annotation."""

_SELECT = "run `unwind install` with a --namespace-selector that matches it"


def why_not(
    config: ExtensionConfig | None, *, name: str, handlers: Collection[str], labels: Mapping[str, str] | None
) -> GateFault | None:
    """Why Cluster API does not call the hook for clusters in a namespace with these labels; None if it does.

    `name`: the name of Unwind's ExtensionConfig. `handlers`: the names of its handlers. `labels`: None if unknown.
    """
    return gate_fault(config, name=name, handlers=handlers) or unselected(config, labels)


def gate_fault(config: ExtensionConfig | None, *, name: str, handlers: Collection[str]) -> GateFault | None:
    """Why Cluster API does not call the hook for any cluster."""
    if_it_lasts = f"if this lasts, see `kubectl describe extensionconfig {name}`"
    if config is None:
        return GateFault(Reason.NOT_REGISTERED, f"ExtensionConfig {name} not found; run `unwind install`")
    if config.metadata.terminating:
        return GateFault(
            Reason.NOT_REGISTERED,
            f"ExtensionConfig {name} is being deleted, so Cluster API does not call it; the manager creates it again"
            " when it is gone",
        )
    discovered = find(config.status.conditions, DISCOVERED)
    if discovered is None or discovered.status != "True":
        # The message contains the URL if Cluster API could not call it.
        cause = redacted(discovered.message) if discovered else f"it has no {DISCOVERED} condition yet"
        message = f"Cluster API has not discovered ExtensionConfig {name}: {cause}; {if_it_lasts}"
        return GateFault(Reason.NOT_DISCOVERED, message)
    # Cluster API names a handler after the handler and its ExtensionConfig.
    ours = {f"{handler}.{config.metadata.name}" for handler in handlers}
    holding = [
        handler
        for handler in config.status.handlers
        if handler.request_hook.hook == Hook.BEFORE_CLUSTER_DELETE and handler.name in ours
    ]
    if not holding:
        missing = f"the status of ExtensionConfig {name} lists no Unwind handler for {Hook.BEFORE_CLUSTER_DELETE}"
        return GateFault(Reason.HANDLER_MISSING, f"{missing}; {if_it_lasts}")
    # Any other value, also an unknown one, is not known to hold.
    if any(FailurePolicy.read(item.failure_policy) is not FailurePolicy.FAIL for item in holding):
        policy = f"the failurePolicy of {Hook.BEFORE_CLUSTER_DELETE} in ExtensionConfig {name} is not Fail"
        ignored = f"{policy}: Cluster API deletes a Cluster if Unwind does not answer; {if_it_lasts}"
        return GateFault(Reason.FAILURES_IGNORED, ignored)
    return None


def unselected(config: ExtensionConfig | None, labels: Mapping[str, str] | None) -> GateFault | None:
    """Why an ExtensionConfig does not apply to clusters in a namespace with these labels; None if it does."""
    if config is None:
        return None
    name, selector = config.metadata.name, config.spec.namespace_selector
    if selector is None:
        message = f"ExtensionConfig {name} has no namespaceSelector, so it selects no namespace; {_SELECT}"
    elif selector.empty:
        return None
    elif labels is None:
        message = (
            f"the labels of the namespace are not read yet, so it is unknown whether ExtensionConfig {name} selects it;"
            " if this lasts, see the log of the manager"
        )
    elif selector.satisfied_by(labels):
        return None
    else:
        message = f"the namespaceSelector of ExtensionConfig {name} does not select the namespace; {_SELECT}"
    return GateFault(Reason.NAMESPACE_NOT_SELECTED, message)
