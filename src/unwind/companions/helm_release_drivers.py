"""Who drives a Helm release on a member, and what follows: the release is left to that deployer.

A deployer leaves marks on the release (Flux, Fleet, Sveltos, profiles of Unwind), or an object of it names the release:
a HelmChart of K3s on the member, a HelmReleaseProxy or a ClusterSummary on the management cluster. For the steps of a
cluster, `HelmCompanion.driver_of` asks for both.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.caaph import HELM_RELEASE_PROXIES, HelmReleaseProxy
from unwind.api.flux import HELM_RELEASES
from unwind.api.flux import HelmRelease as FluxRelease
from unwind.api.meta import ref_of
from unwind.api.names import OWNER_LABEL
from unwind.api.policies import SourceKind
from unwind.api.resources import SECRETS, Resource
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.companions import helm_release_proxy_rules, kubeconfig_clusters
from unwind.companions.companion import Handle
from unwind.companions.helm_release_rules import ReleaseName
from unwind.errors import UnwindError
from unwind.kube.installed_kinds import is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.meta import ObjectRef
    from unwind.companions.step_source import HandleDecisions
    from unwind.helm.release_secrets import HelmRelease
    from unwind.kube.client import Client, Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget

FLUX_NAME_LABEL = "helm.toolkit.fluxcd.io/name"
FLUX_NAMESPACE_LABEL = "helm.toolkit.fluxcd.io/namespace"
FLEET_BUNDLE_ANNOTATION = "fleet.cattle.io/bundle-id"
_SVELTOS = "projectsveltos.io/"
# The controller of K3s and RKE2, on the member.
_HELM_CHARTS = Resource("helm.cattle.io", "v1", "helmcharts", "HelmChart")


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """A deployer that drives a release."""

    name: str
    """The object that names the release, or the mark on it."""
    handles: tuple[Handle, ...] = ()
    """Its objects that exist and deploy on the cluster, of deployers whose handles can be steps."""
    profile: bool = False
    """Whether it is a profile of Unwind, which is always a step."""
    gone: bool = False
    """Whether only its mark is left."""

    @property
    def why(self) -> str:
        """Why the release is left to it, as the rest of a sentence."""
        if self.gone:
            return (
                f"carries the labels of {self.name}, which does not deploy it here; uninstall it with `helm uninstall`"
            )
        return f"is driven by {self.name}; remove it there"


# By the marks on it


def driver(release: HelmRelease, labels: Mapping[str, str], documents: Iterable[Mapping[str, Any]]) -> str:
    """The deployer that installs and upgrades a release; empty if there is no trace of one (pure).

    `labels`: of its Secret. `documents`: its objects. Flux and Sveltos label every object before Helm stores it.
    HelmReleaseProxies leave no trace on the member: whether there is one is known on the management cluster only.
    """
    if owner := labels.get(OWNER_LABEL):
        return f"a profile of Unwind (owner {owner})"
    if bundle := (release.chart.metadata.annotations or {}).get(FLEET_BUNDLE_ANNOTATION):
        return f"Fleet bundle {bundle}"
    for document in documents:
        metadata = document.get("metadata") or {}
        marks: dict[str, Any] = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
        if name := marks.get(FLUX_NAME_LABEL):
            return flux_driver(marks.get(FLUX_NAMESPACE_LABEL, ""), name)
        if any(key.startswith(_SVELTOS) for key in marks):
            return "Sveltos"
    return ""


def flux_driver(namespace: str, name: str) -> str:
    """What `driver` says for a release that this HelmRelease of Flux installs (pure)."""
    return f"Flux HelmRelease {namespace}/{name}" if namespace else f"Flux HelmRelease {name}"


def flux_release(documents: Iterable[Mapping[str, Any]]) -> ReleaseName | None:
    """The HelmRelease of Flux that the labels of a release's objects name; None if they name none (pure)."""
    for document in documents:
        labels = (document.get("metadata") or {}).get("labels") or {}
        if labels.get(FLUX_NAME_LABEL):
            return ReleaseName(str(labels.get(FLUX_NAMESPACE_LABEL) or ""), str(labels[FLUX_NAME_LABEL]))
    return None


# By the objects that name it


async def driven_from_hub(client: Client, cluster: ObjectRef) -> dict[ReleaseName, Driver]:
    """The releases of a cluster that an object of a deployer on the management cluster names, with that object."""
    found = await driven_by_proxies(client, cluster)
    if await is_installed(client, CLUSTER_SUMMARIES):
        for summary in await client.list(CLUSTER_SUMMARIES, namespace=cluster.namespace):
            if (summary.get("spec") or {}).get("clusterName") != cluster.name:
                continue
            for chart in (summary.get("status") or {}).get("helmReleaseSummaries") or ():
                name = ReleaseName(str(chart.get("releaseNamespace", "")), str(chart.get("releaseName", "")))
                found[name] = Driver(name=f"ClusterSummary {_named(summary)}", profile=True)
    return found


async def driven_by_proxies(client: Client, cluster: ObjectRef, *, besides: str = "") -> dict[ReleaseName, Driver]:
    """The releases of a cluster that HelmReleaseProxies name, with these. `besides`: the uid of one that does not
    count."""
    found: dict[ReleaseName, Driver] = {}
    if await is_installed(client, HELM_RELEASE_PROXIES):
        listed = await client.list(HELM_RELEASE_PROXIES, namespace=cluster.namespace)
        for proxy in helm_release_proxy_rules.of_cluster(msgspec.convert(listed, list[HelmReleaseProxy]), cluster):
            if proxy.spec.release_name and proxy.metadata.uid != besides:
                name = ReleaseName(proxy.spec.namespace or "default", proxy.spec.release_name)
                ref = ref_of(HELM_RELEASE_PROXIES, proxy.metadata)
                others = found[name].handles if name in found else ()
                handle = Handle(ref=ref, source=SourceKind.HELM_RELEASE_PROXY)
                found[name] = Driver(name=str(ref), handles=(*others, handle))
    return found


async def driven_on_member(member: Member) -> dict[ReleaseName, Driver]:
    """The releases that an object of a deployer on the member itself names, with that object."""
    found: dict[ReleaseName, Driver] = {}
    if any(kind.resource == _HELM_CHARTS for kind in await member.discovery.kinds(anew=True)):
        for chart in await member.client.list(_HELM_CHARTS):
            metadata, spec = chart["metadata"], chart.get("spec") or {}
            name = ReleaseName(str(spec.get("targetNamespace") or metadata["namespace"]), metadata["name"])
            found[name] = Driver(name=f"HelmChart {_named(chart)}")
    return found


async def flux_drivers(
    management: Client | None, target: ClusterTarget, member: Member, name: ReleaseName, release: str
) -> tuple[Handle, ...]:
    """The HelmReleases of this name that deploy a release on the cluster, as far as that can be read.

    One that cannot be read is none: a release that a policy selects then waits by its name.
    """
    found: list[Handle] = []
    for client in (member.client, management):
        if client is None or not name.namespace:
            continue
        try:
            if not await is_installed(client, HELM_RELEASES):
                continue
            obj = await client.get(HELM_RELEASES, name.name, namespace=name.namespace, type=FluxRelease)
            on_member = client is member.client
            here = obj.spec.kube_config is None if on_member else await _deploys_on(client, obj, target, member)
        except UnwindError:
            continue
        if here and (not obj.status.history or any(it.name == release for it in obj.status.history)):
            ref = ref_of(HELM_RELEASES, obj.metadata)
            found.append(Handle(ref=ref, source=SourceKind.FLUX, on_member=on_member))
    return tuple(found)


async def _deploys_on(client: Client, obj: FluxRelease, target: ClusterTarget, member: Member) -> bool:
    """Whether a HelmRelease on the management cluster deploys on a cluster. Raises if that is unknown."""
    ref = obj.spec.kube_config.secret_ref if obj.spec.kube_config else None
    if ref is None or not ref.name:
        return False
    namespace = obj.metadata.namespace
    read = partial(client.get, SECRETS, ref.name, namespace=namespace)
    return await kubeconfig_clusters.is_of_target(
        target, namespace, ref, read, lambda secret: kubeconfig_clusters.leads_to(secret, ref.key, member)
    )


def _named(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


# What follows


def driven_handle(handle: Handle, driver: Driver) -> Handle:
    """The handle of a release that another deployer drives (pure): it is held, and left to that deployer."""
    why = f"{driver.why}, or exclude it with the selector of the source Helm"
    return msgspec.structs.replace(
        handle, driven=why, drivers=driver.handles, held=why, warnings=(*handle.warnings, f"it {why}")
    )


def without_driven(handles: Iterable[Handle], decisions: HandleDecisions) -> list[Handle]:
    """These handles without those that another deployer drives (pure).

    One that a policy mentions is among them all the same, unless its driver is a step of the cluster or left: then
    nothing would remove it.
    """
    return [
        it
        for it in handles
        if not it.driven or (decisions.decide(it) and not any(decisions.decide(driver) for driver in it.drivers))
    ]
