"""Finds every object that has been terminating for a while, on one cluster or on all members, and explains each."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec

from unwind.api.meta import ObjectRef
from unwind.clock import ServerClock
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.discovery import Named
from unwind.kube.errors import ApiError, NotFoundError, UnreadableError
from unwind.members import cluster_lookup, contents
from unwind.why import facts
from unwind.why.answers import AnswerState, Remedy, Thing, kubectl_name
from unwind.why.diagnosis import root_of, why

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.members.targets import ClusterTarget
    from unwind.why.reachable_clusters import ReachableCluster

OLDER_THAN = timedelta(minutes=10)
# Members are asked side by side. Each is asked for some kinds at once.
_MEMBERS = 16
_KINDS = 8
# To explain one object may take dozens of requests: the oldest are explained, the others are only named.
EXPLAINED = 25
_EXPLAINED_AT_ONCE = 4
# Seconds that a member has for its first answer, and for everything: the others are not held up by it.
_FIRST_ANSWER = 10.0
_ANSWER = 60.0


class StuckObject(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object that has been terminating for a while."""

    cluster: str = ""
    """The member that it is on; empty for the cluster that the user asked about."""
    object: ObjectRef
    since: datetime
    """When its deletion was requested."""
    state: AnswerState
    why: str
    actor: str = ""
    """Who must act."""
    remedies: tuple[Remedy, ...] = ()


class UnansweredCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A member that did not answer, or not in time."""

    cluster: str
    message: str


class UnlistedKinds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Kinds that could not be listed on a cluster, so that their objects are missing here."""

    cluster: str = ""
    kinds: tuple[str, ...]
    message: str


class StuckReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that is stuck, the longest first, and what could not be read."""

    older_than_seconds: int
    clusters: int
    """Number of clusters that answered."""
    objects: tuple[StuckObject, ...] = ()
    unanswered: tuple[UnansweredCluster, ...] = ()
    unlisted: tuple[UnlistedKinds, ...] = ()
    notes: tuple[str, ...] = ()


class _Metadata(msgspec.Struct, rename="camel"):
    """Only the fields that say whether an object is terminating: most objects are not."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    # Bounded, because a member can send anything.
    deletion_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    deletion_grace_period_seconds: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] | None = None
    finalizers: tuple[str, ...] = ()

    @property
    def since(self) -> datetime | None:
        """When deletion was requested. The deletionTimestamp of a Pod is the end of its grace period."""
        ends = self.deletion_timestamp
        return ends - timedelta(seconds=self.deletion_grace_period_seconds or 0) if ends else None


class _Partial(msgspec.Struct):
    metadata: _Metadata


_decode = msgspec.json.Decoder(_Partial).decode


async def find_stuck(
    place: ReachableCluster,
    *,
    older_than: timedelta = OLDER_THAN,
    namespace: str | None = None,
    members: bool = False,
) -> StuckReport:
    """Everything that has been terminating for longer, with the rights of the user who asks.

    One list of metadata for each kind and cluster. `members`: also on all members, side by side; one that does not
    answer is named. Raises UnwindError if the cluster itself does not answer.
    """
    search = _Search(older_than, namespace, place.notes)
    if not members:
        await search.look(place)
        return search.report()
    targets, unread = await cluster_lookup.every_cluster(place.client, place.discovery)
    place.notes += unread
    with suppress(ApiError):  # only to know it again, if it is a member of itself
        search.looked.add(await place.client.cluster_uid())
    await gather_limited(
        [search.look(place), *(search.look_at_member(place, target) for target in targets)], limit=_MEMBERS
    )
    return search.report()


class _Search:
    """One search, and what it found so far: if the time for a member is over, that is shown."""

    def __init__(self, older_than: timedelta, namespace: str | None, notes: list[str]) -> None:
        """`notes`: shared by all clusters."""
        self._older_than = older_than
        self._namespace = namespace
        self._found: dict[tuple[str, str], StuckObject] = {}
        """By cluster and uid."""
        self._forbidden: dict[str, list[str]] = {}
        """The kinds that must not be listed, by cluster."""
        self._unanswered: list[UnansweredCluster] = []
        self._unlisted: list[UnlistedKinds] = []
        self.looked: set[str] = set()
        """The clusters that were asked, by the uids of their kube-system namespaces."""
        self._clusters = 0
        self._notes = notes

    def report(self) -> StuckReport:
        forbidden = [
            UnlistedKinds(
                cluster=cluster, kinds=tuple(sorted(kinds)), message=f"{facts.NOT_ALLOWED}; {facts.GET_THE_RIGHT}"
            )
            for cluster, kinds in self._forbidden.items()
        ]
        return StuckReport(
            older_than_seconds=int(self._older_than.total_seconds()),
            clusters=self._clusters,
            objects=tuple(sorted(self._found.values(), key=lambda one: (one.since, one.cluster, str(one.object)))),
            unanswered=tuple(sorted(self._unanswered, key=lambda one: one.cluster)),
            unlisted=tuple(sorted((*forbidden, *self._unlisted), key=lambda one: (one.cluster, one.kinds))),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    async def look_at_member(self, home: ReachableCluster, target: ClusterTarget) -> None:
        said = f"no answer within {_FIRST_ANSWER:.0f}s; check the connection to it, and retry"
        try:
            async with asyncio.timeout(_FIRST_ANSWER) as limit, home.reached(target) as place:
                limit.reschedule(asyncio.get_running_loop().time() + _ANSWER)
                said = f"not everything was read within {_ANSWER:.0f}s; retry with --cluster"
                # Two objects can represent the same cluster, such as one of Cluster API and one of Karmada.
                if place.client.cluster not in self.looked:
                    self.looked.add(place.client.cluster)
                    await self.look(place)
        except TimeoutError:
            self._unanswered.append(UnansweredCluster(cluster=str(target), message=said))
        except UnwindError as error:
            self._unanswered.append(UnansweredCluster(cluster=str(target), message=str(error)))

    async def look(self, place: ReachableCluster) -> None:
        kinds = contents.listable(await place.discovery.kinds(), namespaced=self._namespace is not None)
        silent = await place.discovery.silent()
        self._clusters += 1
        if silent:
            self._cannot_list(place, *silent, message="the API does not answer; see `kubectl get apiservices`")
        asked = [kind for kind in kinds if f"{kind.version}.{kind.group}" not in silent]
        found: dict[str, Thing] = {}
        await gather_limited((self._list(place, kind, found) for kind in asked), limit=_KINDS)
        oldest = sorted(found.values(), key=lambda one: (self._found[place.name, one.uid].since, str(one)))[:EXPLAINED]
        await gather_limited((self._explain(place, thing) for thing in oldest), limit=_EXPLAINED_AT_ONCE)

    async def _list(self, place: ReachableCluster, resource: Resource, found: dict[str, Thing]) -> None:
        accept = decoding.metadata(resource).accept_list
        try:
            pages = place.client.pages(resource, namespace=self._namespace, accept=accept, ahead=True)
            async with aclosing(pages):
                async for page in pages:
                    now = ServerClock(place.client.time).now()
                    for item in page.items or ():
                        metadata = _decode(item).metadata
                        since = metadata.since
                        if since and now - since >= self._older_than:
                            found[metadata.uid] = self._note(place, resource, metadata, since)
        except ApiError as error:
            if error.code == 403:
                self._forbidden.setdefault(place.name, []).append(_name(resource))
            elif error.code not in (404, 405):  # its CRD was just deleted, or it cannot be listed
                self._cannot_list(
                    place, _name(resource), message=f"{error.status.message}; retry, or see the log of its server"
                )
        except (UnreadableError, msgspec.DecodeError) as error:
            self._cannot_list(place, _name(resource), message=str(error))

    def _cannot_list(self, place: ReachableCluster, *kinds: str, message: str) -> None:
        self._unlisted.append(UnlistedKinds(cluster=place.name, kinds=kinds, message=facts.cut(message)))

    def _note(self, place: ReachableCluster, resource: Resource, metadata: _Metadata, since: datetime) -> Thing:
        thing = Thing(resource=resource, name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
        held = f"waiting for {', '.join(metadata.finalizers)}" if metadata.finalizers else "no finalizer"
        self._found[place.name, thing.uid] = StuckObject(
            cluster=place.name,
            object=thing.ref,
            since=since,
            state=AnswerState.NOT_KNOWN,
            why=f"not examined ({held}); run `{_question(place, thing)}`",
        )
        return thing

    async def _explain(self, place: ReachableCluster, thing: Thing) -> None:
        key = place.name, thing.uid
        row = self._found[key]
        try:
            answer = await why(
                place,
                Named(resource=thing.resource, name=thing.name, namespace=thing.namespace),
                clock=ServerClock(place.client.time),
            )
        except NotFoundError:
            self._found.pop(key, None)  # it disappeared meanwhile
            return
        except Exception as error:  # noqa: BLE001 - one object that cannot be examined must not hide all others
            self._found[key] = msgspec.structs.replace(
                row, why=f"cannot be examined: {facts.cut(str(error))}; retry with `{_question(place, thing)}`"
            )
            return
        if answer.object.uid != thing.uid or answer.since is None:
            self._found.pop(key, None)  # another object has its name by now
            return
        root = root_of(answer.chain)
        waits = f"waiting for {root.object}: " if root and root.depth else ""
        self._found[key] = msgspec.structs.replace(
            row,
            state=answer.state,
            why=f"{waits}{root.message}" if root else "no blocker found",
            actor=root.actor if root else "",
            remedies=answer.remedies,
        )


def _name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _question(place: ReachableCluster, thing: Thing) -> str:
    """The command that explains an object."""
    words = ["unwind", "why", kubectl_name(thing)]
    if thing.namespace:
        words += ["-n", thing.namespace]
    if place.ref:
        where = f"{place.ref.namespace}/{place.ref.name}" if place.ref.namespace else place.ref.name
        words += ["--cluster", where]
    return shlex.join(words)
