"""Charts deployed by the real Helm on a real member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.helm_steps import (
    MOVED,
    QUOTAS,
    SETTINGS,
    SHARED,
    VALUES,
    Step,
    dying,
    entry_of_release,
    kill_helm,
    make_namespace,
    no_pods,
    stepping,
)
from tests.plane.support.objects import until_allowed
from unwind.api.meta import ObjectRef
from unwind.api.names import SVELTOS_TEMPLATE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, JOBS, SECRETS
from unwind.api.sveltos import HelmChart, ValuesFrom
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.deploy.helm_install import HelmConflictError, release_entry_key
from unwind.helm import charts
from unwind.helm.charts import Chart
from unwind.helm.program import HelmError
from unwind.helm.release_secrets import HelmStatus
from unwind.kube.object_watch import until
from unwind.testing.charts import ChartRepository, unpack_chart

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.plane import Plane


async def test_what_helm_created_is_in_the_inventory_with_its_uid(step: Step) -> None:
    deployed = await step.deploy(step.chart("web"))
    assert deployed.changed
    assert deployed.release.status is HelmStatus.DEPLOYED
    assert (deployed.release.chart.metadata.version, deployed.release.chart.metadata.app_version) == (
        "1.0.0",
        "app-1.0.0",
    )
    web = await step.client.get(DEPLOYMENTS, "web-web", namespace=step.namespace)
    entries = await step.entries()
    ref = ObjectRef(group="apps", version="v1", kind="Deployment", namespace=step.namespace, name="web-web")
    entry = entries[release_entry_key(ref)]
    assert entry.object.uid == web["metadata"]["uid"]
    assert (entry.state, entry.source, entry.resource) == ("Confirmed", f"Helm {step.namespace}/web", "deployments")
    assert (await step.states())[f"Namespace {step.namespace}"] == "Confirmed"
    [revision] = await step.releases("web")
    assert revision.owner == step.owner


async def test_nothing_is_done_while_nothing_changes_and_values_that_change_make_an_upgrade(
    step: Step, repository: ChartRepository
) -> None:
    await step.deploy(step.chart("web"))
    asked = len(repository.asked)
    again = await step.deploy(step.chart("web"))
    assert not again.changed
    assert len(repository.asked) == asked
    changed = await step.deploy(step.chart("web", values=("colour: red", "colour: green\nreplicas: 2")))
    assert (changed.changed, changed.release.version) == (True, 2)
    settings = await step.client.get(CONFIG_MAPS, "web-settings", namespace=step.namespace)
    assert settings["data"] == {"colour": "green"}
    web = await step.client.get(DEPLOYMENTS, "web-web", namespace=step.namespace)
    assert web["spec"]["replicas"] == 2


async def test_what_was_deleted_by_hand_is_deployed_again(step: Step) -> None:
    await step.deploy(step.chart("settings"))
    found = await step.client.get(CONFIG_MAPS, "settings-settings", namespace=step.namespace)
    await step.client.delete(CONFIG_MAPS, "settings-settings", uid=found["metadata"]["uid"], namespace=step.namespace)
    assert (await step.deploy(step.chart("settings"))).changed
    anew = await step.client.get(CONFIG_MAPS, "settings-settings", namespace=step.namespace)
    states = {entry.object.uid for entry in (await step.entries()).values()}
    assert anew["metadata"]["uid"] in states
    assert found["metadata"]["uid"] not in states


async def test_what_is_still_being_deleted_is_waited_for(step: Step) -> None:
    await step.deploy(step.chart("settings"))
    where, name = step.namespace, "settings-settings"
    held = {"metadata": {"finalizers": ["helm.test/hold"]}}
    found = await step.client.patch(CONFIG_MAPS, name, held, namespace=where)
    await step.client.delete(CONFIG_MAPS, name, uid=found["metadata"]["uid"], namespace=where)
    for colour in ("blue", "red"):
        with pytest.raises(TransientError, match=f"ConfigMap {where}/{name} is being deleted"):
            await step.deploy(step.chart("settings", values=() if colour == "blue" else (f"colour: {colour}",)))
    await step.client.patch(CONFIG_MAPS, name, {"metadata": {"finalizers": None}}, namespace=where)
    await step.deploy(step.chart("settings", values=("colour: red",)))
    settings = await step.get(CONFIG_MAPS, name)
    assert settings
    assert settings["data"] == {"colour": "red"}


async def test_what_a_new_version_of_the_chart_dropped_is_out_of_the_inventory(step: Step) -> None:
    await step.deploy(step.chart("web"))
    await step.deploy(step.chart("web", version="2.0.0"))
    assert f"Deployment {step.namespace}/web-web" not in await step.states()
    assert f"ConfigMap {step.namespace}/web-settings" in await step.states()


async def test_an_upgrade_does_not_delete_a_crd_with_custom_resources_that_moved_out_of_the_templates(
    step: Step,
) -> None:
    await step.deploy(step.chart("moved"))
    body = {
        "apiVersion": MOVED.api_version,
        "kind": MOVED.kind,
        "metadata": {"name": "theirs", "namespace": step.namespace},
    }
    await until_allowed(lambda: step.client.create(MOVED, body))
    with pytest.raises(PermanentError, match=r"would be deleted with Move .*/theirs") as error:
        await step.deploy(step.chart("moved", version="2.0.0"))
    assert "annotate it with helm.sh/resource-policy=keep" in str(error.value)
    crd = f"{MOVED.plural}.{MOVED.group}"
    keep = {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}
    await step.client.patch(CUSTOM_RESOURCE_DEFINITIONS, crd, keep)
    await step.deploy(step.chart("moved", version="2.0.0"))
    assert await step.get(MOVED, "theirs")
    [entry] = [entry for entry in (await step.entries()).values() if entry.object.name == crd]
    assert entry.kept


async def test_an_upgrade_goes_on_after_an_object_moved_to_another_release(
    step: Step, repository: ChartRepository
) -> None:
    one = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS, "templates/b.yaml": SHARED}
    repository.add("left", one)
    repository.add("left", {key: one[key] for key in ("values.yaml", "templates/a.yaml")}, version="2.0.0")
    repository.add("right", {key: one[key] for key in ("values.yaml", "templates/b.yaml")})
    await step.deploy(step.chart("left"))
    await step.deploy(step.chart("left", version="2.0.0"))
    await step.deploy(step.chart("right"))
    for colour in ("red", "green"):
        await step.deploy(step.chart("left", version="2.0.0", values=(f"colour: {colour}",)))
    assert await step.get(CONFIG_MAPS, "shared")


async def test_an_upgrade_deletes_no_object_that_the_inventory_does_not_name(step: Step) -> None:
    await step.deploy(step.chart("web"))
    ref = ObjectRef(group="apps", version="v1", kind="Deployment", namespace=step.namespace, name="web-web")
    await step.record({release_entry_key(ref): None})
    with pytest.raises(HelmConflictError, match=r"Deployment .*/web-web"):
        await step.deploy(step.chart("web", version="2.0.0"))
    assert await step.get(DEPLOYMENTS, "web-web")


async def test_values_come_from_config_maps_and_secrets_in_their_order(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    metadata = {"name": "values", "namespace": namespace}
    plain = {"b.yaml": "colour: red", "a.yaml": "colour: '{{ blue }}'\nreplicas: 2"}
    await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": plain})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"c": "colour: green"}}
    await client.create(SECRETS, secret)
    refs = (
        ValuesFrom(kind="ConfigMap", name="values"),
        ValuesFrom(kind="Secret", namespace=namespace, name="values"),
        ValuesFrom(kind="Secret", name="missing", optional=True),
    )
    found = await charts.collect(client, HelmChart(values_from=refs), namespace=namespace)
    assert found == ("colour: '{{ blue }}'\nreplicas: 2", "colour: red", "colour: green")
    missing = HelmChart(values_from=(ValuesFrom(kind="ConfigMap", name="missing"),))
    with pytest.raises(TransientError, match=f"ConfigMap {namespace}/missing not found"):
        await charts.collect(client, missing, namespace=namespace)
    for text, why in (("[hush", "is not YAML"), ("hush", "is not a mapping")):
        await client.patch(SECRETS, "values", {"stringData": {"c": text}}, namespace=namespace)
        with pytest.raises(TransientError, match=f"'c' of Secret {namespace}/values {why}") as failed:
            await charts.collect(client, HelmChart(values_from=refs), namespace=namespace)
        assert "hush" not in str(failed.value)
    patch = {"metadata": {"annotations": {SVELTOS_TEMPLATE_ANNOTATION: "ok"}}}
    await client.patch(CONFIG_MAPS, "values", patch, namespace=namespace)
    with pytest.raises(TransientError, match="templates are not supported"):
        await charts.collect(client, HelmChart(values_from=refs[:1]), namespace=namespace)


async def test_a_chart_touches_nothing_that_somebody_else_created(step: Step) -> None:
    await make_namespace(step)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web-settings", "namespace": step.namespace}}
    theirs = await step.client.create(CONFIG_MAPS, body)
    with pytest.raises(HelmConflictError) as refused:
        await step.deploy(step.chart("web"))
    assert refused.value.conflicts == (f"ConfigMap {step.namespace}/web-settings",)
    assert await step.client.get(CONFIG_MAPS, "web-settings", namespace=step.namespace) == theirs
    assert await step.get(DEPLOYMENTS, "web-web") is None
    assert await step.entries() == {}


async def test_a_hook_does_not_take_the_place_of_somebody_elses_object(step: Step) -> None:
    await make_namespace(step)
    pod = {"restartPolicy": "Never", "containers": [{"name": "theirs", "image": "theirs"}]}
    metadata = {"name": "greeting-farewell", "namespace": step.namespace}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    theirs = await step.client.create(JOBS, job)
    with pytest.raises(HelmConflictError, match=r"Job .*/greeting-farewell"):
        await step.deploy(step.chart("greeting"))
    found = await step.client.get(JOBS, "greeting-farewell", namespace=step.namespace)
    assert found["metadata"]["uid"] == theirs["metadata"]["uid"]


async def test_somebody_elses_release_is_neither_upgraded_nor_uninstalled(step: Step) -> None:
    await make_namespace(step)
    await step.helm.upgrade(step.client.connection, step.chart("settings"), owner="somebody-else")
    with pytest.raises(HelmConflictError, match=r"managed by step somebody-else \(tier 100\)"):
        await step.deploy(step.chart("settings", values=("colour: red",)))
    shown = await step.preview(step.chart("settings"))
    assert shown.conflicts == (f"release {step.namespace}/settings",)
    await step.record({"release": entry_of_release(step, "settings")})
    await step.remove()
    [revision] = await step.releases("settings")
    assert revision.release.version == 1
    settings = await step.client.get(CONFIG_MAPS, "settings-settings", namespace=step.namespace)
    assert settings["data"] == {"colour": "blue"}


async def test_what_helm_complains_about_is_told_on_one_line(step: Step) -> None:
    with pytest.raises(HelmError, match=r"helm template of missing failed: chart .missing. .*not found") as failed:
        await step.deploy(step.chart("missing"))
    assert "\n" not in str(failed.value)
    with pytest.raises(HelmError, match="Deployment"):
        await step.deploy(step.chart("web", values=("replicas: many",)))
    # What it got done before it failed is known, and goes.
    await step.remove()
    assert await step.releases("web") == []
    assert await step.get(CONFIG_MAPS, "web-settings") is None


async def test_a_release_that_helm_died_over_is_deployed_after_all(step: Step) -> None:
    await make_namespace(step)
    quota = await no_pods(step)
    async with asyncio.TaskGroup() as group:
        deploying = group.create_task(dying(step.deploy(step.chart("greeting"))))
        await until(step.client, JOBS, "greeting-farewell", bool, "there", namespace=step.namespace)
        kill_helm()
        await deploying
    [revision] = await step.releases("greeting")
    assert revision.release.status is HelmStatus.PENDING_INSTALL
    await step.client.delete(QUOTAS, "none", uid=quota["metadata"]["uid"], namespace=step.namespace)
    step.start_anew()
    deployed = await step.deploy(step.chart("greeting"))
    assert (deployed.release.status, deployed.release.version) == (HelmStatus.DEPLOYED, 2)
    await step.remove()
    assert await step.releases("greeting") == []
    assert await step.get(JOBS, "greeting-farewell") is None


async def test_a_chart_comes_from_an_archive_a_directory_or_a_registry(
    plane: Plane,
    namespace: str,
    repository: ChartRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(repository.authority))
    packed = repository.add("settings", {"values.yaml": VALUES, "templates/settings.yaml": SETTINGS})
    places = {
        "archive": f"{repository.url}/settings-1.0.0.tgz",
        "directory": unpack_chart(packed, tmp_path).as_uri(),
        "registry": f"{repository.registry}/settings",
    }
    async with stepping(plane, namespace, repository, charts=tmp_path) as step:
        for name, place in places.items():
            await step.deploy(Chart(release=name, namespace=step.namespace, chart=place))
            assert await step.get(CONFIG_MAPS, f"{name}-settings")
        await step.remove()
