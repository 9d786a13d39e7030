"""Explains what blocks the deletion of a cluster, and what blocks its teardown, for `unwind why` (pure)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api import meta
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
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Cause, Phase
from unwind.server.path_segments import redacted
from unwind.why.answers import Effect, Finding, Remedy
from unwind.why.facts import cut
from unwind.why.terminating_objects import RUN, SHOWN, teardown_ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.capi import Cluster, ExtensionConfig
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Blocker, Teardown
    from unwind.why.answers import Kubectl
    from unwind.why.facts import ObjectSnapshot

_TOPOLOGY, _DELETING = "TopologyReconciled", "Deleting"
_HOOK = Hook.BEFORE_CLUSTER_DELETE.value
_BLOCKING = f"{_HOOK}: "
_WAITING = "waiting for add-on cleanup: "
# Handlers are named NAME.EXTENSION; NAME contains no dots.
_CALLED = re.compile(rf'{_HOOK}.*failed to call extension handler "[^".]+\.([^"]+)"', re.DOTALL)


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """An extension with a BeforeClusterDelete handler."""

    name: str
    behind: str
    """Its address: Service namespace/name, or a URL."""
    ours: bool = False


def extension(config: ExtensionConfig) -> Extension | None:
    """The extension of an ExtensionConfig; None if it has no BeforeClusterDelete handler."""
    if not any(handler.request_hook.hook == _HOOK for handler in config.status.handlers):
        return None
    way = config.spec.client_config
    behind = f"Service {way.service.namespace}/{way.service.name}" if way.service else redacted(way.url)
    ours = config.metadata.labels.get(MANAGED_BY_LABEL) == MANAGED_BY_UNWIND
    return Extension(name=config.metadata.name, behind=behind, ours=ours)


def cluster_findings(
    look: ObjectSnapshot, it: Cluster, kubectl: Kubectl, extensions: Iterable[Extension] = ()
) -> list[Finding]:
    """What blocks a Cluster API Cluster, besides its finalizers; empty if they explain it.

    `extensions`: those that Cluster API calls before it deletes the Cluster.
    """
    known = list(extensions)
    if it.paused:
        return [_paused(look, it, kubectl)]
    found: list[Finding] = []
    told = meta.find(it.status.conditions, _TOPOLOGY)
    deleting = meta.find(it.status.conditions, _DELETING)
    # The message contains the URL if Cluster API could not call an extension.
    message = redacted(told.message) if told and told.status == "False" else ""
    began = deleting or told
    since = began.last_transition_time if began else None
    standing = [item for item in look.teardowns if not item.finished]
    passed = OK_TO_DELETE_ANNOTATION in it.metadata.annotations
    if standing and not passed:
        found.append(
            Finding(
                reason=Reason.GATE,
                message="blocked by Unwind until its add-ons are removed, as their profiles require",
                actor="unwind",
                since=since,
                behind=tuple(teardown_ref(item) for item in standing),
            )
        )
    if not passed and (called := _CALLED.search(message)):
        found.append(_unanswered(look, called[1], message, known, kubectl))
    elif not passed and (others := _others(message, known, ours=bool(standing))):
        found.append(_extended(look, others, [item for item in known if not item.ours], kubectl))
    if not found and look.contents:
        names = ", ".join(str(item) for item in look.contents)
        found.append(
            Finding(
                reason=Reason.HOLDS_OTHERS,
                message=f"Cluster API waits for {names}"
                + (f": {cut(deleting.message)}" if deleting and deleting.message else ""),
                actor="Cluster API and the providers of these objects",
                since=since,
                behind=tuple(item.ref for item in look.contents[:SHOWN]),
            )
        )
    return found


def _paused(look: ObjectSnapshot, it: Cluster, kubectl: Kubectl) -> Finding:
    commands = []
    if it.spec.paused:
        commands.append(kubectl.merge(look.thing, {"spec": {"paused": False}}))
    if PAUSED_ANNOTATION in it.metadata.annotations:
        commands.append(kubectl.on("annotate", look.thing, f"{PAUSED_ANNOTATION}-"))
    return Finding(
        reason=Reason.PAUSED,
        message="the Cluster is paused, so Cluster API does not continue its deletion",
        actor="the user who paused it",
        remedies=(
            Remedy(
                commands=kubectl.lines(*commands),
                effect=Effect.SAFE,
                about="unpauses it; Cluster API continues the deletion",
            ),
        ),
    )


def _others(message: str, extensions: list[Extension], *, ours: bool) -> str:
    """The messages of other extensions, as far as they can be separated: Cluster API joins all messages into one
    text."""
    _, blocking, said = message.partition(_BLOCKING)
    if not blocking or all(item.ours for item in extensions):
        return ""
    # Unwind's message comes first or last, separated by commas; the text before it belongs to another extension.
    before, own, _ = said.partition(_WAITING)
    if own and ours:
        return before.strip(" ,")
    return said


def _unanswered(
    look: ObjectSnapshot, name: str, message: str, extensions: list[Extension], kubectl: Kubectl
) -> Finding:
    it = next((item for item in extensions if item.name == name), Extension(name=name, behind="its server"))
    told = f"Cluster API must call the extension {name} first, but {it.behind} does not answer: {cut(message)}"
    if not it.ours:
        return msgspec.structs.replace(_extended(look, "", [it], kubectl), message=told)
    return Finding(
        reason=Reason.UNREACHABLE if look.manager_runs else Reason.MANAGER_NOT_RUNNING,
        message=told if look.manager_runs else f"{told}; Unwind's manager is not running",
        actor="the administrator of Unwind",
        remedies=() if look.manager_runs else (RUN,),
    )


def _extended(look: ObjectSnapshot, said: str, extensions: list[Extension], kubectl: Kubectl) -> Finding:
    names = " or ".join(f"{item.name} ({item.behind})" for item in extensions) or "an unknown extension"
    skip = kubectl.on("annotate", look.thing, f"{OK_TO_DELETE_ANNOTATION}=")
    looks = kubectl.call("get", "extensionconfigs.runtime.cluster.x-k8s.io", "-o", "wide")
    return Finding(
        reason=Reason.EXTENSION,
        message=f"blocked by the Cluster API extension {names}: {cut(said)}",
        actor=f"the owner of {names}",
        remedies=(
            Remedy(commands=kubectl.lines(looks), effect=Effect.LOOKS, about="lists the extensions"),
            Remedy(
                commands=kubectl.lines(skip),
                effect=Effect.LEAVES,
                about="skips all extensions; their remaining cleanup is not done and not recorded",
            ),
        ),
    )


def teardown_findings(it: Teardown, kubectl: Kubectl, *, runs: bool | None) -> list[Finding]:
    """What blocks an unfinished teardown. `runs`: whether Unwind's manager is running; None if unknown."""
    found: list[Finding] = []
    if runs is False:
        found.append(
            Finding(
                reason=Reason.MANAGER_NOT_RUNNING,
                message="Unwind's manager is not running, so the teardown does not continue",
                actor="the administrator of Unwind",
                remedies=(RUN,),
            )
        )
    release = release_remedy(it, kubectl)
    blockers = _told_once(it.status.blockers)
    found += [_blocked(it, blocker, release) for blocker in blockers[:SHOWN]]
    if more := len(blockers[SHOWN:]):
        message = f"{more} more blockers; list them with `kubectl describe teardown {it.metadata.name}`"
        found.append(Finding(reason=Reason.DELETING, message=message, actor="unwind"))
    if it.spec.plan is None:
        unknown = meta.find(it.status.conditions, ConditionType.UNKNOWN_VALUE)
        said = unknown or meta.find(it.status.conditions, ConditionType.PLANNED)
        message = f"its plan is not computed yet{f': {cut(said.message)}' if said and said.message else ''}"
        actor = "the author of that value"
        if not unknown:
            actor, message = "unwind", f"{message}; the manager computes it, see its log if this lasts"
        found.append(Finding(reason=Reason.UNKNOWN_VALUE, message=message, actor=actor))
    if not found:
        progress = f"wave {it.status.wave}, {it.status.removed} objects removed" if it.status.wave else "starting"
        found.append(Finding(reason=Reason.DELETING, message=f"in progress: {progress}", actor="unwind"))
    return found


def phrase(it: Teardown) -> str:
    """A teardown and its progress, as a short sentence."""
    wave = f", wave {it.status.wave}" if it.status.wave else ""
    gone = f", {it.status.removed} objects removed" if it.status.removed else ""
    return f"the teardown of {it.spec.target} is not finished ({it.status.phase or Phase.PENDING.value}{wave}{gone})"


def release_remedy(it: Teardown, kubectl: Kubectl) -> Remedy | None:
    """Releases the target before everything is removed; None if users cannot release it."""
    if it.spec.cause not in (Cause.CLUSTER_DELETED, Cause.UNJOINED, Cause.WITHDRAWN, Cause.PRUNED):
        return None
    ref = it.spec.target
    where = ("-n", ref.namespace) if ref.namespace else ()
    plural = CLUSTER_SUMMARIES.plural if ref.kind == CLUSTER_SUMMARIES.kind else f"{ref.kind.lower()}s"
    kind = f"{plural}.{ref.group}/{ref.name}"
    given_up = it.status.blockers[0].object if it.status.blockers else "its objects"
    # The reason is recorded in the ledger, so the default says something useful even if the user does not change it.
    said = f"{FORCE_RELEASE_ANNOTATION}=given up on {given_up}"
    return Remedy(
        commands=(kubectl.call("annotate", *where, kind, said),),
        effect=Effect.LEAVES,
        about=f"releases {ref} and leaves its remaining objects behind; the ledger records each of them, and you",
    )


def _told_once(blockers: Iterable[Blocker]) -> list[Blocker]:
    """The blockers without repetitions: an unreachable member is reported once per step, whatever waits for it."""
    told: dict[tuple[str, ObjectRef | None], Blocker] = {}
    for blocker in blockers:
        told.setdefault((blocker.step, None if blocker.reason == Reason.UNREACHABLE else blocker.object), blocker)
    return list(told.values())


def _blocked(it: Teardown, blocker: Blocker, release: Remedy | None) -> Finding:
    remedies = (release,) if release else ()
    # A withdrawal that waits for another one: that is on the management cluster, too.
    member = it.spec.member or it.spec.target
    first = blocker.reason == Reason.WAITING and it.spec.member is not None
    itself = bool(blocker.object.uid) and blocker.object.uid in (it.spec.target.uid, member.uid)
    if blocker.reason == Reason.UNREACHABLE or itself:
        return Finding(
            reason=blocker.reason,
            message=f"{blocker.step}: {cut(blocker.message) or f'{blocker.object} does not answer'}",
            actor=blocker.actor or "the administrator of the member cluster",
            since=blocker.since,
            remedies=remedies,
        )
    return Finding(
        reason=blocker.reason,
        message=f"{blocker.step} waits for {blocker.object}"
        + ("" if first else f" on {member}")
        + (f": {cut(blocker.message)}" if blocker.message else ""),
        actor=blocker.actor,
        since=blocker.since,
        behind=(blocker.object,),
        elsewhere=None if first else member,
        remedies=remedies,
    )
