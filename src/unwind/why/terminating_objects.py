"""Explains what blocks the deletion of an object that has a deletionTimestamp (pure).

Each rule says what blocks the object, who must act, and which commands unblock it. A remedy that removes a finalizer by
force always says what it leaves behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Finalizer, Reason
from unwind.api.resources import Resource
from unwind.api.unwind import TEARDOWNS
from unwind.why.answers import Effect, Finding, Remedy, Thing, without
from unwind.why.facts import cut
from unwind.why.finalizers import NAMESPACE_FINALIZER, domain, known_controller, own_workload, serving

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Teardown
    from unwind.why.answers import Kubectl
    from unwind.why.facts import ControllerWorkload, ObjectSnapshot, Silent, Unlisted
    from unwind.why.finalizers import Duty

RUN = Remedy(
    commands=("unwind run",),
    effect=Effect.SAFE,
    about="starts the manager outside of the cluster. If it runs in the cluster, see why its Pods do not:"
    " `kubectl get deployments,pods --all-namespaces --selector app.kubernetes.io/name=unwind`",
)
SHOWN = 4
"""Maximum number of waited-for objects to diagnose."""
_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_CLAIM, _VOLUME = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"
_OWNING = ("foregroundDeletion", "orphan")
_SCALED = ("Deployment", "StatefulSet", "ReplicaSet")
_GARBAGE_COLLECTOR = "Kubernetes (garbage collector)"


def hold_findings(
    look: ObjectSnapshot, kubectl: Kubectl, *, now: datetime, besides: Collection[str] = ()
) -> list[Finding]:
    """All findings; empty if the object is about to disappear. `besides`: finalizers that are already explained."""
    found: list[Finding] = []
    # In reverse order: when several finalizers are removed one after the other, the indexes of the earlier ones stay.
    for place, finalizer in reversed(list(enumerate(look.seen.finalizers))):
        if finalizer in besides:
            continue
        if finalizer == NAMESPACE_FINALIZER and look.thing.resource.kind == "Namespace":
            found += _namespace(look, kubectl)
        elif finalizer == _CLEANUP:
            found += _definition(look, kubectl)
        elif finalizer in _OWNING:
            found.append(_owning(look, finalizer))
        elif finalizer in (_CLAIM, _VOLUME):
            found.append(_used(look, finalizer))
        else:
            found.append(_by_finalizer(look, finalizer, place, kubectl))
    # During the grace period the kubelet has not confirmed that the Pod has stopped, whatever else blocks it.
    ending = not look.seen.finalizers or look.grace > 0
    if ending and (look.thing.resource.group, look.thing.resource.kind) == ("", "Pod"):
        found.append(_stopping(look, kubectl, now=now))
    return found


def undeleted_findings(look: ObjectSnapshot, kubectl: Kubectl) -> Finding:
    """What to do about an object whose deletion was not requested although another object waits for it."""
    thing = look.thing
    if (thing.resource.group, thing.resource.kind) == ("", "Pod"):
        return _running(look, kubectl)
    about = f"deletes {thing}"
    if (thing.resource.group, thing.resource.kind) == ("", "PersistentVolumeClaim"):
        about += ", and its users lose the data on its volume"
    return Finding(
        reason=Reason.STANDING,
        message="its deletion was not requested" + ("; it is in use" if look.users else ""),
        actor="its owner",
        behind=_first(look.users),
        stands=True,
        remedies=(Remedy(commands=kubectl.lines(kubectl.delete(thing)), effect=Effect.DELETES, about=about),),
    )


def _running(look: ObjectSnapshot, kubectl: Kubectl) -> Finding:
    thing, controller = look.thing, look.controller
    if controller is None:
        about = f"stops {thing}; no controller recreates it"
        remedy = Remedy(commands=kubectl.lines(kubectl.delete(thing)), effect=Effect.DELETES, about=about)
        return Finding(
            reason=Reason.STANDING,
            message="it is running and its deletion was not requested",
            actor="its owner",
            remedies=(remedy,),
        )
    if controller.resource.kind in _SCALED:
        command, effect = kubectl.scale(controller, 0), Effect.SAFE
        about = f"stops all Pods of {controller}; scale it up again later"
    else:
        command, effect = kubectl.delete(controller), Effect.DELETES
        about = f"deletes {controller} and its Pods"
    return Finding(
        reason=Reason.STANDING,
        message=f"it is running, and {controller} would recreate it",
        actor=f"the owner of {controller}",
        remedies=(Remedy(commands=kubectl.lines(command), effect=effect, about=about),),
    )


def conversion(unlisted: Unlisted, kubectl: Kubectl) -> Finding:
    """A kind whose objects cannot be read because its conversion webhook does not answer."""
    definition = unlisted.definition
    if definition is None or not unlisted.converts:
        return Finding(
            reason=Reason.API_NOT_SERVED,
            message=f"cannot list {unlisted.kind} objects: {cut(unlisted.error)}; retry; if it lasts, see the log of"
            " the server of this API",
            actor="the owner of that API",
        )
    off = kubectl.merge(definition, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    remedy = Remedy(
        commands=kubectl.lines(off),
        effect=Effect.LEAVES,
        about=f"{unlisted.kind} objects are served as stored, without conversion between versions; "
        f"apply the CRD {definition.name} again to restore the webhook",
    )
    return Finding(
        reason=Reason.WEBHOOK_SILENT,
        message=f"the conversion webhook of {definition} ({unlisted.converts}) does not answer, so "
        f"{unlisted.kind} objects cannot be read: {cut(unlisted.error)}",
        actor=f"the owner of {unlisted.converts}",
        remedies=(*started(unlisted.workload, kubectl), remedy),
    )


def teardown_ref(it: Teardown) -> ObjectRef:
    return Thing(resource=TEARDOWNS, name=it.metadata.name, uid=it.metadata.uid).ref


def taken_off(look: ObjectSnapshot, place: int, kubectl: Kubectl, about: str) -> Remedy:
    """Removes a finalizer by hand."""
    finalizer = look.seen.finalizers[place]
    command = kubectl.patch(look.thing, without("/metadata/finalizers", place, finalizer))
    return Remedy(commands=kubectl.lines(command), effect=Effect.LEAVES, about=about)


def _namespace(look: ObjectSnapshot, kubectl: Kubectl) -> list[Finding]:
    found = [_silent(item, kubectl) for item in look.silent]
    return found + _container(
        look,
        kubectl,
        contents="contents",
        actor="Kubernetes (namespace controller)",
        empty="" if found else "it is empty; the namespace controller removes it within a minute",
    )


def _silent(one: Silent, kubectl: Kubectl) -> Finding:
    remedy = Remedy(
        commands=kubectl.lines(kubectl.delete(one.service)),
        effect=Effect.LEAVES,
        about=f"the API {one.service.name} is no longer served, and the objects of its server stay there unseen; "
        "register the APIService again when its server is back",
    )
    behind = f" (Service {one.behind})" if one.behind else ""
    return Finding(
        reason=Reason.API_NOT_SERVED,
        message=f"the API {one.service.name} does not answer{behind}, so its objects "
        f"cannot be listed: {cut(one.message)}",
        actor=f"the owner of Service {one.behind}" if one.behind else "the owner of that API server",
        since=one.since,
        remedies=(*started(one.workload, kubectl), remedy),
    )


def _definition(look: ObjectSnapshot, kubectl: Kubectl) -> list[Finding]:
    return _container(
        look,
        kubectl,
        contents="custom resources",
        actor="Kubernetes (API server)",
        empty="no custom resources are left; the API server removes it shortly",
    )


def _container(look: ObjectSnapshot, kubectl: Kubectl, *, contents: str, actor: str, empty: str) -> list[Finding]:
    """What is left in a Namespace, or of the kind of a CRD. `empty`: the message if nothing is."""
    found = [conversion(item, kubectl) for item in look.unlisted]
    if look.contents:
        message = f"its {contents} must be deleted first: {_some(look.contents)}"
        found.append(Finding(reason=Reason.HOLDS_OTHERS, message=message, actor=actor, behind=_first(look.contents)))
    if empty and not found:
        found.append(Finding(reason=Reason.DELETING, message=empty, actor=actor))
    return found


def _owning(look: ObjectSnapshot, finalizer: str) -> Finding:
    if not look.dependents:
        message = "no blocking dependents are left; the garbage collector removes it shortly"
        return Finding(reason=Reason.DELETING, message=message, actor=_GARBAGE_COLLECTOR)
    how = "deleted first (foreground deletion)" if finalizer == "foregroundDeletion" else "orphaned first"
    return Finding(
        reason=Reason.OWNS_OTHERS,
        message=f"its dependents must be {how}: {_some(look.dependents)}",
        actor=_GARBAGE_COLLECTOR,
        behind=_first(look.dependents),
    )


def _used(look: ObjectSnapshot, finalizer: str) -> Finding:
    what = "Pods use it" if finalizer == _CLAIM else "a PersistentVolumeClaim is bound to it"
    if not look.users:
        unused = "no Pod uses it" if finalizer == _CLAIM else "no PersistentVolumeClaim is bound to it"
        message = f"{unused}; Kubernetes removes it shortly"
        return Finding(reason=Reason.DELETING, message=message, actor="Kubernetes (storage protection controller)")
    return Finding(
        reason=Reason.IN_USE,
        message=f"{what}: {_some(look.users)}",
        actor="the owner of these Pods" if finalizer == _CLAIM else "the owner of the PersistentVolumeClaim",
        behind=_first(look.users),
        stands=True,
    )


def _by_finalizer(look: ObjectSnapshot, finalizer: str, place: int, kubectl: Kubectl) -> Finding:
    holds = f"blocked by finalizer {finalizer}"
    if finalizer in tuple(Finalizer) and look.manager_runs is False:
        return Finding(
            reason=Reason.MANAGER_NOT_RUNNING,
            message=f"{holds} of Unwind, whose manager is not running",
            actor="the administrator of Unwind",
            remedies=(RUN,),
        )
    known = known_controller(finalizer, look.thing.resource.kind)
    if known:
        return _known_finalizer(look, finalizer, place, known, kubectl)
    workload = serving(finalizer, look.workloads, look.writers.get(finalizer, ()))
    whose = domain(finalizer)
    undone = f"skips the cleanup that the controller of {whose} still has to do for it"
    force = taken_off(look, place, kubectl, undone)
    if workload is None:
        return Finding(
            reason=Reason.FINALIZER,
            message=f"{holds} (no controller found{_writer(look, finalizer)}){_last_words(look)}",
            actor=f"the controller of {whose}, if it still exists",
            remedies=(force,),
        )
    if workload.running:
        return Finding(
            reason=Reason.FINALIZER,
            message=f"{holds} (its controller seems to be {workload.object}, which is running){_last_words(look)}",
            actor=f"{workload.object}, or its owner if it keeps failing",
            remedies=(
                Remedy(
                    commands=kubectl.lines(kubectl.on("logs", _thing(workload), "--tail=50")),
                    effect=Effect.LOOKS,
                    about="shows the logs of the controller",
                ),
                force,
            ),
        )
    return _not_served(look, holds, workload, force, kubectl)


def _known_finalizer(look: ObjectSnapshot, finalizer: str, place: int, known: Duty, kubectl: Kubectl) -> Finding:
    workload = own_workload(known, look.workloads)
    stopped = workload is not None and not workload.running
    runs = f"; {workload.object} is not running" if workload and stopped else ""
    states = "".join(f"; {state}" for state in look.states)
    waits = Finding(
        reason=Reason.FINALIZER_NOT_SERVED if stopped else known.reason,
        message=f"blocked by finalizer {finalizer} (waiting for {known.waits_for}{runs}){states}{_last_words(look)}",
        actor=f"the owner of {workload.object}" if workload and stopped else known.actor,
    )
    if finalizer in tuple(Finalizer):
        return _ours(look, waits)
    undone = f"skips the cleanup that {known.actor} still has to do for it"
    return msgspec.structs.replace(
        waits, remedies=(*started(workload, kubectl), taken_off(look, place, kubectl, undone))
    )


def _ours(look: ObjectSnapshot, waits: Finding) -> Finding:
    """A finalizer of Unwind: the objects that it waits for are known, and no remedy removes it by hand."""
    if look.teardowns:
        return msgspec.structs.replace(waits, behind=tuple(teardown_ref(teardown) for teardown in look.teardowns))
    if look.placed:
        left = f"{waits.message}; {len(look.placed)} of its objects are not verified absent"
        return msgspec.structs.replace(waits, message=left, behind=look.placed[:SHOWN], elsewhere=look.placed_on)
    return msgspec.structs.replace(waits, behind=_first(look.dependents))


def _not_served(
    look: ObjectSnapshot, holds: str, workload: ControllerWorkload, force: Remedy, kubectl: Kubectl
) -> Finding:
    why = "is scaled to zero" if workload.wanted == 0 else "has no ready Pod"
    return Finding(
        reason=Reason.FINALIZER_NOT_SERVED,
        message=f"{holds} (its controller seems to be {workload.object}, which {why}){_last_words(look)}",
        actor=f"the owner of {workload.object}",
        remedies=(*started(workload, kubectl), force),
    )


def started(workload: ControllerWorkload | None, kubectl: Kubectl) -> tuple[Remedy, ...]:
    """How to start a workload that has to act; empty if it is running or unknown."""
    if workload is None or workload.running:
        return ()
    thing = _thing(workload)
    if workload.wanted == 0:
        about = f"starts {workload.object}, which can then do its work"
        return (Remedy(commands=kubectl.lines(kubectl.scale(thing, 1)), effect=Effect.SAFE, about=about),)
    command = kubectl.on("describe", thing)
    return (
        Remedy(
            commands=kubectl.lines(command), effect=Effect.LOOKS, about=f"shows why {workload.object} is not running"
        ),
    )


def _stopping(look: ObjectSnapshot, kubectl: Kubectl, *, now: datetime) -> Finding:
    """A Pod is removed when the kubelet of its node reports that its containers have stopped."""
    node, ends = look.node, look.seen.deleted_at
    until = f", grace period until {ends:%H:%M:%S} UTC" if ends and ends > now else ""
    by_force = kubectl.delete(look.thing, "--grace-period=0", "--force")
    if node is None:
        return Finding(
            reason=Reason.DELETING,
            message="it is not assigned to a node; the API server removes it",
            actor="Kubernetes (API server)",
        )
    if node.there and node.ready:
        return Finding(
            reason=Reason.DELETING,
            message=f"it is being stopped on node {node.name}{until}",
            actor=f"the kubelet of node {node.name}",
            remedies=(
                Remedy(
                    commands=kubectl.lines(kubectl.delete(look.thing, "--grace-period=1")),
                    effect=Effect.LEAVES,
                    about="kills its containers without waiting for a clean shutdown",
                ),
            ),
        )
    lost = "is not ready" if node.there else "no longer exists"
    return Finding(
        reason=Reason.NODE_LOST,
        message=f"its node {node.name} {lost}, so nothing confirms that its containers have stopped{until}",
        actor=f"the administrator of node {node.name}",
        since=node.since,
        remedies=(
            Remedy(
                commands=kubectl.lines(by_force),
                effect=Effect.LEAVES,
                about=f"if {node.name} is still alive, the containers keep running there with their volumes",
            ),
        ),
    )


def _last_words(look: ObjectSnapshot) -> str:
    if not look.words:
        return ""
    last = look.words[0]
    return f"; {last.by} says: {last.message}"


def _writer(look: ObjectSnapshot, finalizer: str) -> str:
    found = look.writers.get(finalizer) or ()
    return f"; set by {', '.join(found)}" if found else ""


def _thing(workload: ControllerWorkload) -> Thing:
    ref = workload.object
    resource = Resource(ref.group, ref.version or "v1", f"{ref.kind.lower()}s", ref.kind)
    return Thing(resource=resource, name=ref.name, namespace=ref.namespace)


def _first(things: tuple[Thing, ...]) -> tuple[ObjectRef, ...]:
    return tuple(thing.ref for thing in things[:SHOWN])


def _some(things: tuple[Thing, ...]) -> str:
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return ", ".join(str(thing) for thing in things[:SHOWN]) + more
