"""Requested deletions of handles: `unwind delete` of a Kustomization, HelmRelease or HelmReleaseProxy.

The requester may delete the handle, and then its deployer would delete what it deployed. The manager causes no more
than that: it deletes the handle, and before it the handles nested in it that Flux would delete, and verifies that
everything is gone. It deletes nothing else, on no cluster.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api import capi
from unwind.api.annotation_values import VolumePolicy
from unwind.api.caaph import HELM_CHART_PROXIES, HELM_CHART_PROXY_LABEL, HELM_RELEASE_PROXIES, HelmReleaseProxy
from unwind.api.caaph import ReconcileStrategy as Strategy
from unwind.api.features import Feature
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.meta import LabelSelector, ObjectMeta, ObjectRef, ref_of
from unwind.api.names import MAX_OBJECTS_ANNOTATION, VOLUMES_ANNOTATION, Finalizer, Reason
from unwind.api.policies import SourceKind
from unwind.api.resources import NAMESPACES, SUBJECT_ACCESS_REVIEWS
from unwind.api.rights import READ
from unwind.api.unwind import TEARDOWNS, Effort, Entry, EntryState, Inventory, Teardown
from unwind.companions import flux_tree, proxy_rules, snapshots
from unwind.companions.companion import DeletedHandle, Handle
from unwind.companions.flux import FluxCompanion
from unwind.companions.flux_inventory import Place, kubeconfig_secret
from unwind.companions.handle_remover import HandlePlaces, HandleRemover
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.companions.snapshots import Snapshot
from unwind.companions.step_source import SCOPE
from unwind.errors import UnwindError
from unwind.inventory.inventories import Item, items
from unwind.kube.decoding import Metadata
from unwind.kube.errors import AnotherClusterError, ApiError, NotFoundError
from unwind.kube.updates import revise
from unwind.members import targets
from unwind.members.contents import Content
from unwind.members.member import Member
from unwind.planning.waves import Draft
from unwind.removal.deletion_scope import DeletionScope, Told
from unwind.teardown import cancellation, request_refusals, requests
from unwind.teardown.cancellation import ObjectState, Restored
from unwind.teardown.request_refusals import RefusedError, RequestRefusal
from unwind.teardown.requested_steps import RequestSource
from unwind.teardown.step_sources import SourceStep, SourceSteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
    from datetime import datetime

    from unwind.api.unwind import Cancellation, MemberRef, Step
    from unwind.companions.companion import HandleCompanion
    from unwind.kube.client import Client, Object
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.request_refusals import Refusals
    from unwind.teardown.step_removers import RemovalDeps, StepContext

_FEATURES = {
    (KUSTOMIZATIONS.group, KUSTOMIZATIONS.kind): Feature.FLUX,
    (HELM_RELEASES.group, HELM_RELEASES.kind): Feature.FLUX,
    (HELM_RELEASE_PROXIES.group, HELM_RELEASE_PROXIES.kind): Feature.CAAPH,
}
_SHOWN = 5


class ScopedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A handle that is deleted, and what its deployer deletes with it."""

    handle: Handle
    metadata: ObjectMeta
    member: Member
    """The cluster that it deployed on."""
    snapshot: Snapshot
    here: bool
    """Whether it deployed on the management cluster."""


class HandleScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of a handle deletes."""

    handles: tuple[ScopedHandle, ...]
    refused: tuple[Told, ...] = ()
    warnings: tuple[str, ...] = ()


def contents_of(metadata: ObjectMeta, ref: ObjectRef, snapshot: Snapshot) -> DeletionScope:
    """What its deployer deletes with a handle, as the scope of a deletion (pure)."""
    resource = Item("", "", Entry(object=ref, resource=_plural(ref))).resource
    target = Content(resource, msgspec.convert(msgspec.to_builtins(metadata), Metadata))
    going = [
        Content(Item("", key, entry).resource, snapshot.found[key])
        for key, entry in snapshot.entries.items()
        if key in snapshot.found and not entry.kept
    ]
    return DeletionScope(target=target, going=(*going, target))


def _plural(ref: ObjectRef) -> str:
    kinds = (KUSTOMIZATIONS, HELM_RELEASES, HELM_RELEASE_PROXIES)
    return next((kind.plural for kind in kinds if kind.kind == ref.kind), "")


class HandleReader(Protocol):
    """Reads the handles of one deployer, and connects to their clusters."""

    @property
    def companion(self) -> HandleCompanion:
        """The deployer."""

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        """What the deletion of a handle deletes. Raises NotFoundError, or UnwindError if that is unknown."""

    async def target(self, handle: Object | None, where: ObjectRef | None, place: Member) -> ClusterTarget | None:
        """How to connect to the cluster that a handle deployed on; None if it is the one that the handle is on.

        `handle`: None if it is gone. `where`: the object that represented the cluster when the plan was made.
        """


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
            return _NotInstalled(feature)
        return HandleRequest(self._client, self._deps, teardown, reader, refusals=self._refusals)


class _NotInstalled(RequestSource):
    """Refuses a request: without the feature, objects would be deleted in no order, and not verified."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        del target, gone
        message = f"the feature {self._feature.value} is not installed; add it with `unwind install --features`"
        raise _refused(Reason.NO_RIGHT, message)

    def is_own(self) -> bool:
        return True  # a plan from before the feature was removed is held, because no source owns its steps

    async def owners(self) -> Collection[str]:
        return ()

    async def cancel(self, now: datetime) -> Cancellation:
        del now
        raise UnwindError(f"the feature {self._feature.value} is not installed", remedy="install it")


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
        root = teardown.spec.target.uid
        # Handles that are nested are kept until what deployed them is gone; for the handle itself, nothing else waits.
        self._remover = HandleRemover(reader.companion, connect=self._connect, keeps=lambda ref: ref.uid != root)

    @property
    def remover(self) -> HandleRemover:
        return self._remover

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
                message = f"annotation {VOLUMES_ANNOTATION} does not apply: the deployer of {ref} deletes its objects"
                raise _refused(Reason.INVALID_TARGET, message)
            try:
                scope = await self._reader.scope(ref, stack)
            except NotFoundError as error:
                raise _refused(Reason.TARGET_GONE, str(error)) from error
            await self._check(scope)
            for it in scope.handles:
                await snapshots.record(self._deps.inventories, it.member, it.handle, it.snapshot, effort=Effort.ENFORCE)
        return SourceSteps(steps=tuple(map(_step, scope.handles)), warnings=scope.warnings)

    async def _check(self, scope: HandleScope) -> None:
        if scope.refused:
            raise _refused(Reason.HELD, request_refusals.refused_objects(scope.refused), scope.refused)
        for other in msgspec.convert(await self._client.list(TEARDOWNS), list[Teardown]):
            mine = {it.handle.ref.uid for it in scope.handles}
            taken = [step.name for step in _running(other, but=self._teardown) if step.object.uid in mine]
            if taken:
                message = f"{', '.join(taken[:_SHOWN])} is being deleted by Teardown {other.metadata.name}"
                raise _refused(Reason.HELD, message)
        for it in scope.handles:
            found = await self._refusals(it.member, contents_of(it.metadata, it.handle.ref, it.snapshot))
            if found:
                raise _refused(Reason.PROTECTED, request_refusals.refused_objects(found), found)
        going = [entry for it in scope.handles for entry in it.snapshot.entries.values() if not entry.kept]
        objects = 1 + sum(bool(entry.object.uid) for entry in going)
        limit = self._teardown.metadata.annotations.get(MAX_OBJECTS_ANNOTATION)
        if too_many := request_refusals.exceeds(limit, objects):
            raise _refused(Reason.TOO_MANY_OBJECTS, too_many)
        # On the management cluster the manager only reads them; its rights on members are those of the kubeconfig.
        here = [entry for it in scope.handles if it.here for entry in it.snapshot.entries.values()]
        if lacking := await requests.missing(self._client, here, verbs=READ):
            raise _refused(Reason.NO_RIGHT, requests.told(lacking))

    # The clusters of a step

    @asynccontextmanager
    async def _connect(self, context: StepContext, chunks: Sequence[Inventory]) -> AsyncIterator[HandlePlaces]:
        async with self._places(context.step.object, chunks) as places:
            yield places

    @asynccontextmanager
    async def _places(self, handle: ObjectRef, chunks: Sequence[Inventory]) -> AsyncIterator[HandlePlaces]:
        """The clusters of a handle: from the records, because the handle may be gone."""
        members = self._deps.members
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(members.management())
            place = home
            if handle.uid != self._teardown.spec.target.uid and (above := await self._record_of(handle)):
                place = await self._open(stack, home, home, None, above)
            found = await self._read(place, handle)
            recorded = chunks[0].spec.member if chunks else None
            yield HandlePlaces(await self._open(stack, home, place, found, recorded), place)

    async def _record_of(self, handle: ObjectRef) -> MemberRef | None:
        """The cluster of a nested handle, from the record of what deployed it."""
        for chunk in await self._chunks():
            if any(entry.object.uid == handle.uid for entry in chunk.spec.entries.values()):
                return chunk.spec.member
        return None

    async def _open(
        self, stack: AsyncExitStack, home: Member, place: Member, handle: Object | None, where: MemberRef | None
    ) -> Member:
        if where and where.object.kind == NAMESPACES.kind:
            if where.system_uid != home.system_uid:
                raise AnotherClusterError("the management cluster", found=home.system_uid, expected=where.system_uid)
            return home
        if where and where.system_uid == place.system_uid:
            return place
        target = await self._reader.target(handle, where.object if where else None, place)
        if target is None:
            return place
        system_uid = where.system_uid if where else ""
        return await stack.enter_async_context(self._deps.members.member(target, system_uid=system_uid))

    async def _read(self, place: Member, handle: ObjectRef) -> Object | None:
        resource = self._reader.companion.resource(handle)
        try:
            found = await place.client.get(resource, handle.name, namespace=handle.namespace)
        except NotFoundError:
            return None
        return found if found["metadata"]["uid"] == handle.uid else None

    async def _chunks(self) -> list[Inventory]:
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        return await self._deps.inventories.owned(step.object.uid for step in steps)

    # The end

    async def owners(self) -> Collection[str]:
        """The handles, except those that another teardown verifies: the Cluster may be deleted meanwhile."""
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        others = msgspec.convert(await self._client.list(TEARDOWNS), list[Teardown])
        taken = {step.object.uid for other in others for step in _running(other, but=self._teardown)}
        return [step.object.uid for step in steps if self.owns(step.object) and step.object.uid not in taken]

    async def cancel(self, now: datetime) -> Cancellation:
        steps = self._teardown.spec.plan.steps if self._teardown.spec.plan else ()
        chunks = await self._chunks() if steps else []
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
        entry = Entry(object=handle, resource=_plural(handle), state=EntryState.CONFIRMED.value)
        itself, objects = Item("", "", entry), [item for item in items(chunks) if item.entry.object.uid]
        try:
            async with self._places(handle, chunks) as (member, place):
                restored = await self._restore(place, handle)
                found = await cancellation.survey_objects(member, objects)
                return [*found, *await cancellation.survey_objects(place, [itself])], restored
        except UnwindError:
            if await self._record_of(handle):
                # It is on a member. Without its answer, nothing is restored there.
                raise
            async with self._deps.members.management() as home:
                restored = await self._restore(home, handle)
                states = await cancellation.survey_objects(home, [itself])
            return [*((item, ObjectState.UNKNOWN) for item in objects), *states], restored

    async def _restore(self, place: Member, handle: ObjectRef) -> list[str]:
        found = await self._read(place, handle)
        if found is None:
            return []

        def change(now: Object) -> Object | None:
            meta = now["metadata"]
            patch = {} if meta.get("deletionTimestamp") else self._reader.companion.before_stay(now)
            have = meta.get("finalizers") or []
            if Finalizer.HANDLE in have:
                left = [item for item in have if item != Finalizer.HANDLE]
                patch["metadata"] = patch.get("metadata", {}) | {"finalizers": left}
            return patch or None

        changed = await revise(place.client, self._reader.companion.resource(handle), found, change)
        return [f"{handle} is as before"] if changed and not found["metadata"].get("deletionTimestamp") else []


def _running(other: Teardown, *, but: Teardown) -> Iterable[Step]:
    """The steps of another teardown that has not ended (pure)."""
    if other.finished or other.metadata.uid == but.metadata.uid or other.spec.plan is None:
        return ()
    return other.spec.plan.steps


def _refused(reason: Reason, message: str, objects: Iterable[Told] = ()) -> RefusedError:
    return RefusedError(RequestRefusal(reason=reason, message=message, objects=tuple(objects)))


def _step(it: ScopedHandle) -> SourceStep:
    handle = it.handle
    return SourceStep(
        draft=Draft(
            name=handle.step,
            object=handle.ref,
            kind=SCOPE,
            declared=handle.step,
            depends_on=handle.depends_on,
            effort=Effort.ENFORCE,
            objects=len(it.snapshot.entries),
        )
    )


# Flux


class FluxReader:
    """Kustomizations and HelmReleases, with what is nested in them."""

    def __init__(self, client: Client, deps: RemovalDeps) -> None:
        self._client = client
        self._deps = deps
        self.companion = FluxCompanion(client, trusts_suspended=True)

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        here = await stack.enter_async_context(self._deps.members.management())
        root = await flux_tree.get(self._client, Place(ref.kind, ref.namespace, ref.name))
        _same(ref, root.metadata)
        tree = flux_tree.FluxTree(self.companion, self._deps.members, here)
        await stack.enter_async_context(tree.open)
        await tree.read(root)
        found = list(tree.handles.values())
        if failed := next((it for it in found if it.failed), None):
            raise UnwindError(f"{failed.ref}: {failed.failed}")
        steps = [it.step for it in found]
        if twice := sorted({step for step in steps if steps.count(step) > 1}):
            raise UnwindError(f"{', '.join(twice)} exists on several clusters", remedy="rename one of them")
        refused = await tree.refused() or [told for it in found for told in await _not_allowed(it)]
        return HandleScope(
            handles=tuple(_scoped(it, here) for it in found),
            refused=tuple(refused),
            warnings=tuple(
                f"{it.step} lists {ref}, which does not carry its mark"
                for it in found
                for ref in (it.snapshot.foreign if it.snapshot else ())
            ),
        )

    async def target(self, handle: Object | None, where: ObjectRef | None, place: Member) -> ClusterTarget | None:
        config = flux_tree.kube_config(handle) if handle else None
        if where is None and config is None:
            return None
        if where and (config is None or kubeconfig_secret(config) != where.name):
            config = flux_tree.config_of(where)
        assert config is not None  # noqa: S101 - for the type checker
        namespace = where.namespace if where else handle["metadata"]["namespace"] if handle else ""
        return await flux_tree.secret_target(self._client, namespace, config, where)


def _scoped(it: flux_tree.TreeHandle, here: Member) -> ScopedHandle:
    assert it.member is not None  # noqa: S101 - only failed handles have none
    assert it.snapshot is not None  # noqa: S101
    handle = Handle(
        ref=it.ref,
        source=SourceKind.FLUX,
        depends_on=tuple(sorted(it.needs)),
        terminating=it.obj.metadata.terminating,
    )
    return ScopedHandle(
        handle=handle,
        metadata=it.obj.metadata,
        member=it.member,
        snapshot=it.snapshot,
        here=it.member.system_uid == here.system_uid,
    )


async def _not_allowed(it: flux_tree.TreeHandle) -> list[Told]:
    """The refusal if Flux could not delete a nested handle itself: it impersonates an account that may not do that."""
    parent = it.parent
    if parent is None or not parent.obj.spec.service_account_name:
        return []
    namespace, account = parent.ref.namespace, parent.obj.spec.service_account_name
    user = f"system:serviceaccount:{namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    attributes = {
        "group": it.ref.group,
        "version": it.ref.version,
        "resource": _plural(it.ref),
        "namespace": it.ref.namespace,
        "name": it.ref.name,
        "verb": "delete",
    }
    body = {
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
    }
    try:
        decided = await it.place.client.create(SUBJECT_ACCESS_REVIEWS, body)
    except ApiError as error:
        raise UnwindError(f"cannot determine whether {user} may delete {it.ref}: {error}") from error
    if (decided.get("status") or {}).get("allowed") is True:
        return []
    return [Told(it.ref, f"{user}, with which Flux applies {parent.ref}, may not delete it", Reason.NO_RIGHT)]


def _same(ref: ObjectRef, found: ObjectMeta) -> None:
    if found.uid != ref.uid:
        raise _refused(Reason.TARGET_GONE, f"{ref} has another uid: it was created again")


# CAAPH


class RequestedProxies(HelmReleaseProxies):
    """CAAPH, if the Cluster of a proxy stays. Unwind itself uninstalls nothing: the requester could not, either."""

    def __init__(self, client: Client, deps: RemovalDeps) -> None:
        super().__init__(client, deps.inventories, None)
        self._client = client

    async def after_delete(self, handle: Object, member: Member) -> DeletedHandle:
        told = await super().after_delete(handle, member)
        if told.working:
            return told
        return msgspec.structs.replace(told, recreated_by=await self._recreated_by(handle))

    async def _recreated_by(self, handle: Object) -> ObjectRef | None:
        """The HelmChartProxy that would create a proxy again; None if it is gone, or does not select the Cluster."""
        proxy = msgspec.convert(handle, HelmReleaseProxy)
        name, namespace = proxy.metadata.labels.get(HELM_CHART_PROXY_LABEL), proxy.metadata.namespace
        if not name:
            return None
        try:
            chart = await self._client.get(HELM_CHART_PROXIES, name, namespace=namespace)
            cluster = await cluster_of(self._client, proxy)
        except NotFoundError:
            return None
        selector = msgspec.convert((chart.get("spec") or {}).get("clusterSelector") or {}, LabelSelector)
        if chart["metadata"].get("deletionTimestamp") or cluster.metadata.terminating:
            return None
        if not selector.satisfied_by(cluster.metadata.labels):
            return None
        return ref_of(HELM_CHART_PROXIES, msgspec.convert(chart["metadata"], ObjectMeta))


class ProxyReader:
    """HelmReleaseProxies."""

    def __init__(self, client: Client, deps: RemovalDeps) -> None:
        self._client = client
        self._deps = deps
        self.companion = RequestedProxies(client, deps)

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        proxy = await self._client.get(HELM_RELEASE_PROXIES, ref.name, namespace=ref.namespace, type=HelmReleaseProxy)
        _same(ref, proxy.metadata)
        target = targets.of_capi(await cluster_of(self._client, proxy))
        member = await stack.enter_async_context(self._deps.members.member(target))
        found = await self.companion.handles(target, member, (ref.namespace,))
        handle = next((item for item in found if item.ref.uid == ref.uid), None)
        if handle is None:
            raise UnwindError(f"{ref} was deleted meanwhile")
        return HandleScope(
            handles=(
                ScopedHandle(
                    handle=handle,
                    metadata=proxy.metadata,
                    member=member,
                    snapshot=await snapshots.take(snapshots.MemberObjects(member), self.companion, handle),
                    here=False,
                ),
            ),
            refused=tuple(refused_proxies(proxy, handle, found)),
            warnings=handle.warnings,
        )

    async def target(self, handle: Object | None, where: ObjectRef | None, place: Member) -> ClusterTarget | None:
        del place
        if where is None:
            if handle is None:
                return None
            return targets.of_capi(await cluster_of(self._client, msgspec.convert(handle, HelmReleaseProxy)))
        cluster = await self._client.get(capi.CLUSTERS, where.name, namespace=where.namespace, type=capi.Cluster)
        return targets.of_capi(cluster)


async def cluster_of(client: Client, proxy: HelmReleaseProxy) -> capi.Cluster:
    """The Cluster of a proxy. Raises UnwindError if it is in another namespace: its users may have no rights there."""
    where, namespace = proxy.spec.cluster_ref, proxy.metadata.namespace
    if where.namespace not in ("", namespace):
        ref = ref_of(HELM_RELEASE_PROXIES, proxy.metadata)
        raise UnwindError(f"{ref} is for a Cluster in namespace {where.namespace}, and not in its own")
    return await client.get(capi.CLUSTERS, where.name, namespace=namespace, type=capi.Cluster)


def refused_proxies(proxy: HelmReleaseProxy, handle: Handle, others: Iterable[Handle]) -> list[Told]:
    """Why a proxy is not deleted on request: CAAPH would leave its release, or others depend on it (pure)."""
    found = []
    if held := proxy_rules.why_held(proxy):
        found.append(Told(handle.ref, held))
    elif proxy_rules.strategy(proxy) is Strategy.INSTALL_ONCE:
        found.append(Told(handle.ref, "has reconcileStrategy InstallOnce: CAAPH would leave its release"))
    return found + [
        Told(other.ref, f"depends on {handle.step}; delete it first")
        for other in others
        if handle.step in other.depends_on and not other.terminating
    ]
