"""Explains what blocks the removal of an object and who must act, for the status of Teardowns (pure).

`blocker_reader` reads the facts for it. `unwind why` explains in more detail (`diagnosis`, `terminating_objects`).

The text is stable for the same facts, without times or changing counts: it is written to conditions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Reason
from unwind.api.unwind import BLOCKERS_SHOWN, Blocker
from unwind.why.finalizers import NAMESPACE_FINALIZER, domain, known_controller, own_workload, serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.why.facts import ControllerWorkload, ObjectFacts, StepWait

# In order of importance: the first one found is reported first, because the others usually resolve by themselves.
_URGENCY = (
    Reason.FINALIZER_NOT_SERVED,
    Reason.API_NOT_SERVED,
    Reason.FINALIZER,
    Reason.IN_USE,
    Reason.HOLDS_OTHERS,
    Reason.OWNS_OTHERS,
)
_ACTORS: dict[str, str] = {
    Reason.UNREACHABLE: "the administrator of the member cluster",
    Reason.UNAUTHENTICATED: "the administrator of Unwind",
    Reason.UNKNOWN_VALUE: "the author of that value",
    Reason.HELD: "the administrator of Unwind",
    Reason.PROTECTED: "the user who protected it",
    Reason.EXTERNAL_RESOURCE: "unwind",
}
# The API server's conditions of a Namespace that is being deleted. Only they name the finalizers of its contents. The
# counts in them change all the time.
_IN_CONTENT = re.compile(r"([^\s,:]+) in \d+ resource instances?")
_COUNTED = re.compile(r"([^\s,:]+?)\.? has \d+ resource instances?")


# Prefix of the actor of a finalizer without a known controller.
_UNSERVED = "the controller of "
_FOR_A_PERSON = frozenset(
    [
        Reason.FINALIZER_NOT_SERVED,
        Reason.API_NOT_SERVED,
        Reason.UNAUTHENTICATED,
        Reason.UNKNOWN_VALUE,
        Reason.HELD,
        Reason.PAUSED,
        Reason.POLICY_CONFLICT,
        Reason.PROTECTED,
        Reason.SUSPENDED,
    ]
)


class HoldCause(msgspec.Struct, frozen=True):
    """One reason why an object is blocked."""

    reason: str
    message: str
    actor: str
    short: str = ""
    """Short form, used if another cause is reported first; the message if empty."""


def urgency(reason: str, actor: str) -> int:
    """Sort key of a blocker: 1 if a user must act, 3 if it is only being deleted, 2 otherwise. 0 if the cluster does
    not answer: all that is known about it may be old."""
    if reason == Reason.UNREACHABLE:
        return 0
    if reason in _FOR_A_PERSON or actor.startswith(_UNSERVED):
        return 1
    return 3 if reason == Reason.DELETING else 2


def actor_of(reason: str) -> str:
    """Who must act on a failure with this reason."""
    return _ACTORS.get(reason, "the owner of the object; Unwind retries")


def blockers(
    waits: Iterable[StepWait],
    *,
    seen: Mapping[ObjectRef, ObjectFacts],
    workloads: Sequence[ControllerWorkload] = (),
    before: Iterable[Blocker] = (),
    now: datetime,
    shown: int = BLOCKERS_SHOWN,
) -> tuple[Blocker, ...]:
    """The first blockers: those that need a user first, then by namespace, kind and name. `before`: the previous
    blockers, which say since when each one blocks."""
    since = {(blocker.object, blocker.step): blocker.since for blocker in before}
    found = []
    for wait in waits:
        facts = seen.get(wait.object)
        began = (facts.deleted_at if facts else None) or since.get((wait.object, wait.step)) or now
        it = cause(wait, facts, workloads)
        found.append(
            Blocker(
                object=wait.object,
                step=wait.step,
                reason=it.reason,
                message=it.message,
                actor=it.actor,
                since=began.replace(microsecond=0),
            )
        )
    found.sort(
        key=lambda one: (
            urgency(one.reason, one.actor),
            one.object.namespace,
            one.object.kind,
            one.object.name,
            one.step,
        )
    )
    return tuple(found[:shown])


def cause(wait: StepWait, seen: ObjectFacts | None, workloads: Sequence[ControllerWorkload] = ()) -> HoldCause:
    """What blocks one object. Without observed facts, the message of the removal."""
    if wait.failed or wait.reason in _ACTORS:
        return HoldCause(wait.reason, wait.message, actor_of(wait.reason))
    if seen is None:
        return HoldCause(wait.reason, wait.message, "")
    if seen.deleted_at is None:
        # Its deletion was not requested yet: Unwind waits for something else first.
        return HoldCause(wait.reason, wait.message, "unwind")
    causes = [*_told_by_the_server(wait.object, seen, workloads), *_held(wait.object, seen.finalizers, workloads)]
    if causes:
        first = min(causes, key=lambda one: (urgency(one.reason, one.actor), _URGENCY.index(Reason(one.reason))))
        others = [item.short or item.message for item in causes if item is not first]
        also = f" (also: {'; '.join(others)})" if others else ""
        return HoldCause(first.reason, f"{first.message}{also}", first.actor)
    if wait.object.kind == "Pod" and not wait.object.group:
        return HoldCause(Reason.DELETING, f"{wait.object} is being stopped", "the kubelet of its node")
    return HoldCause(Reason.DELETING, wait.message, "Kubernetes (API server)")


def _held(ref: ObjectRef, finalizers: Iterable[str], workloads: Sequence[ControllerWorkload]) -> list[HoldCause]:
    return [_by_finalizer(str(ref), fromkey, workloads, kind=ref.kind) for fromkey in dict.fromkeys(finalizers)]


def _by_finalizer(holder: str, finalizer: str, workloads: Sequence[ControllerWorkload], *, kind: str = "") -> HoldCause:
    known, short = known_controller(finalizer, kind), f"finalizer {finalizer}"
    if known:
        own = own_workload(known, workloads)
        if own and not own.running:
            message = f"{holder}: blocked by {short} (waiting for {known.waits_for}; {own.object} is not running)"
            return HoldCause(Reason.FINALIZER_NOT_SERVED, message, f"the owner of {own.object}", short)
        return HoldCause(
            known.reason, f"{holder}: blocked by {short} (waiting for {known.waits_for})", known.actor, short
        )
    workload = serving(finalizer, workloads)
    if workload is None:
        message = f"{holder}: blocked by {short} (no controller found)"
        return HoldCause(Reason.FINALIZER, message, f"{_UNSERVED}{domain(finalizer)}", short)
    if workload.running:
        message = f"{holder}: blocked by {short} (its controller seems to be {workload.object}, which is running)"
        return HoldCause(Reason.FINALIZER, message, str(workload.object), short)
    message = f"{holder}: blocked by {short} (its controller seems to be {workload.object}, which is not running)"
    return HoldCause(Reason.FINALIZER_NOT_SERVED, message, f"the owner of {workload.object}", short)


def _told_by_the_server(ref: ObjectRef, seen: ObjectFacts, workloads: Sequence[ControllerWorkload]) -> list[HoldCause]:
    """What the conditions of a Namespace that is being deleted report."""
    if NAMESPACE_FINALIZER not in seen.finalizers:
        return []
    said = {condition.type: condition.message for condition in seen.conditions if condition.status == "True"}
    causes: list[HoldCause] = []
    for failure in ("NamespaceDeletionDiscoveryFailure", "NamespaceDeletionGroupVersionParsingFailure"):
        if failure in said:
            message = f"{ref}: part of the API is unavailable, so its contents cannot be listed: {said[failure]}"
            causes.append(HoldCause(Reason.API_NOT_SERVED, message, "the owner of that API server or its APIService"))
    if "NamespaceFinalizersRemaining" in said:
        told = said["NamespaceFinalizersRemaining"]
        named = sorted(_IN_CONTENT.findall(told))
        causes += [_by_finalizer(f"an object in {ref}", item, workloads) for item in named]
        if not named:
            causes.append(HoldCause(Reason.HOLDS_OTHERS, f"{ref}: {told}", "the controllers of these finalizers"))
    elif "NamespaceContentRemaining" in said:
        told = said["NamespaceContentRemaining"]
        kinds = ", ".join(sorted(_COUNTED.findall(told))) or told
        causes.append(
            HoldCause(Reason.HOLDS_OTHERS, f"{ref} still contains {kinds}", "Kubernetes (namespace controller)")
        )
    if "NamespaceDeletionContentFailure" in said:
        message = f"{ref}: an object in it cannot be deleted: {said['NamespaceDeletionContentFailure']}"
        causes.append(HoldCause(Reason.HOLDS_OTHERS, message, "the owner of the webhook or policy that denies it"))
    return causes
