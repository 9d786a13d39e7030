"""Which releases on a member Unwind may uninstall, and in which order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unwind.api.names import DEPENDS_ON_ANNOTATION
from unwind.companions import helm_release_rules
from unwind.companions.helm_release_rules import ReleaseName, StoredRevision
from unwind.helm import release_secrets
from unwind.helm.release_secrets import ChartManifest, ChartMetadata, HelmRelease, ReleasedChart
from unwind.kube.decoding import Metadata


def _release(chart: str = "web", **annotations: str) -> HelmRelease:
    return HelmRelease(name="db", chart=ReleasedChart(ChartMetadata(name=chart, annotations=annotations)))


def _chart(annotations: dict[str, str]) -> HelmRelease:
    return HelmRelease(name="db", chart=ReleasedChart(ChartMetadata(name="web", annotations=annotations)))


def _workload(kind: str, **pod: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "it"}, "spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize(
    ("namespace", "chart", "document", "part"),
    [
        ("apps", "web", _workload("Deployment", containers=[{"image": "web"}]), ""),
        ("apps", "web", {"kind": "Service", "spec": None}, ""),
        ("kube-system", "metrics-server", {}, "in namespace kube-system"),
        ("apps", "cilium", {}, "network"),
        ("calico-system", "x", _workload("DaemonSet", volumes=[{"hostPath": {"path": "/etc/cni/net.d"}}]), "network"),
        ("apps", "x", {"kind": "CSIDriver", "metadata": {"name": "ebs"}}, "CSIDriver ebs provides storage"),
        (
            "apps",
            "x",
            _workload("DaemonSet", volumes=[{"hostPath": {"path": "/var/lib/kubelet/plugins_registry/"}}]),
            "storage",
        ),
        ("apps", "x", _workload("Deployment", containers=[{"image": "r/aws-cloud-controller-manager:1"}]), "cloud"),
        ("apps", "x", _workload("Deployment", containers=[{"command": ["/bin/cloud-controller-manager"]}]), "cloud"),
        ("apps", "aws-cloud-controller-manager", {}, "cloud"),
    ],
)
def test_what_the_other_workloads_of_a_cluster_need(
    namespace: str, chart: str, document: dict[str, Any], part: str
) -> None:
    found = helm_release_rules.cluster_role(namespace, _release(chart), [document])
    assert part in found
    assert bool(part) == bool(found)


def _hook(kind: str, *, namespace: str = "", on_delete: bool = True, api_version: str = "v1") -> ChartManifest:
    return ChartManifest(api_version, kind, "it", namespace, hook=True, on_delete=on_delete)


@pytest.mark.parametrize(
    ("hook", "reaches"),
    [
        (_hook("Job", api_version="batch/v1"), False),
        (_hook("ConfigMap", namespace="apps"), False),
        (_hook("ConfigMap", namespace="kube-system"), True),
        (_hook("RoleBinding", api_version="rbac.authorization.k8s.io/v1"), True),
        (_hook("ClusterRole", api_version="rbac.authorization.k8s.io/v1"), True),
        (_hook("Namespace"), True),
        (msgspec.structs.replace(_hook("Job", api_version="batch/v1"), reaches_node=True), True),
        (_hook("Kustomization", api_version="kustomize.toolkit.fluxcd.io/v1"), True),
        (_hook("Unknown", api_version="example.dev/v1"), True),
        (_hook("ClusterRole", api_version="rbac.authorization.k8s.io/v1", on_delete=False), False),
    ],
)
def test_which_hooks_act_outside_of_the_namespace_of_their_release(hook: ChartManifest, *, reaches: bool) -> None:
    found = helm_release_rules.reaching_hooks([hook], namespace="apps")
    assert bool(found) == reaches


def test_hooks_of_a_release_that_is_stored_elsewhere_act_outside_unless_they_act_there() -> None:
    # Who can write Secrets where it is stored can write its hooks.
    hooks = [_hook("ConfigMap"), _hook("Secret", namespace="apps"), _hook("Service", namespace="flux-system")]
    found = helm_release_rules.reaching_hooks(hooks, namespace="apps", storage="flux-system")
    assert found == ["ConfigMap it", "Secret it"]


def test_a_chart_names_what_it_depends_on() -> None:
    release = _chart({DEPENDS_ON_ANNOTATION: "operator, infra/certs,Kustomization/flux-system/base, operator,"})
    assert helm_release_rules.depends_on(release, namespace="apps") == (
        "Release/apps/operator",
        "Release/infra/certs",
        "Kustomization/flux-system/base",
    )
    assert helm_release_rules.depends_on(HelmRelease(name="x"), namespace="apps") == ()


def _stored(name: str, version: int, status: str) -> StoredRevision:
    labels = {"owner": "helm", "name": name, "version": str(version), "status": status}
    found = StoredRevision.of(Metadata(f"s-{version}", "u", "1", "apps", labels=labels))
    assert found
    return found


def test_the_revisions_whose_objects_may_exist() -> None:
    deployed = [_stored("db", 9, "superseded"), _stored("db", 10, "deployed")]
    failed = [_stored("web", 1, "deployed"), _stored("web", 2, "failed")]
    gone = [_stored("old", 1, "uninstalled")]
    found = helm_release_rules.by_release([deployed[1], *failed, *gone, deployed[0]])
    assert found == {ReleaseName("apps", "db"): deployed, ReleaseName("apps", "web"): failed}
    assert helm_release_rules.concerning(deployed) == [deployed[1]]
    assert helm_release_rules.concerning(failed) == failed


@pytest.mark.parametrize("labels", [None, {"name": "db"}, {"name": "db", "version": "x"}, {"version": "1"}])
def test_a_secret_without_the_labels_of_helm_is_no_revision(labels: dict[str, str] | None) -> None:
    assert StoredRevision.of(Metadata("s", "u", "1", "apps", labels=labels)) is None


def test_only_objects_with_the_mark_of_the_release_are_of_it() -> None:
    release = ReleaseName("apps", "db")
    annotations = {"meta.helm.sh/release-name": "db", "meta.helm.sh/release-namespace": "apps"}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    marked = Metadata("x", "u", "1", "other", labels=labels, annotations=annotations)
    assert helm_release_rules.is_of_release(marked, release)
    assert not helm_release_rules.is_of_release(marked, ReleaseName("apps", "other"))
    assert not helm_release_rules.is_of_release(msgspec.structs.replace(marked, labels=None), release)
    assert not helm_release_rules.is_of_release(msgspec.structs.replace(marked, annotations=None), release)


def test_the_crds_of_a_chart_are_read_from_its_files() -> None:
    text = b"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.b.c}\nspec: {}\n"
    files = [
        {"name": "crds/a.yaml", "data": text},
        {"name": "crds/README.md", "data": b"# not yaml: ["},
        {"name": "files/b.yaml", "data": text},
    ]
    body = {"name": "db", "chart": {"metadata": {"name": "x"}, "files": files}}
    release = release_secrets.from_json(msgspec.json.encode(body))
    [found] = release_secrets.crd_manifests(release)
    assert (found.kind, found.name, found.kept) == ("CustomResourceDefinition", "a.b.c", True)


def test_hooks_with_the_rights_of_unwind_and_disabled_hooks_are_left_to_a_person() -> None:
    name = ReleaseName("apps", "base")
    reaching = helm_release_rules.why_not_uninstalled(name, ["ClusterRoleBinding all"], disabled=False)
    assert "ClusterRoleBinding all" in reaching
    assert "helm uninstall --no-hooks" in helm_release_rules.why_not_uninstalled(name, [], disabled=True)
    assert helm_release_rules.why_not_uninstalled(name, [], disabled=False) == ""
