"""What holds an object that is being deleted (pure).

Each rule takes what was seen and says what holds the object, who must act, and by which commands it gets free. A
finalizer is taken off by force only where somebody is told what that leaves behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Finalizer, Reason
from unwind.api.resources import Resource
from unwind.api.unwind import TEARDOWNS
from unwind.diagnosing.answers import Effect, Finding, Remedy, Thing
from unwind.diagnosing.commands import without
from unwind.diagnosing.finalizers import NAMESPACE_FINALIZER, domain, served, serving
from unwind.diagnosing.looks import cut

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Teardown
    from unwind.diagnosing.commands import Kubectl
    from unwind.diagnosing.facts import Workload
    from unwind.diagnosing.looks import Look, Silent, Unlisted

RUN = Remedy(commands=("unwind run",), effect=Effect.SAFE, about="starts the manager, which goes on from where it was")
SHOWN = 4
"""So many of what is behind something are looked at."""
_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_CLAIM, _VOLUME = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"
_OWNING = ("foregroundDeletion", "orphan")
_SCALED = ("Deployment", "StatefulSet", "ReplicaSet")
_GARBAGE_COLLECTOR = "Kubernetes (its garbage collector)"


def held(look: Look, kubectl: Kubectl, *, now: datetime, besides: Collection[str] = ()) -> list[Finding]:
    """Everything that holds it; nothing if it is about to go. `besides`: finalizers that were told of already."""
    found: list[Finding] = []
    # From the last: where several are taken off one after the other, the places of those before stay as they are.
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
    # While it has time left, its kubelet has not said that it has ended, whatever else holds it.
    ending = not look.seen.finalizers or look.grace > 0
    if ending and (look.thing.resource.group, look.thing.resource.kind) == ("", "Pod"):
        found.append(_stopping(look, kubectl, now=now))
    return found


def standing(look: Look, kubectl: Kubectl) -> Finding:
    """What has to be done about something that nobody deletes, and whose end something else waits for."""
    thing = look.thing
    if (thing.resource.group, thing.resource.kind) == ("", "Pod"):
        return _running(look, kubectl)
    about = f"{thing} goes"
    if (thing.resource.group, thing.resource.kind) == ("", "PersistentVolumeClaim"):
        about += ": whoever uses it loses what is on its volume"
    return Finding(
        reason=Reason.STANDING,
        message="nobody deletes it" + (": it is in use" if look.users else ""),
        actor="whoever it belongs to",
        behind=_first(look.users),
        stands=True,
        remedies=(Remedy(commands=kubectl.lines(kubectl.delete(thing)), effect=Effect.DELETES, about=about),),
    )


def _running(look: Look, kubectl: Kubectl) -> Finding:
    thing, controller = look.thing, look.controller
    if controller is None:
        about = f"stops {thing}, which nobody starts again"
        remedy = Remedy(commands=kubectl.lines(kubectl.delete(thing)), effect=Effect.DELETES, about=about)
        return Finding(
            reason=Reason.STANDING,
            message="it runs, and nobody deletes it",
            actor="whoever runs it",
            remedies=(remedy,),
        )
    if controller.resource.kind in _SCALED:
        command, effect = kubectl.scale(controller, 0), Effect.SAFE
        about = f"stops all Pods of {controller}; scale it up again later"
    else:
        command, effect = kubectl.delete(controller), Effect.DELETES
        about = f"{controller} goes, and its Pods with it"
    return Finding(
        reason=Reason.STANDING,
        message=f"it runs, and {controller} would make another in its place",
        actor=f"whoever runs {controller}",
        remedies=(Remedy(commands=kubectl.lines(command), effect=effect, about=about),),
    )


def conversion(unlisted: Unlisted, kubectl: Kubectl) -> Finding:
    """A kind whose objects nobody can read, because what converts them between versions does not answer."""
    definition = unlisted.definition
    if definition is None or not unlisted.converts:
        return Finding(
            reason=Reason.API_NOT_SERVED,
            message=f"{unlisted.kind} cannot be listed, so nobody knows what is there: {cut(unlisted.error)}",
            actor="whoever serves that kind",
        )
    off = kubectl.merge(definition, {"spec": {"conversion": {"strategy": "None", "webhook": None}}})
    remedy = Remedy(
        commands=kubectl.lines(off),
        effect=Effect.LEAVES,
        about=f"{unlisted.kind} objects are served as they are stored, without what the webhook would have converted; "
        f"apply the CRD {definition.name} again to have it back",
    )
    return Finding(
        reason=Reason.WEBHOOK_SILENT,
        message=f"the conversion webhook of {definition} ({unlisted.converts}) does not answer, so nobody can read "
        f"{unlisted.kind} objects: {cut(unlisted.error)}",
        actor=f"whoever runs {unlisted.converts}",
        remedies=(*started(unlisted.workload, kubectl), remedy),
    )


def teardown_ref(it: Teardown) -> ObjectRef:
    return Thing(resource=TEARDOWNS, name=it.metadata.name, uid=it.metadata.uid).ref


def taken_off(look: Look, place: int, kubectl: Kubectl, about: str) -> Remedy:
    """A finalizer taken off by hand."""
    finalizer = look.seen.finalizers[place]
    command = kubectl.patch(look.thing, without("/metadata/finalizers", place, finalizer))
    return Remedy(commands=kubectl.lines(command), effect=Effect.LEAVES, about=about)


def _namespace(look: Look, kubectl: Kubectl) -> list[Finding]:
    found = [_silent(one, kubectl) for one in look.silent]
    found += [conversion(one, kubectl) for one in look.unlisted]
    if look.contents:
        found.append(
            Finding(
                reason=Reason.HOLDS_OTHERS,
                message=f"everything in it goes first: {_some(look.contents)}",
                actor="Kubernetes (its namespace controller)",
                behind=_first(look.contents),
            )
        )
    if not found:
        message = "nothing is left in it: Kubernetes lets it go when it looks at it again, within a minute"
        found.append(Finding(reason=Reason.DELETING, message=message, actor="Kubernetes (its namespace controller)"))
    return found


def _silent(one: Silent, kubectl: Kubectl) -> Finding:
    remedy = Remedy(
        commands=kubectl.lines(kubectl.delete(one.service)),
        effect=Effect.LEAVES,
        about=f"{one.service.name} is served no longer, and what its server keeps stays there unseen; "
        "register it again when that server is back",
    )
    behind = f" (Service {one.behind})" if one.behind else ""
    return Finding(
        reason=Reason.API_NOT_SERVED,
        message=f"the API {one.service.name} does not answer{behind}, so nobody knows what it has: {cut(one.message)}",
        actor=f"whoever runs Service {one.behind}" if one.behind else "whoever runs that API's server",
        since=one.since,
        remedies=(*started(one.workload, kubectl), remedy),
    )


def _definition(look: Look, kubectl: Kubectl) -> list[Finding]:
    found = [conversion(one, kubectl) for one in look.unlisted]
    if look.contents:
        found.append(
            Finding(
                reason=Reason.HOLDS_OTHERS,
                message=f"its custom resources go first: {_some(look.contents)}",
                actor="Kubernetes (the API server)",
                behind=_first(look.contents),
            )
        )
    if not found:
        message = "none of its custom resources is left: the API server lets it go in a moment"
        found.append(Finding(reason=Reason.DELETING, message=message, actor="Kubernetes (the API server)"))
    return found


def _owning(look: Look, finalizer: str) -> Finding:
    if not look.dependents:
        message = "nothing that it owns is left to wait for: Kubernetes lets it go in a moment"
        return Finding(reason=Reason.DELETING, message=message, actor=_GARBAGE_COLLECTOR)
    how = "go first (foreground deletion)" if finalizer == "foregroundDeletion" else "are let go first"
    return Finding(
        reason=Reason.OWNS_OTHERS,
        message=f"the objects that it owns {how}: {_some(look.dependents)}",
        actor=_GARBAGE_COLLECTOR,
        behind=_first(look.dependents),
    )


def _used(look: Look, finalizer: str) -> Finding:
    what = "a Pod uses it" if finalizer == _CLAIM else "a claim is bound to it"
    if not look.users:
        lets_go = "no Pod uses it any more" if finalizer == _CLAIM else "no claim is bound to it any more"
        message = f"{lets_go}: Kubernetes lets it go in a moment"
        return Finding(reason=Reason.DELETING, message=message, actor="Kubernetes (its protection of volumes)")
    return Finding(
        reason=Reason.IN_USE,
        message=f"{what}: {_some(look.users)}",
        actor="whoever runs these Pods" if finalizer == _CLAIM else "whoever has that claim",
        behind=_first(look.users),
        stands=True,
    )


def _by_finalizer(look: Look, finalizer: str, place: int, kubectl: Kubectl) -> Finding:
    holds = f"the finalizer {finalizer} holds it"
    if finalizer in tuple(Finalizer) and look.manager_runs is False:
        return Finding(
            reason=Reason.MANAGER_NOT_RUNNING,
            message=f"{holds}, which Unwind takes off, and its manager does not run",
            actor="whoever runs unwind",
            remedies=(RUN,),
        )
    known = served(finalizer)
    if known:
        waits = Finding(
            reason=known.reason, message=f"{holds} until {known.waits_for}{_last_words(look)}", actor=known.actor
        )
        if finalizer in tuple(Finalizer):
            return _ours(look, waits)
        undone = f"what {known.actor} still had to do for it is not done"
        return msgspec.structs.replace(waits, remedies=(taken_off(look, place, kubectl, undone),))
    workload = serving(finalizer, look.workloads, look.writers.get(finalizer, ()))
    whose = domain(finalizer)
    undone = f"whatever {whose} still had to clean up for it stays as it is"
    force = taken_off(look, place, kubectl, undone)
    if workload is None:
        return Finding(
            reason=Reason.FINALIZER,
            message=f"{holds}, and nothing here is known to serve it: its controller seems to be gone"
            f"{_writer(look, finalizer)}{_last_words(look)}",
            actor=f"the controller of {whose}, if there still is one",
            remedies=(force,),
        )
    if workload.running:
        return Finding(
            reason=Reason.FINALIZER,
            message=f"{holds}, which {workload.object} seems to serve; that runs, and is not done{_last_words(look)}",
            actor=f"{workload.object}: only whoever runs it can mend what it fails at",
            remedies=(
                Remedy(
                    commands=kubectl.lines(kubectl.on("logs", _thing(workload), "--tail=50")),
                    effect=Effect.LOOKS,
                    about="what it says",
                ),
                force,
            ),
        )
    return _not_served(look, holds, workload, force, kubectl)


def _ours(look: Look, waits: Finding) -> Finding:
    """A finalizer of Unwind's own: what it waits for is known to the last object, and nobody takes it off by hand."""
    if look.teardowns:
        return msgspec.structs.replace(waits, behind=tuple(teardown_ref(one) for one in look.teardowns))
    if look.placed:
        left = f"{waits.message}; {len(look.placed)} of its objects were not seen to be absent"
        return msgspec.structs.replace(waits, message=left, behind=look.placed[:SHOWN], elsewhere=look.placed_on)
    return msgspec.structs.replace(waits, behind=_first(look.dependents))


def _not_served(look: Look, holds: str, workload: Workload, force: Remedy, kubectl: Kubectl) -> Finding:
    why = "is scaled to zero" if workload.wanted == 0 else "has no Pod that is ready"
    return Finding(
        reason=Reason.FINALIZER_NOT_SERVED,
        message=f"{holds}, and {workload.object}, which seems to serve it, {why}{_last_words(look)}",
        actor=f"whoever runs {workload.object}",
        remedies=(*started(workload, kubectl), force),
    )


def started(workload: Workload | None, kubectl: Kubectl) -> tuple[Remedy, ...]:
    """What can be done where something does not run that has to act: nothing, if it does or is not known."""
    if workload is None or workload.running:
        return ()
    thing = _thing(workload)
    if workload.wanted == 0:
        about = f"starts {workload.object}, which then does what it is there for"
        return (Remedy(commands=kubectl.lines(kubectl.scale(thing, 1)), effect=Effect.SAFE, about=about),)
    command = kubectl.on("describe", thing)
    return (Remedy(commands=kubectl.lines(command), effect=Effect.LOOKS, about=f"why {workload.object} does not run"),)


def _stopping(look: Look, kubectl: Kubectl, *, now: datetime) -> Finding:
    """A Pod goes when the kubelet of its node says that its containers have ended."""
    node, ends = look.node, look.seen.deleted_at
    until = f", it has until {ends:%H:%M:%S} UTC" if ends and ends > now else ""
    by_force = kubectl.delete(look.thing, "--grace-period=0", "--force")
    if node is None:
        return Finding(
            reason=Reason.DELETING,
            message="it is on no node: the API server lets it go",
            actor="Kubernetes (the API server)",
        )
    if node.there and node.ready:
        return Finding(
            reason=Reason.DELETING,
            message=f"it is being stopped on {node.name}{until}",
            actor=f"the kubelet of {node.name}",
            remedies=(
                Remedy(
                    commands=kubectl.lines(kubectl.delete(look.thing, "--grace-period=1")),
                    effect=Effect.LEAVES,
                    about="its containers are killed, whatever they are in the middle of",
                ),
            ),
        )
    lost = "is not heard of" if node.there else "is no longer in the cluster"
    return Finding(
        reason=Reason.NODE_LOST,
        message=f"its node {node.name} {lost}, so nobody can say that its containers have ended{until}",
        actor=f"whoever runs the node {node.name}",
        since=node.since,
        remedies=(
            Remedy(
                commands=kubectl.lines(by_force),
                effect=Effect.LEAVES,
                about=f"if {node.name} is alive its containers run on there, with their volumes",
            ),
        ),
    )


def _last_words(look: Look) -> str:
    if not look.words:
        return ""
    last = look.words[0]
    return f"; {last.by} says: {last.message}"


def _writer(look: Look, finalizer: str) -> str:
    found = look.writers.get(finalizer) or ()
    return f" (it was put there by {', '.join(found)})" if found else ""


def _thing(workload: Workload) -> Thing:
    ref = workload.object
    resource = Resource(ref.group, ref.version or "v1", f"{ref.kind.lower()}s", ref.kind)
    return Thing(resource=resource, name=ref.name, namespace=ref.namespace)


def _first(things: tuple[Thing, ...]) -> tuple[ObjectRef, ...]:
    return tuple(one.ref for one in things[:SHOWN])


def _some(things: tuple[Thing, ...]) -> str:
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return ", ".join(str(one) for one in things[:SHOWN]) + more
