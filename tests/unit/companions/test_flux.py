from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, Kustomization, SecretKey
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import Plan
from unwind.companions.companion import Handle, HandleEntry
from unwind.companions.flux import FluxCompanion
from unwind.companions.flux_handles import FoundHandle, handles_of
from unwind.companions.flux_rules import parse_id
from unwind.deleters.outcomes import Again
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.decoding import Metadata
from unwind.members.contents import Content
from unwind.members.targets import ClusterTarget
from unwind.teardown.drafts import ORDER_LOST, order_lost

if TYPE_CHECKING:
    from collections.abc import Sequence


def labels_of(parent: str, namespace: str = "shop") -> dict[str, str]:
    """The labels of Flux for what a Kustomization deployed; `parent`: its name."""
    group = KUSTOMIZATIONS.group
    return {f"{group}/name": parent, f"{group}/namespace": namespace} if parent else {}


def found(
    name: str, *ids: str, on_member: bool = False, namespace: str = "shop", parent: str = "", **spec: Any
) -> FoundHandle:
    """A Kustomization with this inventory."""
    meta = {"name": name, "namespace": namespace, "uid": name, "labels": labels_of(parent, namespace)}
    body: dict[str, Any] = {"metadata": meta, "spec": {"prune": True, **spec}}
    entries = tuple(HandleEntry(object=parse_id(item, "v1")) for item in ids)
    body["status"] = {"inventory": {"entries": [{"id": item, "v": "v1"} for item in ids]}}
    obj = msgspec.convert(body, Kustomization)
    return FoundHandle(resource=KUSTOMIZATIONS, obj=obj, on_member=on_member, entries=entries)


def release(name: str, *, on_member: bool, parent: str = "", **spec: Any) -> FoundHandle:
    meta = {"name": name, "namespace": "shop", "uid": name, "labels": labels_of(parent)}
    obj = msgspec.convert({"metadata": meta, "spec": spec}, HelmRelease)
    return FoundHandle(resource=HELM_RELEASES, obj=obj, on_member=on_member, entries=())


def by_name(*items: FoundHandle, above: Sequence[FoundHandle] = ()) -> dict[str, Handle]:
    """The handles of a cluster. `above`: what is no step."""
    return {handle.ref.name: handle for handle in handles_of(items, [item.obj for item in above])}


def test_dependencies_and_parents_are_steps_that_go_later() -> None:
    handles = by_name(
        found("base"),
        found(
            "tenant",
            "shop_web_kustomize.toolkit.fluxcd.io_Kustomization",
            "shop_db_helm.toolkit.fluxcd.io_HelmRelease",
            dependsOn=[{"name": "base"}, {"name": "crds", "namespace": "platform"}],
        ),
        found("web", on_member=True, parent="tenant"),
        release("db", on_member=True, parent="tenant"),
    )
    assert {name: handle.depends_on for name, handle in handles.items()} == {
        "base": (),
        "tenant": ("Kustomization/shop/base",),
        "web": ("Kustomization/shop/tenant",),
        "db": ("Kustomization/shop/tenant",),
    }


def place_of(name: str, kind: str = "Kustomization") -> str:
    """A Kustomization or HelmRelease as an entry of an inventory."""
    return f"shop_{name}_{'helm' if kind == 'HelmRelease' else 'kustomize'}.toolkit.fluxcd.io_{kind}"


@pytest.mark.parametrize("on_member", [True, False])
def test_what_is_nested_in_a_kustomization_goes_before_what_is_nested_in_those_that_it_depends_on(
    on_member: bool,
) -> None:
    """On the management cluster, the parents deploy there, and are no steps."""
    parents = [
        found("infra", place_of("ingress", "HelmRelease"), on_member=on_member),
        found("apps", place_of("store", "HelmRelease"), on_member=on_member, dependsOn=[{"name": "infra"}]),
    ]
    children = [release(name, on_member=on_member, parent=parent) for name, parent in NESTED.items()]
    handles = by_name(*parents, *children) if on_member else by_name(*children, above=parents)
    apps, infra, ingress = "Kustomization/shop/apps", "Kustomization/shop/infra", "HelmRelease/shop/ingress"
    assert {name: handle.depends_on for name, handle in handles.items()} == (
        {"infra": (), "ingress": (infra,), "apps": (ingress, infra), "store": (apps,)}
        if on_member
        else {"ingress": (), "store": (ingress,)}
    )


NESTED = {"ingress": "infra", "store": "apps"}


@pytest.mark.parametrize(
    ("ingress", "inventory", "spec"),
    [
        ("other", place_of("ingress", "HelmRelease"), {}),
        ("infra", "", {}),
        ("infra", place_of("ingress", "HelmRelease"), {"kubeConfig": {"secretRef": {"name": "other"}}}),
    ],
    ids=["not marked", "not in its inventory", "its parent deploys elsewhere"],
)
def test_a_parent_that_is_no_step_orders_only_what_it_contains(
    ingress: str, inventory: str, spec: dict[str, Any]
) -> None:
    parents = [
        found("infra", *[inventory][: bool(inventory)], **spec),
        found("apps", place_of("store", "HelmRelease"), dependsOn=[{"name": "infra"}]),
    ]
    children = [release("ingress", on_member=False, parent=ingress), release("store", on_member=False, parent="apps")]
    assert [handle.depends_on for handle in by_name(*children, above=parents).values()] == [(), ()]


def test_order_that_nesting_contradicts_is_not_applied_and_is_a_warning() -> None:
    handles = by_name(
        found("infra", place_of("ingress"), on_member=True),
        found("apps", on_member=True, dependsOn=[{"name": "infra"}]),
        found("ingress", on_member=True, parent="infra", dependsOn=[{"name": "apps"}]),
    )
    assert handles["apps"].depends_on == ("Kustomization/shop/infra",)
    [warning] = handles["apps"].warnings
    assert "contradicts" in warning
    assert "Kustomization/shop/ingress" in warning
    assert handles["infra"].warnings == ()


def test_names_in_depends_on_are_those_of_one_cluster() -> None:
    handles = by_name(found("base", on_member=True), found("apps", dependsOn=[{"name": "base"}]))
    assert handles["apps"].depends_on == ()


def test_an_inventory_that_names_a_handle_of_others_does_not_change_its_order() -> None:
    """Users who may write the status of their Kustomization could hold the cluster with a cycle."""
    place = "shop_infra_kustomize.toolkit.fluxcd.io_Kustomization"
    handles = by_name(
        found("infra", on_member=True, parent="fleet"),
        found("fleet", place, on_member=True),
        found("tenant", place, on_member=True, dependsOn=[{"name": "infra"}]),
    )
    assert handles["infra"].depends_on == ("Kustomization/shop/fleet",)


def test_a_handle_on_the_management_cluster_is_no_child_of_one_that_deploys_elsewhere() -> None:
    parent = found("tenant", "shop_web_kustomize.toolkit.fluxcd.io_Kustomization")
    assert by_name(parent, found("web"))["web"].depends_on == ()


def test_flux_that_was_deployed_from_the_management_cluster_goes_after_all_that_it_deployed() -> None:
    handles = by_name(found("flux", "flux-system_kustomize-controller_apps_Deployment"), found("web", on_member=True))
    assert handles["web"].depends_on == ("Kustomization/shop/flux",)
    assert handles["flux"].stays == ""


ITSELF = (
    "_flux-system__Namespace",
    "_kustomizations.kustomize.toolkit.fluxcd.io_apiextensions.k8s.io_CustomResourceDefinition",
    "flux-system_kustomize-controller_apps_Deployment",
    "flux-system_flux-system_kustomize.toolkit.fluxcd.io_Kustomization",
    "flux-system_apps_kustomize.toolkit.fluxcd.io_Kustomization",
)


def test_the_kustomization_that_deploys_only_flux_itself_stays() -> None:
    handles = by_name(
        found("flux-system", *ITSELF, on_member=True, namespace="flux-system"),
        found("apps", "shop_web_apps_Deployment", on_member=True, namespace="flux-system", parent="flux-system"),
    )
    assert "goes with the cluster" in handles["flux-system"].stays
    assert all(entry.kept for entry in handles["flux-system"].entries)
    assert handles["apps"].depends_on == ("Kustomization/flux-system/flux-system",)


def test_the_kustomization_that_deploys_flux_and_more_is_held() -> None:
    more = found("flux-system", *ITSELF, "shop_web_apps_Deployment", on_member=True, namespace="flux-system")
    assert by_name(more)["flux-system"].stays == ""
    inventory = {"entries": [{"id": item, "v": "v1"} for item in ITSELF]}
    handle = {"kind": "Kustomization", "metadata": {}, "spec": {"prune": True}, "status": {"inventory": inventory}}
    companion = FluxCompanion(None)  # type: ignore[arg-type]  # nothing is read
    assert "deploys Flux itself" in companion.why_held(handle)


def test_flux_that_was_deployed_from_the_management_cluster_is_removed_by_flux_there() -> None:
    inventory = {"entries": [{"id": item, "v": "v1"} for item in ITSELF]}
    spec = {"prune": True, "kubeConfig": {"secretRef": {"name": "prod-kubeconfig"}}}
    handle = {"kind": "Kustomization", "metadata": {}, "spec": spec, "status": {"inventory": inventory}}
    companion = FluxCompanion(None)  # type: ignore[arg-type]  # nothing is read
    assert companion.why_held(handle) == ""


def test_two_handles_of_the_same_step_are_refused() -> None:
    with pytest.raises(UnwindError, match="Kustomization/shop/web exists on the management cluster and on the cluster"):
        by_name(found("web"), found("web", on_member=True))


def test_a_plan_whose_steps_had_begun_says_that_order_is_lost() -> None:
    plan = Plan(warnings=("something else", f"{ORDER_LOST}Kustomization/shop/web was being deleted"))
    assert [notice.message for notice in order_lost(plan)] == [plan.warnings[1]]
    assert order_lost(None) == ()


async def test_a_kubeconfig_with_another_proxy_is_of_another_cluster_and_nothing_is_connected_to() -> None:
    """Users of its namespace write the Secret: a proxy of theirs would be connected to by the manager."""
    asked: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    way = kubeconfig.ClusterConnection(server="https://member.example.dev", credential=kubeconfig.Token("t"))
    theirs = kubeconfig.document(msgspec.structs.replace(way, proxy=address), cluster="c", user="u")
    data = {"value": base64.b64encode(theirs.encode()).decode()}
    secret = {"metadata": {"namespace": "shop", "name": "copy", "uid": "s"}, "data": data}
    client = SimpleNamespace(get=AsyncMock(return_value=secret))
    member: Any = SimpleNamespace(client=SimpleNamespace(connection=way), system_uid="m")
    target = ClusterTarget(ref=ObjectRef(kind="Cluster", namespace="shop", name="prod"), secret="prod")  # noqa: S106 - a name
    async with server:
        companion = FluxCompanion(cast("Any", client))
        assert await companion.is_of_target(target, member, "shop", SecretKey(name="copy")) is False
    assert asked == []


SUSPENDED = {"suspend": True, "prune": True, "kubeConfig": {"secretRef": {"name": "prod-kubeconfig"}}}
CLUSTER = ClusterTarget(ref=ObjectRef(kind="Cluster", namespace="shop", name="prod"), secret="prod")  # noqa: S106 - a name


async def own_removal(
    spec: dict[str, Any], *inventory: str, removes: bool = True, left: list[Content] | None = None
) -> Any:
    """What Unwind does about the objects of a Kustomization. `removes`: whether the policies let it remove them."""
    entries = {"entries": [{"id": item, "v": "v1"} for item in inventory]}
    meta = {"name": "apps", "namespace": "shop", "uid": "apps"}
    handle = {"kind": "Kustomization", "metadata": meta, "spec": spec, "status": {"inventory": entries}}
    companion = FluxCompanion(cast("Any", None), removes=AsyncMock(return_value=removes))
    return await companion.own_removal(handle, CLUSTER, cast("Any", None), left or [])


@pytest.mark.parametrize(
    "spec", [SUSPENDED, {**SUSPENDED, "suspend": False, "deletionPolicy": "Orphan"}, {"suspend": True}]
)
async def test_unwind_removes_what_flux_would_leave_only_if_the_policies_let_it(spec: dict[str, Any]) -> None:
    assert await own_removal(spec, "shop_web__ConfigMap")
    assert await own_removal(spec, "shop_web__ConfigMap", removes=False) is None


@pytest.mark.parametrize("change", [{}, {"deletionPolicy": "Purge"}], ids=["Flux removes it", "an unknown policy"])
async def test_unwind_removes_nothing_that_flux_would_not_leave_for_certain(change: dict[str, Any]) -> None:
    assert await own_removal({**SUSPENDED, "suspend": False, **change}, "shop_web__ConfigMap") is None


async def test_a_suspended_helm_release_that_does_not_name_its_release_is_held_if_objects_carry_its_labels() -> None:
    """Its hooks are not known without the release."""
    handle = {"kind": "HelmRelease", "metadata": {"name": "db", "namespace": "shop"}, "spec": SUSPENDED, "status": {}}
    companion = FluxCompanion(cast("Any", None), removes=AsyncMock(return_value=True))
    assert await companion.own_removal(handle, CLUSTER, cast("Any", None), [])
    there = Content(CONFIG_MAPS, Metadata(name="web", namespace="shop", uid="web", resource_version="1"))
    with pytest.raises(Again, match="does not name its release; uninstall that"):
        await companion.own_removal(handle, CLUSTER, cast("Any", None), [there])


def test_what_a_handle_deployed_is_not_known_if_its_status_does_not_say_it_but_objects_carry_its_labels() -> None:
    forgotten = msgspec.structs.replace(found("apps"), forgotten=True)
    handles = by_name(forgotten, found("new"))
    assert {name: bool(handle.unknown) for name, handle in handles.items()} == {"apps": True, "new": False}
    assert handles["apps"].warnings == (handles["apps"].unknown,)


async def test_unwind_never_removes_flux_itself() -> None:
    assert await own_removal({"suspend": True, "prune": True}, *ITSELF, "shop_web_apps_Deployment") is None


async def test_a_nested_handle_that_is_not_being_deleted_holds_what_unwind_would_remove() -> None:
    going = Content(KUSTOMIZATIONS, Metadata(name="a", uid="a", resource_version="1", deletion_timestamp="now"))
    assert await own_removal(SUSPENDED, left=[going])
    staying = Content(KUSTOMIZATIONS, Metadata(name="b", namespace="shop", uid="b", resource_version="1"))
    with pytest.raises(Again, match="Kustomization shop/b would be deleted with all that it deployed"):
        await own_removal(SUSPENDED, left=[going, staying])
