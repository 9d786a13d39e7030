"""HelmReleaseProxies of Cluster API's add-on provider for Helm (CAAPH) as handles.

CAAPH uninstalls the release of a proxy that is deleted, and lets go of the proxy when Helm has returned: objects may
still exist. It never uninstalls the release of a proxy with reconcileStrategy InstallOnce: Unwind does, with Helm.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.api.caaph import HELM_CHART_PROXIES, HELM_RELEASE_PROXIES, HelmChartProxy, HelmReleaseProxy
from unwind.api.meta import ref_of
from unwind.api.names import HELM_RELEASE_ANNOTATION, MANAGED_BY_HELM, MANAGED_BY_LABEL, Finalizer
from unwind.api.policies import SourceKind
from unwind.companions import helm_release_drivers, helm_release_proxy_rules, helm_release_reader, helm_release_rules
from unwind.companions.companion import DeletedHandle, Handle
from unwind.companions.handle_remover import HandleRemover
from unwind.companions.helm_release_rules import ReleaseName
from unwind.companions.left_objects import left_release
from unwind.concurrency import gather_limited
from unwind.kube.installed_kinds import is_installed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.companions.companion import HandleEntry
    from unwind.companions.helm_release_reader import LoadedRelease
    from unwind.companions.left_objects import OwnRemoval
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget

_AT_ONCE = 8


class HelmReleaseProxies:
    """CAAPH as a companion."""

    source = SourceKind.HELM_RELEASE_PROXY
    controller = helm_release_proxy_rules.CONTROLLER

    def __init__(self, management: Client, helm: Helm | None) -> None:
        """`helm`: None if the program is not installed. Then proxies with reconcileStrategy InstallOnce are held."""
        self._management = management
        self._helm = helm
        self.remover = HandleRemover(self)
        self._names: dict[str, ReleaseName] = {}
        """The release of each handle that was read, by the uid of the handle."""
        self._revisions: dict[str, int] = {}
        """The last revision of it that was read."""

    def owns(self, ref: ObjectRef) -> bool:
        return (ref.group, ref.kind) == (HELM_RELEASE_PROXIES.group, HELM_RELEASE_PROXIES.kind)

    def resource(self, handle: ObjectRef) -> Resource:
        del handle
        return HELM_RELEASE_PROXIES

    async def is_on_member(self, handle: ObjectRef, home: Member, member: Member) -> bool:
        del handle, home, member
        return False

    def is_marked(self, handle: ObjectRef, found: Metadata) -> bool:
        annotations = found.annotations or {}
        if name := self._names.get(handle.uid):
            return helm_release_rules.is_of_release(found, name) or helm_release_rules.is_release_secret(found, name)
        # The handle is gone. An object that Helm manages under this name is waited for rather than forgotten.
        return (found.labels or {}).get(MANAGED_BY_LABEL) == MANAGED_BY_HELM and HELM_RELEASE_ANNOTATION in annotations

    def why_kept(self, handle: ObjectRef, kind: str, found: Metadata) -> str:
        del handle, kind, found  # Helm decides by the manifests in its release
        return ""

    # Reading

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        client = self._management
        if not await is_installed(client, HELM_RELEASE_PROXIES):
            return []
        proxies: list[HelmReleaseProxy] = []
        charts_found: dict[tuple[str, str], HelmChartProxy] = {}
        for namespace in sorted(namespaces):
            found = msgspec.convert(
                await client.list(HELM_RELEASE_PROXIES, namespace=namespace), list[HelmReleaseProxy]
            )
            proxies += helm_release_proxy_rules.of_cluster(found, target.ref)
            for chart in msgspec.convert(
                await client.list(HELM_CHART_PROXIES, namespace=namespace), list[HelmChartProxy]
            ):
                charts_found[namespace, chart.metadata.name] = chart
        order = helm_release_proxy_rules.dependencies(proxies, charts_found)
        handles: list[Handle] = []

        async def one(proxy: HelmReleaseProxy) -> None:
            handles.append(await self._handle(member, proxy, order[proxy.metadata.uid]))

        await gather_limited((one(proxy) for proxy in proxies), limit=_AT_ONCE)
        return sorted(handles, key=lambda handle: handle.step)

    async def stranded(self, target: ClusterTarget, namespaces: Collection[str]) -> list[Handle]:
        if not await is_installed(self._management, HELM_RELEASE_PROXIES):
            return []
        found: list[HelmReleaseProxy] = []
        for namespace in sorted(namespaces):
            listed = await self._management.list(HELM_RELEASE_PROXIES, namespace=namespace)
            found += helm_release_proxy_rules.of_cluster(msgspec.convert(listed, list[HelmReleaseProxy]), target.ref)
        return [
            Handle(ref=ref_of(HELM_RELEASE_PROXIES, proxy.metadata), source=self.source)
            for proxy in found
            if helm_release_proxy_rules.installed(proxy) or Finalizer.HANDLE in proxy.metadata.finalizers
        ]

    async def _handle(self, member: Member, proxy: HelmReleaseProxy, needs: tuple[str, ...]) -> Handle:
        loaded = await self._load(member, proxy)
        return Handle(
            ref=ref_of(HELM_RELEASE_PROXIES, proxy.metadata),
            source=self.source,
            entries=await _entries(member, proxy, loaded),
            depends_on=needs,
            # CAAPH is often used for the network and the cloud controller of a cluster.
            last=bool(loaded and loaded.cluster_role),
            terminating=proxy.metadata.terminating,
            held=helm_release_proxy_rules.why_held(proxy),
            unknown="" if loaded else helm_release_proxy_rules.why_unknown(proxy),
            warnings=tuple(helm_release_proxy_rules.warnings(proxy, found=loaded is not None)),
        )

    async def _load(self, member: Member, proxy: HelmReleaseProxy) -> LoadedRelease | None:
        """Its release on the cluster; None if there is none."""
        uid = proxy.metadata.uid
        name = self._names[uid] = _release(proxy)
        loaded = await helm_release_reader.load(member, name) if name.name else None
        if loaded:
            self._revisions[uid] = loaded.release.version
        return loaded

    # Removing

    def why_held(self, handle: Object) -> str:
        return helm_release_proxy_rules.why_held(msgspec.convert(handle, HelmReleaseProxy))

    def before_delete(self, handle: Object) -> Object:
        del handle
        return {}

    def before_stay(self, handle: Object) -> Object:
        del handle
        return {}

    async def before_release(self, handle: Object) -> None:
        del handle  # it names no Secret

    async def entries(self, handle: Object, member: Member) -> tuple[HandleEntry, ...]:
        proxy = msgspec.convert(handle, HelmReleaseProxy)
        loaded = await self._load(member, proxy)
        if loaded is None and proxy.metadata.terminating and not self._is_up_to_date(proxy):
            # It was upgraded, for example while no manager ran, and CAAPH has uninstalled it since.
            return helm_release_proxy_rules.with_history(
                proxy, await helm_release_reader.marked_entries(member, _release(proxy))
            )
        return await _entries(member, proxy, loaded)

    def _is_up_to_date(self, proxy: HelmReleaseProxy) -> bool:
        """Whether this process has read the last revision that CAAPH has deployed for a proxy."""
        return self._revisions.get(proxy.metadata.uid, 0) >= max(proxy.status.revision, 1)

    async def left_entries(
        self, handle: ObjectRef, recorded: Collection[ObjectRef], member: Member
    ) -> tuple[HandleEntry, ...]:
        names = {name for ref in recorded if (name := helm_release_rules.stored_name(ref))}
        if known := self._names.get(handle.uid):
            names.add(known)
        return tuple(
            [entry for name in sorted(names) for entry in await helm_release_reader.marked_entries(member, name)]
        )

    async def after_delete(self, handle: Object, member: Member) -> DeletedHandle:
        del member
        return DeletedHandle(working=helm_release_proxy_rules.working(msgspec.convert(handle, HelmReleaseProxy)))

    async def own_removal(
        self, handle: Object, target: ClusterTarget, member: Member, left: Sequence[Content]
    ) -> OwnRemoval | None:
        """The uninstall of a release that CAAPH leaves behind (InstallOnce); None for others."""
        del left
        proxy = msgspec.convert(handle, HelmReleaseProxy)
        if not helm_release_proxy_rules.uninstalled_by_unwind(proxy):
            return None
        other = partial(self._other_driver, target, member, proxy.metadata.uid)
        disabled = proxy.spec.options.disable_hooks
        return await left_release(member, _release(proxy), self._helm, other=other, hooks_disabled=disabled)

    async def _other_driver(self, target: ClusterTarget, member: Member, proxy: str, loaded: LoadedRelease) -> str:
        """Who drives a release besides the proxy with this uid. CAAPH itself leaves no mark on it."""
        if loaded.driver:
            return loaded.driver
        driven = await helm_release_drivers.driven_on_member(member)
        driven |= await helm_release_drivers.driven_by_proxies(self._management, target.ref, besides=proxy)
        found = driven.get(loaded.name)
        return found.name if found else ""


async def _entries(member: Member, proxy: HelmReleaseProxy, loaded: LoadedRelease | None) -> tuple[HandleEntry, ...]:
    if loaded is None:
        return ()
    return helm_release_proxy_rules.with_history(proxy, await helm_release_reader.entries_of(member, loaded))


def _release(proxy: HelmReleaseProxy) -> ReleaseName:
    return ReleaseName(proxy.spec.namespace or "default", proxy.spec.release_name)
