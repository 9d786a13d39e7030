from __future__ import annotations

import msgspec
import pytest

from unwind.api.caaph import HELM_CHART_PROXY_LABEL, HELM_RELEASE_PROXY_FINALIZER, HelmChartProxy, HelmReleaseProxy
from unwind.api.meta import ObjectRef
from unwind.api.names import DEPENDS_ON_ANNOTATION, PAUSED_ANNOTATION
from unwind.companions import helm_release_proxy_rules
from unwind.companions.companion import HandleEntry

CLUSTER = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="shops", name="prod")
DEPLOYED = {"status": "deployed", "revision": 1}


def proxy(
    name: str = "base", *, cluster: str = "shops/prod", namespace: str = "shops", **more: object
) -> HelmReleaseProxy:
    """The HelmReleaseProxy that CAAPH makes of the HelmChartProxy of this name."""
    where, _, what = cluster.partition("/")
    found = {
        "metadata": {
            "name": f"{name}-prod-x",
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {HELM_CHART_PROXY_LABEL: name},
            "annotations": more.get("annotations", {}),
            "finalizers": more.get("finalizers", [HELM_RELEASE_PROXY_FINALIZER]),
        },
        "spec": {
            "clusterRef": {"namespace": where, "name": what},
            "releaseName": name,
            "namespace": "apps",
            **msgspec.convert(more.get("spec", {}), dict[str, object]),
        },
        "status": more.get("status", DEPLOYED),
    }
    return msgspec.convert(found, HelmReleaseProxy)


def chart(name: str, depends_on: str | None = None, *, namespace: str = "shops") -> HelmChartProxy:
    annotations = {} if depends_on is None else {DEPENDS_ON_ANNOTATION: depends_on}
    meta = {"name": name, "namespace": namespace, "annotations": annotations}
    return msgspec.convert({"metadata": meta}, HelmChartProxy)


def order(*charts: HelmChartProxy) -> dict[str, tuple[str, ...]]:
    """The dependencies, by the names of HelmChartProxies."""
    proxies = [proxy(item.metadata.name) for item in charts]
    found = helm_release_proxy_rules.dependencies(proxies, {("shops", item.metadata.name): item for item in charts})
    return {uid.removeprefix("uid-"): needs for uid, needs in found.items()}


def test_a_proxy_belongs_to_the_cluster_that_caaph_acts_on_whatever_its_labels_say() -> None:
    here, namesake, other = proxy("a"), proxy("b", cluster="else/prod"), proxy("c", cluster="shops/test")
    assert helm_release_proxy_rules.of_cluster([here, namesake, other], CLUSTER) == [here]


def test_a_proxy_without_the_namespace_of_its_cluster_belongs_to_none() -> None:
    assert helm_release_proxy_rules.of_cluster([proxy("a", cluster="/prod")], CLUSTER) == []


def test_the_annotation_of_a_chart_names_the_charts_that_it_depends_on() -> None:
    found = order(chart("base"), chart("db"), chart("web", " db , base,, db"))
    assert found == {
        "base": (),
        "db": (),
        "web": ("HelmReleaseProxy/shops/db-prod-x", "HelmReleaseProxy/shops/base-prod-x"),
    }


def test_a_name_that_is_not_on_the_cluster_is_no_dependency_and_neither_is_the_chart_itself() -> None:
    assert order(chart("web", "web,absent")) == {"web": ()}


def test_a_chart_of_the_same_name_in_another_namespace_is_no_dependency() -> None:
    proxies = [proxy("web"), proxy("base", namespace="else")]
    charts = {("shops", "web"): chart("web", "base"), ("else", "base"): chart("base", namespace="else")}
    assert helm_release_proxy_rules.dependencies(proxies, charts) == {"uid-web": (), "uid-base": ()}


def test_a_proxy_without_chart_has_no_order_of_its_own() -> None:
    assert helm_release_proxy_rules.dependencies([proxy("web")], {}) == {"uid-web": ()}


@pytest.mark.parametrize(
    ("strategy", "by_unwind"), [("", False), ("Continuous", False), ("InstallOnce", True), ("Sometimes", False)]
)
def test_unwind_uninstalls_only_what_caaph_installs_once(strategy: str, by_unwind: bool) -> None:
    given = proxy(spec={"reconcileStrategy": strategy})
    assert helm_release_proxy_rules.uninstalled_by_unwind(given) == by_unwind
    assert bool(helm_release_proxy_rules.why_leaked(given)) == by_unwind


@pytest.mark.parametrize("strategy", ["", "Continuous", "InstallOnce"])
def test_an_installed_proxy_with_a_known_strategy_is_not_held(strategy: str) -> None:
    assert helm_release_proxy_rules.why_held(proxy(spec={"reconcileStrategy": strategy})) == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (proxy(spec={"reconcileStrategy": "Sometimes"}), "unknown reconcileStrategy 'Sometimes'"),
        (proxy(annotations={PAUSED_ANNOTATION: ""}), "is paused"),
        (proxy(finalizers=[]), f"does not have the finalizer {HELM_RELEASE_PROXY_FINALIZER}"),
        (proxy(spec={"reconcileStrategy": "InstallOnce"}, status={}), "CAAPH has not installed it yet"),
    ],
)
def test_a_proxy_that_caaph_would_not_uninstall_is_held(given: HelmReleaseProxy, why: str) -> None:
    assert why in helm_release_proxy_rules.why_held(given)


def test_a_proxy_that_was_never_installed_needs_no_finalizer() -> None:
    assert helm_release_proxy_rules.why_held(proxy(finalizers=[], status={})) == ""


def test_caaph_is_done_when_its_finalizer_is_gone() -> None:
    assert helm_release_proxy_rules.working(proxy(finalizers=["unwind.dev/handle"])) == ""
    assert "waiting for the Helm add-on provider of Cluster API (CAAPH) to uninstall release apps/base" in (
        helm_release_proxy_rules.working(proxy())
    )


@pytest.mark.parametrize(
    ("type_", "reason", "message"),
    [
        ("ClusterAvailable", "GetKubeconfigFailed", 'Secret "prod-kubeconfig" not found'),
        ("HelmReleaseReady", "HelmReleaseDeletionFailed", "hook failed"),
    ],
)
def test_what_caaph_reports_about_a_failed_uninstall_is_in_the_message(type_: str, reason: str, message: str) -> None:
    condition = {"type": type_, "status": "False", "reason": reason, "message": message}
    told = helm_release_proxy_rules.working(proxy(status={**DEPLOYED, "conditions": [condition]}))
    assert told.endswith(f"it reports {reason}: {message}")


def test_a_paused_proxy_that_is_being_deleted_says_so() -> None:
    assert "it is paused" in helm_release_proxy_rules.working(proxy(annotations={PAUSED_ANNOTATION: "true"}))


def test_the_plan_warns_of_a_release_that_is_gone_and_of_what_unwind_uninstalls_itself() -> None:
    assert list(helm_release_proxy_rules.warnings(proxy(), found=True)) == []
    [gone] = helm_release_proxy_rules.warnings(proxy(), found=False)
    assert "release apps/base is not on the cluster" in gone
    [once] = helm_release_proxy_rules.warnings(proxy(spec={"reconcileStrategy": "InstallOnce"}), found=True)
    assert "InstallOnce" in once


def test_the_secret_of_a_release_whose_history_is_kept_is_not_waited_for() -> None:
    secret = HandleEntry(
        object=ObjectRef(version="v1", kind="Secret", namespace="apps", name="sh.helm.release.v1.base.v1")
    )
    other = HandleEntry(object=ObjectRef(version="v1", kind="Secret", namespace="apps", name="password"))
    keeping = proxy(spec={"options": {"uninstall": {"keepHistory": True}}})
    kept = {entry.object.name: entry.kept for entry in helm_release_proxy_rules.with_history(keeping, [secret, other])}
    assert kept == {"sh.helm.release.v1.base.v1": "Helm keeps it: options.uninstall.keepHistory", "password": ""}
    assert helm_release_proxy_rules.with_history(proxy(), [secret, other]) == (secret, other)
