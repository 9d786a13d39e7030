"""Flux as a companion: Kustomizations and HelmReleases are the handles, on the management cluster or on the member.

On the management cluster, `spec.kubeConfig` says which cluster a handle deploys on. On the member, Flux deploys on the
cluster that it runs in. Flux lets go of a handle when its DELETEs are accepted, so `HandleRemover` does the waiting.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from unwind import logs
from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, Cluster
from unwind.api.flux import FLUX_FINALIZER, HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, Kustomization, SecretKey
from unwind.api.meta import ref_of
from unwind.api.names import Finalizer, Reason
from unwind.api.policies import SourceKind
from unwind.api.resources import SECRETS, Resource
from unwind.companions import flux_reader, helm_release_drivers, kubeconfig_clusters
from unwind.companions import flux_rules as rules
from unwind.companions.companion import DeletedHandle, Handle, HandleEntry
from unwind.companions.flux_handles import handles_of, is_left, unplaced_handle, why_held
from unwind.companions.handle_remover import HandleRemover
from unwind.companions.helm_release_drivers import flux_driver
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.impersonation import Account, forbidden
from unwind.companions.kubeconfig_copies import KubeconfigCopies
from unwind.companions.left_objects import LOOK_AGAIN, OwnRemoval, left_release
from unwind.concurrency import gather_limited
from unwind.deleters.outcomes import Again
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError, NotFoundError
from unwind.kube.installed_kinds import is_installed
from unwind.kube.updates import revise
from unwind.removal.deletion_scope import ref_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.companions.flux_handles import FoundHandle
    from unwind.companions.flux_rules import FluxObject, Place
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget

log = logs.get(__name__)

_KINDS = (KUSTOMIZATIONS, HELM_RELEASES)
_CONTROLLERS = {
    KUSTOMIZATIONS.kind: "Flux (kustomize-controller)",
    HELM_RELEASES.kind: "Flux (helm-controller)",
}
_AT_ONCE = 16
# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404
# The same, and if the user may not list Clusters.
_NO_CLUSTERS = (_NOT_SERVED, 403)
_NAMED = 3
_BY_CONFIG_MAP = "names its cluster by spec.kubeConfig.configMapRef, which Unwind does not read"
_ELSEWHERE = "uses a kubeconfig with an address or a proxy of no known Cluster"


class _Hosts(NamedTuple):
    """The addresses of Clusters, with their ports."""

    own: str
    """Of one Cluster; empty if it is not known."""
    others: frozenset[str]


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
        on_management = [item.obj for item in every if not item.on_member]
        above, unread = await flux_reader.read_order(self._client, on_management, listed, needed=self._needs_order)
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
            found += await flux_reader.listed(self._client, resource, namespace=namespace)
        listed |= {rules.place_of(obj): obj for obj in found}
        users: dict[tuple[str, SecretKey], list[FluxObject]] = {}
        for obj in found:
            if (config := obj.spec.kube_config) and config.secret_ref and config.secret_ref.name:
                users.setdefault((obj.metadata.namespace, config.secret_ref), []).append(obj)
            elif config and config.config_map_ref:
                holds = obj.metadata.namespace == target.ref.namespace
                unplaced.append(unplaced_handle(resource, obj, _BY_CONFIG_MAP, "use secretRef" if holds else ""))
        others: list[tuple[str, FluxObject]] = []
        mine: list[FluxObject] = []
        for (namespace, ref), objs in users.items():
            servers: list[str] = []
            try:
                if await self.is_of_target(target, member, namespace, ref, others=servers):
                    mine += objs
                others += [(server, obj) for server in servers for obj in objs]
            except UnwindError as error:
                if deployed := [obj for obj in objs if _may_have_deployed(obj)]:
                    raise _unknown_cluster(resource, deployed[0], error) from error
                log.warning("kubeconfig not usable", object=f"Secret {namespace}/{ref.name}", error=str(error))
        if others:
            known = (await self._hosts(target)).others
            use_secret = f"let it use Secret {target.secret} if it deploys on this cluster"
            for host, obj in others:
                if host not in known:
                    holds = obj.metadata.namespace == target.ref.namespace and _may_have_deployed(obj)
                    unplaced.append(unplaced_handle(resource, obj, _ELSEWHERE, use_secret if holds else ""))
        return await flux_reader.found_handles(resource, mine, member, on_member=False)

    async def stranded(self, target: ClusterTarget, namespaces: Collection[str]) -> list[Handle]:
        found: list[Handle] = []
        hosts: list[_Hosts] = []
        for resource in _KINDS:
            for namespace in sorted(namespaces):
                at_home = namespace == target.ref.namespace
                for obj in await flux_reader.listed(self._client, resource, namespace=namespace):
                    config = obj.spec.kube_config
                    if config is None or not _may_have_deployed(obj):
                        continue
                    hosts = hosts or [await self._hosts(target)]
                    ref = config.secret_ref
                    if ref and ref.name:
                        counts = await self._may_lead_to(target, namespace, ref, hosts[0])
                    else:
                        counts = at_home
                    if counts:
                        found.append(Handle(ref=ref_of(resource, obj.metadata), source=self.source))
        return found

    async def _may_lead_to(self, target: ClusterTarget, namespace: str, ref: SecretKey, hosts: _Hosts) -> bool:
        """Whether a Secret may have a kubeconfig of a cluster whose own kubeconfig is missing."""

        async def leads_to(secret: Object) -> bool:
            host = kubeconfig_clusters.host_in(secret, ref.key)
            # Of the namespace of the Cluster, as if the cluster could be asked: see `_on_management`.
            return host == hosts.own or (namespace == target.ref.namespace and host not in hosts.others)

        read = partial(self._client.get, SECRETS, ref.name, namespace=namespace)
        try:
            return await kubeconfig_clusters.is_of_target(target, namespace, ref, read, leads_to)
        except UnwindError:
            return True

    async def _hosts(self, target: ClusterTarget) -> _Hosts:
        """The addresses of all Clusters. Those that may not be listed are no known ones."""
        for resource in (CLUSTERS, CLUSTERS_V1BETA1):
            try:
                found = await self._client.list_of(resource, Cluster)
            except ApiError as error:
                if error.code not in _NO_CLUSTERS:
                    raise
                continue
            hosts = {it.metadata.uid: kubeconfig_clusters.host(it.spec.control_plane_endpoint) for it in found}
            own = hosts.pop(target.ref.uid, "")
            return _Hosts(own, frozenset(hosts.values()))
        return _Hosts("", frozenset())

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
        found = [obj for obj in await flux_reader.listed(member.client, resource) if obj.spec.kube_config is None]
        return await flux_reader.found_handles(resource, found, member, on_member=True)

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
        obj = rules.read(handle)
        why = why_held(obj)
        if self._removes is None or not is_left(obj):
            return why
        return f"{why}, or let Unwind remove them: suspended: Remove in every TeardownPolicy that selects it"

    async def own_removal(
        self, handle: Object, target: ClusterTarget, member: Member, left: Sequence[Content]
    ) -> OwnRemoval | None:
        obj = rules.read(handle)
        ref = rules.reference(obj)
        # Handles on the management cluster are steps only with a kubeconfig, those on the member only without one.
        on_member = obj.spec.kube_config is None
        if not is_left(obj) or self._removes is None or not await self._removes(target, ref, on_member):
            return None
        nested = [it for it in left if rules.is_handle(ref_to(it)) and not it.metadata.deletion_timestamp]
        if nested:
            raise _not_removed(ref, f"{_some(nested)} would be deleted with all that it deployed; delete it first")
        name = obj.spec.service_account_name
        account = Account(obj.metadata.namespace, name) if name else None
        if account and (denied := await forbidden(member.client, account, left)):
            why = f"{account}, with which Flux applies it, may not delete {_some(denied)}; grant it the right"
            raise _not_removed(ref, why)
        if not isinstance(obj, HelmRelease):
            return OwnRemoval()
        storage = obj.status.storage_namespace
        if not (storage and obj.status.history):
            if left:
                raise _not_removed(ref, "its status does not name its release; uninstall that with `helm uninstall`")
            return OwnRemoval()
        last = obj.status.history[0]
        return await left_release(
            member,
            ReleaseName(last.namespace or storage, last.name),
            self._helm,
            other=partial(_other_driver, member, flux_driver(obj.metadata.namespace, obj.metadata.name)),
            storage=storage,
            hooks_disabled=obj.spec.uninstall.disable_hooks,
            account=account,
        )

    def before_delete(self, handle: Object) -> Object:
        return rules.before_delete(rules.read(handle))

    def before_stay(self, handle: Object) -> Object:
        return rules.before_stay(handle)

    async def before_release(self, handle: Object) -> None:
        obj = rules.read(handle)
        if secret := rules.kubeconfig_secret(obj.spec.kube_config):
            await self._copies.let_go(obj.metadata.namespace, secret, obj.metadata.uid)

    async def entries(self, handle: Object, member: Member) -> tuple[HandleEntry, ...]:
        obj = rules.read(handle)
        uid = obj.metadata.uid
        if isinstance(obj, HelmRelease) and not flux_reader.is_recorded(obj):
            # helm-controller has forgotten the release. A release that was upgraded while no manager ran is newer than
            # the snapshot; otherwise it was read right before the deletion.
            return () if uid in self._releases_read else (await flux_reader.found_handle(obj, member)).entries
        self._releases_read.add(uid)
        return await flux_reader.recorded_entries(obj, member)

    async def left_entries(
        self, handle: ObjectRef, recorded: Collection[ObjectRef], member: Member
    ) -> tuple[HandleEntry, ...]:
        del recorded
        return await flux_reader.labelled_entries(handle, member)

    async def after_delete(self, handle: Object, member: Member) -> DeletedHandle:
        obj = rules.read(handle)
        # It is being deleted, so it creates nothing any more. Its children are verified and were kept only for this.
        children = [ref for ref in rules.inventory_of(obj) if rules.is_handle(ref)]
        parent = rules.reference(obj)
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
            if not stopped and mine in {(ref.namespace, ref.name) for ref in rules.inventory_of(found)}:
                return parent
        return None


async def _other_driver(member: Member, own: str, loaded: LoadedRelease) -> str:
    """Who drives a release besides the HelmRelease that `driver` calls this."""
    if loaded.driver and loaded.driver != own:
        return loaded.driver
    found = (await helm_release_drivers.driven_on_member(member)).get(loaded.name)
    return found.name if found else ""


def _may_have_deployed(obj: FluxObject) -> bool:
    """Whether a handle has deployed something, or is held: helm-controller forgets it if the Secret is missing."""
    return rules.has_deployed(obj) or Finalizer.HANDLE in obj.metadata.finalizers


def _not_removed(handle: ObjectRef, why: str) -> Again:
    return Again(f"cannot remove what {handle} deployed: {why}", after=LOOK_AGAIN, code=Reason.HELD)


def _some(those: Sequence[Content]) -> str:
    more = f" and {len(those) - _NAMED} more" if len(those) > _NAMED else ""
    return f"{', '.join(map(str, those[:_NAMED]))}{more}"


def _unknown_cluster(resource: Resource, obj: FluxObject, error: UnwindError) -> UnwindError:
    meta = obj.metadata
    return UnwindError(
        f"cannot determine the cluster of {resource.kind} {meta.namespace}/{meta.name}: {error}",
        remedy="restore the Secret with its kubeconfig, or delete the handle if its cluster is gone",
    )


# Reads and writes


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
