"""Releases that the real Helm has installed, taken off a real member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.plane.support.helm_steps import (
    KEPT,
    OWN,
    OWN_NAMESPACE,
    QUOTAS,
    THINGS,
    Step,
    helm_processes,
    make_namespace,
    no_pods,
    secret_of,
)
from tests.plane.support.helm_users import HelmUser
from unwind.api.names import DELETE_POLICY_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, SECRETS
from unwind.deploy.helm_install import HelmConflictError
from unwind.deploy.helm_uninstall import HelmReleases, unmark_release
from unwind.deploy.prune import dropped_charts
from unwind.helm.release_secrets import HelmStatus
from unwind.kube.object_watch import until, until_absent

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

# Among the longest: they run with the soak tests.
pytestmark = pytest.mark.soak


async def test_a_release_is_gone_with_its_pods_its_hook_and_its_namespace(step: Step, plane: Plane) -> None:
    await step.deploy(step.chart("farewell"))
    await until(
        step.client,
        DEPLOYMENTS,
        "farewell-web",
        lambda it: bool(it and it.get("status", {}).get("replicas") == 1),
        "there",
        namespace=step.namespace,
    )
    removal = await step.remove()
    assert removal.progress.removed == removal.progress.total == 5
    assert await step.releases("farewell") == []
    assert await step.client.list(PODS, namespace=step.namespace) == []
    assert await step.get(JOBS, "farewell-farewell") is None
    assert await step.get(NAMESPACES, step.namespace) is None
    assert set((await step.states()).values()) == {"Removed"}
    [made] = plane.members["member-1"].audit.entries(verbs=("create",), resource="jobs", namespace=step.namespace)
    assert made.object_ref.name == "farewell-farewell", "the hook ran"
    deleted = plane.members["member-1"].audit.entries(verbs=("delete",), namespace=step.namespace)
    by_us = [item for item in deleted if item.user_agent.startswith("unwind")]
    assert {"deployments", "configmaps", "secrets"} <= {item.object_ref.resource for item in by_us}
    assert all(item.uid for item in by_us), "nothing goes by its name alone"


async def test_what_a_chart_says_is_to_be_kept_stays_and_is_in_the_ledger(step: Step) -> None:
    await step.deploy(step.chart("kept"))
    removal = await step.remove()
    assert await step.get(CONFIG_MAPS, "kept-kept")
    assert await step.get(CONFIG_MAPS, "kept-settings") is None
    left = {str(entry.object): entry.ledger.reason for entry in (await step.entries()).values() if entry.ledger}
    assert left == {
        f"ConfigMap {step.namespace}/kept-kept": "KeptByPolicy",
        f"Namespace {step.namespace}": "ForeignContent",
    }
    assert removal.progress.left == 2


async def test_what_a_person_wants_kept_is_not_left_to_helm(step: Step) -> None:
    await step.deploy(step.chart("web"))
    patch = {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "skip"}}}
    await step.client.patch(CONFIG_MAPS, "web-settings", patch, namespace=step.namespace)
    await step.remove()
    assert await step.get(CONFIG_MAPS, "web-settings")
    assert await step.get(DEPLOYMENTS, "web-web") is None
    assert await step.releases("web") == []


async def test_an_object_that_somebody_else_created_anew_holds_the_step_until_it_is_moved_away(step: Step) -> None:
    await step.deploy(step.chart("web"))
    ours = await step.client.get(CONFIG_MAPS, "web-settings", namespace=step.namespace)
    await step.client.delete(CONFIG_MAPS, "web-settings", uid=ours["metadata"]["uid"], namespace=step.namespace)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web-settings", "namespace": step.namespace}}
    theirs = await step.client.create(CONFIG_MAPS, body)
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        words = await step.until_said("not created by this release")
        assert f"ConfigMap {step.namespace}/web-settings" in words
        there = await step.client.get(CONFIG_MAPS, "web-settings", namespace=step.namespace)
        assert there["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert await step.releases("web")
        await step.client.delete(CONFIG_MAPS, "web-settings", uid=theirs["metadata"]["uid"], namespace=step.namespace)
        await removing
    assert await step.releases("web") == []
    assert await step.get(DEPLOYMENTS, "web-web") is None


async def test_a_custom_resource_is_waited_for_while_its_operator_still_runs(step: Step) -> None:
    await step.deploy(step.chart("things"))
    await step.deploy(step.chart("web", order=1))
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        await step.until_said("waits for finalizers helm.test/operator")
        assert await step.releases("web"), "nothing was uninstalled"
        assert await step.releases("things")
        await step.client.patch(THINGS, "things-thing", {"metadata": {"finalizers": None}}, namespace=step.namespace)
        await removing
    assert await step.releases("web") == []
    assert await step.releases("things") == []
    # As Helm has it: what stands in `crds` stays.
    ledger = {str(entry.object): entry.ledger.reason for entry in (await step.entries()).values() if entry.ledger}
    assert ledger == {"CustomResourceDefinition things.helm.test": "KeptByPolicy"}
    left = await step.client.get(CUSTOM_RESOURCE_DEFINITIONS, "things.helm.test")
    await step.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "things.helm.test", uid=left["metadata"]["uid"])


async def test_a_namespace_and_a_crd_of_a_chart_stay_while_something_foreign_is_in_them(step: Step) -> None:
    await step.deploy(step.chart("own"))
    inner = f"{step.namespace}-inner"
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": inner}}
    await step.client.create(CONFIG_MAPS, theirs)
    await step.remove()
    assert await step.client.get(CONFIG_MAPS, "theirs", namespace=inner)
    assert await step.get(CUSTOM_RESOURCE_DEFINITIONS, f"things.{OWN}") is None
    ledger = {str(entry.object): entry.ledger.reason for entry in (await step.entries()).values() if entry.ledger}
    assert ledger == {f"Namespace {inner}": "ForeignContent"}


async def test_a_prune_that_was_killed_decides_again_about_what_it_left_but_not_about_what_the_chart_keeps(
    step: Step, repository: ChartRepository
) -> None:
    repository.add("killed", {"templates/namespace.yaml": OWN_NAMESPACE, "templates/kept.yaml": KEPT})
    await step.deploy(step.chart("killed"))
    inner = f"{step.namespace}-inner"
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": inner}}
    await step.client.create(CONFIG_MAPS, theirs)
    ours = [key for key, entry in (await step.entries()).items() if not entry.object.name.startswith("sh.helm")]
    await step.remove(only=ours, prune=True)
    # Killed here, before the notes of the removal are made those of a prune.
    left = await step.entries()
    assert {entry.object.name for entry in left.values() if entry.ledger} == {inner, "killed-kept", step.namespace}
    again = {entry.object.name for entry in dropped_charts(left, set()).values() if entry.ledger}
    assert again == {inner, step.namespace}


async def test_the_last_hooks_run_when_everything_is_gone(step: Step, plane: Plane) -> None:
    await step.deploy(step.chart("last"))
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        await until(
            step.client,
            CONFIG_MAPS,
            "last-settings",
            lambda it: bool(it and it["metadata"].get("deletionTimestamp")),
            "being deleted",
            namespace=step.namespace,
        )
        [revision] = await step.releases("last")
        assert revision.release.status is HelmStatus.UNINSTALLING
        patch = {"metadata": {"finalizers": None}}
        await step.client.patch(CONFIG_MAPS, "last-settings", patch, namespace=step.namespace)
        await removing
    audit = plane.members["member-1"].audit.entries(verbs=("patch", "create"), namespace=step.namespace)
    order = [(item.verb, item.object_ref.resource) for item in audit]
    assert order.index(("patch", "configmaps")) < order.index(("create", "jobs"))
    assert await step.get(JOBS, "last-farewell") is None
    assert await step.get(NAMESPACES, step.namespace) is None


async def test_a_hook_goes_whatever_its_kind_is(step: Step) -> None:
    await step.deploy(step.chart("gate"))
    removal = await step.remove()
    assert removal.progress.removed == removal.progress.total == 4
    assert await step.get(NAMESPACES, step.namespace) is None


async def hook_of_another(step: Step, name: str) -> Object:
    """A Job as another release's hook would be: it says that Helm made it, and not for which release."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "theirs", "image": "theirs"}]}
    metadata = {"name": name, "namespace": step.namespace, "annotations": {"helm.sh/hook": "pre-install"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    return await step.client.create(JOBS, job, field_manager="helm")


async def test_a_hook_is_recorded_by_uid_and_only_that_one_goes(step: Step) -> None:
    await step.deploy(step.chart("greeting"))
    job = await step.client.get(JOBS, "greeting-farewell", namespace=step.namespace)
    [entry] = [entry for entry in (await step.entries()).values() if entry.object.kind == "Job"]
    assert (entry.object.uid, entry.state) == (job["metadata"]["uid"], "Confirmed")
    await step.client.delete(
        JOBS, "greeting-farewell", uid=job["metadata"]["uid"], namespace=step.namespace, propagation="Background"
    )
    await until(step.client, JOBS, "greeting-farewell", lambda it: it is None, "gone", namespace=step.namespace)
    theirs = await hook_of_another(step, "greeting-farewell")
    await step.remove()
    found = await step.client.get(JOBS, "greeting-farewell", namespace=step.namespace)
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert "deletionTimestamp" not in found["metadata"]


async def test_a_hook_does_not_take_the_place_of_another_releases_hook(step: Step) -> None:
    await make_namespace(step)
    theirs = await hook_of_another(step, "greeting-farewell")
    with pytest.raises(HelmConflictError, match=r"Job .*/greeting-farewell"):
        await step.deploy(step.chart("greeting"))
    found = await step.client.get(JOBS, "greeting-farewell", namespace=step.namespace)
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]


async def test_without_helm_a_release_is_held(step: Step) -> None:
    await step.deploy(step.chart("settings"))
    step.releaser = HelmReleases(None)
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        assert "the helm program is not installed" in await step.until_said("cannot uninstall")
        removing.cancel()
    assert await step.get(CONFIG_MAPS, "settings-settings")


async def test_a_release_that_was_uninstalled_by_hand_is_fine(
    step: Step, plane: Plane, repository: ChartRepository
) -> None:
    await step.deploy(step.chart("settings"))
    await HelmUser(plane.members["member-1"], step.namespace, step.helm.program, repository).uninstall("settings")
    removal = await step.remove()
    assert removal.progress.removed == removal.progress.total


async def test_a_release_that_helm_died_over_is_removed_with_what_it_had_before(step: Step) -> None:
    await step.deploy(step.chart("web"))
    [revision] = await step.releases("web")
    # An upgrade that broke off before it deleted what the new version has no more.
    payload = msgspec.structs.replace(revision.release, version=2, manifest="", hooks=())
    body = msgspec.to_builtins(payload)
    body["info"]["status"] = HelmStatus.PENDING_UPGRADE.value
    await step.client.create(SECRETS, secret_of(revision, body))
    await step.remove()
    assert await step.releases("web") == []
    assert await step.get(DEPLOYMENTS, "web-web") is None
    assert await step.get(CONFIG_MAPS, "web-settings") is None


async def test_an_uninstallation_that_was_broken_off_goes_on(step: Step) -> None:
    await step.deploy(step.chart("farewell"))
    quota = await no_pods(step)
    async with asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        await until(step.client, JOBS, "farewell-farewell", bool, "there", namespace=step.namespace)
        assert "Release" in await step.until_said("uninstalling")
        removing.cancel()
    assert helm_processes() == [], "no Helm outlives who started it"
    assert await step.get(DEPLOYMENTS, "farewell-web"), "its hook comes first"
    await step.client.delete(QUOTAS, "none", uid=quota["metadata"]["uid"], namespace=step.namespace)
    step.start_anew()
    removal = await step.remove()
    assert removal.progress.removed == removal.progress.total
    assert await step.releases("farewell") == []
    assert await step.get(NAMESPACES, step.namespace) is None


async def test_a_release_goes_although_the_crd_of_its_resources_is_gone(step: Step) -> None:
    await step.deploy(step.chart("things"))
    await step.client.patch(THINGS, "things-thing", {"metadata": {"finalizers": None}}, namespace=step.namespace)
    found = await step.client.get(CUSTOM_RESOURCE_DEFINITIONS, "things.helm.test")
    await step.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "things.helm.test", uid=found["metadata"]["uid"])
    await until_absent(step.client, CUSTOM_RESOURCE_DEFINITIONS, "things.helm.test")
    await step.remove()
    assert await step.releases("things") == []


async def test_a_release_that_is_left_carries_no_mark_of_ours(step: Step) -> None:
    await step.deploy(step.chart("settings"))
    await unmark_release(step.member, namespace=step.namespace, release="settings", owner=step.owner)
    [revision] = await step.releases("settings")
    assert not [name for name in revision.secret["metadata"]["labels"] if name.startswith("unwind.dev/ow")]
    assert revision.release.status is HelmStatus.DEPLOYED
    assert await step.get(CONFIG_MAPS, "settings-settings")
