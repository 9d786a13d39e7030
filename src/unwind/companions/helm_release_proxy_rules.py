"""Rules for HelmReleaseProxies: which belong to a cluster, their order, what CAAPH will do and does (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.caaph import (
    HELM_CHART_PROXY_LABEL,
    HELM_RELEASE_PROXIES,
    HELM_RELEASE_PROXY_FINALIZER,
    ReconcileStrategy,
)
from unwind.api.fields import Unknown
from unwind.api.meta import ref_of
from unwind.api.names import DEPENDS_ON_ANNOTATION, PAUSED_ANNOTATION
from unwind.api.resources import SECRETS
from unwind.companions.companion import step_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from unwind.api.caaph import HelmChartProxy, HelmReleaseProxy
    from unwind.api.meta import ObjectRef
    from unwind.companions.companion import HandleEntry

_KEPT_HISTORY = "Helm keeps it: options.uninstall.keepHistory"
_RELEASE_SECRET = "sh.helm.release.v1."  # noqa: S105 - the prefix of a name
CONTROLLER = "the Helm add-on provider of Cluster API (CAAPH)"


def strategy(proxy: HelmReleaseProxy) -> ReconcileStrategy | Unknown:
    """How long CAAPH looks after a release."""
    word = proxy.spec.reconcile_strategy
    return ReconcileStrategy.read(word) if word else ReconcileStrategy.CONTINUOUS


def uninstalled_by_unwind(proxy: HelmReleaseProxy) -> bool:
    """Whether the teardown of its cluster uninstalls its release with Helm, because CAAPH leaves it behind
    (InstallOnce). If only the proxy is deleted, the release stays."""
    return strategy(proxy) is ReconcileStrategy.INSTALL_ONCE


def of_cluster(proxies: Iterable[HelmReleaseProxy], cluster: ObjectRef) -> list[HelmReleaseProxy]:
    """The proxies whose release is on a cluster: those that CAAPH itself would act on there. Labels do not count."""
    return [
        proxy
        for proxy in proxies
        if (proxy.spec.cluster_ref.namespace, proxy.spec.cluster_ref.name) == (cluster.namespace, cluster.name)
    ]


def step_of(proxy: HelmReleaseProxy) -> str:
    """The name of the step of a proxy."""
    return step_name(ref_of(HELM_RELEASE_PROXIES, proxy.metadata))


def dependencies(
    proxies: Iterable[HelmReleaseProxy], charts: Mapping[tuple[str, str], HelmChartProxy]
) -> dict[str, tuple[str, ...]]:
    """The steps that the step of each proxy depends on, by the uid of the proxy.

    `charts`: the HelmChartProxies by namespace and name. Their annotation `unwind.dev/depends-on` names other
    HelmChartProxies in the same namespace. A name that is not on this cluster is no dependency.
    """
    proxies = list(proxies)
    steps: dict[tuple[str, str], list[str]] = {}
    for proxy in proxies:
        if name := proxy.metadata.labels.get(HELM_CHART_PROXY_LABEL):
            steps.setdefault((proxy.metadata.namespace, name), []).append(step_of(proxy))
    found: dict[str, tuple[str, ...]] = {}
    for proxy in proxies:
        namespace = proxy.metadata.namespace
        chart = charts.get((namespace, proxy.metadata.labels.get(HELM_CHART_PROXY_LABEL, "")))
        words = chart.metadata.annotations.get(DEPENDS_ON_ANNOTATION, "") if chart else ""
        names = [word.strip() for word in words.split(",") if word.strip()]
        needed = [step for name in names for step in steps.get((namespace, name), ())]
        found[proxy.metadata.uid] = tuple(dict.fromkeys(step for step in needed if step != step_of(proxy)))
    return found


def with_history(proxy: HelmReleaseProxy, entries: Iterable[HandleEntry]) -> tuple[HandleEntry, ...]:
    """The entries of a release, without waiting for its Secret if Helm keeps the history."""
    if not proxy.spec.options.uninstall.keep_history:
        return tuple(entries)
    secret = (SECRETS.kind, proxy.spec.namespace)
    return tuple(
        msgspec.structs.replace(entry, kept=_KEPT_HISTORY)
        if (entry.object.kind, entry.object.namespace) == secret and entry.object.name.startswith(_RELEASE_SECRET)
        else entry
        for entry in entries
    )


def why_held(proxy: HelmReleaseProxy) -> str:
    """Why CAAPH would not do its part if a proxy were deleted as it is; empty if it would."""
    if isinstance(strategy(proxy), Unknown):
        return (
            f"has the unknown reconcileStrategy {proxy.spec.reconcile_strategy!r}: nothing of it is removed until it"
            " is Continuous or InstallOnce"
        )
    if PAUSED_ANNOTATION in proxy.metadata.annotations:
        return f"is paused (annotation {PAUSED_ANNOTATION}): CAAPH would not uninstall its release; unpause it"
    if uninstalled_by_unwind(proxy):
        return (
            ""
            if installed(proxy)
            else "has reconcileStrategy InstallOnce, and CAAPH has not installed it yet; check that CAAPH runs"
        )
    if HELM_RELEASE_PROXY_FINALIZER not in proxy.metadata.finalizers and installed(proxy):
        return (
            f"does not have the finalizer {HELM_RELEASE_PROXY_FINALIZER}: CAAPH would not uninstall its release;"
            " check that CAAPH runs"
        )
    return ""


def installed(proxy: HelmReleaseProxy) -> bool:
    """Whether CAAPH has installed its release, as far as the proxy tells."""
    return bool(proxy.status.revision or proxy.status.status)


def working(proxy: HelmReleaseProxy) -> str:
    """What CAAPH still has to do for a proxy that is being deleted; empty if it is done with it."""
    if HELM_RELEASE_PROXY_FINALIZER not in proxy.metadata.finalizers:
        return ""
    release = f"release {proxy.spec.namespace}/{proxy.spec.release_name}"
    message = f"waiting for {CONTROLLER} to uninstall {release}"
    trouble = next(
        (
            condition
            for condition in proxy.status.conditions
            if condition.type in ("ClusterAvailable", "HelmReleaseReady")
            and condition.status == "False"
            and condition.message
        ),
        None,
    )
    if trouble:
        return f"{message}; it reports {trouble.reason}: {trouble.message}"
    if PAUSED_ANNOTATION in proxy.metadata.annotations:
        return f"{message}, which ignores it: it is paused (annotation {PAUSED_ANNOTATION}); unpause it"
    return f"{message}; check that it runs if this takes long"


def why_unknown(proxy: HelmReleaseProxy) -> str:
    """Why it is not known what a proxy deployed, if its release is not on the cluster; empty if it deployed nothing."""
    if not installed(proxy):
        return ""
    release = f"{proxy.spec.namespace}/{proxy.spec.release_name}"
    return f"its release {release} is not on the cluster, so what it deployed is not known; look for it there"


def warnings(proxy: HelmReleaseProxy, *, found: bool) -> Iterator[str]:
    """Warnings of the plan. `found`: whether its release is on the cluster."""
    if uninstalled_by_unwind(proxy):
        yield "has reconcileStrategy InstallOnce: CAAPH would not uninstall its release, so Unwind does, with Helm"
    if not found and (reason := why_unknown(proxy)):
        yield reason
    if reason := why_held(proxy):
        yield f"it {reason}"


# What happens if a user deletes a proxy


def why_leaked(proxy: HelmReleaseProxy) -> str:
    """Why CAAPH would not uninstall its release if a proxy were deleted as it is; empty if it would."""
    if uninstalled_by_unwind(proxy):
        return (
            "would be left behind: CAAPH does not uninstall a release with reconcileStrategy InstallOnce; set it to"
            " Continuous first"
        )
    if HELM_RELEASE_PROXY_FINALIZER not in proxy.metadata.finalizers and installed(proxy):
        return (
            f"would be left behind: the proxy does not have the finalizer {HELM_RELEASE_PROXY_FINALIZER}; check that"
            " CAAPH runs"
        )
    return ""


def recreated_by(proxy: HelmReleaseProxy, *, deleting: bool) -> str:
    """What creates a proxy again after its deletion; empty if nothing does. `deleting`: its Cluster is deleted."""
    name = proxy.metadata.labels.get(HELM_CHART_PROXY_LABEL)
    if deleting or not name:
        return ""
    return f"HelmChartProxy {proxy.metadata.namespace}/{name} selects the cluster; the deletion ends when it does not"
