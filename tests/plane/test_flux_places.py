"""Handles of Flux on the management cluster of which it is not known where, or what, they deployed."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pytest_asyncio

from tests.plane.support.cluster_teardowns import TeardownScene, manager, scene
from tests.plane.support.controllers import removal_deps
from tests.plane.support.flux_handles import EnforceAll
from tests.plane.support.objects import crd
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.flux import KUSTOMIZATIONS
from unwind.api.names import ConditionType, Finalizer, Reason
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, SECRETS
from unwind.api.rights import HOME
from unwind.api.unwind import Effort, Phase
from unwind.companions.flux import FluxCompanion
from unwind.companions.step_source import CompanionSteps
from unwind.install.install import established
from unwind.kube import kubeconfig
from unwind.kube.object_watch import until
from unwind.members import targets
from unwind.members.members import Members
from unwind.preview.companion_preview import preview_companions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.members.targets import AddonTarget
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.teardown.step_sources import SourceSteps


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[TeardownScene]:
    """A cluster, and the kind Kustomization on the management cluster, without Flux."""
    made = await scene(plane, namespace)
    name = f"{KUSTOMIZATIONS.plural}.{KUSTOMIZATIONS.group}"
    await made.client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd(KUSTOMIZATIONS), field_manager="test")
    await until(
        made.client, CUSTOM_RESOURCE_DEFINITIONS, name, lambda one: one is not None and established(one), "served"
    )
    yield made
    for item in await made.client.list(KUSTOMIZATIONS, namespace=namespace):
        await made.client.patch(
            KUSTOMIZATIONS, item["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace=namespace
        )


async def _kustomization(
    it: TeardownScene, name: str, way: Object, namespace: str = "", *, suspend: bool = True, **metadata: Any
) -> None:
    body: Object = {
        "apiVersion": KUSTOMIZATIONS.api_version,
        "kind": KUSTOMIZATIONS.kind,
        "metadata": {"name": name, "namespace": namespace or it.namespace, **metadata},
        # Flux of other tests may run there.
        "spec": {
            "suspend": suspend,
            "interval": "1h",
            "prune": True,
            "sourceRef": {"kind": "Bucket", "name": "none"},
            "kubeConfig": way,
        },
    }
    await it.client.create(KUSTOMIZATIONS, body)


async def _target(it: TeardownScene) -> AddonTarget:
    return targets.of_capi(await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster))


async def _steps(it: TeardownScene, policies: EnforceAll, target: AddonTarget | None = None) -> SourceSteps:
    async with removal_deps(it.client, HOME) as deps:
        source = CompanionSteps(FluxCompanion(it.client), policies, deps.members, deps.inventories)
        return await source.steps(target or await _target(it))


async def _unknown(it: TeardownScene, policies: EnforceAll, target: AddonTarget | None = None) -> set[str]:
    """What is not known, and what holds the cluster because of that, by the preview."""
    async with Members(it.client) as members:
        it_is = target or await _target(it)
        seen = await preview_companions((FluxCompanion(it.client),), policies, members, it_is, selected=True)
    return {*seen.unknown, *(notice.message for notice in seen.steps.said)}


async def _secret(it: TeardownScene, name: str, server: str = "", namespace: str = "", **way: str) -> None:
    """A kubeconfig, with the address of the cluster unless another one is given."""
    there = it.member.connection("somebody")
    text = kubeconfig.document(
        msgspec.structs.replace(there, server=server or there.server, **way), cluster="other", user="unwind"
    )
    meta = {"name": name, "namespace": namespace or it.namespace}
    data = {"value": base64.b64encode(text.encode()).decode()}
    body = {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "metadata": meta, "data": data}
    await it.client.create(SECRETS, body)


async def _another_cluster(it: TeardownScene) -> None:
    """A Cluster with the address another.example.dev:6443."""
    another: Object = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": "another", "namespace": it.namespace},
        "spec": {
            "controlPlaneEndpoint": {"host": "another.example.dev", "port": 6443},
            "infrastructureRef": {"apiGroup": "example.dev", "kind": "Example", "name": "another"},
        },
    }
    await it.client.create(CLUSTERS, another)


async def test_an_enforced_handle_that_names_its_cluster_by_a_config_map_holds_the_clusters_of_its_namespace(
    it: TeardownScene,
) -> None:
    elsewhere = f"{it.namespace}-elsewhere"
    await it.management.create_namespace(elsewhere)
    await _kustomization(it, "near", {"configMapRef": {"name": "way"}})
    await _kustomization(it, "far", {"configMapRef": {"name": "way"}}, elsewhere)
    steps = await _steps(it, EnforceAll(it.namespace, elsewhere))
    assert steps.steps == ()
    [notice] = steps.said
    assert (notice.type, notice.reason) == (ConditionType.UNKNOWN_VALUE, Reason.CLUSTER_UNKNOWN)
    assert notice.message.startswith(f"Kustomization/{it.namespace}/near names its cluster by spec.kubeConfig")
    [warning] = steps.warnings
    assert f"Kustomization/{elsewhere}/far" in warning
    left = await _steps(it, EnforceAll(it.namespace, elsewhere, near=Effort.LEAVE, far=Effort.LEAVE))
    assert left.said == ()


async def test_a_handle_whose_kubeconfig_has_the_address_of_no_cluster_is_in_the_warnings(it: TeardownScene) -> None:
    await _secret(it, "proxied", "https://proxy.example.dev:6443")
    await _another_cluster(it)
    await _secret(it, "another", "https://another.example.dev:6443")
    await _kustomization(it, "proxied", {"secretRef": {"name": "proxied"}})
    await _kustomization(it, "another", {"secretRef": {"name": "another"}})
    steps = await _steps(it, EnforceAll(it.namespace))
    assert (steps.steps, steps.said) == ((), ())
    [warning] = steps.warnings
    assert f"Kustomization/{it.namespace}/proxied uses a kubeconfig with an address or a proxy" in warning
    assert "example.dev" not in warning


async def _deployed(it: TeardownScene, name: str, namespace: str = "") -> None:
    """Let the status of a Kustomization say that it has deployed something."""
    status = {"status": {"inventory": {"entries": [{"id": "shop_web__ConfigMap", "v": "v1"}]}}}
    where = namespace or it.namespace
    await it.client.patch(KUSTOMIZATIONS, name, status, namespace=where)


async def test_an_enforced_handle_that_has_deployed_something_at_an_address_of_no_cluster_holds_those_of_its_namespace(
    it: TeardownScene,
) -> None:
    """For example on this cluster, by its internal load balancer. That of the cluster itself through a proxy, too."""
    elsewhere = f"{it.namespace}-elsewhere"
    await it.management.create_namespace(elsewhere)
    await _secret(it, "internal", "https://internal.example.dev:6443")
    await _secret(it, "internal", "https://internal.example.dev:6443", elsewhere)
    # An address of its own: Clusters of other tests lead to the same member.
    host = f"{it.namespace}.example.dev"
    endpoint = {"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}}
    await it.client.patch(CLUSTERS, it.name, endpoint, namespace=it.namespace)
    await _secret(it, "proxied", f"https://{host}:6443", proxy="http://proxy.example.dev:3128")
    for name, namespace, secret in (
        ("near", it.namespace, "internal"),
        ("new", it.namespace, "internal"),
        ("far", elsewhere, "internal"),
        ("proxied", it.namespace, "proxied"),
    ):
        await _kustomization(it, name, {"secretRef": {"name": secret}}, namespace)
        if name != "new":
            await _deployed(it, name, namespace)
    steps = await _steps(it, EnforceAll(it.namespace, elsewhere))
    assert steps.steps == ()
    assert {(notice.type, notice.reason) for notice in steps.said} == {
        (ConditionType.UNKNOWN_VALUE, Reason.CLUSTER_UNKNOWN)
    }
    assert [notice.message.partition(" ")[0] for notice in steps.said] == [
        f"Kustomization/{it.namespace}/{name}" for name in ("near", "proxied")
    ]
    assert f"let it use Secret {it.name}-kubeconfig" in steps.said[0].message
    left = await _steps(it, EnforceAll(it.namespace, elsewhere, near=Effort.LEAVE, proxied=Effort.TRY))
    assert left.said == ()
    assert await _unknown(it, EnforceAll(it.namespace, elsewhere)) == {notice.message for notice in steps.said}


async def test_a_held_handle_whose_kubeconfig_is_gone_holds_although_it_has_deployed_nothing(
    it: TeardownScene,
) -> None:
    """helm-controller forgets a release when the Secret is missing."""
    way = {"secretRef": {"name": "gone"}}
    await _kustomization(it, "new", way)
    assert (await _steps(it, EnforceAll(it.namespace))).said == ()
    await _kustomization(it, "apps", way, finalizers=[Finalizer.HANDLE.value])
    [notice] = (await _steps(it, EnforceAll(it.namespace))).said
    assert notice.type is ConditionType.UNKNOWN_VALUE
    assert f"cannot determine the cluster of Kustomization {it.namespace}/apps" in notice.message


async def _labelled(it: TeardownScene, name: str, handle: str) -> None:
    """A ConfigMap on the member with the labels of Flux for a Kustomization of this name."""
    labels = {f"{KUSTOMIZATIONS.group}/name": handle, f"{KUSTOMIZATIONS.group}/namespace": it.namespace}
    meta = {"name": name, "namespace": it.on_member, "labels": labels}
    await it.member.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})


async def test_a_handle_without_an_inventory_is_verified_by_its_labels_and_one_that_deployed_nothing_does_not_hold(
    it: TeardownScene,
) -> None:
    """As after a restore without status, or when a suspended handle was deleted and applied again."""
    way = {"secretRef": {"name": f"{it.name}-kubeconfig"}}
    await _kustomization(it, "forgotten", way, suspend=False)
    await _kustomization(it, "new", way, suspend=False)
    await _labelled(it, "forgotten-0", "forgotten")
    await _labelled(it, "strange", "another")

    def source(deps: RemovalDeps) -> CompanionSteps:
        companion = FluxCompanion(deps.members._client)
        return CompanionSteps(companion, EnforceAll(it.namespace), deps.members, deps.inventories)

    async with manager(it.client, sources=(source,)):
        await it.delete()
        held = await it.teardown(
            lambda one: any(item.object.name == "forgotten-0" and item.actor for item in one.status.blockers), "held"
        )
        assert held.spec.plan
        assert {step.object.name: step.objects for step in held.spec.plan.steps} == {"forgotten": 1, "new": 0}
        assert any("forgotten: it does not say in its status what it deployed" in it for it in held.spec.plan.warnings)
        [blocker] = held.status.blockers
        assert "did not delete it" in blocker.message
        left = await it.member.client.get(CONFIG_MAPS, "forgotten-0", namespace=it.on_member)
        await it.member.client.delete(CONFIG_MAPS, "forgotten-0", uid=left["metadata"]["uid"], namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await it.objects() == {"strange"}
    await it.let_go()


async def test_the_preview_of_a_handle_without_an_inventory_is_not_known_if_objects_carry_its_labels(
    it: TeardownScene,
) -> None:
    way = {"secretRef": {"name": f"{it.name}-kubeconfig"}}
    await _kustomization(it, "forgotten", way, suspend=False)
    await _kustomization(it, "new", way, suspend=False)
    await _labelled(it, "forgotten-0", "forgotten")
    [unknown] = await _unknown(it, EnforceAll(it.namespace))
    assert unknown.startswith(f"Kustomization/{it.namespace}/forgotten: it does not say in its status what it deployed")


async def test_a_cluster_without_status_and_kubeconfig_is_held_by_handles_that_have_deployed_something_there(
    it: TeardownScene,
) -> None:
    """As after a restore. A Cluster that never came up is not held, whatever else is in its namespace."""
    never = msgspec.structs.replace(await _target(it), ready=False, secret="lost-kubeconfig")  # noqa: S106 - a name
    await _secret(it, "other", "https://another.example.dev:6443")
    await _another_cluster(it)
    for name, way in (
        ("apps", {"secretRef": {"name": "lost-kubeconfig"}}),
        ("other", {"secretRef": {"name": "other"}}),
        ("removed", {"secretRef": {"name": "removed-kubeconfig"}}),
        ("held", {"secretRef": {"name": "lost-kubeconfig"}}),
    ):
        await _kustomization(it, name, way)
    assert (await _steps(it, EnforceAll(it.namespace), never)).said == ()
    for name in ("other", "removed"):
        await _deployed(it, name)
    assert (await _steps(it, EnforceAll(it.namespace), never)).said == ()
    assert await _unknown(it, EnforceAll(it.namespace), never) == set()

    await _deployed(it, "apps")
    finalizers = {"metadata": {"finalizers": [Finalizer.HANDLE.value]}}
    await it.client.patch(KUSTOMIZATIONS, "held", finalizers, namespace=it.namespace)
    for efforts, names in (
        ({}, ("apps", "held")),
        ({"held": Effort.LEAVE}, ("apps",)),
        ({"apps": Effort.LEAVE}, ("held",)),
    ):
        policies = EnforceAll(it.namespace, **efforts)
        steps = await _steps(it, policies, never)
        [notice] = steps.said
        assert (steps.steps, notice.type) == ((), ConditionType.UNKNOWN_VALUE)
        named = ", ".join(f"Kustomization/{it.namespace}/{name}" for name in names)
        assert f"{named} may have deployed something there, but Secret {it.namespace}/lost-kubeconfig" in notice.message
        [unknown] = await _unknown(it, policies, never)
        assert named in unknown
    left = EnforceAll(it.namespace, apps=Effort.LEAVE, held=Effort.LEAVE)
    assert (await _steps(it, left, never)).said == ()


async def test_a_cluster_without_status_and_kubeconfig_is_held_by_a_copy_with_its_address(it: TeardownScene) -> None:
    found = await _target(it)
    never = msgspec.structs.replace(found, ready=False, secret="lost-kubeconfig")  # noqa: S106 - a name
    cluster = await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster)
    elsewhere = f"{it.namespace}-elsewhere"
    await it.management.create_namespace(elsewhere)
    endpoint = cluster.spec.control_plane_endpoint
    await _secret(it, "copied", f"https://{endpoint.host}:{endpoint.port}", elsewhere)
    await _secret(it, "internal", "https://internal.example.dev:6443", elsewhere)
    for name in ("copied", "internal"):
        await _kustomization(it, name, {"secretRef": {"name": name}}, elsewhere)
        await _deployed(it, name, elsewhere)
    [notice] = (await _steps(it, EnforceAll(it.namespace, elsewhere), never)).said
    assert f"Kustomization/{elsewhere}/copied may have deployed" in notice.message
    assert "internal" not in notice.message
