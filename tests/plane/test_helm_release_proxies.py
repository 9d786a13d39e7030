"""HelmReleaseProxies of the real CAAPH as steps: Unwind orders them, and verifies what CAAPH uninstalls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.cluster_teardowns import TeardownScene, manager
from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD
from tests.plane.support.handle_requests import handle_manager
from tests.plane.support.helm_release_proxies import EveryProxy, Proxies, config_maps, proxy_steps
from tests.plane.support.objects import teardown_policy
from unwind.api.caaph import HELM_CHART_PROXIES, HELM_RELEASE_PROXIES, HELM_RELEASE_PROXY_FINALIZER
from unwind.api.capi import CLUSTERS
from unwind.api.meta import find
from unwind.api.names import (
    DELETE_PROTECTION_LABEL,
    FORCE_RELEASE_ANNOTATION,
    PAUSED_ANNOTATION,
    ConditionType,
    Finalizer,
)
from unwind.api.policies import TEARDOWN_POLICIES, SourceKind
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import HOME
from unwind.api.unwind import TEARDOWNS, Effort, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube.discovery import Named
from unwind.kube.object_watch import until
from unwind.preview.cluster_preview import foresee
from unwind.preview.companion_preview import NO_POLICY
from unwind.teardown.drafts import HANDLES_NOT_REMOVED
from unwind.teardown.requests import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.helm.program import Helm
    from unwind.kube.client import Object
    from unwind.local.companions import CompanionController
    from unwind.preview.object_preview import Foreseen
    from unwind.testing.charts import ChartRepository


@pytest_asyncio.fixture(loop_scope="session")
async def proxies(it: TeardownScene, caaph: CompanionController, charts: ChartRepository) -> AsyncIterator[Proxies]:
    made = Proxies(it.client, charts, namespace=it.namespace, on_member=it.on_member)
    yield made
    await made.clear()


def held_at(name: str) -> Callable[[Teardown], bool]:
    """Whether a Teardown is held at the object of this name, and says who must act."""
    return lambda one: (
        one.phase is Phase.HELD and any(item.object.name == name and item.actor for item in one.status.blockers)
    )


async def hold(it: TeardownScene, name: str, *finalizers: str) -> None:
    patch = {"metadata": {"finalizers": list(finalizers) or None}}
    await it.member.client.patch(CONFIG_MAPS, name, patch, namespace=it.on_member)


async def test_proxies_go_in_order_and_an_object_holds_although_caaph_has_let_go(
    it: TeardownScene, proxies: Proxies
) -> None:
    base = await proxies.deploy("base")
    top = await proxies.deploy("top", depends_on="base, absent")
    await hold(it, "top-0", HOLD)
    policies = EveryProxy(it.namespace)
    async with manager(it.client, sources=(proxy_steps(policies, helm=None),)):
        await it.delete()
        held = await it.teardown(held_at("top-0"), "held at top-0")
        assert held.spec.plan
        steps = {step.object.name: step for step in held.spec.plan.steps}
        # Two ConfigMaps, and the Secret of the release.
        assert {name: (step.wave, step.objects) for name, step in steps.items()} == {
            top.name: (1, 3),
            base.name: (2, 3),
        }
        assert (await proxies.read(top))["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert "deletionTimestamp" not in (await proxies.read(base))["metadata"]
        assert await it.objects() == {"base-0", "base-1", "top-0"}
        await hold(it, "top-0")
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.objects() == set()
    deleted = it.deleted()
    assert max(deleted.index(name) for name in ("top-0", "top-1")) < min(map(deleted.index, ("base-0", "base-1")))
    assert await it.client.list(HELM_RELEASE_PROXIES, namespace=it.namespace) == []
    await it.let_go()


async def test_a_controller_that_does_not_run_holds_and_is_named(
    it: TeardownScene, proxies: Proxies, caaph: CompanionController
) -> None:
    web = await proxies.deploy("web")
    await caaph.stop()
    try:
        async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
            await it.delete()
            held = await it.teardown(held_at(web.name), f"held at {web.name}")
            [blocker] = held.status.blockers
            assert blocker.actor == "the Helm add-on provider of Cluster API (CAAPH)"
            assert f"to uninstall release {it.on_member}/web" in blocker.message
            assert set((await proxies.read(web))["metadata"]["finalizers"]) == {
                HELM_RELEASE_PROXY_FINALIZER,
                Finalizer.HANDLE.value,
            }
            assert await it.objects() == {"web-0", "web-1"}
            await caaph.start()
            assert (await it.ended()).phase is Phase.COMPLETE
    finally:
        if caaph.process is None:
            await caaph.start()
    await it.nothing_left()


async def test_a_missing_kubeconfig_secret_keeps_the_gate_closed(it: TeardownScene, proxies: Proxies) -> None:
    await proxies.deploy("web")
    secret = await it.secret()
    await it.client.delete(SECRETS, secret["metadata"]["name"], uid=secret["metadata"]["uid"], namespace=it.namespace)
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()

        def unknown(one: Teardown) -> bool:
            return not one.finished and any(
                item.status == "True" and "cannot read what HelmReleaseProxy deployed" in item.message
                for item in one.status.conditions
            )

        await it.teardown(unknown, "held because of the missing Secret")
        assert await it.objects() == {"web-0", "web-1"}
        fresh = {key: secret["metadata"][key] for key in ("name", "namespace", "labels")}
        await it.client.create(SECRETS, {**secret, "metadata": fresh})
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_a_release_secret_that_cannot_be_read_holds(it: TeardownScene, proxies: Proxies) -> None:
    await proxies.deploy("web")
    name = "sh.helm.release.v1.web.v1"
    whole = await it.member.client.get(SECRETS, name, namespace=it.on_member)
    await it.member.client.patch(SECRETS, name, {"data": {"release": "AAAA"}}, namespace=it.on_member)
    # Nothing reports that a Secret on a member is corrected: it is read again after a while.
    async with manager(it.client, clock=SYSTEM, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()

        def unknown(one: Teardown) -> bool:
            return not one.finished and any(name in item.message for item in one.status.conditions)

        await it.teardown(unknown, "held because of the release Secret")
        assert await it.objects() == {"web-0", "web-1"}
        patch = {"data": {"release": whole["data"]["release"]}}
        await it.member.client.patch(SECRETS, name, patch, namespace=it.on_member)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_a_release_that_is_gone_already_is_a_warning_and_no_blocker(it: TeardownScene, proxies: Proxies) -> None:
    web = await proxies.deploy("web")
    for name in ("web-0", "web-1"):
        made = await it.member.client.get(CONFIG_MAPS, name, namespace=it.on_member)
        await it.member.client.delete(CONFIG_MAPS, name, uid=made["metadata"]["uid"], namespace=it.on_member)
    made = await it.member.client.get(SECRETS, "sh.helm.release.v1.web.v1", namespace=it.on_member)
    await it.member.client.delete(
        SECRETS, made["metadata"]["name"], uid=made["metadata"]["uid"], namespace=it.on_member
    )
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert ended.spec.plan
    assert [step.object.name for step in ended.spec.plan.steps] == [web.name]
    assert any(f"release {it.on_member}/web is not on the cluster" in item for item in ended.spec.plan.warnings)
    await it.let_go()


async def test_a_paused_proxy_holds_until_it_is_unpaused(it: TeardownScene, proxies: Proxies) -> None:
    web = await proxies.deploy("web")
    await proxies.patch(web, {"metadata": {"annotations": {PAUSED_ANNOTATION: "true"}}})
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        held = await it.teardown(held_at(web.name), f"held at {web.name}")
        assert "is paused" in held.status.blocked_by
        assert "deletionTimestamp" not in (await proxies.read(web))["metadata"]
        await proxies.patch(web, {"metadata": {"annotations": {PAUSED_ANNOTATION: None}}})
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_a_proxy_that_is_installed_once_is_uninstalled_by_unwind(
    it: TeardownScene, proxies: Proxies, helm: Helm
) -> None:
    await proxies.deploy("once", reconcileStrategy="InstallOnce")
    await hold(it, "once-0", HOLD)
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=helm),)):
        await it.delete()
        await it.teardown(held_at("once-0"), "held at once-0")
        await hold(it, "once-0")
        ended = await it.ended()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "3/3")
    assert await it.objects() == set()
    assert await it.member.client.list(SECRETS, namespace=it.on_member, labels="owner=helm") == []
    await it.let_go()


async def test_a_release_that_was_installed_once_and_that_another_deployer_drives_since_is_held(
    it: TeardownScene, proxies: Proxies, helm: Helm
) -> None:
    labels = "labels: {helm.toolkit.fluxcd.io/name: cni, helm.toolkit.fluxcd.io/namespace: flux-system}"
    templates = {"templates/all.yaml": config_maps("once-0", metadata=labels)}
    once = await proxies.deploy("once", templates=templates, reconcileStrategy="InstallOnce")
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=helm),)):
        await it.delete()
        held = await it.teardown(held_at(once.name), f"held at {once.name}")
        assert "Flux HelmRelease flux-system/cni drives it now; remove it there" in held.status.blocked_by
        assert await it.objects() == {"once-0"}
        assert len(await it.member.client.list(SECRETS, namespace=it.on_member, labels="owner=helm,name=once")) == 1
        await it.annotate({FORCE_RELEASE_ANNOTATION: "the test is over"})
        await it.ended()
    assert await it.objects() == {"once-0"}
    await it.let_go()


async def test_without_helm_a_proxy_that_is_installed_once_holds_although_caaph_has_let_go(
    it: TeardownScene, proxies: Proxies
) -> None:
    once = await proxies.deploy("once", reconcileStrategy="InstallOnce")
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        held = await it.teardown(held_at(once.name), f"held at {once.name}")
        assert "the helm program is not installed" in held.status.blocked_by
        assert (await proxies.read(once))["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert await it.objects() == {"once-0", "once-1"}
        await it.annotate({FORCE_RELEASE_ANNOTATION: "the test is over"})
        await it.ended()
    await it.let_go()


async def test_what_helm_keeps_is_in_the_ledger(it: TeardownScene, proxies: Proxies) -> None:
    kept = config_maps("data", metadata="annotations: {helm.sh/resource-policy: keep}")
    hook = config_maps("hook", metadata="annotations: {helm.sh/hook: pre-install}")
    templates = {"templates/kept.yaml": kept, "templates/hook.yaml": hook, "templates/web.yaml": config_maps("web")}
    proxy = await proxies.deploy("web", templates=templates)
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.objects() == {"data", "hook"}
    left = await it.inventory(proxy)
    assert left
    notes = {entry.object.name: entry.ledger.message for entry in left.spec.entries.values() if entry.ledger}
    assert notes == {
        "data": "Helm keeps it: annotation helm.sh/resource-policy",
        "hook": "Helm keeps it: a hook is not part of the release",
    }
    await it.let_go()


class NoPolicies(EveryProxy):
    """No policy selects the cluster."""

    sources = frozenset()


async def test_without_a_policy_the_teardown_and_its_status_say_that_releases_are_not_removed(
    it: TeardownScene, proxies: Proxies
) -> None:
    await proxies.deploy("web")
    async with manager(it.client, sources=(proxy_steps(NoPolicies(it.namespace, Effort.LEAVE), helm=None),)):
        await it.delete()
        ended = await it.ended()
    said = find(ended.status.conditions, ConditionType.HANDLES_NOT_REMOVED)
    message = f"HelmReleaseProxy: 1 handle{HANDLES_NOT_REMOVED}no TeardownPolicy selects this cluster"
    assert said
    assert (said.message, ended.phase) == (message, Phase.COMPLETE)
    shown = await command(it.management, "status", it.name, "-n", it.namespace)
    assert message in " ".join(shown.out.split())
    await it.let_go()


async def test_nothing_is_created_or_deleted_on_the_member_by_unwind(it: TeardownScene, proxies: Proxies) -> None:
    await proxies.deploy("web")
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        await it.ended()
    written = it.member.audit.entries(
        verbs=("create", "update", "patch", "delete", "deletecollection"), namespace=it.on_member
    )
    assert {item.user_agent.partition("/")[0] for item in written if item.object_ref.name.startswith("web-")} == {
        "caaph"
    }
    await it.let_go()


@pytest.mark.parametrize("handle", ["held", "gone"])
async def test_a_release_that_was_upgraded_while_no_manager_ran_is_verified_with_its_new_objects(
    it: TeardownScene, proxies: Proxies, handle: str
) -> None:
    late = "{{ if .Values.late }}" + config_maps("late", metadata=f"finalizers: [{HOLD}]") + "{{ end }}"
    web = await proxies.deploy("web", templates={"templates/all.yaml": config_maps("web-0"), "templates/b.yaml": late})
    await proxies.patch(web, {"metadata": {"annotations": {PAUSED_ANNOTATION: "true"}}})
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.delete()
        await it.teardown(held_at(web.name), f"held at {web.name}")
    # The plan and the snapshot know the first revision.
    finalizers = [HELM_RELEASE_PROXY_FINALIZER, Finalizer.HANDLE.value]
    upgrade = {"annotations": {PAUSED_ANNOTATION: None}, "finalizers": finalizers}
    await proxies.patch(web, {"metadata": upgrade, "spec": {"values": "late: true"}})

    def upgraded(found: Object | None) -> bool:
        return bool(found and found["status"].get("revision") == 2)

    def let_go(found: Object | None) -> bool:
        return bool(found and found["metadata"]["finalizers"] == [Finalizer.HANDLE.value])

    await until(it.client, HELM_RELEASE_PROXIES, web.name, upgraded, "upgraded", namespace=it.namespace)
    await it.client.delete(HELM_RELEASE_PROXIES, web.name, uid=web.uid, namespace=it.namespace)
    await until(it.client, HELM_RELEASE_PROXIES, web.name, let_go, "let go by CAAPH", namespace=it.namespace)
    if handle == "gone":
        await proxies.patch(web, {"metadata": {"finalizers": None}})
    async with manager(it.client, sources=(proxy_steps(EveryProxy(it.namespace), helm=None),)):
        await it.teardown(held_at("late"), "held at late")
        await hold(it, "late")
        ended = await it.ended()
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    await it.nothing_left()


# Previews


async def preview(it: TeardownScene, resource: Resource, name: str) -> Foreseen:
    named = Named(resource=resource, namespace=it.namespace, name=name)
    return await foresee(it.client, named, home=HOME)


async def test_the_plan_of_a_cluster_shows_what_would_be_left_behind_without_a_policy(
    it: TeardownScene, proxies: Proxies
) -> None:
    web = await proxies.deploy("web")
    seen = await preview(it, CLUSTERS, it.name)
    [step] = [step for step in seen.plan.steps if step.object.uid == web.uid]
    assert (step.effort, step.objects) == (Effort.LEAVE.value, 3)
    assert (web, NO_POLICY) in [(told.object, told.why) for told in seen.leaks]
    assert {told.object.name for told in seen.staying if told.why == NO_POLICY} >= {"web-0", "web-1"}
    await it.delete()
    await it.let_go()


async def test_the_plan_of_a_cluster_that_a_policy_selects_has_its_releases_in_order(
    it: TeardownScene, proxies: Proxies
) -> None:
    base = await proxies.deploy("base")
    top = await proxies.deploy("top", depends_on="base")
    await it.client.patch(CLUSTERS, it.name, {"metadata": {"labels": {"env": it.name}}}, namespace=it.namespace)
    policy = teardown_policy(it.name, {"env": it.name}, {"kind": "HelmReleaseProxy", "effort": "Enforce"})
    made = await it.client.create(TEARDOWN_POLICIES, policy)
    try:
        seen = await preview(it, CLUSTERS, it.name)
    finally:
        await it.client.delete(TEARDOWN_POLICIES, it.name, uid=made["metadata"]["uid"])
    # Releases of other tests on the same member are no handles of CAAPH.
    ours = {step.object.name: step for step in seen.plan.steps if step.object.kind == HELM_RELEASE_PROXIES.kind}
    waves = {name: (step.wave, step.effort) for name, step in ours.items()}
    assert waves == {top.name: (1, Effort.ENFORCE.value), base.name: (2, Effort.ENFORCE.value)}
    assert {told.object for told in seen.leaks} & {base, top} == set()
    assert {ref.name for ref in seen.objects[f"HelmReleaseProxy/{it.namespace}/{top.name}"]} == {
        "top-0",
        "top-1",
        "sh.helm.release.v1.top.v1",
    }
    await it.delete()
    await it.let_go()


async def test_the_plan_of_a_proxy_shows_its_objects_and_what_creates_it_again(
    it: TeardownScene, proxies: Proxies
) -> None:
    web = await proxies.deploy("web")
    seen = await preview(it, HELM_RELEASE_PROXIES, web.name)
    [step] = seen.plan.steps
    assert {ref.name for ref in seen.objects[step.name]} == {"web-0", "web-1", "sh.helm.release.v1.web.v1"}
    assert any(f"HelmChartProxy {it.namespace}/web selects the cluster" in warning for warning in seen.warnings)
    assert seen.leaks == ()
    once = await proxies.deploy("once", reconcileStrategy="InstallOnce")
    leaking = await preview(it, HELM_RELEASE_PROXIES, once.name)
    assert {told.object.name for told in leaking.leaks} == {"once-0", "once-1", "sh.helm.release.v1.once.v1"}
    await it.delete()
    await it.let_go()


def named(proxy: ObjectRef) -> Named:
    return Named(resource=HELM_RELEASE_PROXIES, name=proxy.name, namespace=proxy.namespace)


async def test_a_requested_proxy_is_verified_and_ends_when_nothing_creates_it_again(
    it: TeardownScene, proxies: Proxies
) -> None:
    web = await proxies.deploy("web")
    await hold(it, "web-0", HOLD)
    name = f"request-{web.uid}"

    async def teardown(state: Callable[[Teardown], bool], called: str) -> Teardown:
        def look(found: Object | None) -> bool:
            return found is not None and state(msgspec.convert(found, Teardown))

        return msgspec.convert(await until(it.client, TEARDOWNS, name, look, called), Teardown)

    seen = await foresee(it.client, named(web), home=HOME)
    assert seen.requested
    assert seen.refusals == ()
    async with handle_manager(it.client, HOME, sources=(SourceKind.HELM_RELEASE_PROXY,)):
        await request(it.client, web, plural=HELM_RELEASE_PROXIES.plural, now=SYSTEM.now())
        held = await teardown(lambda one: any(item.object.name == "web-0" for item in one.status.blockers), "held")
        assert held.spec.plan
        assert [step.name for step in held.spec.plan.steps] == [step.name for step in seen.plan.steps]
        await hold(it, "web-0")
        await teardown(
            lambda one: any(
                f"HelmChartProxy {it.namespace}/web would create" in item.message for item in one.status.blockers
            ),
            "held by its HelmChartProxy",
        )
        assert await it.objects() == set()
        other = {"spec": {"clusterSelector": {"matchLabels": {"example.dev/none": "true"}}}}
        await it.client.patch(HELM_CHART_PROXIES, "web", other, namespace=it.namespace)
        # Nothing tells when a selector changes; another manager looks at once.
    async with handle_manager(it.client, HOME, sources=(SourceKind.HELM_RELEASE_PROXY,)):
        ended = await teardown(lambda one: one.finished, "finished")
    assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
    assert await it.client.list(HELM_RELEASE_PROXIES, namespace=it.namespace) == []


@pytest.mark.parametrize("why", ["InstallOnce", "an object is protected"])
async def test_a_requested_proxy_that_must_stay_is_refused_as_its_plan_says(
    it: TeardownScene, proxies: Proxies, why: str
) -> None:
    strategy = "InstallOnce" if why == "InstallOnce" else "Continuous"
    once = await proxies.deploy("once", reconcileStrategy=strategy)
    if why == "an object is protected":
        label = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
        await it.member.client.patch(CONFIG_MAPS, "once-0", label, namespace=it.on_member)
    seen = await foresee(it.client, named(once), home=HOME)
    [refusal] = seen.refusals
    assert refusal.object.name == ("once-0" if why == "an object is protected" else once.name)
    assert (why if why == "InstallOnce" else "unwind unprotect") in refusal.why
    async with handle_manager(it.client, HOME, sources=(SourceKind.HELM_RELEASE_PROXY,)):
        asked = await request(it.client, once, plural=HELM_RELEASE_PROXIES.plural, now=SYSTEM.now())
        refused = await until(
            it.client,
            TEARDOWNS,
            asked.metadata.name,
            lambda one: bool(one and one.get("status", {}).get("phase")),
            "done",
        )
    assert refused
    assert refused["status"]["phase"] == Phase.REFUSED
    assert refusal.why in refused["status"]["blockedBy"]
    assert await it.objects() == {"once-0", "once-1"}
