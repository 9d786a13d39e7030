"""Requested deletions of handles: `unwind delete` of a Kustomization, HelmRelease or HelmReleaseProxy.

The requester may delete the handle, and then its deployer would delete what it deployed. The manager causes no more
than that: it deletes the handle, and before it the handles nested in it that Flux would delete, and verifies that
everything is gone. It deletes nothing else, on no cluster.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.features import Feature
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.names import MAX_OBJECTS_ANNOTATION, VOLUMES_ANNOTATION, Reason
from unwind.api.rights import READ
from unwind.api.unwind import TEARDOWNS, Effort, Entry, EntryState, Teardown
from unwind.companions import snapshots
from unwind.companions.flux_requests import FluxReader
from unwind.companions.handle_clusters import HandleClusters
from unwind.companions.handle_finalizer import release
from unwind.companions.handle_remover import HandleRemover
from unwind.companions.handle_scopes import plural_of, protected_by
from unwind.companions.helm_release_proxy_requests import ProxyReader
from unwind.companions.step_source import draft_of
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item, items
from unwind.kube.errors import NotFoundError
from unwind.teardown import cancellation, request_refusals, requests
from unwind.teardown.cancellation import ObjectState, Restored
from unwind.teardown.request_refusals import RefusedError
from unwind.teardown.request_step_source import RequestSource
from unwind.teardown.step_sources import SourceStep, SourceSteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Cancellation, Inventory, Step
    from unwind.companions.handle_remover import HandlePlaces
    from unwind.companions.handle_scopes import HandleReader, HandleScope, ScopedHandle
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.request_refusals import Refusals
    from unwind.teardown.step_removers import RemovalDeps, StepContext

_FEATURES = {
    (KUSTOMIZATIONS.group, KUSTOMIZATIONS.kind): Feature.FLUX,
    (HELM_RELEASES.group, HELM_RELEASES.kind): Feature.FLUX,
    (HELM_RELEASE_PROXIES.group, HELM_RELEASE_PROXIES.kind): Feature.CAAPH,
}
_SHOWN = 5


class HandleRequests:
    """Makes the step source of a requested deletion of a handle."""

    def __init__(self, client: Client, deps: RemovalDeps, *, features: Collection[Feature], refusals: Refusals) -> None:
        """`refusals`: finds the objects that may not be deleted."""
        self._client = client
        self._deps = deps
        self._refusals = refusals
        made: dict[Feature, Callable[[], HandleReader]] = {
            Feature.FLUX: lambda: FluxReader(client, deps),
            Feature.CAAPH: lambda: ProxyReader(client, deps),
        }
        self._readers = {feature: make() for feature, make in made.items() if feature in features}

    def __call__(self, teardown: Teardown) -> RequestSource | None:
        """The step source of a request; None if its target is no handle."""
        target = teardown.spec.target
        feature = _FEATURES.get((target.group, target.kind))
        if feature is None:
            return None
        reader = self._readers.get(feature)
        if reader is None:
            return NotInstalled(feature)
        return HandleRequest(self._client, self._deps, teardown, reader, refusals=self._refusals)


class NotInstalled(RequestSource):
    """Refuses a request: without the feature, objects would be deleted in no order, and not verified."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        del target, gone
        message = f"the feature {self._feature.value} is not installed; add it to `unwind install --features`"
        raise RefusedError(Reason.NO_RIGHT, message)

    def is_own(self) -> bool:
        return True  # a plan from before the feature was removed is held, because no source owns its steps

    async def owners(self) -> Collection[str]:
        return ()

    async def cancel(self, now: datetime) -> Cancellation:
        del now
        raise UnwindError(
            f"the feature {self._feature.value} is not installed", remedy="add it to `unwind install --features`"
        )


class HandleRequest(RequestSource):
    """The steps of one request: the handle, and the handles that it deployed."""

    def __init__(
        self, client: Client, deps: RemovalDeps, teardown: Teardown, reader: HandleReader, *, refusals: Refusals
    ) -> None:
        self._client = client
        self._deps = deps
        self._teardown = teardown
        self._reader = reader
        self._refusals = refusals
        self._clusters = HandleClusters(deps, teardown, reader)
        root = teardown.spec.target.uid
        # Handles that are nested are kept until what deployed them is gone; for the handle itself, nothing else waits.
        self.remover = HandleRemover(reader.companion, connect=self._connect, keeps=lambda ref: ref.uid != root)

    def owns(self, owner: ObjectRef) -> bool:
        return self._reader.companion.owns(owner)

    def is_own(self) -> bool:
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        return any(step.object.uid == self._teardown.spec.target.uid for step in steps) and all(
            self.owns(step.object) for step in steps
        )

    # The plan

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        """One step for each handle, after each is recorded with what it deployed. Raises RefusedError."""
        del target, gone  # the Teardown names it
        teardown, ref = self._teardown, self._teardown.spec.target
        async with self._deps.members.management() as here, AsyncExitStack() as stack:
            await request_refusals.check_target(teardown, here)
            if teardown.metadata.annotations.get(VOLUMES_ANNOTATION, VolumePolicy.RETAIN) != VolumePolicy.RETAIN:
                message = (
                    f"annotation {VOLUMES_ANNOTATION} does not apply: the deployer of {ref} deletes its objects;"
                    " request it again without the annotation"
                )
                raise RefusedError(Reason.INVALID_TARGET, message)
            try:
                scope = await self._reader.scope(ref, stack)
            except NotFoundError as error:
                raise RefusedError(Reason.TARGET_GONE, str(error)) from error
            await self._check(scope)
            for it in scope.handles:
                await snapshots.record(self._deps.inventories, it.member, it.handle, it.snapshot, effort=Effort.ENFORCE)
        return SourceSteps(steps=tuple(map(_step, scope.handles)), warnings=scope.warnings)

    async def _check(self, scope: HandleScope) -> None:
        if scope.refused:
            raise RefusedError(Reason.HELD, request_refusals.refused_objects(scope.refused), scope.refused)
        for other in msgspec.convert(await self._client.list(TEARDOWNS), list[Teardown]):
            mine = {it.handle.ref.uid for it in scope.handles}
            taken = [step.name for step in _running(other, but=self._teardown) if step.object.uid in mine]
            if taken:
                message = f"{', '.join(taken[:_SHOWN])} is being deleted by Teardown {other.metadata.name}; wait for it"
                raise RefusedError(Reason.HELD, message)
        for it in scope.handles:
            request_refusals.check_protected(
                await protected_by(
                    self._refusals, it.metadata, it.handle.ref, it.snapshot, place=it.place, member=it.member
                )
            )
        going = [entry for it in scope.handles for entry in it.snapshot.entries.values() if not entry.kept]
        objects = 1 + sum(bool(entry.object.uid) for entry in going)
        limit = self._teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION)
        if too_many := request_refusals.exceeds(limit, objects):
            raise RefusedError(Reason.TOO_MANY_OBJECTS, too_many)
        # On the management cluster the manager only reads them; its rights on members are those of the kubeconfig.
        here = [entry for it in scope.handles if it.here for entry in it.snapshot.entries.values()]
        if lacking := await requests.missing(self._client, here, verbs=READ):
            raise RefusedError(Reason.NO_RIGHT, requests.told(lacking))

    @asynccontextmanager
    async def _connect(self, context: StepContext, chunks: Sequence[Inventory]) -> AsyncIterator[HandlePlaces]:
        async with self._clusters.connect(context.step.object, chunks) as places:
            yield places

    # The end

    async def owners(self) -> Collection[str]:
        """The handles, except those that another teardown verifies: the Cluster may be deleted meanwhile."""
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        others = msgspec.convert(await self._client.list(TEARDOWNS), list[Teardown])
        taken = {step.object.uid for other in others for step in _running(other, but=self._teardown)}
        return [step.object.uid for step in steps if self.owns(step.object) and step.object.uid not in taken]

    async def cancel(self, now: datetime) -> Cancellation:
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        chunks = await self._clusters.chunks() if steps else []
        found: dict[str, tuple[Item, ObjectState]] = {}
        restored: list[str] = []
        for step in steps:
            mine = [chunk for chunk in chunks if chunk.spec.owner.uid == step.object.uid]
            states, done = await self._stop(step.object, mine)
            # A nested handle is also an object of what deployed it.
            found |= {item.entry.object.uid: (item, state) for item, state in states}
            restored += done
        ordered = sorted(found.values(), key=lambda it: it[0].entry.object.uid != self._teardown.spec.target.uid)
        return cancellation.cancellation_result(ordered, Restored(done=tuple(restored)), now=now)

    async def _stop(
        self, handle: ObjectRef, chunks: Sequence[Inventory]
    ) -> tuple[list[tuple[Item, ObjectState]], list[str]]:
        """What became of a handle and its objects. Unwind's finalizer and annotation are removed from the handle."""
        entry = Entry(object=handle, resource=plural_of(handle), state=EntryState.CONFIRMED.value)
        itself, objects = Item("", "", entry), [item for item in items(chunks) if item.entry.object.uid]
        try:
            async with self._clusters.connect(handle, chunks) as (member, place):
                restored = await self._restore(place, handle)
                found = await cancellation.survey_objects(member, objects)
                return [*found, *await cancellation.survey_objects(place, [itself])], restored
        except UnwindError:
            if await self._clusters.record_of(handle):
                # It is on a member. Without its answer, nothing is restored there.
                raise
            async with self._deps.members.management() as home:
                restored = await self._restore(home, handle)
                states = await cancellation.survey_objects(home, [itself])
            return [*((item, ObjectState.UNKNOWN) for item in objects), *states], restored

    async def _restore(self, place: Member, handle: ObjectRef) -> list[str]:
        found = await self._clusters.read(place, handle)
        if found is None:
            return []

        companion = self._reader.companion
        changed = await release(place.client, companion.resource(handle), found, companion.before_stay)
        return (
            [f"{handle} is restored as it was before"]
            if changed and not found["metadata"].get("deletionTimestamp")
            else []
        )


def _running(other: Teardown, *, but: Teardown) -> Iterable[Step]:
    """The steps of another teardown that has not ended (pure)."""
    if other.finished or other.metadata.uid == but.metadata.uid or other.spec.plan is None:
        return ()
    return other.spec.plan.steps


def _step(it: ScopedHandle) -> SourceStep:
    return SourceStep(draft=draft_of(it.handle, Effort.ENFORCE, objects=len(it.snapshot.entries)))
