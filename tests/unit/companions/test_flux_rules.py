from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.api.flux import HelmRelease, Kustomization, ResourceId, ResourceInventory
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.companions import flux_rules as flux
from unwind.companions.flux_rules import Place
from unwind.errors import UnwindError

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
NAME = st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,12}[a-z0-9])?", fullmatch=True)
# Names of RBAC: any path segment. Flux itself cannot tell `__` from `:`.
RBAC_NAME = st.from_regex(r"[a-z:.]([a-zA-Z0-9:.-]|_[a-z]){0,12}", fullmatch=True).filter(lambda it: ":_" not in it)
GROUP = st.just("") | st.from_regex(r"[a-z]{1,8}(\.[a-z0-9]{1,8}){1,2}", fullmatch=True)
KIND = st.from_regex(r"[A-Z][A-Za-z0-9]{0,12}", fullmatch=True)
HANDLE = ObjectRef(group="kustomize.toolkit.fluxcd.io", kind="Kustomization", namespace="flux-system", name="apps")
RELEASE = ObjectRef(group="helm.toolkit.fluxcd.io", kind="HelmRelease", namespace="shop", name="db")


def kustomization(**spec: Any) -> Kustomization:
    body = {"metadata": {"name": "apps", "namespace": "flux-system"}, "spec": {"prune": True, **spec}}
    return msgspec.convert({**body, "status": {"inventory": {"entries": []}}}, Kustomization)


def release(**spec: Any) -> HelmRelease:
    return msgspec.convert({"metadata": {"name": "db", "namespace": "shop"}, "spec": spec}, HelmRelease)


@given(st.just("") | LABEL, NAME | RBAC_NAME, GROUP, KIND)
def test_every_object_is_read_back_from_its_inventory_entry(namespace: str, name: str, group: str, kind: str) -> None:
    ref = ObjectRef(group=group, version="v1", kind=kind, namespace=namespace, name=name)
    assert flux.parse_id(flux.id_of(ref), "v1") == ref


@given(st.text(max_size=60))
def test_an_entry_either_names_an_object_or_is_refused(text: str) -> None:
    try:
        ref = flux.parse_id(text, "v1")
    except UnwindError:
        return
    assert ref.name
    assert ref.kind
    assert "_" not in ref.namespace + ref.group + ref.kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_shop__Namespace", ObjectRef(version="v1", kind="Namespace", name="shop")),
        ("shop_prices__ConfigMap", ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name="prices")),
        (
            "shop_web_apps_Deployment",
            ObjectRef(group="apps", version="v1", kind="Deployment", namespace="shop", name="web"),
        ),
        (
            "_system__reader_rbac.authorization.k8s.io_ClusterRole",
            ObjectRef(group="rbac.authorization.k8s.io", version="v1", kind="ClusterRole", name="system:reader"),
        ),
    ],
)
def test_entries_of_the_real_controller_are_read(text: str, expected: ObjectRef) -> None:
    assert flux.parse_id(text, "v1") == expected


@pytest.mark.parametrize("text", ["", "_", "__", "___", "shop", "shop_web", "shop_web_apps_", "shop__apps_Deployment"])
def test_an_entry_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnwindError, match="NAMESPACE_NAME_GROUP_KIND"):
        flux.inventory_refs(ResourceInventory(entries=(ResourceId(id=text, v="v1"),)))


def test_dependencies_are_of_the_same_kind_and_may_be_in_another_namespace() -> None:
    depends_on = [{"name": "base"}, {"name": "crds", "namespace": "platform"}, {"name": "base"}]
    assert flux.dependencies(kustomization(dependsOn=depends_on), "Kustomization") == (
        Place("Kustomization", "flux-system", "base"),
        Place("Kustomization", "platform", "crds"),
    )
    assert flux.dependencies(release(dependsOn=[{"name": "base"}]), "HelmRelease") == (
        Place("HelmRelease", "shop", "base"),
    )


def test_the_children_of_a_kustomization_are_the_handles_in_its_inventory_but_not_itself() -> None:
    ids = [
        "flux-system_apps_kustomize.toolkit.fluxcd.io_Kustomization",
        "flux-system_web_kustomize.toolkit.fluxcd.io_Kustomization",
        "shop_db_helm.toolkit.fluxcd.io_HelmRelease",
        "shop_kustomization_kustomize.config.k8s.io_Kustomization",
        "shop_prices__ConfigMap",
    ]
    entries = flux.inventory_refs(ResourceInventory(entries=tuple(ResourceId(id=item, v="v1") for item in ids)))
    assert flux.children(Place("Kustomization", "flux-system", "apps"), entries) == (
        Place("Kustomization", "flux-system", "web"),
        Place("HelmRelease", "shop", "db"),
    )


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        ({}, ""),
        ({"deletionPolicy": "MirrorPrune"}, ""),
        ({"deletionPolicy": "Delete", "prune": False}, ""),
        ({"deletionPolicy": "WaitForTermination", "prune": False}, ""),
        ({"prune": False}, "spec.prune false"),
        ({"deletionPolicy": "Orphan"}, "Orphan"),
        ({"deletionPolicy": "Forget"}, "unknown spec.deletionPolicy"),
        ({"suspend": True, "deletionPolicy": "Delete"}, "is suspended"),
    ],
)
def test_a_kustomization_whose_objects_flux_would_leave_is_held(spec: dict[str, Any], held: str) -> None:
    why = flux.why_held(kustomization(**spec))
    assert held in why
    assert bool(why) is bool(held)


def test_a_suspended_helm_release_is_held() -> None:
    assert flux.why_held(release()) == ""
    assert "is suspended" in flux.why_held(release(suspend=True))


@pytest.mark.parametrize("key", ["prune", "reconcile"])
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_what_flux_does_not_delete_is_kept(key: str, where: str) -> None:
    marks: dict[str, dict[str, str]] = {"labels": {}, "annotations": {}}
    marks[where] = {f"kustomize.toolkit.fluxcd.io/{key}": "disabled"}
    assert "Flux does not delete it" in flux.why_kept(HANDLE, **marks, kind="ConfigMap")
    marks[where] = {f"kustomize.toolkit.fluxcd.io/{key}": "enabled", "kustomize.toolkit.fluxcd.io/ssa": "Merge"}
    assert flux.why_kept(HANDLE, **marks, kind="ConfigMap") == ""
    marks[where] = {"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}
    assert flux.why_kept(HANDLE, **marks, kind="ConfigMap") != ""


def test_what_helm_does_not_delete_is_kept() -> None:
    crd = "CustomResourceDefinition"
    templated = {"meta.helm.sh/release-name": "db"}
    assert "crds directory" in flux.why_kept(RELEASE, labels={}, annotations={}, kind=crd)
    assert flux.why_kept(RELEASE, labels={}, annotations=templated, kind=crd) == ""
    keep = {**templated, "helm.sh/resource-policy": "keep"}
    assert "keep" in flux.why_kept(RELEASE, labels={}, annotations=keep, kind="Secret")


def test_the_mark_of_another_kustomization_is_not_ours() -> None:
    mine = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
    assert flux.is_marked(HANDLE, mine)
    assert not flux.is_marked(HANDLE, {**mine, "kustomize.toolkit.fluxcd.io/namespace": "other"})
    assert not flux.is_marked(HANDLE, {})
    assert not flux.is_marked(RELEASE, mine)


def test_the_spec_changes_only_if_flux_would_wait_for_its_objects() -> None:
    annotation = {"annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}}
    assert flux.before_delete(kustomization()) == {"metadata": annotation}
    assert flux.before_delete(kustomization(deletionPolicy="WaitForTermination")) == {
        "metadata": annotation,
        "spec": {"deletionPolicy": "Delete"},
    }
    assert flux.before_delete(release()) == {"metadata": annotation}


def test_flux_works_on_a_handle_while_its_finalizer_is_there() -> None:
    obj = kustomization()
    assert flux.working(obj, "kustomize-controller") == ""
    held = msgspec.convert(
        {
            "metadata": {"finalizers": ["finalizers.fluxcd.io", "unwind.dev/handle"]},
            "status": {"conditions": [{"type": "Ready", "status": "False", "message": "no such host"}]},
        },
        Kustomization,
    )
    assert flux.working(held, "kustomize-controller") == (
        "waiting until kustomize-controller removes what it deployed: no such host"
    )


@pytest.mark.parametrize(
    ("labels", "parent"),
    [
        ({}, ""),
        (
            {
                "kustomize.toolkit.fluxcd.io/name": "clusters",
                "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
            },
            "Kustomization flux-system/clusters",
        ),
        (
            {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"},
            "",  # flux-system manages itself
        ),
        (
            {
                "resourceset.fluxcd.controlplane.io/name": "tenants",
                "resourceset.fluxcd.controlplane.io/namespace": "flux-system",
            },
            "ResourceSet flux-system/tenants",
        ),
    ],
)
def test_what_would_create_a_handle_again_is_known_by_its_labels(labels: dict[str, str], parent: str) -> None:
    found = flux.parent_of(ObjectMeta(name="apps", namespace="flux-system", labels=labels))
    assert (str(found) if found else "") == parent


def test_the_kustomization_that_manages_flux_itself_is_recognised() -> None:
    controller = ObjectRef(group="apps", kind="Deployment", namespace="flux-system", name="kustomize-controller")
    crd = ObjectRef(kind="CustomResourceDefinition", name="kustomizations.kustomize.toolkit.fluxcd.io")
    role = ObjectRef(group="rbac.authorization.k8s.io", kind="ClusterRole", name="crd-controller-flux-system")
    web = ObjectRef(group="apps", kind="Deployment", namespace="shop", name="web")
    assert flux.manages_flux([web, controller])
    assert flux.manages_flux([crd])
    assert not flux.manages_flux([web, role])
    assert all(flux.is_part_of_flux(item, namespace="flux-system") for item in (controller, crd, role))
    assert not flux.is_part_of_flux(web, namespace="flux-system")


def test_a_handle_that_stays_gets_back_only_what_unwind_has_changed() -> None:
    def handle(*managers: str) -> dict[str, Any]:
        fields = {
            "f:metadata": {"f:annotations": {"f:kustomize.toolkit.fluxcd.io/reconcile": {}}},
            "f:spec": {"f:deletionPolicy": {}},
        }
        return {"metadata": {"managedFields": [{"manager": name, "fieldsV1": fields} for name in managers]}}

    assert flux.before_stay(handle("kubectl-annotate", "flux")) == {}
    assert flux.before_stay(handle("kubectl-annotate", "unwind")) == {
        "metadata": {"annotations": {"kustomize.toolkit.fluxcd.io/reconcile": None}},
        "spec": {"deletionPolicy": "WaitForTermination"},
    }


def test_one_selector_finds_what_several_handles_deployed() -> None:
    other = msgspec.structs.replace(HANDLE, namespace="shop", name="base")
    labels = "kustomize.toolkit.fluxcd.io"
    wanted = f"{labels}/name in (apps,base),{labels}/namespace in (flux-system,shop)"
    assert flux.mark_selector([other, HANDLE]) == wanted
