"""Requested deletions of HelmReleaseProxies, whose Cluster stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api import capi
from unwind.api.caaph import HELM_CHART_PROXIES, HELM_CHART_PROXY_LABEL, HELM_RELEASE_PROXIES, HelmReleaseProxy
from unwind.api.meta import LabelSelector, ObjectMeta, ref_of
from unwind.companions import helm_release_proxy_rules, snapshots
from unwind.companions.handle_scopes import HandleScope, ScopedHandle, check_same
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError
from unwind.members import targets
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack

    from unwind.api.meta import ObjectRef
    from unwind.companions.companion import DeletedHandle, Handle
    from unwind.kube.client import Client, Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps


class RequestedProxies(HelmReleaseProxies):
    """CAAPH, if the Cluster of a proxy stays. Unwind itself uninstalls nothing: the requester could not, either."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, None)
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
        self.companion = RequestedProxies(client)

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        proxy = await self._client.get(HELM_RELEASE_PROXIES, ref.name, namespace=ref.namespace, type=HelmReleaseProxy)
        check_same(ref, proxy.metadata)
        target = targets.of_capi(await cluster_of(self._client, proxy))
        home = await stack.enter_async_context(self._deps.members.management())
        member = await stack.enter_async_context(self._deps.members.member(target))
        found = await self.companion.handles(target, member, (ref.namespace,))
        handle = next((item for item in found if item.ref.uid == ref.uid), None)
        if handle is None:
            raise UnwindError(f"{ref} was deleted meanwhile", remedy="if it still exists, request its deletion again")
        return HandleScope(
            handles=(
                ScopedHandle(
                    handle=handle,
                    metadata=proxy.metadata,
                    place=home,
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
        raise UnwindError(
            f"cannot delete {ref}: its Cluster is in another namespace ({where.namespace})",
            remedy=f"use `kubectl delete helmreleaseproxy {ref.name} -n {namespace}`: CAAPH uninstalls it,"
            " and Unwind does not verify it",
        )
    return await client.get(capi.CLUSTERS, where.name, namespace=namespace, type=capi.Cluster)


def refused_proxies(proxy: HelmReleaseProxy, handle: Handle, others: Iterable[Handle]) -> list[Told]:
    """Why a proxy is not deleted on request: CAAPH would leave its release, or others depend on it (pure)."""
    found = []
    if held := helm_release_proxy_rules.why_held(proxy):
        found.append(Told(handle.ref, held))
    elif helm_release_proxy_rules.uninstalled_by_unwind(proxy):
        found.append(
            Told(
                handle.ref,
                "has reconcileStrategy InstallOnce: CAAPH would leave its release; set it to Continuous first",
            )
        )
    return found + [
        Told(other.ref, f"depends on {handle.step}; delete it first")
        for other in others
        if handle.step in other.depends_on and not other.terminating
    ]
