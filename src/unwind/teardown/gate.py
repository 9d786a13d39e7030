"""May a cluster be taken apart? Only add-ons that have to be gone before it keep it (pure).

A verdict is as good as what it was made of: a no may come from caches, a yes has to be made of what was read for it
(docs/architecture.md, Fresh reads open gates).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.capi import FailurePolicy
from unwind.api.fields import Unknown
from unwind.api.hooks import Hook
from unwind.api.meta import find
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos import ClusterDeletionBehavior
from unwind.api.unwind import Effort, Phase, StepState
from unwind.hooks import LONGEST
from unwind.server.path_segments import redacted
from unwind.why.blockers import urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from unwind.api.capi import ExtensionConfig
    from unwind.api.unwind import Blocker, Step, Teardown
    from unwind.members.targets import AddonTarget


SOON = 1
"""Seconds. The shortest time after which Cluster API can be told to ask again."""
_WAITING = "waiting for add-on cleanup: "
_NAMED = 5
_TOLD = 500
# Cluster API asks no sooner than it was told, so a long wait must not outlast what is left. These are the most that can
# go in a second: what is quick in the end is let go at once, and what takes longer is only asked for more often.
_OBJECTS_A_SECOND = 5000
_WAVES_A_SECOND = 8
_WHY = (ConditionType.UNKNOWN_VALUE, ConditionType.FIELD_NOT_SERVED, ConditionType.PLANNED)


class GateOpen(msgspec.Struct, frozen=True):
    """Nothing keeps the cluster."""


class GateClosed(msgspec.Struct, frozen=True):
    """The cluster has to wait."""

    message: str
    """For what. The same for the same state, so there is no time in it and no number of objects."""
    seconds: int = SOON
    """When to ask again."""


class GateHolder(msgspec.Struct, frozen=True):
    """What a summary of the cluster says, while there is no plan yet."""

    name: str
    """What its step will be called."""
    behaviour: ClusterDeletionBehavior | Unknown


Verdict = GateOpen | GateClosed


class GateSource(Protocol):
    """What keeps a cluster for which there is no Teardown yet."""

    @property
    def synced(self) -> bool:
        """Whether its caches are complete."""

    @property
    def settled(self) -> bool:
        """Whether everything that its answers depend on is known."""

    def known(self, target: AddonTarget) -> list[GateHolder]:
        """Everything that the caches know of for a cluster."""

    def holding(self, target: AddonTarget) -> list[GateHolder]:
        """What certainly counts at the gate, as the caches say."""

    async def read(self, target: AddonTarget) -> tuple[list[GateHolder], list[str]]:
        """What counts at the gate, as the API server says now; and what is gone and left objects behind."""


def closed(why: str, seconds: int = SOON) -> GateClosed:
    """That the cluster has to wait, for this."""
    return GateClosed(f"{_WAITING}{why}", seconds)


def of_teardown(uid: str, teardown: Teardown) -> Verdict:
    """Whether the cluster of this uid may go, by the record of its teardown."""
    if not uid or teardown.spec.target.uid != uid:
        return closed(f"the Teardown {teardown.metadata.name} is that of another cluster")
    if teardown.finished:
        return GateOpen()
    if teardown.spec.plan is None:
        return closed(_unplanned(teardown))
    removed = _removed(teardown)
    left = [step for step in teardown.spec.plan.steps if _closes(step, removed)]
    if not left:
        return GateOpen()
    why = _some(step.name for step in left)
    if blocker := _first_blocker(teardown, {step.name for step in left}):
        why = f"{why}; {_told(blocker)}"
    return closed(why, _seconds(teardown, left))


def of_summaries(uid: str, standing: Iterable[GateHolder], lost: Iterable[str] = ()) -> Verdict:
    """Whether the cluster of this uid may go, while there is no record of its teardown.

    `lost`: what put objects on it and is gone itself, with the word on what is to become of them.
    """
    if not uid:
        return closed("the request does not say which cluster it is about, it has no uid")
    keeping = [holder for holder in standing if holder.behaviour not in _LETTING_GO]
    unknown = [f"{item.name} ({item.behaviour})" for item in keeping if isinstance(item.behaviour, Unknown)]
    enforced = [item.name for item in keeping if not isinstance(item.behaviour, Unknown)]
    found = [*enforced, *unknown, *(f"{item} (it is gone, and what it put there is not)" for item in lost)]
    return closed(_some(found)) if found else GateOpen()


_LETTING_GO = (ClusterDeletionBehavior.LEAVE, ClusterDeletionBehavior.REMOVE)


def _removed(teardown: Teardown) -> set[str]:
    """The steps that are removed: seen to be absent, and their inventories sealed. No other state opens the gate, and
    none that status gives for a step twice."""
    steps = teardown.status.unambiguous_steps
    return {name for name, step in steps.items() if StepState.read(step.state) is StepState.REMOVED}


def _closes(step: Step, removed: set[str]) -> bool:
    """Whether a step keeps the cluster. One that status names never, or twice, is not done."""
    return Effort.read(step.effort) not in (Effort.LEAVE, Effort.TRY) and step.name not in removed


def _seconds(teardown: Teardown, left: list[Step]) -> int:
    waves = len({step.wave for step in left})
    # What waits for somebody may be free at any moment; and so may the last wave, however wide it is.
    if waves <= 1 or teardown.phase is Phase.HELD:
        return SOON
    gone = {step.name: step.removed for step in teardown.status.steps}
    objects = sum(max(0, step.objects - gone.get(step.name, 0)) for step in left)
    return min(LONGEST, SOON + max(objects // _OBJECTS_A_SECOND, waves // _WAVES_A_SECOND))


def _unplanned(teardown: Teardown) -> str:
    said = {condition.type: condition.message for condition in teardown.status.conditions if condition.message}
    told = [said[item] for item in _WHY if item in said]
    return f"its plan is not made; {_cut('; '.join(told))}" if told else "its plan is not made yet"


def _first_blocker(teardown: Teardown, steps: set[str]) -> Blocker | None:
    found = [blocker for blocker in teardown.status.blockers if blocker.step in steps]
    if teardown.phase is not Phase.HELD:
        # What is on its way out anyhow changes all the time while things go well.
        found = [item for item in found if item.reason != Reason.DELETING]
    return min(found, key=lambda one: (urgency(one.reason, one.actor), one.step, str(one.object)), default=None)


def _told(blocker: Blocker) -> str:
    actor = f" (must act: {blocker.actor})" if blocker.actor else ""
    return f"{_cut(blocker.message or f'{blocker.object}: {blocker.reason}')}{_cut(actor)}"


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= _TOLD else f"{text[:_TOLD]}…"


# Whether Cluster API asks before it takes a cluster apart: by our ExtensionConfig and what was made of it (pure).
#
# Cluster API forgets an extension in silence: nothing on a Cluster tells that nobody will be asked. So it is told here.

DISCOVERED = "Discovered"
"""Cluster API's own condition on an ExtensionConfig."""


class GateFault(msgspec.Struct, frozen=True):
    """Why Cluster API would not ask."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return self.message


class GateStatus(Protocol):
    """Who knows whether Cluster API asks."""

    @property
    def known(self) -> bool:
        """Whether it is known at all: before that, nothing is said."""

    def why_not(self, namespace: str) -> GateFault | None:
        """Why Cluster API would not ask about the clusters of a namespace; None if it does."""

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it told when that may have changed."""


def why_not(
    config: ExtensionConfig | None, *, name: str, handlers: Collection[str], labels: Mapping[str, str] | None
) -> GateFault | None:
    """Why Cluster API would not ask about the clusters of a namespace with these labels; None if it does.

    `name`: what our ExtensionConfig is called. `handlers`: what our handlers are called. `labels`: None if they are not
    known.
    """
    return fault(config, name=name, handlers=handlers) or unselected(config, labels)


def fault(config: ExtensionConfig | None, *, name: str, handlers: Collection[str]) -> GateFault | None:
    """Why Cluster API would not ask about any cluster."""
    if config is None:
        return GateFault(Reason.NOT_REGISTERED, f"there is no ExtensionConfig {name}: run `unwind install`")
    if config.metadata.terminating:
        return GateFault(
            Reason.NOT_REGISTERED, f"ExtensionConfig {name} is being deleted, so Cluster API has dropped it"
        )
    discovered = find(config.status.conditions, DISCOVERED)
    if discovered is None or discovered.status != "True":
        # With the URL in it where Cluster API could not call us.
        said = redacted(discovered.message) if discovered else "it has said nothing of it yet"
        return GateFault(Reason.NOT_DISCOVERED, f"Cluster API has not discovered ExtensionConfig {name}: {said}")
    # As Cluster API calls them: a handler, and the ExtensionConfig it belongs to.
    ours = {f"{handler}.{config.metadata.name}" for handler in handlers}
    holding = [
        handler
        for handler in config.status.handlers
        if handler.request_hook.hook == Hook.BEFORE_CLUSTER_DELETE and handler.name in ours
    ]
    if not holding:
        missing = f"Cluster API knows no handler of ours for {Hook.BEFORE_CLUSTER_DELETE} in ExtensionConfig {name}"
        return GateFault(Reason.HANDLER_MISSING, missing)
    # Whatever word stands there that is not this one, it is not known to hold.
    if any(FailurePolicy.read(item.failure_policy) is not FailurePolicy.FAIL for item in holding):
        policy = f"the failurePolicy of {Hook.BEFORE_CLUSTER_DELETE} in ExtensionConfig {name} is not Fail"
        return GateFault(Reason.FAILURES_IGNORED, f"{policy}: a cluster goes when Unwind does not answer")
    return None


def unselected(config: ExtensionConfig | None, labels: Mapping[str, str] | None) -> GateFault | None:
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
    return GateFault(Reason.NAMESPACE_NOT_SELECTED, message)
