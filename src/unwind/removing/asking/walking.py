"""The answer: from the object that was asked about to what it waits for, and on to what that waits for."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from unwind.api import capi
from unwind.api.names import Reason
from unwind.api.resources import MUTATING_WEBHOOK_CONFIGURATIONS, NAMESPACES, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.api.unwind import TEARDOWNS, Teardown
from unwind.diagnosing import clusters, holding, refusing
from unwind.diagnosing.answers import Answer, Effect, Finding, Link, Remedy, State, Thing
from unwind.diagnosing.commands import called
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.removing.asking.looking import look_at
from unwind.removing.asking.reading import thing_of
from unwind.removing.asking.serving import behind_service, conversion_of, manager_runs

if TYPE_CHECKING:
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.diagnosing.looks import Look
    from unwind.kube.client import Object
    from unwind.kube.naming import Named
    from unwind.removing.asking.places import Place

_DEPTH = 6
_OBJECTS = 24
"""So many objects are looked at for one answer: it has to come while somebody waits for it."""
_ORDER = (Effect.SAFE, Effect.LOOKS, Effect.DELETES, Effect.LEAVES)
_BEFORE = "whoever takes apart what it belongs to"
_CAPI = (capi.CLUSTERS.group, capi.CLUSTERS.kind)
_CAPI_FINALIZERS = ("cluster.cluster.x-k8s.io",)
_TEARDOWN = (TEARDOWNS.group, TEARDOWNS.kind)


async def why(place: Place, named: Named, *, clock: Clock) -> Answer:
    """Why an object is still there, or may not be deleted.

    Nothing is changed: whether something may be deleted is asked with a DELETE that the API server only rehearses.
    Raises NotFoundError if there is no such object, and UnreachableError if the cluster does not answer.
    """
    walk = _Walk(now=clock.now())
    thing = Thing(resource=named.resource, name=named.name, namespace=named.namespace)
    return await walk.answer(place, thing)


class _Walk:
    """One question, and what was found for it so far."""

    def __init__(self, *, now: datetime) -> None:
        self._now = now
        self._seen: set[tuple[str, str]] = set()
        self._links: list[Link] = []
        self._remedies: dict[tuple[str, ...], tuple[int, Remedy]] = {}
        """By their commands, each with how far down the chain it was found."""
        self._subject = ""
        """What the answer is about, where that is not the object itself."""

    async def answer(self, place: Place, thing: Thing) -> Answer:
        read = await _read(place, thing)
        if isinstance(read, Finding):
            await self._tell(place, thing, [read], depth=0)
            return self._answered(place, thing, State.NOT_KNOWN, since=None)
        thing, obj = read
        self._seen.add((place.name, thing.uid))
        look = await look_at(place, thing, obj, now=self._now)
        since = look.deleted_at
        state, findings = await self._judge(place, look, obj, stands=None)
        findings = _dated(findings, look)
        await self._tell(place, look.thing, findings, depth=0)
        if state is State.DELETABLE:
            self._add(_deleting(place, look), depth=0)
        return self._answered(place, look.thing, state, since=since, more=_what_follows(look, state))

    def _answered(
        self, place: Place, thing: Thing, state: State, *, since: datetime | None, more: tuple[str, ...] = ()
    ) -> Answer:
        # What is nearest to the root of it does the least beside.
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
        self, place: Place, look: Look, obj: Object, *, stands: bool | None
    ) -> tuple[State, list[Finding]]:
        """`stands`: whether nobody is going to delete it; None for the object that was asked about."""
        kind = (look.thing.resource.group, look.thing.resource.kind)
        if kind == _TEARDOWN and look.seen.deleted_at is None:
            teardown = msgspec.convert(obj, Teardown)
            if not teardown.finished:
                runs = await manager_runs(place, now=self._now)
                if stands is None:
                    self._subject = clusters.phrase(teardown)
                found = clusters.teardown(teardown, place.kubectl, runs=runs)
                return _held_or_going(found), found
        if look.seen.deleted_at is not None:
            found = await self._cluster(place, look, obj) if kind == _CAPI else []
            found += holding.held(look, place.kubectl, now=self._now, besides=_CAPI_FINALIZERS if found else ())
            return _held_or_going(found), found
        if stands:
            return State.DELETABLE, [holding.standing(look, place.kubectl)]
        return await self._rehearse(place, look, told=stands is not None)

    async def _cluster(self, place: Place, look: Look, obj: Object) -> list[Finding]:
        try:
            resource = await place.discovery.resource(capi.EXTENSION_CONFIGS.kind, group=capi.EXTENSION_CONFIGS.group)
            configs = await place.client.list(resource)
        except UnwindError as error:
            place.unseen("extensions of Cluster API", error)
            configs = []
        read = [clusters.extension(msgspec.convert(one, capi.ExtensionConfig)) for one in configs]
        asked = [one for one in read if one]
        return clusters.cluster(look, msgspec.convert(obj, capi.Cluster), place.kubectl, asked)

    async def _rehearse(self, place: Place, look: Look, *, told: bool) -> tuple[State, list[Finding]]:
        """Whether its deletion would be accepted. `told`: it is somebody else's turn to ask for it."""
        thing = look.thing
        try:
            await place.client.delete(
                thing.resource, thing.name, uid=thing.uid, namespace=thing.namespace or None, dry_run=True
            )
        except (NotFoundError, ConflictError):
            if not told:
                raise
            return State.GOING, []  # it went while we looked
        except ApiError as error:
            refusal = refusing.Refusal(code=error.code, reason=error.reason, message=error.status.message)
            name = refusing.webhook_named(refusal)
            known = await self._webhooks(place, name) if name else []
            finding = refusing.refused(look, refusal, place.kubectl, known)
            if told and finding.reason == Reason.NO_RIGHT:
                # It is not we who are to delete it: that we may not says nothing about whoever is.
                message = "its own deletion has not been asked for yet; whether it is refused we have no right to ask"
                return State.NOT_KNOWN, [Finding(reason=Reason.DELETING, message=message, actor=_BEFORE)]
            return (State.NOT_KNOWN if refusing.unknowable(refusal) else State.REFUSED), [finding]
        if not told:
            return State.DELETABLE, []
        message = "its own deletion has not been asked for yet, and nothing would refuse it"
        return State.GOING, [Finding(reason=Reason.DELETING, message=message, actor=_BEFORE)]

    async def _webhooks(self, place: Place, name: str) -> list[refusing.Webhook]:
        """The webhooks of this name, with what runs behind them."""
        found: list[refusing.Webhook] = []
        for resource in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS):
            try:
                configurations = await place.client.list(resource)
            except UnwindError as error:
                place.unseen(resource.plural, error)
                continue
            for one in configurations:
                thing = Thing(resource=resource, name=one["metadata"]["name"], uid=one["metadata"]["uid"])
                found += [it for it in refusing.webhooks(thing, one) if it.name == name]
        return [
            msgspec.structs.replace(it, workload=await behind_service(place, *it.service)) if it.service else it
            for it in found
        ]

    async def _tell(self, place: Place, thing: Thing, findings: list[Finding], *, depth: int) -> None:
        for finding in findings:
            self._links.append(
                Link(
                    depth=depth,
                    object=thing.ref,
                    cluster=place.name,
                    reason=finding.reason,
                    message=finding.message,
                    actor=finding.actor,
                    since=finding.since,
                )
            )
            for remedy in finding.remedies:
                self._add(remedy, depth=depth)
            await self._follow(place, finding, depth=depth + 1)

    async def _follow(self, place: Place, finding: Finding, *, depth: int) -> None:
        """The same question about what is behind it."""
        if not finding.behind or depth > _DEPTH:
            return
        async with AsyncExitStack() as stack:
            there = place
            # A Namespace stands for the management cluster itself, where what is `Local` goes.
            if finding.elsewhere and finding.elsewhere.kind != NAMESPACES.kind:
                try:
                    there = await stack.enter_async_context(place.member(finding.elsewhere))
                except UnwindError as error:
                    place.unseen(str(finding.elsewhere), error)
                    return
            for ref in finding.behind:
                await self._ask(there, ref, stands=finding.stands, depth=depth)

    async def _ask(self, place: Place, ref: ObjectRef, *, stands: bool, depth: int) -> None:
        if (place.name, ref.uid) in self._seen or len(self._seen) >= _OBJECTS:
            return
        self._seen.add((place.name, ref.uid))
        try:
            thing = await thing_of(
                place, group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace, uid=ref.uid
            )
            read = await _read(place, thing)
        except NotFoundError:
            return  # it went while we looked
        except UnwindError as error:
            place.unseen(str(ref), error)
            return
        if isinstance(read, Finding):
            await self._tell(place, thing, [read], depth=depth)
            return
        thing, obj = read
        if ref.uid and thing.uid != ref.uid:
            return  # another has its name by now
        look = await look_at(place, thing, obj, now=self._now)
        _, findings = await self._judge(place, look, obj, stands=stands)
        await self._tell(place, thing, _dated(findings, look), depth=depth)

    def _add(self, remedy: Remedy, *, depth: int) -> None:
        self._remedies.setdefault(remedy.commands, (depth, remedy))


def verdict(subject: str, thing: Thing, state: State, chain: list[Link]) -> str:
    """The answer in one line: the root of it, where that is known. `subject`: what is not at its end yet."""
    root = _root(chain)
    said = f"{root.message}" if root else ""
    by = f" by {root.object}" if root and root.depth else ""
    match state:
        case State.HELD:
            return f"{subject}, and held{by}: {said}"
        case State.GOING:
            return f"{subject}, and nothing is known to hold it" + (f": {said}" if said else "")
        case State.REFUSED:
            return f"{thing} may not be deleted: {said}"
        case State.DELETABLE:
            return f"{thing} is not being deleted, and could be: nothing refuses it"
        case State.NOT_KNOWN:
            return f"whether {thing} could be deleted is not known: {said}"


def _held_or_going(findings: list[Finding]) -> State:
    return State.HELD if any(one.reason != Reason.DELETING for one in findings) else State.GOING


def _dated(findings: list[Finding], look: Look) -> list[Finding]:
    """Since when each of them holds it: if nobody knows better, since it is being deleted."""
    return [msgspec.structs.replace(one, since=one.since or look.deleted_at) for one in findings]


def _root(chain: list[Link]) -> Link | None:
    """The end of the first chain that leads to somebody who must act."""
    held = [one for one in chain if one.reason != Reason.DELETING] or chain
    root: Link | None = None
    for one in held:
        if root is not None and one.depth <= root.depth:
            break
        root = one
    return root


def _only(state: State, chain: list[Link], remedies: list[Remedy]) -> str:
    """Who must act, where no command of ours does it."""
    if state in (State.DELETABLE, State.GOING) or any(one.effect is not Effect.LOOKS for one in remedies):
        return ""
    root = _root(chain)
    return root.actor if root else ""


def _deleting(place: Place, look: Look) -> Remedy:
    thing = look.thing
    command = place.kubectl.delete(thing)
    where = f" -n {thing.namespace}" if thing.namespace else ""
    about = f"{thing} goes; `unwind plan {called(thing)}{where}` shows first what goes with it"
    return Remedy(commands=place.kubectl.lines(command), effect=Effect.DELETES, about=about)


def _what_follows(look: Look, state: State) -> tuple[str, ...]:
    """What a person should know before they delete something that may be deleted."""
    if state is not State.DELETABLE:
        return ()
    notes = [f"{clusters.phrase(one)}, which it is a part of" for one in look.teardowns]
    if look.seen.finalizers:
        notes.append(f"it then waits for its finalizers: {', '.join(look.seen.finalizers)}")
    if owner := next((one for one in look.owners if one.controller), None):
        notes.append(f"{owner.kind} {owner.name} would make another in its place")
    if look.users:
        notes.append(f"it then waits for what uses it: {', '.join(str(one) for one in look.users[: holding.SHOWN])}")
    return tuple(notes)


async def _read(place: Place, thing: Thing) -> tuple[Thing, Object] | Finding:
    """The object as it is now, in a version in which it can be read; why it cannot, if there is none.

    Raises NotFoundError if it is not there, and other errors as they are.
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
        # The version that it is stored in needs no conversion. Which one that is only its CRD knows, and it may have
        # been changed since the object was written: each is tried.
        for one in await place.discovery.kinds():
            it = one.resource
            if (it.group, it.plural) != (thing.resource.group, thing.resource.plural) or it == thing.resource:
                continue
            try:
                obj = await place.client.get(it, thing.name, namespace=thing.namespace or None)
            except ApiError:
                continue  # this one has to be converted, too
            exact = msgspec.structs.replace(thing, resource=it, exact=True, uid=obj["metadata"]["uid"])
            return exact, obj
        return holding.conversion(failed, place.kubectl)
    return msgspec.structs.replace(thing, uid=obj["metadata"]["uid"]), obj
