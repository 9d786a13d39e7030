"""Flux as a companion, with the real kustomize-controller on the management cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from tests.plane.support.cluster_teardowns import waves
from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD
from tests.plane.support.flux_handles import EnforceAll, FluxScene, flux_scene
from tests.plane.support.flux_sources import config_map, kustomization
from tests.plane.support.objects import crd
from tests.plane.support.removals import stateful_set, until_claimed
from unwind.api import meta
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.names import FORCE_RELEASE_ANNOTATION, HELM_KEEP, HELM_KEEP_ANNOTATION, ConditionType, Finalizer
from unwind.api.policies import TEARDOWN_POLICIES, Suspended
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    Resource,
)
from unwind.api.rights import HOME
from unwind.api.unwind import Effort, Phase, Step, Teardown
from unwind.clock import SYSTEM
from unwind.companions.left_objects import LOOK_AGAIN
from unwind.helm.program import Helm
from unwind.inventory.inventories import Inventories
from unwind.kube import object_watch
from unwind.kube.object_watch import until, until_absent
from unwind.kube.updates import revise
from unwind.local import build, tools
from unwind.testing.clock import StillClock
from unwind.testing.namespaces import new_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.companions import CompanionController
    from unwind.local.plane import Plane


pytestmark = pytest.mark.usefixtures("kustomize_controller")


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[FluxScene]:
    async with flux_scene(plane, namespace) as made:
        yield made


def held_at(name: str, *words: str) -> Callable[[Teardown], bool]:
    """Whether a Teardown is held at the object of this name, with these words, and says who must act."""

    def held(one: Teardown) -> bool:
        return one.phase is Phase.HELD and any(
            item.object.name == name and item.actor and all(word in item.message for word in words)
            for item in one.status.blockers
        )

    return held


async def test_kustomizations_go_in_reverse_and_a_held_object_keeps_the_gate_closed_though_flux_has_let_go(
    it: FluxScene,
) -> None:
    held = it.config_map("apps-0", finalizers=[HOLD])
    await it.kustomization("base", "base-0", "base-1")
    await it.kustomization("apps", "apps-1", manifests=[held], depends_on=["base"], deletionPolicy="WaitForTermination")
    await it.sources.until_ready("base", "apps")
    async with it.manager():
        await it.cluster.delete()
        teardown = await it.cluster.teardown(held_at("apps-0", HOLD), "held at apps-0")
        assert waves(teardown) == {"apps": 1, "base": 2}
        apps = await it.handle("apps")
        assert apps
        assert apps["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert apps["spec"]["deletionPolicy"] == "Delete"
        assert await it.cluster.objects() == {"apps-0", "base-0", "base-1"}
        assert (await it.handle("base") or {})["metadata"].get("deletionTimestamp") is None
        await it.free("apps-0")
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "4/4")
    assert await it.cluster.objects() == set()
    assert await it.handle("apps") is None
    order = it.cluster.deleted()
    assert max(order.index(name) for name in ("apps-0", "apps-1")) < min(order.index(f"base-{n}") for n in (0, 1))
    await it.cluster.go()


@pytest.mark.parametrize(
    ("spec", "words", "change"),
    [
        ({"suspend": True}, "is suspended", {"suspend": False}),
        ({"deletionPolicy": "Orphan"}, "Orphan", {"deletionPolicy": "Delete"}),
        ({"prune": False}, "spec.prune false", {"deletionPolicy": "Delete"}),
    ],
)
async def test_a_handle_whose_objects_flux_would_leave_holds_by_name_until_a_person_decides(
    it: FluxScene, spec: dict[str, Any], words: str, change: dict[str, Any]
) -> None:
    await it.kustomization("apps", "apps-0")
    await it.sources.until_ready("apps")
    await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": spec}, namespace=it.cluster.namespace)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(held_at("apps", words), "held at apps")
        assert held.spec.plan
        assert any(words in warning for warning in held.spec.plan.warnings)
        assert await it.cluster.objects() == {"apps-0"}
        assert (await it.handle("apps") or {})["metadata"].get("deletionTimestamp") is None
        await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": change}, namespace=it.cluster.namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


def database(it: FluxScene) -> Object:
    """A StatefulSet with a claim."""
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", **stateful_set(it.cluster.on_member, "db", replicas=1)}


async def ledger_of(it: FluxScene, step: Step) -> dict[str, str]:
    """Why the objects of a step stayed, by their names."""
    chunks = await Inventories(it.client, namespace=HOME).owned([step.object.uid])
    entries = [entry for chunk in chunks for entry in chunk.spec.entries.values()]
    return {entry.object.name: entry.ledger.message for entry in entries if entry.ledger}


async def test_what_flux_orphans_is_in_the_plan_and_in_the_ledger(it: FluxScene) -> None:
    kept = it.config_map("data", annotations={"kustomize.toolkit.fluxcd.io/prune": "disabled"})
    await it.kustomization("apps", "web", manifests=[kept, database(it)])
    await it.sources.until_ready("apps")
    await until_claimed(it.cluster.member.client, it.cluster.on_member, "data-db-0")
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 2)
    assert ended.spec.plan
    [step] = ended.spec.plan.steps
    left = await ledger_of(it, step)
    assert sorted(left) == ["data", "data-db-0"]
    assert "prune is disabled: Flux does not delete it" in left["data"]
    assert "a claim of StatefulSet db is not deployed with it" in left["data-db-0"]
    assert await it.cluster.objects() == {"data"}
    await it.cluster.go()


async def test_a_handle_in_a_namespace_of_the_policy_is_joined_by_the_identity_of_its_cluster(
    plane: Plane, it: FluxScene
) -> None:
    """Flux reads Secrets of its own namespace only, so people copy the kubeconfig there."""
    other = await new_namespace(plane)
    secret = await it.cluster.secret()
    for name, data in (("copy", secret["data"]), ("broken", {"value": "bm9uc2Vuc2U="})):
        meta = {"name": name, "namespace": other}
        await it.client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
    sources = it.sources.on(it.client, other)
    await sources.kustomization("apps", [it.config_map("apps-0")], secret="copy")  # noqa: S106 - a name
    await sources.kustomization("lost", [it.config_map("lost-0")], secret="broken")  # noqa: S106 - a name
    await sources.until_ready("apps")
    it.policies = EnforceAll(it.cluster.namespace, other)
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert waves(ended) == {"apps": 1}
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def test_a_handle_whose_cluster_cannot_be_determined_holds_if_it_has_deployed_something(
    plane: Plane, it: FluxScene
) -> None:
    other = await new_namespace(plane)
    secret = await it.cluster.secret()
    copy = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "copy", "namespace": other}}
    made = await it.client.create(SECRETS, {**copy, "data": secret["data"]})
    sources = it.sources.on(it.client, other)
    await sources.kustomization("apps", [it.config_map("apps-0")], secret="copy")  # noqa: S106 - a name
    await sources.until_ready("apps")
    await it.client.delete(SECRETS, "copy", uid=made["metadata"]["uid"], namespace=other)
    it.policies = EnforceAll(it.cluster.namespace, other)

    def unknown(one: Teardown) -> bool:
        words = f"cannot determine the cluster of Kustomization {other}/apps"
        return not one.finished and any(words in item.message for item in one.status.conditions)

    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(unknown, "held without the copied Secret")
        assert await it.cluster.objects() == {"apps-0"}
        await it.client.create(SECRETS, {**copy, "data": secret["data"]})
        # No event tells that a Secret in another namespace is there.
        await it.cluster.annotate({"example.dev/seen": "true"})
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def test_a_missing_kubeconfig_secret_holds(it: FluxScene) -> None:
    await it.kustomization("apps", "apps-0")
    await it.sources.until_ready("apps")
    secret = await it.cluster.secret()
    await it.client.delete(SECRETS, it.secret, uid=secret["metadata"]["uid"], namespace=it.cluster.namespace)
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: meta.is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE) or bool(one.status.blockers),
            "held without credentials",
        )
        assert not held.finished
        assert await it.cluster.objects() == {"apps-0"}
        restored = {key: value for key, value in secret["metadata"].items() if key in ("name", "namespace", "labels")}
        await it.client.create(SECRETS, {**secret, "metadata": restored})
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_helm_release_that_flux_drops_because_its_kubeconfig_secret_is_missing_keeps_the_gate_closed(
    it: FluxScene,
) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n"
    await it.sources.helm_release("db", {"templates/web.yaml": manifest}, secret=it.secret, target=it.cluster.on_member)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    uid = await it.hold("db", HELM_RELEASES)
    secret = await it.cluster.secret()
    await it.client.delete(SECRETS, it.secret, uid=secret["metadata"]["uid"], namespace=it.cluster.namespace)
    await _deleted_by_flux(it, uid)
    assert await it.cluster.objects() == {"web"}, "Flux has uninstalled nothing"
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: meta.is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE) or bool(one.status.blockers),
            "held without credentials",
        )
        assert not held.finished
        restored = {key: value for key, value in secret["metadata"].items() if key in ("name", "namespace", "labels")}
        await it.client.create(SECRETS, {**secret, "metadata": restored})
        await it.cluster.teardown(held_at("web", "did not delete it"), "held at web")
        member, namespace = it.cluster.member.client, it.cluster.on_member
        left = await member.get(CONFIG_MAPS, "web", namespace=namespace)
        await member.delete(CONFIG_MAPS, "web", uid=left["metadata"]["uid"], namespace=namespace)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    await it.cluster.go()


async def test_handles_that_were_deleted_with_the_cluster_lose_their_order_and_are_verified_all_the_same(
    it: FluxScene,
) -> None:
    held = it.config_map("apps-0", finalizers=[HOLD])
    await it.kustomization("base", "base-0")
    await it.kustomization("apps", manifests=[held], depends_on=["base"])
    await it.sources.until_ready("base", "apps")
    # As a policy does from the day on which it selects the cluster.
    for name in ("base", "apps"):
        uid = await it.hold(name)
        await it.client.delete(KUSTOMIZATIONS, name, uid=uid, namespace=it.cluster.namespace)
    await until_absent(it.cluster.member.client, CONFIG_MAPS, "base-0", namespace=it.cluster.on_member)
    async with it.manager():
        await it.cluster.delete()
        teardown = await it.cluster.teardown(held_at("apps-0"), "held at apps-0")
        assert meta.is_true(teardown.status.conditions, ConditionType.ORDER_LOST)
        await it.free("apps-0")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.handle("apps") is None
    await it.cluster.go()


async def test_an_object_that_flux_does_not_delete_keeps_the_gate_closed(
    it: FluxScene, kustomize_controller: CompanionController
) -> None:
    """Like a ServiceAccount that is gone: Flux drops its finalizer, and everything stays."""
    await it.kustomization("apps", "apps-0")
    await it.sources.until_ready("apps")
    await kustomize_controller.stop()
    try:
        async with it.manager():
            await it.cluster.delete()
            await it.cluster.teardown(held_at("apps", "kustomize-controller"), "waiting for Flux")
            found = await it.handle("apps")
            assert found
            let_go: Object = {"metadata": {"finalizers": [Finalizer.HANDLE.value]}}
            await revise(it.client, KUSTOMIZATIONS, found, lambda _: let_go)
            await it.cluster.teardown(held_at("apps-0", "did not delete it"), "held at apps-0")
            member, namespace = it.cluster.member.client, it.cluster.on_member
            left = await member.get(CONFIG_MAPS, "apps-0", namespace=namespace)
            await member.delete(CONFIG_MAPS, "apps-0", uid=left["metadata"]["uid"], namespace=namespace)
            assert (await it.cluster.ended()).phase is Phase.COMPLETE
    finally:
        await kustomize_controller.start()
    await it.cluster.go()


async def test_a_killed_manager_continues_and_unwind_creates_nothing_on_the_member(it: FluxScene) -> None:
    await it.kustomization("base", "base-0")
    await it.kustomization("apps", manifests=[it.config_map("apps-0", finalizers=[HOLD])], depends_on=["base"])
    await it.sources.until_ready("base", "apps")
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("apps-0"), "held at apps-0")
    async with it.manager():
        await it.free("apps-0")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    created = [
        entry
        for entry in it.cluster.member.audit.entries(verbs=("create", "patch", "update", "delete"))
        if entry.user_agent.startswith("unwind") and entry.object_ref.namespace == it.cluster.on_member
    ]
    assert [entry.object_ref for entry in created if entry.verb != "patch" or entry.object_ref.name != "apps-0"] == []
    await it.cluster.go()


@pytest.mark.usefixtures("kustomize_controller_on_member")
async def test_flux_on_the_member_removes_nested_kustomizations_before_their_parent(it: FluxScene) -> None:
    there = it.on_member()
    await there.source("shop", [it.config_map("shop-0", finalizers=[HOLD])])
    await there.kustomization("tenant", [it.config_map("tenant-0"), kustomization("shop", it.cluster.on_member)])
    await there.until_ready("tenant", "shop")
    async with it.manager():
        await it.cluster.delete()
        teardown = await it.cluster.teardown(held_at("shop-0"), "held at shop-0")
        assert waves(teardown) == {"shop": 1, "tenant": 2}
        # The parent applies once more: the child is not created again while it is being deleted.
        await there.source("tenant", [it.config_map("tenant-1"), kustomization("shop", it.cluster.on_member)])
        await until(
            there.client, CONFIG_MAPS, "tenant-1", lambda one: one is not None, "applied", namespace=there.namespace
        )
        await it.free("shop-0")
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    assert await there.client.list(KUSTOMIZATIONS, namespace=there.namespace) == []
    order = [entry.object_ref.name for entry in it.cluster.member.audit.deletions(namespace=there.namespace)]
    assert order.index("shop") < order.index("shop-0") < order.index("tenant")
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_helm_release_is_uninstalled_and_its_objects_are_verified(it: FluxScene) -> None:
    held, kept = "finalizers: [example.dev/hold]", "annotations: {helm.sh/resource-policy: keep}"
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\n  {}\n"
    prices = crd(Resource(f"{it.cluster.on_member}.example.dev", "v1", "prices", "Price"))
    chart = {
        "templates/web.yaml": manifest.format("web", held),
        "templates/data.yaml": manifest.format("data", kept),
        "crds/prices.yaml": yaml.safe_dump(prices),
    }
    await it.sources.helm_release(
        "db", chart, secret=it.secret, target=it.cluster.on_member, uninstall={"disableWait": True}
    )
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    assert await it.cluster.objects() == {"web", "data"}
    told = await command(it.cluster.management, "plan", "helmrelease/db", "-n", it.cluster.namespace, "-o", "json")
    leaks = {leak["object"]["name"] for leak in json.loads(told.out)["leaks"]}
    assert leaks == {"data", prices["metadata"]["name"]}
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("web", "example.dev/hold"), "held at web")
        await it.free("web")
        ended = await it.cluster.ended()
    assert ended.phase is Phase.COMPLETE
    [step] = ended.spec.plan.steps if ended.spec.plan else ()
    assert {name: "crds directory" in why for name, why in (await ledger_of(it, step)).items()} == {
        "data": False,
        prices["metadata"]["name"]: True,
    }
    assert await it.cluster.objects() == {"data"}
    assert await it.client.list(HELM_RELEASES, namespace=it.cluster.namespace) == []
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_helm_release_that_was_uninstalled_before_is_verified_by_its_labels(it: FluxScene) -> None:
    """helm-controller has forgotten its release by then, and does not wait for its objects here."""
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n  finalizers: [example.dev/hold]\n"
    await it.sources.helm_release(
        "db",
        {"templates/web.yaml": manifest},
        secret=it.secret,
        target=it.cluster.on_member,
        uninstall={"disableWait": True},
    )
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    uid = await it.hold("db", HELM_RELEASES)
    await _deleted_by_flux(it, uid)
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("web", "example.dev/hold"), "held at web")
        await it.free("web")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_helm_release_that_was_upgraded_while_no_manager_ran_is_verified_with_its_new_objects(
    it: FluxScene,
) -> None:
    web = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n"
    late = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: late\n  finalizers: [example.dev/hold]\n"
    settings: dict[str, Any] = {
        "secret": it.secret,
        "target": it.cluster.on_member,
        "uninstall": {"disableWait": True},
    }
    await it.sources.helm_release("db", {"templates/web.yaml": web}, suspend=False, **settings)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    uid = await it.hold("db", HELM_RELEASES)
    stopped = {"spec": {"suspend": True}}
    await it.client.patch(HELM_RELEASES, "db", stopped, namespace=it.cluster.namespace)
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("db", "is suspended"), "held at db")
    # The plan and the snapshot know the first revision.
    templates = {"templates/web.yaml": web, "templates/late.yaml": late}
    await it.sources.helm_release("db", templates, suspend=False, **settings)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    there = it.cluster.member.client
    await until(there, CONFIG_MAPS, "late", bool, "deployed", namespace=it.cluster.on_member)
    await _deleted_by_flux(it, uid)
    async with it.manager():
        await it.cluster.teardown(held_at("late", "example.dev/hold"), "held at late")
        await it.free("late")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def _deleted_by_flux(it: FluxScene, uid: str) -> None:
    """Delete the HelmRelease `db`; returns when only our finalizer keeps it."""
    await it.client.delete(HELM_RELEASES, "db", uid=uid, namespace=it.cluster.namespace)
    await until(
        it.client,
        HELM_RELEASES,
        "db",
        lambda one: one is not None and one["metadata"]["finalizers"] == [Finalizer.HANDLE.value],
        "let go by Flux",
        namespace=it.cluster.namespace,
    )


# What Flux would leave, removed by Unwind

PRUNE_DISABLED = {"kustomize.toolkit.fluxcd.io/prune": "disabled"}


def deletions_by_unwind(it: FluxScene) -> list[str]:
    """The ConfigMaps that Unwind has deleted on the member, in order."""
    entries = it.cluster.member.audit.deletions(resource="configmaps", namespace=it.cluster.on_member)
    return [entry.object_ref.name for entry in entries if entry.user_agent.startswith("unwind")]


@pytest.mark.parametrize("spec", [{"suspend": True}, {"deletionPolicy": "Orphan"}, {"prune": False}])
async def test_what_flux_would_leave_is_removed_by_unwind_if_the_policies_say_so(
    it: FluxScene, spec: dict[str, Any]
) -> None:
    manifests = [it.config_map("apps-0", finalizers=[HOLD]), it.config_map("data", annotations=PRUNE_DISABLED)]
    await it.kustomization("base", "base-0")
    await it.kustomization("apps", "apps-1", manifests=manifests, depends_on=["base"])
    await it.sources.until_ready("base", "apps")
    await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": spec}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    async with it.manager():
        await it.cluster.delete()
        held = await it.cluster.teardown(held_at("apps-0", HOLD), "held at apps-0")
        assert held.spec.plan
        assert any("Unwind removes its objects" in warning for warning in held.spec.plan.warnings)
        apps = await it.handle("apps")
        assert apps
        # Flux has let go of it, and nobody has changed its mind.
        assert apps["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert apps["spec"].items() >= spec.items()
        assert {"apps-0", "base-0", "data"} <= await it.cluster.objects() <= {"apps-0", "apps-1", "base-0", "data"}
        await it.free("apps-0")
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.removed, ended.status.left) == (Phase.COMPLETE, "3/4", 1)
    assert await it.cluster.objects() == {"data"}
    assert await it.handle("apps") is None
    assert sorted(deletions_by_unwind(it)) == ["apps-0", "apps-1"]
    order = it.cluster.deleted()
    assert sorted(order) == ["apps-0", "apps-1", "base-0"], "each once: Flux created none of them again"
    assert order[-1] == "base-0"
    await it.cluster.go()


async def test_a_handle_that_is_resumed_while_unwind_removes_its_objects_is_finished_all_the_same(
    it: FluxScene,
) -> None:
    await it.kustomization("apps", "apps-1", manifests=[it.config_map("apps-0", finalizers=[HOLD])])
    await it.sources.until_ready("apps")
    await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": {"suspend": True}}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("apps-0", HOLD), "held at apps-0")
        resumed = {"spec": {"suspend": False}}
        await it.client.patch(KUSTOMIZATIONS, "apps", resumed, namespace=it.cluster.namespace)
        await it.free("apps-0")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def test_unwind_keeps_a_namespace_of_a_suspended_handle_that_contains_objects_of_others(it: FluxScene) -> None:
    member, name = it.cluster.member.client, f"{it.cluster.on_member}-own"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await it.kustomization("apps", manifests=[namespace, config_map("apps-0", name)])
    await it.sources.until_ready("apps")
    await member.create(CONFIG_MAPS, config_map("foreign", name))
    await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": {"suspend": True}}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.removed, ended.status.left) == (Phase.COMPLETE, "1/2", 1)
    assert ended.spec.plan
    left = await it.cluster.inventory(ended.spec.plan.steps[0].object)
    assert left
    [note] = [entry for entry in left.spec.entries.values() if entry.ledger]
    assert note.object.name == name
    assert note.ledger
    assert "foreign" in note.ledger.message
    found = {item["metadata"]["name"] for item in await member.list(CONFIG_MAPS, namespace=name)}
    assert found == {"foreign", "kube-root-ca.crt"}
    await it.cluster.go()


async def test_unwind_removes_no_more_than_the_account_may_that_flux_impersonates(it: FluxScene) -> None:
    await it.kustomization("apps", "apps-0")
    await it.sources.until_ready("apps")
    spec = {"suspend": True, "serviceAccountName": "tenant"}
    await it.client.patch(KUSTOMIZATIONS, "apps", {"spec": spec}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    clock, member, where = StillClock(), it.cluster.member.client, it.cluster.on_member
    user = f"system:serviceaccount:{it.cluster.namespace}:tenant"
    async with it.manager(clock=clock):
        await it.cluster.delete()
        await it.cluster.teardown(held_at("apps", f"{user}, with which Flux applies it, may not delete"), "held")
        assert (await it.handle("apps") or {})["metadata"].get("deletionTimestamp") is None
        await allow(member, where, user)
        clock.advance(LOOK_AGAIN)
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def allow(client: Client, namespace: str, user: str) -> None:
    """Let a user delete ConfigMaps."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]
    meta = {"name": "tenant", "namespace": namespace}
    role = {"apiVersion": ROLES.api_version, "kind": ROLES.kind, "metadata": meta, "rules": rules}
    await client.create(ROLES, role)
    group = ROLES.group
    binding = {
        "apiVersion": ROLE_BINDINGS.api_version,
        "kind": ROLE_BINDINGS.kind,
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": ROLES.kind, "name": "tenant"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    await client.create(ROLE_BINDINGS, binding)


@pytest.mark.usefixtures("kustomize_controller_on_member")
@pytest.mark.parametrize("child", [Effort.ENFORCE, Effort.LEAVE])
async def test_a_handle_nested_in_a_suspended_one_is_removed_before_it_or_holds_it(
    it: FluxScene, child: Effort
) -> None:
    there = it.on_member()
    await there.source("shop", [it.config_map("shop-0")])
    await there.kustomization("tenant", [it.config_map("tenant-0"), kustomization("shop", it.cluster.on_member)])
    await there.until_ready("tenant", "shop")
    await there.client.patch(KUSTOMIZATIONS, "tenant", {"spec": {"suspend": True}}, namespace=there.namespace)
    it.policies = EnforceAll(it.cluster.namespace, shop=child)
    it.policies.suspended = Suspended.REMOVE
    clock = StillClock()
    async with it.manager(clock=clock):
        await it.cluster.delete()
        if child is Effort.LEAVE:
            await it.cluster.teardown(held_at("tenant", "shop would be deleted with all that it deployed"), "held")
            assert await it.cluster.objects() == {"shop-0", "tenant-0"}
            shop = await there.client.get(KUSTOMIZATIONS, "shop", namespace=there.namespace)
            await there.client.delete(KUSTOMIZATIONS, "shop", uid=shop["metadata"]["uid"], namespace=there.namespace)
            await until_absent(there.client, KUSTOMIZATIONS, "shop", namespace=there.namespace)
            clock.advance(LOOK_AGAIN)
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1 if child is Effort.LEAVE else 0)
    assert await it.cluster.objects() == set()
    assert "tenant-0" in deletions_by_unwind(it)
    assert await there.client.list(KUSTOMIZATIONS, namespace=there.namespace) == []
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_suspended_helm_release_is_uninstalled_by_unwind_if_the_policies_say_so(it: FluxScene) -> None:
    it.helm = Helm((await build.ensure([tools.HELM]))[tools.HELM.name].path)
    held, kept = "finalizers: [example.dev/hold]", "annotations: {helm.sh/resource-policy: keep}"
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\n  {}\n"
    chart = {"templates/web.yaml": manifest.format("web", held), "templates/data.yaml": manifest.format("data", kept)}
    await it.sources.helm_release("db", chart, secret=it.secret, target=it.cluster.on_member)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    await it.client.patch(HELM_RELEASES, "db", {"spec": {"suspend": True}}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("web", "example.dev/hold"), "held at web")
        [release] = await it.client.list(HELM_RELEASES, namespace=it.cluster.namespace)
        assert release["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert release["spec"]["suspend"] is True
        await it.free("web")
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1)
    assert await it.cluster.objects() == {"data"}
    assert await it.cluster.member.client.list(SECRETS, namespace=it.cluster.on_member, labels="owner=helm") == []
    assert await it.client.list(HELM_RELEASES, namespace=it.cluster.namespace) == []
    await it.cluster.go()


async def suspended_release(it: FluxScene, templates: Mapping[str, str], **spec: Any) -> None:
    """The HelmRelease `db`, suspended after helm-controller has deployed these ConfigMaps. `templates`: by name, what
    is in their metadata besides. Policies let Unwind remove them."""
    it.helm = Helm((await build.ensure([tools.HELM]))[tools.HELM.name].path)
    chart = {
        f"templates/{name}.yaml": f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  {more}\n"
        for name, more in templates.items()
    }
    await it.sources.helm_release("db", chart, secret=it.secret, target=it.cluster.on_member, **spec)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    await it.client.patch(HELM_RELEASES, "db", {"spec": {"suspend": True}}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE


@pytest.mark.usefixtures("helm_controller")
async def test_the_uninstall_of_a_suspended_helm_release_continues_although_a_hook_of_the_first_attempt_exists(
    it: FluxScene,
) -> None:
    hook = "annotations: {{helm.sh/hook: pre-delete, helm.sh/hook-weight: '{}'{}}}"
    gate = hook.format(1, ", helm.sh/hook-delete-policy: hook-succeeded")
    await suspended_release(it, {"web": "", "farewell": hook.format(0, ""), "gate": gate})
    client, where = it.cluster.member.client, it.cluster.on_member
    obstacle = await client.create(CONFIG_MAPS, it.config_map("gate"))
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(lambda one: "gate failed" in one.status.blocked_by, "held by the second hook")
    first = await client.get(CONFIG_MAPS, "farewell", namespace=where)
    await client.delete(CONFIG_MAPS, "gate", uid=obstacle["metadata"]["uid"], namespace=where)
    async with it.manager():
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    # Helm keeps it, too. It ran again.
    assert await it.cluster.objects() == {"farewell"}
    again = await client.get(CONFIG_MAPS, "farewell", namespace=where)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_an_object_of_a_suspended_helm_release_that_a_user_annotated_to_be_kept_stays_and_is_in_the_ledger(
    it: FluxScene,
) -> None:
    await suspended_release(it, {"web": "", "data": ""})
    keep = {"metadata": {"annotations": {HELM_KEEP_ANNOTATION: HELM_KEEP}}}
    await it.cluster.member.client.patch(CONFIG_MAPS, "data", keep, namespace=it.cluster.on_member)
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 1)
    assert await it.cluster.objects() == {"data"}
    assert await it.cluster.member.client.list(SECRETS, namespace=it.cluster.on_member, labels="owner=helm") == []
    assert ended.spec.plan
    left = await it.cluster.inventory(ended.spec.plan.steps[0].object)
    assert left
    notes = {entry.object.name: entry.ledger.message for entry in left.spec.entries.values() if entry.ledger}
    assert notes == {"data": f"{HELM_KEEP_ANNOTATION} is {HELM_KEEP}: Helm does not delete it"}
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_a_suspended_helm_release_is_uninstalled_if_its_secrets_are_in_another_namespace(it: FluxScene) -> None:
    client, storage = it.cluster.member.client, f"{it.cluster.on_member}-flux"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": storage}})
    await suspended_release(it, {"web": ""}, storageNamespace=storage)
    assert await client.list(SECRETS, namespace=storage, labels="owner=helm")
    async with it.manager():
        await it.cluster.delete()
        ended = await it.cluster.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    assert await it.cluster.objects() == set()
    assert await client.list(SECRETS, namespace=storage, labels="owner=helm") == []
    await it.cluster.go()


@pytest.mark.usefixtures("helm_controller")
async def test_without_helm_a_suspended_helm_release_is_held_before_anything_is_deleted(it: FluxScene) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n"
    await it.sources.helm_release("db", {"templates/web.yaml": manifest}, secret=it.secret, target=it.cluster.on_member)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    await it.client.patch(HELM_RELEASES, "db", {"spec": {"suspend": True}}, namespace=it.cluster.namespace)
    it.policies.suspended = Suspended.REMOVE
    async with it.manager():
        await it.cluster.delete()
        await it.cluster.teardown(held_at("db", "the helm program is not installed"), "held")
        [release] = await it.client.list(HELM_RELEASES, namespace=it.cluster.namespace)
        assert "deletionTimestamp" not in release["metadata"]
        assert await it.cluster.objects() == {"web"}
        await it.cluster.annotate({FORCE_RELEASE_ANNOTATION: "the test is over"})
        await it.cluster.ended()
    await it.cluster.go()


async def test_the_plans_of_the_cluster_and_of_the_policy_say_what_unwind_removes_itself(
    it: FluxScene, tmp_path: Path
) -> None:
    client, management, cluster = it.client, it.cluster.management, it.cluster
    kept = it.config_map("data", annotations=PRUNE_DISABLED)
    await it.kustomization("base", "base-0", manifests=[database(it)])
    await it.kustomization("apps", "apps-0", manifests=[kept])
    await it.sources.until_ready("base", "apps")
    await until_claimed(cluster.member.client, cluster.on_member, "data-db-0")
    await client.patch(KUSTOMIZATIONS, "apps", {"spec": {"suspend": True}}, namespace=cluster.namespace)
    await client.patch(
        CLUSTERS, cluster.name, {"metadata": {"labels": {"env": cluster.name}}}, namespace=cluster.namespace
    )
    policy = {
        "apiVersion": TEARDOWN_POLICIES.api_version,
        "kind": TEARDOWN_POLICIES.kind,
        "metadata": {"name": cluster.name},
        "spec": {
            "clusterSelector": {"matchLabels": {"env": cluster.name}},
            "sources": [{"kind": "Flux", "effort": "Enforce", "suspended": "Remove"}],
        },
    }
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(policy))
    seen = await command(management, "plan", "--policy", str(file), "-o", "json")
    steps = {step["name"]: step["left"] for step in json.loads(seen.out)["clusters"][0]["steps"]}
    apps, base = (f"Kustomization/{cluster.namespace}/{name}" for name in ("apps", "base"))
    assert (steps[base], "Unwind removes its objects" in steps[apps]) == ("", True)
    made = await client.create(TEARDOWN_POLICIES, policy)
    try:
        told = await command(management, "plan", f"cluster/{cluster.name}", "-n", cluster.namespace, "-o", "json")
        table = await command(management, "plan", f"cluster/{cluster.name}", "-n", cluster.namespace)
    finally:
        await client.delete(TEARDOWN_POLICIES, cluster.name, uid=made["metadata"]["uid"])
    plan = json.loads(told.out)
    assert plan["byUnwind"] == [apps]
    assert [ref["name"] for ref in plan["objects"][apps]] == ["apps-0"]
    assert told.code == table.code == 4
    left = {it["object"]["name"]: it["why"] for it in plan["leaks"]}
    assert sorted(left) == ["data", "data-db-0"]
    assert "prune is disabled" in left["data"]
    assert "a claim of StatefulSet db" in left["data-db-0"]
    assert "removed, by Unwind" in table.out
    await cluster.delete()
    await cluster.let_go()


async def test_a_plan_shows_nested_inventories_and_fails_if_something_would_leak(it: FluxScene) -> None:
    """`clusters` deploys `apps` on the management cluster, and `apps` deploys on the member."""
    management, namespace = it.cluster.management, it.cluster.namespace
    kept = it.config_map("data", annotations={"kustomize.toolkit.fluxcd.io/prune": "disabled"})
    await it.kustomization("base", "base-0")
    await it.sources.source("apps", [it.config_map("web"), kept])
    apps = kustomization("apps", namespace, secret=it.secret, depends_on=["base"])
    await it.sources.kustomization("clusters", [apps])
    await it.sources.until_ready("base", "clusters", "apps")

    whole = await command(management, "plan", "kustomization/base", "-n", namespace)
    assert whole.code == 0, whole.err
    told = await command(management, "plan", "kustomization/clusters", "-n", namespace, "-o", "json")
    assert told.code == 4, told.err
    seen = json.loads(told.out)
    assert {step["name"]: step["wave"] for step in seen["plan"]["steps"]} == {
        f"Kustomization/{namespace}/apps": 1,
        f"Kustomization/{namespace}/clusters": 2,
    }
    assert [ref["name"] for ref in seen["objects"][f"Kustomization/{namespace}/apps"]] == ["web"]
    assert [(leak["object"]["name"], "prune is disabled" in leak["why"]) for leak in seen["leaks"]] == [("data", True)]

    child = await command(management, "plan", "kustomization/apps", "-n", namespace)
    assert child.code == 4
    assert f"Kustomization {namespace}/clusters would create Kustomization {namespace}/apps again" in child.out
    secret = await it.cluster.secret()
    await it.client.delete(SECRETS, it.secret, uid=secret["metadata"]["uid"], namespace=namespace)
    unknown = await command(management, "plan", "kustomization/base", "-n", namespace)
    assert unknown.code == 4
    assert "cannot read what it deployed" in unknown.out


async def test_one_commit_that_removes_the_cluster_and_its_handles_keeps_the_gate_closed(it: FluxScene) -> None:
    client, namespace = it.client, it.cluster.namespace
    found = await client.get(CLUSTERS, it.cluster.name, namespace=namespace)
    cluster: Object = {
        "apiVersion": CLUSTERS.api_version,
        "kind": CLUSTERS.kind,
        "metadata": {"name": it.cluster.name, "namespace": namespace},
        "spec": {"topology": found["spec"]["topology"]},
    }
    await it.sources.source("apps", [it.config_map("apps-0", finalizers=[HOLD])])
    await it.sources.kustomization("fleet", [cluster, kustomization("apps", namespace, secret=it.secret)])
    await it.sources.until_ready("fleet", "apps")
    await it.hold("apps")
    await it.sources.source("fleet", [config_map("empty", namespace)])
    for resource, name in ((CLUSTERS, it.cluster.name), (KUSTOMIZATIONS, "apps")):
        await until(client, resource, name, is_terminating, "pruned", namespace=namespace)
    async with it.manager():
        teardown = await it.cluster.teardown(held_at("apps-0"), "held at apps-0")
        assert meta.is_true(teardown.status.conditions, ConditionType.ORDER_LOST)
        await it.free("apps-0")
        assert (await it.cluster.ended()).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


async def test_a_kind_that_is_no_longer_served_does_not_open_the_gate(it: FluxScene) -> None:
    member, plural = it.cluster.member.client, f"gadgets{it.cluster.uid[:6]}"
    name = f"{plural}.flux.example.dev"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    spec = {
        "group": "flux.example.dev",
        "scope": "Namespaced",
        "names": {"plural": plural, "kind": plural.capitalize()},
        "versions": [version],
    }
    api = CUSTOM_RESOURCE_DEFINITIONS.api_version
    made = {"apiVersion": api, "kind": "CustomResourceDefinition", "metadata": {"name": name}, "spec": spec}
    await member.create(CUSTOM_RESOURCE_DEFINITIONS, made)
    await until(
        member,
        CUSTOM_RESOURCE_DEFINITIONS,
        name,
        lambda one: object_watch.has_condition(one, "Established"),
        "established",
    )
    gadget = {"apiVersion": "flux.example.dev/v1", "kind": plural.capitalize()}
    placed = {"metadata": {"name": "one", "namespace": it.cluster.on_member}}
    await it.kustomization("apps", "apps-0", manifests=[{**gadget, **placed}])
    await it.sources.until_ready("apps")
    await member.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": [{**version, "served": False}]}})
    async with it.manager(clock=SYSTEM):
        await it.cluster.delete()
        held = await it.cluster.teardown(
            lambda one: meta.is_true(one.status.conditions, ConditionType.UNKNOWN_VALUE), "held without a plan"
        )
        [notice] = [one.message for one in held.status.conditions if one.type == ConditionType.UNKNOWN_VALUE]
        assert "its API is not served by the cluster" in notice
        assert await it.cluster.objects() == {"apps-0"}
        await member.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": [version]}})
        assert (await it.cluster.teardown(lambda one: one.finished, "finished", within=90)).phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()
    await it.cluster.go()


def is_terminating(obj: Object | None) -> bool:
    return obj is not None and "deletionTimestamp" in obj["metadata"]
