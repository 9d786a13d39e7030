"""What holds a cluster that is being deleted, and what holds its teardown (pure)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api import conditions
from unwind.api.hooks import Hook
from unwind.api.names import (
    FORCE_RELEASE_ANNOTATION,
    MANAGED_BY_LABEL,
    MANAGED_BY_UNWIND,
    OK_TO_DELETE_ANNOTATION,
    PAUSED_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.api.unwind import Cause, Phase
from unwind.diagnosing.answers import Effect, Finding, Remedy
from unwind.diagnosing.holding import RUN, SHOWN, teardown_ref
from unwind.diagnosing.looks import cut
from unwind.segments import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.capi import Cluster, ExtensionConfig
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Teardown
    from unwind.diagnosing.commands import Kubectl
    from unwind.diagnosing.looks import Look

_TOPOLOGY, _DELETING = "TopologyReconciled", "Deleting"
_HOOK = Hook.BEFORE_CLUSTER_DELETE.value
_BLOCKING = f"{_HOOK}: "
_WAITING = "waiting for add-on cleanup: "
# Handlers are called NAME.EXTENSION; the first has no dots in it.
_CALLED = re.compile(rf'{_HOOK}.*failed to call extension handler "[^".]+\.([^"]+)"', re.DOTALL)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """An extension of Cluster API that is asked before a cluster goes."""

    name: str
    behind: str
    """Who is asked: Service namespace/name, or a URL."""
    ours: bool = False


def extension(config: ExtensionConfig) -> Extension | None:
    """What Cluster API knows of it; None if it is not asked about deletions."""
    if not any(one.request_hook.hook == _HOOK for one in config.status.handlers):
        return None
    way = config.spec.client_config
    behind = f"Service {way.service.namespace}/{way.service.name}" if way.service else redacted(way.url)
    ours = config.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY_UNWIND
    return Extension(name=config.metadata.name, behind=behind, ours=ours)


def cluster(look: Look, it: Cluster, kubectl: Kubectl, extensions: Iterable[Extension] = ()) -> list[Finding]:
    """What holds a Cluster of Cluster API, beyond its finalizers; nothing if they say it all.

    `extensions`: those that are asked before it goes.
    """
    known = list(extensions)
    if it.paused:
        return [_paused(look, it, kubectl)]
    found: list[Finding] = []
    told = conditions.find(it.status.conditions, _TOPOLOGY)
    deleting = conditions.find(it.status.conditions, _DELETING)
    # With the URL in it where Cluster API could not call an extension.
    message = redacted(told.message) if told and told.status == "False" else ""
    began = deleting or told
    since = began.last_transition_time if began else None
    standing = [one for one in look.teardowns if not one.finished]
    passed = OK_TO_DELETE_ANNOTATION in it.metadata.annotations
    if standing and not passed:
        found.append(
            Finding(
                reason=Reason.GATE,
                message="Unwind holds it until its add-ons are gone, as their profiles ask for",
                actor="unwind",
                since=since,
                behind=tuple(teardown_ref(one) for one in standing),
            )
        )
    if not passed and (called := _CALLED.search(message)):
        found.append(_unanswered(look, called[1], message, known, kubectl))
    elif not passed and (others := _others(message, known, ours=bool(standing))):
        found.append(_extended(look, others, [one for one in known if not one.ours], kubectl))
    if not found and look.contents:
        names = ", ".join(str(one) for one in look.contents)
        found.append(
            Finding(
                reason=Reason.HOLDS_OTHERS,
                message=f"Cluster API takes it apart, and waits for {names}"
                + (f": {cut(deleting.message)}" if deleting and deleting.message else ""),
                actor="Cluster API, and the providers that these belong to",
                since=since,
                behind=tuple(one.ref for one in look.contents[:SHOWN]),
            )
        )
    return found


def _paused(look: Look, it: Cluster, kubectl: Kubectl) -> Finding:
    commands = []
    if it.spec.paused:
        commands.append(kubectl.merge(look.thing, {"spec": {"paused": False}}))
    if PAUSED_ANNOTATION in it.metadata.annotations:
        commands.append(kubectl.on("annotate", look.thing, f"{PAUSED_ANNOTATION}-"))
    return Finding(
        reason=Reason.PAUSED,
        message="it is paused, so Cluster API does nothing about its deletion",
        actor="whoever paused it",
        remedies=(
            Remedy(
                commands=kubectl.lines(*commands), effect=Effect.SAFE, about="Cluster API goes on with its deletion"
            ),
        ),
    )


def _others(message: str, extensions: list[Extension], *, ours: bool) -> str:
    """What extensions other than ours say, as far as it can be told from what Cluster API made one text of."""
    _, blocking, said = message.partition(_BLOCKING)
    if not blocking or all(one.ours for one in extensions):
        return ""
    # Ours comes first or last, the texts are joined with commas; what stands before ours is somebody else's.
    before, own, _ = said.partition(_WAITING)
    if own and ours:
        return before.strip(" ,")
    return said


def _unanswered(look: Look, name: str, message: str, extensions: list[Extension], kubectl: Kubectl) -> Finding:
    it = next((one for one in extensions if one.name == name), Extension(name=name, behind="an address not known here"))
    told = (
        f"Cluster API has to ask the extension {name} before it goes, and {it.behind} does not answer: {cut(message)}"
    )
    if not it.ours:
        return msgspec.structs.replace(_extended(look, "", [it], kubectl), message=told)
    return Finding(
        reason=Reason.UNREACHABLE if look.manager_runs else Reason.MANAGER_NOT_RUNNING,
        message=told if look.manager_runs else f"{told}; Unwind's manager does not run",
        actor="whoever runs unwind",
        remedies=() if look.manager_runs else (RUN,),
    )


def _extended(look: Look, said: str, extensions: list[Extension], kubectl: Kubectl) -> Finding:
    names = " or ".join(f"{one.name} ({one.behind})" for one in extensions) or "one that is not known"
    skip = kubectl.on("annotate", look.thing, f"{OK_TO_DELETE_ANNOTATION}=")
    looks = kubectl.call("get", "extensionconfigs.runtime.cluster.x-k8s.io", "-o", "wide")
    return Finding(
        reason=Reason.EXTENSION,
        message=f"Cluster API asks an extension before it goes, and {names} does not let it: {cut(said)}",
        actor=f"only whoever runs {names} can let it go",
        remedies=(
            Remedy(commands=kubectl.lines(looks), effect=Effect.LOOKS, about="which extensions there are"),
            Remedy(
                commands=kubectl.lines(skip),
                effect=Effect.LEAVES,
                about="no extension is asked any more: what each still had to do stays undone, and nobody notes it",
            ),
        ),
    )


def teardown(it: Teardown, kubectl: Kubectl, *, runs: bool | None) -> list[Finding]:
    """What holds a teardown that is not over. `runs`: whether Unwind's manager does; None if that is not known."""
    found: list[Finding] = []
    if runs is False:
        found.append(
            Finding(
                reason=Reason.MANAGER_NOT_RUNNING,
                message="Unwind's manager does not run, so nobody goes on with it",
                actor="whoever runs unwind",
                remedies=(RUN,),
            )
        )
    release = released(it, kubectl)
    blockers = _told_once(it.status.blockers)
    found += [_blocked(it, one, release) for one in blockers[:SHOWN]]
    if more := len(blockers[SHOWN:]):
        message = f"{more} more are in the way, which `kubectl describe teardown {it.metadata.name}` names"
        found.append(Finding(reason=Reason.DELETING, message=message, actor="unwind"))
    if it.spec.plan is None:
        said = conditions.find(it.status.conditions, ConditionType.UNKNOWN_VALUE) or conditions.find(
            it.status.conditions, ConditionType.PLANNED
        )
        message = f"its plan is not made{f': {cut(said.message)}' if said and said.message else ''}"
        found.append(Finding(reason=Reason.UNKNOWN_VALUE, message=message, actor="whoever wrote that value"))
    if not found:
        progress = f"wave {it.status.wave}, {it.status.removed} objects gone" if it.status.wave else "it begins"
        found.append(Finding(reason=Reason.DELETING, message=f"it goes on: {progress}", actor="unwind"))
    return found


def phrase(it: Teardown) -> str:
    """What a teardown is, and how far it has come, in a few words."""
    wave = f", wave {it.status.wave}" if it.status.wave else ""
    gone = f", {it.status.removed} objects gone" if it.status.removed else ""
    return f"the teardown of {it.spec.target} is not over ({it.status.phase or Phase.PENDING.value}{wave}{gone})"


def released(it: Teardown, kubectl: Kubectl) -> Remedy | None:
    """The target let go before everything is removed, where a person may do that."""
    if it.spec.cause not in (Cause.CLUSTER_DELETED, Cause.UNJOINED):
        return None
    ref = it.spec.target
    where = ("-n", ref.namespace) if ref.namespace else ()
    kind = f"{ref.kind.lower()}s.{ref.group}/{ref.name}"
    given_up = it.status.blockers[0].object if it.status.blockers else "what is on it"
    # The reason goes into the ledger: it says something even where nobody puts it into other words.
    said = f"{FORCE_RELEASE_ANNOTATION}=given up on {given_up}"
    return Remedy(
        commands=(kubectl.call("annotate", *where, kind, said),),
        effect=Effect.LEAVES,
        about=f"{ref} goes, and what is still on it stays as it is; the ledger names each object, and you",
    )


def _told_once(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Those that say something of their own: one that does not answer is in the way once, whatever waits for it."""
    told: dict[tuple[str, ObjectRef | None], Blocker] = {}
    for one in blockers:
        told.setdefault((one.step, None if one.reason == Reason.UNREACHABLE else one.object), one)
    return list(told.values())


def _blocked(it: Teardown, blocker: Blocker, release: Remedy | None) -> Finding:
    remedies = (release,) if release else ()
    itself = blocker.object.uid == it.spec.target.uid
    if blocker.reason == Reason.UNREACHABLE or itself:
        return Finding(
            reason=blocker.reason,
            message=f"{blocker.step} waits: {cut(blocker.message) or f'{blocker.object} does not answer'}",
            actor=blocker.actor or "whoever runs the member",
            since=blocker.since,
            remedies=remedies,
        )
    return Finding(
        reason=blocker.reason,
        message=f"{blocker.step} waits for {blocker.object} on {it.spec.target}"
        + (f": {cut(blocker.message)}" if blocker.message else ""),
        actor=blocker.actor,
        since=blocker.since,
        behind=(blocker.object,),
        elsewhere=it.spec.target,
        remedies=remedies,
    )
