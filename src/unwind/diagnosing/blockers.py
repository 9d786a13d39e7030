"""Why an object is still there, and who must act (pure).

The words are the same for the same facts, with no time and no number that flaps in them: they end up in conditions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Reason
from unwind.api.unwind import BLOCKERS_SHOWN, Blocker
from unwind.diagnosing.finalizers import NAMESPACE_FINALIZER, domain, served, serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.diagnosing.facts import Seen, Wait, Workload

# The first of these that is found is what a person should know of; the others mostly come right by themselves.
_URGENCY = (
    Reason.FINALIZER_NOT_SERVED,
    Reason.API_NOT_SERVED,
    Reason.FINALIZER,
    Reason.IN_USE,
    Reason.HOLDS_OTHERS,
    Reason.OWNS_OTHERS,
)
_ACTORS: dict[str, str] = {
    Reason.UNREACHABLE: "whoever runs the member",
    Reason.UNAUTHENTICATED: "whoever runs unwind",
    Reason.UNKNOWN_VALUE: "whoever wrote that value",
    Reason.HELD: "whoever runs unwind",
}
# What the API server says of a Namespace that is being deleted. There is no other place where it names finalizers of
# what is in it; the counts beside them change all the time.
_IN_CONTENT = re.compile(r"([^\s,:]+) in \d+ resource instances?")
_COUNTED = re.compile(r"([^\s,:]+?)\.? has \d+ resource instances?")


# The actor of a finalizer that nothing on the cluster is known to serve begins with this.
_UNSERVED = "the controller of "
_FOR_A_PERSON = frozenset(
    [
        Reason.FINALIZER_NOT_SERVED,
        Reason.API_NOT_SERVED,
        Reason.UNREACHABLE,
        Reason.UNAUTHENTICATED,
        Reason.UNKNOWN_VALUE,
        Reason.HELD,
    ]
)


class Cause(msgspec.Struct, frozen=True):
    """One thing that holds an object."""

    reason: str
    message: str
    actor: str
    short: str = ""
    """What it is in a few words, where another cause is told first; the message if empty."""


def urgency(reason: str, actor: str) -> int:
    """Where a blocker stands among others: 0 if it needs a person, 2 if it is only on its way out, 1 otherwise."""
    if reason in _FOR_A_PERSON or actor.startswith(_UNSERVED):
        return 0
    return 2 if reason == Reason.DELETING else 1


def blockers(
    waits: Iterable[Wait],
    *,
    seen: Mapping[ObjectRef, Seen],
    workloads: Sequence[Workload] = (),
    before: Iterable[Blocker] = (),
    now: datetime,
    shown: int = BLOCKERS_SHOWN,
) -> tuple[Blocker, ...]:
    """What is waited for: what needs a person first, then by namespace, kind and name; the first of them. `before`:
    what was said of it last, for since when it is."""
    since = {(one.object, one.step): one.since for one in before}
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


def cause(wait: Wait, seen: Seen | None, workloads: Sequence[Workload] = ()) -> Cause:
    """Why one object is still there. Without facts about it, in the words of who waits."""
    if wait.failed:
        return Cause(wait.reason, wait.message, _ACTORS.get(wait.reason, "whoever can mend it; unwind tries again"))
    if seen is None:
        return Cause(wait.reason, wait.message, "")
    if seen.deleted_at is None:
        # Nobody has asked for its deletion: unwind itself waits for something else first.
        return Cause(wait.reason, wait.message, "unwind")
    causes = [*_told_by_the_server(wait.object, seen, workloads), *_held(wait.object, seen.finalizers, workloads)]
    if causes:
        first = min(causes, key=lambda one: (urgency(one.reason, one.actor), _URGENCY.index(Reason(one.reason))))
        others = [one.short or one.message for one in causes if one is not first]
        also = f" (also {'; '.join(others)})" if others else ""
        return Cause(first.reason, f"{first.message}{also}", first.actor)
    if wait.object.kind == "Pod" and not wait.object.group:
        return Cause(Reason.DELETING, f"{wait.object} is being stopped", "the kubelet of its node")
    return Cause(Reason.DELETING, wait.message, "Kubernetes (the API server)")


def _held(ref: ObjectRef, finalizers: Iterable[str], workloads: Sequence[Workload]) -> list[Cause]:
    return [_by_finalizer(str(ref), one, workloads) for one in dict.fromkeys(finalizers)]


def _by_finalizer(holder: str, finalizer: str, workloads: Sequence[Workload]) -> Cause:
    known, short = served(finalizer), f"the finalizer {finalizer}"
    if known:
        return Cause(known.reason, f"{holder} has {short}: {known.waits_for}", known.actor, short)
    workload = serving(finalizer, workloads)
    if workload is None:
        message = f"{holder} has {short}, and nothing here is known to serve it"
        return Cause(Reason.FINALIZER, message, f"{_UNSERVED}{domain(finalizer)}", short)
    if workload.running:
        message = f"{holder} has {short}, which {workload.object} seems to serve"
        return Cause(Reason.FINALIZER, message, str(workload.object), short)
    message = f"{holder} has {short}, and {workload.object}, which seems to serve it, does not run"
    return Cause(Reason.FINALIZER_NOT_SERVED, message, f"whoever runs {workload.object}", short)


def _told_by_the_server(ref: ObjectRef, seen: Seen, workloads: Sequence[Workload]) -> list[Cause]:
    """What the conditions of a Namespace that is being deleted say."""
    if NAMESPACE_FINALIZER not in seen.finalizers:
        return []
    said = {one.type: one.message for one in seen.conditions if one.status == "True"}
    causes: list[Cause] = []
    for failure in ("NamespaceDeletionDiscoveryFailure", "NamespaceDeletionGroupVersionParsingFailure"):
        if failure in said:
            message = f"part of the API does not answer, so {ref} cannot go: {said[failure]}"
            causes.append(Cause(Reason.API_NOT_SERVED, message, "whoever runs that API's server, or its APIService"))
    if "NamespaceFinalizersRemaining" in said:
        told = said["NamespaceFinalizersRemaining"]
        named = sorted(_IN_CONTENT.findall(told))
        causes += [_by_finalizer(f"something in {ref}", one, workloads) for one in named]
        if not named:
            causes.append(Cause(Reason.HOLDS_OTHERS, f"{ref}: {told}", "whoever serves these finalizers"))
    elif "NamespaceContentRemaining" in said:
        told = said["NamespaceContentRemaining"]
        kinds = ", ".join(sorted(_COUNTED.findall(told))) or told
        causes.append(Cause(Reason.HOLDS_OTHERS, f"{ref} still holds {kinds}", "Kubernetes (its namespace controller)"))
    if "NamespaceDeletionContentFailure" in said:
        message = f"something in {ref} cannot be deleted: {said['NamespaceDeletionContentFailure']}"
        causes.append(Cause(Reason.HOLDS_OTHERS, message, "whoever refuses it"))
    return causes
