"""Whether Cluster API asks before it takes a cluster apart: by our ExtensionConfig and what was made of it (pure).

Cluster API forgets an extension in silence: nothing on a Cluster tells that nobody will be asked. So it is told here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.capi import FailurePolicy
from unwind.api.conditions import find
from unwind.api.hooks import Hook
from unwind.api.names import Reason
from unwind.segments import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from unwind.api.capi import ExtensionConfig

DISCOVERED = "Discovered"
"""Cluster API's own condition on an ExtensionConfig."""


class Fault(msgspec.Struct, frozen=True):
    """Why Cluster API would not ask."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return self.message


class Gate(Protocol):
    """Who knows whether Cluster API asks."""

    @property
    def known(self) -> bool:
        """Whether it is known at all: before that, nothing is said."""

    def why_not(self, namespace: str) -> Fault | None:
        """Why Cluster API would not ask about the clusters of a namespace; None if it does."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it told when that may have changed."""


def why_not(
    config: ExtensionConfig | None, *, name: str, handlers: Collection[str], labels: Mapping[str, str] | None
) -> Fault | None:
    """Why Cluster API would not ask about the clusters of a namespace with these labels; None if it does.

    `name`: what our ExtensionConfig is called. `handlers`: what our handlers are called. `labels`: None if they are not
    known.
    """
    return fault(config, name=name, handlers=handlers) or unselected(config, labels)


def fault(config: ExtensionConfig | None, *, name: str, handlers: Collection[str]) -> Fault | None:
    """Why Cluster API would not ask about any cluster."""
    if config is None:
        return Fault(Reason.NOT_REGISTERED, f"there is no ExtensionConfig {name}: run `unwind install`")
    if config.metadata.terminating:
        return Fault(Reason.NOT_REGISTERED, f"ExtensionConfig {name} is being deleted, so Cluster API has dropped it")
    discovered = find(config.status.conditions, DISCOVERED)
    if discovered is None or discovered.status != "True":
        # With the URL in it where Cluster API could not call us.
        said = redacted(discovered.message) if discovered else "it has said nothing of it yet"
        return Fault(Reason.NOT_DISCOVERED, f"Cluster API has not discovered ExtensionConfig {name}: {said}")
    # As Cluster API calls them: a handler, and the ExtensionConfig it belongs to.
    ours = {f"{one}.{config.metadata.name}" for one in handlers}
    holding = [
        one
        for one in config.status.handlers
        if one.request_hook.hook == Hook.BEFORE_CLUSTER_DELETE and one.name in ours
    ]
    if not holding:
        missing = f"Cluster API knows no handler of ours for {Hook.BEFORE_CLUSTER_DELETE} in ExtensionConfig {name}"
        return Fault(Reason.HANDLER_MISSING, missing)
    # Whatever word stands there that is not this one, it is not known to hold.
    if any(FailurePolicy.read(one.failure_policy) is not FailurePolicy.FAIL for one in holding):
        policy = f"the failurePolicy of {Hook.BEFORE_CLUSTER_DELETE} in ExtensionConfig {name} is not Fail"
        return Fault(Reason.FAILURES_IGNORED, f"{policy}: a cluster goes when Unwind does not answer")
    return None


def unselected(config: ExtensionConfig | None, labels: Mapping[str, str] | None) -> Fault | None:
    """Why an ExtensionConfig is not for clusters in a namespace with these labels; None if it is."""
    if config is None:
        return None
    name, selector = config.metadata.name, config.spec.namespace_selector
    if selector is None:
        message = f"ExtensionConfig {name} has no namespaceSelector, which selects no namespace"
    elif selector.empty:
        return None
    elif labels is None:
        message = f"it is not known whether the namespaceSelector of ExtensionConfig {name} selects the namespace"
    elif selector.satisfied_by(labels):
        return None
    else:
        message = f"the namespaceSelector of ExtensionConfig {name} leaves the namespace out"
    return Fault(Reason.NAMESPACE_NOT_SELECTED, message)
