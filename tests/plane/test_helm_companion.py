"""Helm releases that users installed on a member: removed when the cluster is deleted, with their hooks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import yaml

from tests.plane.support.cluster_teardowns import TeardownScene, manager, waves
from tests.plane.support.helm_steps import KEPT, SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser, ReleasePolicies, chart_file
from tests.plane.support.objects import crd, define, new_object
from tests.plane.support.removals import stateful_set, until_claimed
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.flux import HELM_RELEASES
from unwind.api.names import DELETE_PROTECTION_LABEL, DEPENDS_ON_ANNOTATION, HELM_RELEASE_ANNOTATION, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, JOBS, SECRETS, Resource
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Effort, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.helm_release_rules import STAYS
from unwind.helm import release_secrets
from unwind.helm.release_secrets import HelmStatus
from unwind.kube.object_watch import until_absent
from unwind.members import targets
from unwind.members.members import Members
from unwind.planning.waves import plan
from unwind.preview.companion_preview import preview_companions
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.clock import Clock
    from unwind.helm.program import Helm
    from unwind.kube.client import Client, Object
    from unwind.testing.charts import ChartRepository


def _held(part: str) -> Callable[[Teardown], bool]:
    return lambda one: one.phase is Phase.HELD and any(part in item.message for item in one.status.blockers)


async def _ledger(it: TeardownScene, ended: Teardown) -> dict[str, str]:
    assert ended.spec.plan
    notes: dict[str, str] = {}
    for step in ended.spec.plan.steps:
        found = await it.inventory(step.object)
        entries = found.spec.entries.values() if found else ()
        notes |= {str(entry.object): entry.ledger.message for entry in entries if entry.ledger}
    return notes


@asynccontextmanager
async def deleting(it: TeardownScene, policies: ReleasePolicies, *, clock: Clock = SYSTEM) -> AsyncIterator[None]:
    """Delete the cluster while a manager with these policies runs."""
    async with manager(it.client, sources=(policies.steps,), clock=clock):
        await it.delete()
        yield


@asynccontextmanager
async def held_midway(it: TeardownScene, user: HelmUser, helm: Helm, chart: str) -> AsyncIterator[Teardown]:
    """Delete the cluster with the release `db` of this chart; a finalizer on one of its objects holds it."""
    await user.install("db", chart)
    await user.hold("db-settings")
    async with deleting(it, ReleasePolicies(it, helm)):
        yield await it.teardown(_held("db-settings"), "held at db-settings")


@asynccontextmanager
async def held_by_protection(it: TeardownScene, user: HelmUser, helm: Helm, chart: str) -> AsyncIterator[None]:
    """The same, and a protected object holds it before Helm begins."""
    await user.install("db", chart)
    await _protect(user, "db-settings", "Always")
    async with deleting(it, ReleasePolicies(it, helm)):
        await it.teardown(_held("protect"), "held by the protected object")
        yield


def add_chart(repository: ChartRepository, name: str, template: str) -> None:
    """A chart with the settings and another object."""
    repository.add(name, {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/b.yaml": template})


async def removed(it: TeardownScene, user: HelmUser) -> None:
    """Assert that nothing of the release `db` is left, and let the cluster go."""
    assert await user.secrets("db") == []
    await it.nothing_left()


async def test_a_release_is_uninstalled_with_its_hook_and_its_objects_are_verified_absent(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    async with held_midway(it, user, helm, "farewell") as stuck:
        assert stuck.spec.plan
        [step] = stuck.spec.plan.steps
        assert (step.name, step.effort) == (f"Release/{user.namespace}/db", "Enforce")
        await user.free("db-settings")
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert await user.secrets("db") == []
    assert await user.client.list(JOBS, namespace=user.namespace) == []
    assert await _ledger(it, ended) == {}
    created = [entry.object_ref.name for entry in it.member.audit.entries(verbs=("create",), resource="jobs")]
    assert "db-farewell" in created
    await it.let_go()


async def test_releases_go_in_the_order_of_the_annotations_of_their_charts(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS}
    repository.add("shop", {**files, "Chart.yaml": chart_file("shop", {DEPENDS_ON_ANNOTATION: "operator"})})
    await user.install("operator", "settings")
    await user.install("shop", "shop")
    async with deleting(it, ReleasePolicies(it, helm)):
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert ended.spec.plan
    assert waves(ended) == {"shop": 1, "operator": 2}
    deleted = it.deleted()
    assert deleted.index("shop-settings") < deleted.index("operator-settings")
    await it.let_go()


async def test_what_helm_keeps_is_in_the_ledger_with_the_reason(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    definition = crd(Resource("kept.helm.test", "v1", "gadgets", "Gadget"))
    greeting = SETTINGS.replace("-settings\n", "-greeting\n      annotations: {helm.sh/hook: pre-install}\n")
    files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/b.yaml": KEPT}
    namespace = f"{user.namespace}-made"
    files["templates/d.yaml"] = yaml.dump(
        {"apiVersion": "apps/v1", "kind": "StatefulSet", **stateful_set(namespace, "db", replicas=1)}
    )
    repository.add("keeper", {**files, "templates/c.yaml": greeting, "crds/gadget.yaml": yaml.dump(definition)})
    await user.install("db", "keeper", "--create-namespace", namespace=namespace)
    await until_claimed(it.member.client, namespace, "data-db-0")
    policies = ReleasePolicies(it, helm, namespace=namespace)
    target = targets.of_capi(await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster))
    async with Members(it.client) as members:
        companion = HelmCompanion(it.client, helm, named=policies.is_named)
        seen = await preview_companions((companion,), policies, members, target, selected=True)
    assert [claim.object.name for claims in seen.claims.values() for claim in claims] == ["data-db-0"]
    async with deleting(it, policies):
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    left = await it.member.client.list(CONFIG_MAPS, namespace=namespace)
    assert {item["metadata"]["name"] for item in left} == {"kube-root-ca.crt", "db-kept", "db-greeting"}
    ledger = await _ledger(it, ended)
    assert "a claim of StatefulSet db" in ledger.pop(f"PersistentVolumeClaim {namespace}/data-db-0")
    assert ledger == {
        f"ConfigMap {namespace}/db-kept": "Helm keeps it: annotation helm.sh/resource-policy",
        f"ConfigMap {namespace}/db-greeting": "Helm keeps it: a hook is not part of the release",
        "CustomResourceDefinition gadgets.kept.helm.test": "Helm keeps it: a CRD of the chart's crds directory",
        f"Namespace {namespace}": "Helm keeps it: the namespace that it created for the release",
    }
    await it.let_go()


async def test_objects_of_a_revision_that_is_newer_than_the_plan_are_removed_too(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    late = SETTINGS.replace("-settings\n", "-late\n      finalizers: [example.dev/late]\n")
    add_chart(repository, "grown", late)
    async with held_by_protection(it, user, helm, "settings"):
        await user.upgrade("db", "grown")
        await _protect(user, "db-settings", None)
        await it.teardown(_held("db-late"), "held at the new object")
        await user.free("db-late")
        assert (await it.ended()).phase is Phase.COMPLETE
    await removed(it, user)


async def test_a_release_of_a_profile_is_no_step_of_its_own_and_is_not_touched(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    for name in ("profile", "sveltos", "mine"):
        await user.install(name, "settings")
    [secret] = await user.secrets("profile")
    labels = {"metadata": {"labels": {OWNER_LABEL: "an-owner"}}}
    await user.client.patch(SECRETS, secret["metadata"]["name"], labels, namespace=user.namespace)
    summary = await it.add_summary("charts", behaviour="LeavePolicies")
    driven = [{"releaseName": "sveltos", "releaseNamespace": user.namespace, "status": "Managing"}]
    status = {"status": {"helmReleaseSummaries": driven}}
    await it.client.patch(CLUSTER_SUMMARIES, summary.name, status, namespace=it.namespace, subresource="status")
    async with deleting(it, ReleasePolicies(it, helm)):
        ended = await it.ended()
    assert ended.spec.plan
    assert [step.object.name for step in ended.spec.plan.steps if step.object.kind == "Release"] == ["mine"]
    assert await it.objects() == {f"{name}-settings" for name in ("profile", "sveltos")}
    await it.let_go()


async def _preview(it: TeardownScene, helm: Helm, policies: ReleasePolicies) -> dict[str, str]:
    """What would be left behind, by the names of releases."""
    companion = HelmCompanion(it.client, helm, named=policies.is_named)
    target = targets.of_capi(await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster))
    async with Members(it.client) as members:
        seen = await preview_companions((companion,), policies, members, target, selected=True)
    chunks = {chunk.spec.owner.uid: chunk for chunk in seen.chunks}
    left: dict[str, str] = {}
    for step in plan([item.draft for item in seen.steps.steps]).steps:
        forecast = seen.forecast(step, chunks[step.object.uid].spec.entries.values())
        left |= {told.object.name: told.why for told in seen.leaks(step, forecast or [])}
    return left


async def test_a_release_whose_deployer_is_gone_or_no_step_holds_by_name_and_is_shown_as_left_behind(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS}
    flux = "helm.toolkit.fluxcd.io"
    label = f"-settings\n      labels: {{{flux}/name: db, {flux}/namespace: shops}}\n"
    repository.add("fluxed", {**files, "templates/a.yaml": SETTINGS.replace("-settings\n", label)})
    bundle = chart_file("fleet", {"fleet.cattle.io/bundle-id": "apps"})
    repository.add("fleet", {**files, "Chart.yaml": bundle})
    for chart in ("fluxed", "fleet", "settings"):
        await user.install(chart, chart)
    left = await _preview(it, helm, ReleasePolicies(it, helm))
    assert set(left) == {"fluxed", "fleet"}
    assert "carries the labels of Flux HelmRelease shops/db, which does not deploy it here" in left["fluxed"]
    assert await _preview(it, helm, ReleasePolicies(it, helm, dict.fromkeys(left, Effort.LEAVE))) == {}
    async with deleting(it, ReleasePolicies(it, helm)):
        held = await it.teardown(
            lambda one: {item.object.name for item in one.status.blockers if item.actor} == set(left), "held"
        )
        messages = {item.object.name: item.message for item in held.status.blockers}
        assert "uninstall it with `helm uninstall`" in messages["fluxed"]
        assert "is driven by Fleet bundle apps; remove it there" in messages["fleet"]
        assert held.spec.plan
        assert any("HelmRelease shops/db" in warning for warning in held.spec.plan.warnings)
        assert await it.objects() == {"fluxed-settings", "fleet-settings"}
        for name in left:
            await user.uninstall(name)
        assert (await it.ended()).phase is Phase.COMPLETE
    await removed(it, user)


@asynccontextmanager
async def _kinds(client: Client, *resources: Resource) -> AsyncIterator[None]:
    """Kinds of deployers that do not run here, unless they are installed already."""
    there = {item["metadata"]["name"] for item in await client.list(CUSTOM_RESOURCE_DEFINITIONS)}
    made = [await define(client, crd(it)) for it in resources if f"{it.plural}.{it.group}" not in there]
    try:
        yield
    finally:
        for one in made:
            meta = one["metadata"]
            await client.delete(CUSTOM_RESOURCE_DEFINITIONS, meta["name"], uid=meta["uid"])
            await until_absent(client, CUSTOM_RESOURCE_DEFINITIONS, meta["name"])


async def test_a_release_proxy_that_no_policy_mentions_does_not_let_a_release_go(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    """A user of the namespace of the Cluster could write a paused one that names the release."""
    async with _kinds(it.client, HELM_RELEASE_PROXIES):
        await _proxies(it, user, helm)
    await removed(it, user)


async def _proxies(it: TeardownScene, user: HelmUser, helm: Helm) -> None:
    await user.install("db", "settings")
    await user.install("web", "settings")
    for name, namespace in (("db", it.namespace), ("web", "elsewhere")):
        spec: Object = {"releaseName": name, "namespace": user.namespace}
        spec |= {"chartName": "web", "repoURL": "https://charts.example.com"}
        spec["clusterRef"] = {"namespace": namespace, "name": it.name}
        await it.client.create(HELM_RELEASE_PROXIES, new_object(HELM_RELEASE_PROXIES, name, it.namespace, spec=spec))
    policies = ReleasePolicies(it, helm)
    left = await _preview(it, helm, policies)
    assert left == {
        "db": f"would be left behind: it is driven by HelmReleaseProxy {it.namespace}/db; remove it there, or exclude"
        " it with the selector of the source Helm"
    }
    async with deleting(it, policies):
        await it.teardown(_held(f"it is driven by HelmReleaseProxy {it.namespace}/db"), "held")
        proxy = await it.client.get(HELM_RELEASE_PROXIES, "db", namespace=it.namespace)
        await it.client.delete(HELM_RELEASE_PROXIES, "db", uid=proxy["metadata"]["uid"], namespace=it.namespace)
        await user.uninstall("db")
        assert (await it.ended()).phase is Phase.COMPLETE


async def test_a_release_of_flux_is_left_to_its_helm_release_if_that_is_a_step_or_left(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    async with _kinds(it.client, HELM_RELEASES):
        await _driven_by_flux(it, user, helm, repository)


async def _driven_by_flux(it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository) -> None:
    flux = HELM_RELEASES.group
    labels = f"-settings\n      labels: {{{flux}/name: db, {flux}/namespace: {it.namespace}}}\n"
    template = SETTINGS.replace("-settings\n", labels)
    repository.add("driven-by-flux", {"values.yaml": VALUES, "templates/a.yaml": template})
    await user.install("db", "driven-by-flux")
    member = targets.of_capi(await it.client.get(CLUSTERS, it.name, namespace=it.namespace, type=Cluster))

    async def drivers() -> list[str]:
        companion = HelmCompanion(it.client, helm, named=ReleasePolicies(it, helm).is_named)
        async with Members(it.client) as members, members.member(member) as there:
            found = [one for one in await companion.handles(member, there, ()) if one.ref.namespace == user.namespace]
        [handle] = found
        assert handle.driven
        return [driver.step for driver in handle.drivers]

    assert await drivers() == []
    spec: Object = {"suspend": True, "interval": "1h", "chartRef": {"kind": "ExternalArtifact", "name": "none"}}
    spec["kubeConfig"] = {"secretRef": {"name": "elsewhere"}}
    await it.client.create(HELM_RELEASES, new_object(HELM_RELEASES, "db", it.namespace, spec=spec))
    assert await drivers() == []
    here: Object = {"spec": {"kubeConfig": {"secretRef": {"name": f"{it.name}-kubeconfig"}}}}
    await it.client.patch(HELM_RELEASES, "db", here, namespace=it.namespace)
    assert await drivers() == [f"HelmRelease/{it.namespace}/db"]
    made = await it.client.get(HELM_RELEASES, "db", namespace=it.namespace)
    await it.client.delete(HELM_RELEASES, "db", uid=made["metadata"]["uid"], namespace=it.namespace)


async def test_a_release_that_a_deployer_takes_over_after_the_plan_holds_by_name(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    label = "-settings\n      labels: {helm.toolkit.fluxcd.io/name: db}\n"
    taken = SETTINGS.replace("-settings\n", label)
    repository.add("taken", {"values.yaml": VALUES, "templates/a.yaml": taken})
    async with held_by_protection(it, user, helm, "settings"):
        await user.upgrade("db", "taken")
        await _protect(user, "db-settings", None)
        await it.teardown(_held("carries the labels of Flux HelmRelease db"), "held by the new driver")
        assert await it.objects() == {"db-settings"}
        await user.uninstall("db")
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_an_object_that_another_release_has_taken_over_stays_and_is_in_the_ledger(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    async with held_by_protection(it, user, helm, "web"):
        taken = {"metadata": {"annotations": {HELM_RELEASE_ANNOTATION: "another"}}}
        await user.client.patch(CONFIG_MAPS, "db-settings", taken, namespace=user.namespace)
        await _protect(user, "db-settings", None)
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert await it.objects() == {"db-settings"}
    assert await user.secrets("db") == []
    name = f"ConfigMap {user.namespace}/db-settings"
    message = f"taken over: it no longer has Helm's annotations for Release {user.namespace}/db; {STAYS}"
    assert await _ledger(it, ended) == {name: message}
    await it.let_go()


async def test_an_object_of_another_owner_with_the_name_of_an_object_of_the_release_is_not_deleted(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    await user.install("db", "web")
    found = await user.config_map("db-settings")
    assert found
    await user.client.delete(CONFIG_MAPS, "db-settings", uid=found["metadata"]["uid"], namespace=user.namespace)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "db-settings", "namespace": user.namespace}}
    await user.client.create(CONFIG_MAPS, theirs)
    async with deleting(it, ReleasePolicies(it, helm)):
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert ended.spec.plan
    assert any("db-settings" in warning for warning in ended.spec.plan.warnings)
    assert await it.objects() == {"db-settings"}
    assert await user.secrets("db") == []
    await it.let_go()


async def test_a_failing_hook_holds_the_release_by_name_and_nothing_of_it_goes(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    hook = SETTINGS.replace("-settings\n", "_invalid\n      annotations: {helm.sh/hook: pre-delete}\n")
    add_chart(repository, "failing", hook)
    await user.install("db", "failing")
    async with deleting(it, ReleasePolicies(it, helm)):
        held = await it.teardown(_held("its hook ConfigMap"), "held by the hook")
        [blocker] = held.status.blockers
        assert (blocker.object.kind, blocker.object.name) == ("Release", "db")
        assert await it.objects() == {"db-settings"}
    await it.let_go()


async def test_a_release_that_cannot_be_read_holds_the_cluster_by_name(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    await user.install("db", "settings")
    await user.install("other", "settings")
    [secret] = await user.secrets("db")
    broken = {"data": {"release": "bm90IGEgcmVsZWFzZQ=="}}
    await user.client.patch(SECRETS, secret["metadata"]["name"], broken, namespace=user.namespace)
    clock = StillClock()
    async with deleting(it, ReleasePolicies(it, helm), clock=clock):
        held = await it.teardown(_held("cannot read the Helm release"), "held")
        assert held.spec.plan
        assert len(held.spec.plan.steps) == 2
        assert any("cannot be read" in warning for warning in held.spec.plan.warnings)
        assert "db-settings" in await it.objects()
        good = {"data": {"release": secret["data"]["release"]}}
        await user.client.patch(SECRETS, secret["metadata"]["name"], good, namespace=user.namespace)
        clock.advance(600)
        assert (await it.ended()).phase is Phase.COMPLETE
    await removed(it, user)


async def test_a_release_that_is_installed_again_during_its_removal_is_removed_again(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    async with held_midway(it, user, helm, "settings"):
        await until_absent(user.client, SECRETS, "sh.helm.release.v1.db.v1", namespace=user.namespace)  # Helm has ended
        await user.install("db", "greeting")
        await user.free("db-settings")
        assert (await it.ended()).phase is Phase.COMPLETE
    await removed(it, user)


async def test_without_helm_a_release_is_held_and_nothing_of_it_goes(it: TeardownScene, user: HelmUser) -> None:
    await user.install("db", "settings")
    async with deleting(it, ReleasePolicies(it, None)):
        await it.teardown(_held("the helm program is not installed"), "held")
        assert await it.objects() == {"db-settings"}
    await it.let_go()


async def test_a_hook_that_acts_outside_of_its_namespace_runs_only_if_the_release_is_named_exactly(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    role = """
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata:
          name: {{ .Release.Namespace }}-cleanup
          annotations: {helm.sh/hook: pre-delete, helm.sh/hook-delete-policy: hook-succeeded}
        rules: []
    """
    add_chart(repository, "reaching", role)
    await user.install("db", "reaching")
    policies, clock = ReleasePolicies(it, helm), StillClock()
    async with deleting(it, policies, clock=clock):
        await it.teardown(_held(f"its hooks would create ClusterRole {user.namespace}-cleanup"), "held")
        assert await it.objects() == {"db-settings"}
        policies.named.add("db")
        clock.advance(60)
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_a_release_that_is_stuck_in_an_upgrade_is_uninstalled_when_that_has_timed_out(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    await user.install("db", "settings")
    [last] = await release_secrets.history(user.client, namespace=user.namespace, release="db")
    await release_secrets.set_status(user.client, last, HelmStatus.PENDING_UPGRADE, why="interrupted")
    clock = StillClock()
    async with deleting(it, ReleasePolicies(it, helm), clock=clock):
        await it.teardown(_held("it is pending-upgrade, and Helm may still be running"), "held")
        assert await it.objects() == {"db-settings"}
        clock.advance(600)
        assert (await it.ended()).phase is Phase.COMPLETE
    await removed(it, user)


async def test_a_tried_release_is_given_up_after_its_time_and_a_left_one_is_not_touched(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    await user.install("tried", "settings")
    await user.install("left", "settings")
    await user.hold("tried-settings")
    policies, clock = ReleasePolicies(it, helm, {"tried": Effort.TRY, "left": Effort.LEAVE}), StillClock()
    [before] = await user.secrets("left")
    async with deleting(it, policies, clock=clock):
        waiting = "tried-settings"
        await it.teardown(lambda one: any(item.object.name == waiting for item in one.status.blockers), "waiting")
        clock.advance(60)
        ended = await it.ended()
    states = {step.name.rpartition("/")[2]: step.state for step in ended.status.steps}
    assert states == {"tried": "GivenUp", "left": "Left"}
    assert await user.secrets("left") == [before]
    assert await user.config_map("left-settings")
    await user.free("tried-settings")
    await it.let_go()


async def test_a_manager_that_starts_during_the_removal_continues_it(
    it: TeardownScene, user: HelmUser, helm: Helm
) -> None:
    async with held_midway(it, user, helm, "farewell"):
        pass
    async with manager(it.client, sources=(ReleasePolicies(it, helm).steps,)):
        await it.teardown(_held("db-settings"), "held at db-settings")
        await user.free("db-settings")
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await user.client.list(JOBS, namespace=user.namespace) == []
    assert await user.secrets("db") == []
    await it.let_go()


async def test_what_the_cluster_itself_needs_goes_last_and_only_by_its_exact_name(
    it: TeardownScene, user: HelmUser, helm: Helm, repository: ChartRepository
) -> None:
    files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS}
    repository.add("cilium", files)
    for name, chart in (("network", "cilium"), ("unnamed", "cilium"), ("apps", "settings")):
        await user.install(name, chart)
    async with deleting(it, ReleasePolicies(it, helm, named=["network"])):
        ended = await it.ended()
    assert ended.spec.plan
    assert waves(ended) == {"apps": 1, "network": 2}
    assert await it.objects() == {"unnamed-settings"}
    await it.let_go()


async def _protect(user: HelmUser, name: str, value: str | None) -> None:
    labels = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: value}}}
    await user.client.patch(CONFIG_MAPS, name, labels, namespace=user.namespace)
