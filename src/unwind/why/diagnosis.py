"""Diagnoses an object and follows the chain of blockers to its root."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from unwind.api import capi
from unwind.api.names import Reason
from unwind.api.resources import MUTATING_WEBHOOK_CONFIGURATIONS, NAMESPACES, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.protection import deleter
from unwind.why import cluster_findings, refusals, terminating_objects
from unwind.why.answers import Answer, AnswerState, Effect, Finding, Link, Remedy, Thing, kubectl_name, link_to
from unwind.why.controller_workloads import behind_service, conversion_of, manager_runs
from unwind.why.reachable_clusters import thing_of
from unwind.why.reader import read_facts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.kube.discovery import Named
    from unwind.protection.deleter import ProtectedObject
    from unwind.why.facts import ObjectSnapshot
    from unwind.why.reachable_clusters import ReachableCluster

_DEPTH = 6
_OBJECTS = 24
"""Maximum number of objects per answer: the user is waiting for it."""
_ORDER = (Effect.SAFE, Effect.LOOKS, Effect.DELETES, Effect.LEAVES)
_BEFORE = "the controller that deletes its parent"
_CAPI = (capi.CLUSTERS.group, capi.CLUSTERS.kind)
_CAPI_FINALIZERS = ("cluster.cluster.x-k8s.io",)
_TEARDOWN = (TEARDOWNS.group, TEARDOWNS.kind)


async def why(place: ReachableCluster, named: Named, *, clock: Clock) -> Answer:
    """Why an object still exists or cannot be deleted.

    Changes nothing: whether the API server would accept a deletion is checked with a dry run.
    Raises NotFoundError if the object does not exist, and UnreachableError if the cluster does not answer.
    """
    walk = _Walk(now=clock.now())
    thing = Thing(resource=named.resource, name=named.name, namespace=named.namespace)
    return await walk.answer(place, thing)


class _Walk:
    """One diagnosis, and its findings so far."""

    def __init__(self, *, now: datetime) -> None:
        self._now = now
        self._seen: set[tuple[str, str]] = set()
        self._links: list[Link] = []
        self._remedies: dict[tuple[str, ...], tuple[int, Remedy]] = {}
        """By their commands, each with its depth in the chain."""
        self._subject = ""
        """The subject of the verdict, if it is not the object itself."""

    async def answer(self, place: ReachableCluster, thing: Thing) -> Answer:
        read = await _read(place, thing)
        if isinstance(read, Finding):
            await self._tell(place, thing, [read], depth=0)
            return self._answered(place, thing, AnswerState.NOT_KNOWN, since=None)
        thing, obj = read
        self._seen.add((place.name, thing.uid))
        look = await read_facts(place, thing, obj, now=self._now)
        since = look.deleted_at
        state, findings = await self._judge(place, look, obj, stands=None)
        findings = _dated(findings, look)
        await self._tell(place, look.thing, findings, depth=0)
        if state is AnswerState.DELETABLE:
            self._add(_deleting(place, look), depth=0)
        return self._answered(place, look.thing, state, since=since, more=_what_follows(look, state))

    def _answered(
        self,
        place: ReachableCluster,
        thing: Thing,
        state: AnswerState,
        *,
        since: datetime | None,
        more: tuple[str, ...] = (),
    ) -> Answer:
        # The remedy closest to the root has the fewest side effects.
        ranked = sorted(self._remedies.values(), key=lambda one: (_ORDER.index(one[1].effect), -one[0]))
        remedies = [one for _, one in ranked]
        return Answer(
            object=thing.ref,
            cluster=place.name,
            state=state,
            verdict=verdict(self._subject or f"{thing} is being deleted", thing, state, self._links),
            since=since,
            chain=tuple(self._links),
            only=_only(state, self._links, remedies),
            remedies=tuple(remedies),
            notes=(*more, *place.notes),
        )

    async def _judge(
        self, place: ReachableCluster, look: ObjectSnapshot, obj: Object, *, stands: bool | None
    ) -> tuple[AnswerState, list[Finding]]:
        """`stands`: whether no one will request its deletion; None for the object that the user asked about."""
        kind = (look.thing.resource.group, look.thing.resource.kind)
        if kind == _TEARDOWN and look.seen.deleted_at is None:
            teardown = msgspec.convert(obj, Teardown)
            if not teardown.finished:
                runs = await manager_runs(place, now=self._now)
                if stands is None:
                    self._subject = cluster_findings.phrase(teardown)
                found = cluster_findings.teardown_findings(teardown, place.kubectl, runs=runs)
                return _held_or_going(found), found
        if look.seen.deleted_at is not None:
            found = await self._cluster(place, look, obj) if kind == _CAPI else []
            found += terminating_objects.hold_findings(
                look, place.kubectl, now=self._now, besides=_CAPI_FINALIZERS if found else ()
            )
            return _held_or_going(found), found
        if stands:
            return AnswerState.DELETABLE, [terminating_objects.undeleted_findings(look, place.kubectl)]
        return await self._rehearse(place, look, told=stands is not None)

    async def _cluster(self, place: ReachableCluster, look: ObjectSnapshot, obj: Object) -> list[Finding]:
        try:
            resource = await place.discovery.resource(capi.EXTENSION_CONFIGS.kind, group=capi.EXTENSION_CONFIGS.group)
            configs = await place.client.list(resource)
        except UnwindError as error:
            place.unseen("Cluster API extensions", error)
            configs = []
        read = [cluster_findings.extension(msgspec.convert(config, capi.ExtensionConfig)) for config in configs]
        asked = [item for item in read if item]
        return cluster_findings.cluster_findings(look, msgspec.convert(obj, capi.Cluster), place.kubectl, asked)

    async def _rehearse(
        self, place: ReachableCluster, look: ObjectSnapshot, *, told: bool
    ) -> tuple[AnswerState, list[Finding]]:
        """Whether its deletion would be accepted (dry run). `told`: another component has to request the deletion."""
        thing = look.thing
        try:
            await place.client.delete(
                thing.resource, thing.name, uid=thing.uid, namespace=thing.namespace or None, dry_run=True
            )
        except (NotFoundError, ConflictError):
            if not told:
                raise
            return AnswerState.GOING, []  # it disappeared meanwhile
        except ApiError as error:
            refusal = refusals.APIRefusal(code=error.code, reason=error.reason, message=error.status.message)
            name = refusals.webhook_named(refusal)
            known = await self._webhooks(place, name) if name else []
            finding = refusals.refusal_finding(look, refusal, place.kubectl, known)
            if told and finding.reason == Reason.NO_RIGHT:
                # This user is not the one who will delete it, so missing permissions say nothing about the actual
                # client.
                message = (
                    "its deletion was not requested yet; you are not allowed to check whether it would be denied; use"
                    " another user"
                )
                return AnswerState.NOT_KNOWN, [Finding(reason=Reason.DELETING, message=message, actor=_BEFORE)]
            return (AnswerState.NOT_KNOWN if refusals.unknowable(refusal) else AnswerState.REFUSED), [finding]
        # On a member without admission policies only the label says that Unwind does not delete it.
        held = await protection_of(place, look)
        if not told:
            if held:
                place.notes.append(f"Unwind does not delete it: {held.why}")
            return AnswerState.DELETABLE, []
        if held:
            return AnswerState.REFUSED, [refusals.protection_finding(look, held, place.kubectl)]
        message = "its deletion was not requested yet and would be accepted"
        return AnswerState.GOING, [Finding(reason=Reason.DELETING, message=message, actor=_BEFORE)]

    async def _webhooks(self, place: ReachableCluster, name: str) -> list[refusals.Webhook]:
        """The webhooks with this name, each with the workload behind it."""
        found: list[refusals.Webhook] = []
        for resource in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS):
            try:
                configurations = await place.client.list(resource)
            except UnwindError as error:
                place.unseen(resource.plural, error)
                continue
            for configuration in configurations:
                thing = Thing(
                    resource=resource, name=configuration["metadata"]["name"], uid=configuration["metadata"]["uid"]
                )
                found += [it for it in refusals.deletion_webhooks(thing, configuration) if it.name == name]
        return [
            msgspec.structs.replace(it, workload=await behind_service(place, *it.service)) if it.service else it
            for it in found
        ]

    async def _tell(self, place: ReachableCluster, thing: Thing, findings: list[Finding], *, depth: int) -> None:
        for finding in findings:
            self._links.append(link_to(finding, thing.ref, cluster=place.name, depth=depth))
            for remedy in finding.remedies:
                self._add(remedy, depth=depth)
            await self._follow(place, finding, depth=depth + 1)

    async def _follow(self, place: ReachableCluster, finding: Finding, *, depth: int) -> None:
        """Diagnose the objects that a finding waits for."""
        if not finding.behind or depth > _DEPTH:
            return
        async with AsyncExitStack() as stack:
            there = place
            # A Namespace represents the management cluster itself, where `Local` manifests are deployed.
            if finding.elsewhere and finding.elsewhere.kind != NAMESPACES.kind:
                try:
                    there = await stack.enter_async_context(place.member(finding.elsewhere))
                except UnwindError as error:
                    place.unseen(str(finding.elsewhere), error)
                    return
            for ref in finding.behind:
                await self._ask(there, ref, stands=finding.stands, depth=depth)

    async def _ask(self, place: ReachableCluster, ref: ObjectRef, *, stands: bool, depth: int) -> None:
        if (place.name, ref.uid) in self._seen or len(self._seen) >= _OBJECTS:
            return
        self._seen.add((place.name, ref.uid))
        try:
            thing = await thing_of(
                place, group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace, uid=ref.uid
            )
            read = await _read(place, thing)
        except NotFoundError:
            return  # it disappeared meanwhile
        except UnwindError as error:
            place.unseen(str(ref), error)
            return
        if isinstance(read, Finding):
            await self._tell(place, thing, [read], depth=depth)
            return
        thing, obj = read
        if ref.uid and thing.uid != ref.uid:
            return  # another object has its name by now
        look = await read_facts(place, thing, obj, now=self._now)
        _, findings = await self._judge(place, look, obj, stands=stands)
        await self._tell(place, thing, _dated(findings, look), depth=depth)

    def _add(self, remedy: Remedy, *, depth: int) -> None:
        self._remedies.setdefault(remedy.commands, (depth, remedy))


async def protection_of(place: ReachableCluster, look: ObjectSnapshot) -> ProtectedObject | None:
    """Why Unwind does not delete an object; None if it would."""
    thing = look.thing
    if not deleter.labelled(look.labels):
        return None
    try:
        return await deleter.protected_object(place.client, thing.resource, thing.ref, cluster=place.ref)
    except UnwindError as error:
        place.unseen(f"what protects {thing}", error)
        return None


def verdict(subject: str, thing: Thing, state: AnswerState, chain: list[Link]) -> str:
    """The answer in one line, with the root of the chain if known. `subject`: what is not finished."""
    root = root_of(chain)
    said = f"{root.message}" if root else ""
    behind = f", waiting for {root.object}" if root and root.depth else ""
    match state:
        case AnswerState.HELD:
            return f"{subject}{behind}: {said}"
        case AnswerState.GOING:
            return f"{subject}; no blocker found" + (f" ({said})" if said else "")
        case AnswerState.REFUSED:
            return f"{thing} cannot be deleted: {said}"
        case AnswerState.DELETABLE:
            return f"{thing} is not being deleted; the API server would accept its deletion"
        case AnswerState.NOT_KNOWN:
            return f"cannot determine whether {thing} can be deleted: {said}"


def _held_or_going(findings: list[Finding]) -> AnswerState:
    return AnswerState.HELD if any(finding.reason != Reason.DELETING for finding in findings) else AnswerState.GOING


def _dated(findings: list[Finding], look: ObjectSnapshot) -> list[Finding]:
    """Each finding with its start: by default, when deletion was requested."""
    return [msgspec.structs.replace(finding, since=finding.since or look.deleted_at) for finding in findings]


def root_of(chain: Sequence[Link]) -> Link | None:
    """The end of the first chain in which someone must act."""
    held = [link for link in chain if link.reason != Reason.DELETING] or chain
    root: Link | None = None
    for item in held:
        if root is not None and item.depth <= root.depth:
            break
        root = item
    return root


def _only(state: AnswerState, chain: list[Link], remedies: list[Remedy]) -> str:
    """Who must act, if no remedy unblocks the object."""
    if state in (AnswerState.DELETABLE, AnswerState.GOING) or any(
        remedy.effect is not Effect.LOOKS for remedy in remedies
    ):
        return ""
    root = root_of(chain)
    return root.actor if root else ""


def _deleting(place: ReachableCluster, look: ObjectSnapshot) -> Remedy:
    thing = look.thing
    command = place.kubectl.delete(thing)
    where = f" -n {thing.namespace}" if thing.namespace else ""
    about = f"deletes {thing}; preview it with `unwind plan {kubectl_name(thing)}{where}`"
    return Remedy(commands=place.kubectl.lines(command), effect=Effect.DELETES, about=about)


def _what_follows(look: ObjectSnapshot, state: AnswerState) -> tuple[str, ...]:
    """What a user should know before deleting an object."""
    if state is not AnswerState.DELETABLE:
        return ()
    notes = list(look.states)
    notes += [f"{cluster_findings.phrase(teardown)}; this object is part of it" for teardown in look.teardowns]
    if look.seen.finalizers:
        notes.append(f"its deletion will wait for its finalizers: {', '.join(look.seen.finalizers)}")
    if owner := next((owner for owner in look.owners if owner.controller), None):
        notes.append(f"{owner.kind} {owner.name} will recreate it")
    if look.users:
        users = ", ".join(str(user) for user in look.users[: terminating_objects.SHOWN])
        notes.append(f"its deletion will wait for its users: {users}")
    return tuple(notes)


async def _read(place: ReachableCluster, thing: Thing) -> tuple[Thing, Object] | Finding:
    """The object, read in a version that can be served; if there is none, why not.

    Raises NotFoundError if it does not exist; other errors are passed on.
    """
    try:
        obj = await place.client.get(thing.resource, thing.name, namespace=thing.namespace or None)
    except NotFoundError:
        raise
    except ApiError as error:
        if error.code < 500:
            raise
        failed = await conversion_of(place, thing.resource, error)
        if not failed.converts:
            raise
        # The storage version needs no conversion. Only the CRD knows which one that was, and the CRD may have changed
        # since the object was written: try each version.
        for kind in await place.discovery.kinds():
            it = kind.resource
            if (it.group, it.plural) != (thing.resource.group, thing.resource.plural) or it == thing.resource:
                continue
            try:
                obj = await place.client.get(it, thing.name, namespace=thing.namespace or None)
            except ApiError:
                continue  # this version needs conversion, too
            exact = msgspec.structs.replace(thing, resource=it, exact=True, uid=obj["metadata"]["uid"])
            return exact, obj
        return terminating_objects.conversion(failed, place.kubectl)
    return msgspec.structs.replace(thing, uid=obj["metadata"]["uid"]), obj
