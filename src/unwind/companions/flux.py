"""Flux as a companion: Kustomizations and HelmReleases are the handles, on the management cluster or on the member.

On the management cluster, `spec.kubeConfig` says which cluster a handle deploys on. On the member, Flux deploys on the
cluster that it runs in. Flux lets go of a handle when its DELETEs are accepted, so `HandleRemover` does the waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, Cluster
from unwind.api.flux import FLUX_FINALIZER, HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, Kustomization, SecretKey
from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import Finalizer, Reason
from unwind.api.policies import SourceKind
from unwind.api.resources import NAMESPACES, SECRETS, Resource
from unwind.companions import flux_rules as rules
from unwind.companions import kubeconfig_clusters
from unwind.companions.companion import DeletedHandle, Handle, HandleEntry, step_name
from unwind.companions.flux_order import dropped_warning, nested_order
from unwind.companions.flux_rules import Place
from unwind.companions.handle_remover import HandleRemover
from unwind.companions.impersonation import Account, forbidden
from unwind.companions.kubeconfig_copies import KubeconfigCopies
from unwind.companions.left_objects import LOOK_AGAIN, OwnRemoval, left_release
from unwind.companions.release_rules import KEPT_CRD, ReleaseName
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again
from unwind.deploy.helm_install import parts_of
from unwind.errors import UnwindError
from unwind.helm import release_secrets
from unwind.kube.errors import ApiError, ForbiddenError, NotFoundError
from unwind.kube.installed_kinds import is_installed
from unwind.kube.updates import revise
from unwind.members import contents
from unwind.removal.deletion_scope import ref_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from unwind.companions.flux_order import NestedOrder
    from unwind.companions.flux_rules import FluxObject
    from unwind.helm.program import Helm
    from unwind.helm.release_secrets import ChartManifest
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget

log = logs.get(__name__)

_KINDS = (KUSTOMIZATIONS, HELM_RELEASES)
_TYPES: dict[Resource, type[Kustomization | HelmRelease]] = {
    KUSTOMIZATIONS: Kustomization,
    HELM_RELEASES: HelmRelease,
}
_CONTROLLERS = {
    KUSTOMIZATIONS.kind: "Flux (kustomize-controller)",
    HELM_RELEASES.kind: "Flux (helm-controller)",
}
_AT_ONCE = 16
# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404
_NAMED = 3
_ABOVE = 500
"""Up to this number of Kustomizations and HelmReleases that are no steps are read for the order of those that are."""
_NO_STEP = "management:"
"""Before the names of those."""
_BY_CONFIG_MAP = "names its cluster by spec.kubeConfig.configMapRef, which Unwind does not read"
_ELSEWHERE = "uses a kubeconfig with an address or a proxy of no known Cluster"
_ITSELF = "it deploys Flux itself, which goes with the cluster"


class FoundHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A Kustomization or HelmRelease that deploys on the cluster, and what it deployed."""

    resource: Resource
    obj: Kustomization | HelmRelease
    on_member: bool
    entries: tuple[HandleEntry, ...]
    warnings: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        return _place(self.obj)

    @property
    def name(self) -> str:
        """Of its step."""
        return step_of(self.place)

    @property
    def refs(self) -> tuple[ObjectRef, ...]:
        return tuple(entry.object for entry in self.entries)


class FluxCompanion:
    """Flux, in both topologies."""

    source = SourceKind.FLUX
    controller = "Flux"

    def __init__(
        self,
        client: Client,
        *,
        trusts_suspended: bool = False,
        removes: Callable[[ClusterTarget, ObjectRef, bool], Awaitable[bool]] | None = None,
        helm: Helm | None = None,
        needs_order: bool = True,
        copies: KubeconfigCopies | None = None,
    ) -> None:
        """`client`: of the management cluster. `trusts_suspended`: a suspended parent does not create a handle again.
        It may be resumed while a cluster is deleted; a user who suspends it to delete a handle knows what follows.
        `removes`: whether the policies of a cluster let Unwind remove what Flux would leave of a handle, which may be
        on the member; None: never. `helm`: None if the program is not installed: then suspended HelmReleases are
        held. `needs_order`: whether to raise if it is forbidden to read what a handle depends on, or what contains it;
        otherwise, that is a warning. `copies`: holds copied kubeconfigs, shared with the controller of handles."""
        self._client = client
        self._needs_order = needs_order
        self._trusts_suspended = trusts_suspended
        self._removes = removes
        self._helm = helm
        self._copies = copies or KubeconfigCopies(client)
        self.remover = HandleRemover(self)
        self._releases_read: set[str] = set()
        """The uids of HelmReleases whose release this process has read."""

    def owns(self, ref: ObjectRef) -> bool:
        return rules.is_handle(ref)

    def resource(self, handle: ObjectRef) -> Resource:
        return rules.resource_of(handle)

    def is_marked(self, handle: ObjectRef, found: Metadata) -> bool:
        return rules.is_marked(handle, found.labels or {})

    def why_kept(self, handle: ObjectRef, kind: str, found: Metadata) -> str:
        return rules.why_kept(handle, labels=found.labels or {}, annotations=found.annotations or {}, kind=kind)

    # Handles

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        found: dict[tuple[Resource, bool], list[FoundHandle]] = {}
        listed: dict[Place, FluxObject] = {}
        unplaced: list[Handle] = []

        async def read(resource: Resource, *, on_member: bool) -> None:
            found[resource, on_member] = await (
                self._on_member(resource, member)
                if on_member
                else self._on_management(resource, target, member, namespaces, listed, unplaced)
            )

        places = [(resource, on_member) for resource in _KINDS for on_member in (False, True)]
        await gather_limited((read(resource, on_member=there) for resource, there in places), limit=_AT_ONCE)
        every = [handle for place in places for handle in found[place]]
        above, unread = await self._above([item.obj for item in every if not item.on_member], listed)
        return [*handles_of(every, above, unread), *unplaced]

    async def _on_management(
        self,
        resource: Resource,
        target: ClusterTarget,
        member: Member,
        namespaces: Collection[str],
        listed: dict[Place, FluxObject],
        unplaced: list[Handle],
    ) -> list[FoundHandle]:
        """Those of the management cluster that deploy on the target. Adds all that are read to `listed`, and those of
        which it cannot be determined to `unplaced`."""
        found: list[FluxObject] = []
        for namespace in sorted(namespaces):
            found += await _listed(self._client, resource, namespace=namespace)
        listed |= {_place(obj): obj for obj in found}
        users: dict[tuple[str, SecretKey], list[FluxObject]] = {}
        for obj in found:
            if (config := obj.spec.kube_config) and config.secret_ref and config.secret_ref.name:
                users.setdefault((obj.metadata.namespace, config.secret_ref), []).append(obj)
            elif config and config.config_map_ref:
                holds = obj.metadata.namespace == target.ref.namespace
                unplaced.append(_unplaced(resource, obj, _BY_CONFIG_MAP, holds=holds))
        others: list[tuple[str, FluxObject]] = []
        mine: list[FluxObject] = []
        for (namespace, ref), objs in users.items():
            servers: list[str] = []
            try:
                if await self.is_of_target(target, member, namespace, ref, others=servers):
                    mine += objs
                others += [(server, obj) for server in servers for obj in objs]
            except UnwindError as error:
                # A held one may have had its release: helm-controller forgets it when the Secret is missing.
                deployed = [obj for obj in objs if _has_deployed(obj) or Finalizer.HANDLE in obj.metadata.finalizers]
                if deployed:
                    raise _unknown_cluster(resource, deployed[0], error) from error
                log.warning("kubeconfig not usable", object=f"Secret {namespace}/{ref.name}", error=str(error))
        if others:
            known = await self._known_servers()
            unplaced += [_unplaced(resource, obj, _ELSEWHERE) for server, obj in others if server not in known]
        return [
            FoundHandle(resource=resource, obj=obj, on_member=False, entries=await entries_of(obj, member))
            for obj in mine
        ]

    async def _above(
        self, handles: Iterable[FluxObject], listed: Mapping[Place, FluxObject]
    ) -> tuple[list[FluxObject], dict[Place, str]]:
        """What orders these handles on the management cluster without being a step itself, and why some of that was not
        read: what contains them, what they depend on, and what contains those, and so on."""
        known = {_place(obj): obj for obj in handles}
        steps, unread = set(known), dict[Place, str]()
        waiting = set[Place]().union(*map(_ordering, known.values())) - steps

        async def read(place: Place) -> None:
            try:
                known[place] = listed[place] if place in listed else await get(self._client, place)
            except NotFoundError:
                return
            except ForbiddenError as error:
                if self._needs_order:
                    raise
                unread[place] = str(error)
            except ApiError as error:
                resource = KUSTOMIZATIONS if place.kind == KUSTOMIZATIONS.kind else HELM_RELEASES
                if error.code != _NOT_SERVED or await is_installed(self._client, resource):
                    raise

        looked_for = set(steps)
        while waiting:
            looked_for |= waiting
            if len(looked_for) - len(steps) > _ABOVE:
                raise UnwindError(
                    f"cannot determine the order of Kustomizations and HelmReleases: they depend on more than {_ABOVE}"
                    " that are not on this cluster",
                    remedy="remove some of their dependsOn",
                )
            await gather_limited((read(place) for place in waiting), limit=_AT_ONCE)
            waiting = {it for place in waiting if place in known for it in _ordering(known[place])} - looked_for
        return [obj for place, obj in known.items() if place not in steps], unread

    async def _known_servers(self) -> set[str]:
        """The addresses of all Clusters, as far as they can be read."""
        for resource in (CLUSTERS, CLUSTERS_V1BETA1):
            try:
                found = await self._client.list_of(resource, Cluster)
            except ApiError:
                continue  # only warnings depend on it
            return {kubeconfig_clusters.host(item.spec.control_plane_endpoint) for item in found}
        return set()

    async def is_of_target(
        self, target: ClusterTarget, member: Member, namespace: str, ref: SecretKey, *, others: list[str] | None = None
    ) -> bool:
        """Whether a Secret has a kubeconfig of the target. Raises if that is unknown. `others`: gets the host in it if
        it has another address or proxy than the target."""

        async def leads_to(secret: Object) -> bool:
            if others is not None and (other := kubeconfig_clusters.other_host(secret, ref.key, member)):
                others.append(other)
            return await kubeconfig_clusters.leads_to(secret, ref.key, member)

        read = partial(self._client.get, SECRETS, ref.name, namespace=namespace)
        return await kubeconfig_clusters.is_of_target(target, namespace, ref, read, leads_to)

    async def _on_member(self, resource: Resource, member: Member) -> list[FoundHandle]:
        """Those of Flux on the member itself. With a kubeconfig, they deploy on yet another cluster."""
        return [
            FoundHandle(resource=resource, obj=obj, on_member=True, entries=await entries_of(obj, member))
            for obj in await _listed(member.client, resource)
            if obj.spec.kube_config is None
        ]

    async def is_on_member(self, handle: ObjectRef, home: Member, member: Member) -> bool:
        resource = rules.resource_of(handle)
        if not await is_installed(member.client, resource):
            return False
        try:
            found = await member.client.get(resource, handle.name, namespace=handle.namespace)
        except NotFoundError:
            return False
        del home
        return bool(found["metadata"]["uid"] == handle.uid)

    # Removal

    def why_held(self, handle: Object) -> str:
        obj = _read(handle)
        why = why_held(obj)
        if self._removes is None or not _is_left(obj):
            return why
        return f"{why}, or let Unwind remove them: suspended: Remove in every TeardownPolicy that selects it"

    async def own_removal(
        self, handle: Object, target: ClusterTarget, member: Member, left: Sequence[Content]
    ) -> OwnRemoval | None:
        obj = _read(handle)
        ref = ref_of(_resource(obj), obj.metadata)
        # Handles on the management cluster are steps only with a kubeconfig, those on the member only without one.
        on_member = obj.spec.kube_config is None
        if not _is_left(obj) or self._removes is None or not await self._removes(target, ref, on_member):
            return None
        nested = [it for it in left if rules.is_handle(ref_to(it)) and not it.metadata.deletion_timestamp]
        if nested:
            raise _not_removed(ref, f"{_some(nested)} would be deleted with all that it deployed; delete it first")
        name = obj.spec.service_account_name
        account = Account(obj.metadata.namespace, name) if name else None
        if account and (denied := await forbidden(member.client, account, left)):
            why = f"{account}, with which Flux applies it, may not delete {_some(denied)}; grant it the right"
            raise _not_removed(ref, why)
        release = next((item.name for item in obj.status.history), "") if isinstance(obj, HelmRelease) else ""
        if not isinstance(obj, HelmRelease) or not (release and obj.status.storage_namespace):
            return OwnRemoval()
        return await left_release(
            member,
            ReleaseName(obj.status.storage_namespace, release),
            self._helm,
            hooks_disabled=obj.spec.uninstall.disable_hooks,
            account=account,
        )

    def before_delete(self, handle: Object) -> Object:
        return rules.before_delete(_read(handle))

    def before_stay(self, handle: Object) -> Object:
        return rules.before_stay(handle)

    async def before_release(self, handle: Object) -> None:
        obj = _read(handle)
        if secret := rules.kubeconfig_secret(obj.spec.kube_config):
            await self._copies.let_go(obj.metadata.namespace, secret, obj.metadata.uid)

    async def entries(self, handle: Object, member: Member) -> tuple[HandleEntry, ...]:
        obj = _read(handle)
        uid = obj.metadata.uid
        if isinstance(obj, HelmRelease) and not _is_recorded(obj):
            # helm-controller has forgotten the release. A release that was upgraded while no manager ran is newer than
            # the snapshot; otherwise it was read right before the deletion.
            return () if uid in self._releases_read else await entries_of(obj, member)
        self._releases_read.add(uid)
        return await recorded_entries(obj, member)

    async def left_entries(
        self, handle: ObjectRef, recorded: Collection[ObjectRef], member: Member
    ) -> tuple[HandleEntry, ...]:
        del recorded
        return await _labelled_entries(handle, member)

    async def after_delete(self, handle: Object, member: Member) -> DeletedHandle:
        obj = _read(handle)
        # It is being deleted, so it creates nothing any more. Its children are verified and were kept only for this.
        children, parent = (
            [ref for ref in _inventory(obj) if rules.is_handle(ref)],
            ref_of(_resource(obj), obj.metadata),
        )
        await gather_limited((_let_go(member.client, ref, parent) for ref in children), limit=_AT_ONCE)
        return DeletedHandle(
            working=rules.working(obj, _CONTROLLERS[handle["kind"]]),
            recreated_by=await self._recreated_by(obj, member),
        )

    async def _recreated_by(self, obj: FluxObject, member: Member) -> ObjectRef | None:
        """What would create a handle again if it were gone now; None if nothing would.

        A handle on the member may be a child of a handle on the management cluster: its labels have the same form.
        """
        parent = rules.parent_of(obj.metadata)
        if parent is None or parent.kind != KUSTOMIZATIONS.kind:
            return parent  # a ResourceSet, which Unwind does not read
        mine = (obj.metadata.namespace, obj.metadata.name)
        for client in (member.client, self._client):
            if not await is_installed(client, KUSTOMIZATIONS):
                continue
            try:
                found = await client.get(KUSTOMIZATIONS, parent.name, namespace=parent.namespace, type=Kustomization)
            except NotFoundError:
                continue
            stopped = found.metadata.terminating or (found.spec.suspend and self._trusts_suspended)
            # A parent that has pruned it does not have it in its inventory any more.
            if not stopped and mine in {(ref.namespace, ref.name) for ref in _inventory(found)}:
                return parent
        return None


def why_held(obj: FluxObject) -> str:
    """Why Flux would not remove everything if a handle were deleted as it is; empty if it would (pure)."""
    if why := rules.why_held(obj):
        return why
    # Flux on the management cluster can remove the one that it deployed on a member.
    if obj.spec.kube_config is None and rules.manages_flux(_inventory(obj)):
        return (
            "deploys Flux itself besides other objects, and Flux cannot remove itself; move the other objects to"
            " another Kustomization"
        )
    return ""


def _unplaced(resource: Resource, obj: FluxObject, why: str, *, holds: bool = False) -> Handle:
    ref = ref_of(resource, obj.metadata)
    return Handle(ref=ref, source=SourceKind.FLUX, unplaced=why, holds=holds)


def _is_left(obj: FluxObject) -> bool:
    """Whether Flux would leave what a handle deployed, and Unwind could remove it."""
    return bool(rules.why_left(obj)) and not (obj.spec.kube_config is None and rules.manages_flux(_inventory(obj)))


def _not_removed(handle: ObjectRef, why: str) -> Again:
    return Again(f"cannot remove what {handle} deployed: {why}", after=LOOK_AGAIN, code=Reason.HELD)


def _some(those: Sequence[Content]) -> str:
    more = f" and {len(those) - _NAMED} more" if len(those) > _NAMED else ""
    return f"{', '.join(map(str, those[:_NAMED]))}{more}"


# Handles


def handles_of(
    found: Sequence[FoundHandle], above: Sequence[FluxObject] = (), unread: Mapping[Place, str] | None = None
) -> list[Handle]:
    """The handles of a cluster with their order (pure). Raises if two of them have the same step.

    `above`: Kustomizations and HelmReleases on the management cluster that are no steps, but order those that are.
    `unread`: why others of these are not known.
    """
    for place, times in Counter(item.place for item in found).items():
        if times > 1:
            raise UnwindError(
                f"{step_of(place)} exists on the management cluster and on the cluster itself, and both deploy on it",
                remedy="rename one of them",
            )
    order = _order(found, {f"{_NO_STEP}{step_of(_place(obj))}": obj for obj in above})
    warnings: dict[str, list[str]] = {}
    for group in order.dropped:
        for name in group:
            warnings.setdefault(name, []).append(dropped_warning(name, group))
    for item in found:
        for place in _ordering(item.obj) if unread and not item.on_member else ():
            if unread and (why := unread.get(place)):
                told = f"cannot read {step_of(place)}, which may order it: {why}"
                warnings.setdefault(item.name, []).append(told)
    return [_handle(item, order.needs[item.name], warnings.get(item.name, ())) for item in found]


def _order(found: Sequence[FoundHandle], above: Mapping[str, FluxObject]) -> NestedOrder:
    """The order of handles (pure). `above`: by their names in the order, which are no steps."""
    # Names in dependsOn and in inventories are those of one cluster.
    names = {(item.on_member, item.place): item.name for item in found}
    names |= {(False, _place(obj)): name for name, obj in above.items()}
    objects: dict[str, FluxObject] = {item.name: item.obj for item in found}
    objects |= above
    declared = {
        name: [names[there, it] for it in rules.dependencies(objects[name], place.kind) if (there, it) in names]
        for (there, place), name in names.items()
    }
    parents: dict[str, set[str]] = {name: set() for name in objects}
    containers = [(item.name, item.obj, item.refs, True) for item in found]
    containers += [(name, obj, _inventory(obj), False) for name, obj in above.items() if obj.spec.kube_config is None]
    for parent, obj, refs, on_member in containers:
        for place in rules.children(_place(obj), refs):
            # Users who may write the status of the parent can put any handle into its inventory, but not mark it.
            child = names.get((on_member, place))
            if child and rules.is_marked(ref_of(_resource(obj), obj.metadata), objects[child].metadata.labels):
                parents[child].add(parent)
    # Flux on the member, deployed from the management cluster: it goes after all that it deployed.
    below = [item.name for item in found if not item.on_member and rules.manages_flux(item.refs)]
    return nested_order(
        declared, parents, also={item.name: below for item in found if item.on_member}, order_only=list(above)
    )


def _ordering(obj: FluxObject) -> set[Place]:
    """What may order a handle: what it depends on, and what contains it, by its labels (pure)."""
    found = set(rules.dependencies(obj, _resource(obj).kind))
    parent = rules.parent_of(obj.metadata)
    if parent and parent.kind == KUSTOMIZATIONS.kind:
        found.add(Place(parent.kind, parent.namespace, parent.name))
    return found


def _handle(item: FoundHandle, needs: Iterable[str], warnings: Iterable[str]) -> Handle:
    itself = item.on_member and rules.manages_flux(item.refs) and not _deploys_others(item)
    return Handle(
        ref=ref_of(item.resource, item.obj.metadata),
        source=SourceKind.FLUX,
        entries=tuple(msgspec.structs.replace(entry, kept=_ITSELF) for entry in item.entries)
        if itself
        else item.entries,
        depends_on=tuple(sorted(needs)),
        terminating=item.obj.metadata.terminating,
        on_member=item.on_member,
        stays=_ITSELF if itself else "",
        left=rules.why_left(item.obj) if _is_left(item.obj) else "",
        held=why_held(item.obj),
        warnings=(*item.warnings, *_warnings(item), *warnings),
    )


def _deploys_others(item: FoundHandle) -> bool:
    """Whether a handle deploys something besides Flux."""
    namespace = item.obj.metadata.namespace
    return any(not rules.is_handle(ref) and not rules.is_part_of_flux(ref, namespace=namespace) for ref in item.refs)


def _warnings(item: FoundHandle) -> Iterable[str]:
    if not _is_left(item.obj) and (held := rules.why_held(item.obj)):
        yield f"it {held}"
    if not item.on_member and (parent := rules.parent_of(item.obj.metadata)):
        yield f"{parent} would create it again; it stays, being deleted, until the cluster is gone"


def _place(obj: FluxObject) -> Place:
    return Place(_resource(obj).kind, obj.metadata.namespace, obj.metadata.name)


def step_of(place: Place) -> str:
    """The name of a step (pure)."""
    return step_name(ObjectRef(kind=place.kind, namespace=place.namespace, name=place.name))


# Inventories


async def entries_of(obj: FluxObject, member: Member) -> tuple[HandleEntry, ...]:
    """What a handle deployed on the member."""
    if isinstance(obj, HelmRelease) and obj.metadata.terminating and not _is_recorded(obj):
        # helm-controller forgets its release when it has uninstalled it, with or without waiting for its objects.
        return await _labelled_entries(ref_of(HELM_RELEASES, obj.metadata), member)
    return await recorded_entries(obj, member)


def _is_recorded(obj: HelmRelease) -> bool:
    return bool(obj.status.inventory or obj.status.storage_namespace)


async def recorded_entries(obj: FluxObject, member: Member) -> tuple[HandleEntry, ...]:
    """What a handle deployed, by its inventory or the Secrets of its release; empty if it has neither."""
    if isinstance(obj, Kustomization) or obj.status.inventory:
        return tuple(HandleEntry(object=ref) for ref in _inventory(obj))
    return await _release_entries(obj, member) if obj.status.storage_namespace else ()


async def _labelled_entries(handle: ObjectRef, member: Member) -> tuple[HandleEntry, ...]:
    """The objects on the member that carry Flux's labels for a handle. Expensive: lists every kind."""
    labels = rules.mark_selector(handle)
    # On the management cluster the manager has few rights: what it may not read is refused when the plan is made.
    home = member.ref.kind == NAMESPACES.kind
    found = await contents.cluster_contents(member.client, member.discovery, labels=labels, readable=home)
    return tuple(
        HandleEntry(object=msgspec.structs.replace(ref_of(item.resource, item.metadata), uid="")) for item in found
    )


async def _release_entries(obj: HelmRelease, member: Member) -> tuple[HandleEntry, ...]:
    """What the Helm release of a handle deployed, from its Secrets: helm-controller before 1.5 keeps no inventory."""
    entries: dict[ObjectRef, HandleEntry] = {}
    for name in dict.fromkeys(item.name for item in obj.status.history):
        revisions = await release_secrets.history(member.client, namespace=obj.status.storage_namespace, release=name)
        # A failed upgrade leaves objects of the last two.
        for revision in revisions[-2:]:
            release = revision.release
            manifests, crds = await asyncio.to_thread(_manifests_of, release)
            parts = await parts_of(member, manifests, namespace=release.namespace)
            served = {id(part.manifest): part.ref for part in parts}
            for item in manifests:
                # Whether an object of a kind that is not served exists is decided when it is looked for.
                ref = served.get(id(item)) or ObjectRef(
                    group=item.group, version=item.version, kind=item.kind, namespace=item.namespace, name=item.name
                )
                entries[ref] = HandleEntry(object=ref)
            for item in crds:
                ref = ObjectRef(group=item.group, version=item.version, kind=item.kind, name=item.name)
                entries.setdefault(ref, HandleEntry(object=ref, kept=KEPT_CRD))
    return tuple(entries.values())


def _manifests_of(release: release_secrets.HelmRelease) -> tuple[list[ChartManifest], list[ChartManifest]]:
    """The objects of a revision without its hooks, and the CRDs in the crds directory of its chart."""
    found = release_secrets.release_manifests(release)
    return [item for item in found if not item.hook], release_secrets.crd_manifests(release)


def _has_deployed(obj: FluxObject) -> bool:
    """Whether a handle has deployed something, as far as its status says."""
    released = isinstance(obj, HelmRelease) and bool(obj.status.storage_namespace or obj.status.history)
    return released or bool(_inventory(obj))


def _unknown_cluster(resource: Resource, obj: FluxObject, error: UnwindError) -> UnwindError:
    meta = obj.metadata
    return UnwindError(
        f"cannot determine the cluster of {resource.kind} {meta.namespace}/{meta.name}: {error}",
        remedy="restore the Secret with its kubeconfig, or delete the handle if its cluster is gone",
    )


def _inventory(obj: FluxObject) -> tuple[ObjectRef, ...]:
    return rules.inventory_refs(obj.status.inventory)


def _resource(obj: FluxObject) -> Resource:
    return KUSTOMIZATIONS if isinstance(obj, Kustomization) else HELM_RELEASES


def _read(handle: Object) -> FluxObject:
    if handle["kind"] == KUSTOMIZATIONS.kind:
        return msgspec.convert(handle, Kustomization)
    return msgspec.convert(handle, HelmRelease)


# Reads and writes


async def _listed(client: Client, resource: Resource, *, namespace: str | None = None) -> Sequence[FluxObject]:
    """The objects of a kind of Flux; none if its CRD is not installed. Raises if that is unknown."""
    try:
        return await client.list_of(resource, _TYPES[resource], namespace=namespace)
    except ApiError as error:
        # Only the absence of the CRD proves that there are none.
        if error.code == _NOT_SERVED and not await is_installed(client, resource):
            return ()
        raise


async def get(client: Client, place: Place) -> FluxObject:
    """A Kustomization or HelmRelease, read from the API server. Raises NotFoundError."""
    if place.kind == KUSTOMIZATIONS.kind:
        return await client.get(KUSTOMIZATIONS, place.name, namespace=place.namespace, type=Kustomization)
    return await client.get(HELM_RELEASES, place.name, namespace=place.namespace, type=HelmRelease)


async def _let_go(client: Client, ref: ObjectRef, parent: ObjectRef) -> None:
    """Remove Unwind's finalizer from a handle that Flux has let go of already, if this parent deployed it."""
    resource = rules.resource_of(ref)
    try:
        found = await client.get(resource, ref.name, namespace=ref.namespace)
    except NotFoundError:
        return
    except ApiError as error:
        if error.code == _NOT_SERVED:
            return  # the kind is gone
        raise
    # Users who may write the status of the parent can put any handle into its inventory.
    if not rules.is_marked(parent, found["metadata"].get("labels") or {}):
        return

    def change(now: Object) -> Object | None:
        meta = now["metadata"]
        have = meta.get("finalizers") or []
        if "deletionTimestamp" not in meta or FLUX_FINALIZER in have or Finalizer.HANDLE not in have:
            return None
        return {"metadata": {"finalizers": [item for item in have if item != Finalizer.HANDLE]}}

    await revise(client, resource, found, change)
