"""A Helm release with a protected object stays as a whole."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from unwind.api.names import DELETE_POLICY_ANNOTATION, DELETE_PROTECTION_LABEL, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import External, Kinds
from unwind.helm.release_secrets import HelmStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plane.support.helm_steps import Step
    from unwind.api.resources import Resource
    from unwind.deleters.context import End


async def protect(step: Step, resource: Resource, name: str, value: str | None = "Always") -> None:
    patch = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: value}}}
    await step.client.patch(resource, name, patch, namespace=step.namespace, field_manager="jane")


async def test_nothing_of_a_release_goes_while_one_of_its_objects_is_protected(step: Step) -> None:
    await step.deploy(step.chart("web"))
    await protect(step, CONFIG_MAPS, "web-settings")
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        removing = group.create_task(step.remove())
        words = await step.until_said("blocked by label")
        assert words.startswith(f"Release {step.namespace}/web waits for ConfigMap {step.namespace}/web-settings: ")
        assert "set by jane" in words
        assert await step.get(DEPLOYMENTS, "web-web")
        [revision] = await step.releases("web")
        assert revision.release.status is HelmStatus.DEPLOYED
        await protect(step, CONFIG_MAPS, "web-settings", None)
        await removing
    assert await step.releases("web") == []
    assert await step.get(DEPLOYMENTS, "web-web") is None
    assert await step.get(CONFIG_MAPS, "web-settings") is None


async def test_a_removal_that_only_tries_leaves_the_whole_release(step: Step) -> None:
    await step.deploy(step.chart("web"))
    await protect(step, CONFIG_MAPS, "web-settings")
    removal = await step.remove(keep_protected=True)
    assert removal.progress.removed == 0
    assert await step.get(DEPLOYMENTS, "web-web")
    assert await step.get(CONFIG_MAPS, "web-settings")
    assert await step.get(NAMESPACES, step.namespace)
    [revision] = await step.releases("web")
    assert revision.release.status is HelmStatus.DEPLOYED
    notes = {entry.object.name: entry.ledger for entry in (await step.entries()).values()}
    assert {name: note.reason if note else "" for name, note in notes.items()} == dict.fromkeys(notes, "Protected")
    assert {"web-web", "web-settings", step.namespace} <= notes.keys()
    about = notes["web-web"]
    assert about
    assert about.message.startswith(f"part of Release {step.namespace}/web, which stays: ConfigMap")


async def test_an_upgrade_does_not_delete_a_protected_object_that_is_no_longer_in_the_chart(step: Step) -> None:
    await step.deploy(step.chart("web"))
    await protect(step, DEPLOYMENTS, "web-web")
    with pytest.raises(PermanentError, match="no longer in the chart and would be deleted") as error:
        await step.deploy(step.chart("web", version="2.0.0"))
    assert "unwind unprotect deployments.apps/web-web" in str(error.value)
    assert await step.get(DEPLOYMENTS, "web-web")
    await protect(step, DEPLOYMENTS, "web-web", None)
    await step.deploy(step.chart("web", version="2.0.0"))
    assert await step.get(DEPLOYMENTS, "web-web") is None


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"annotations": {DELETE_POLICY_ANNOTATION: "skip"}}, "its policy is skip"),
        ({"annotations": {DELETE_POLICY_ANNOTATION: "skpi"}}, "its delete policy 'skpi' is not known"),
        ({"labels": {OWNER_LABEL: "another"}}, "it was taken over by another"),
    ],
    ids=["skip", "unknown policy", "taken over"],
)
async def test_an_upgrade_does_not_delete_what_a_removal_would_keep(
    step: Step, metadata: dict[str, Any], told: str
) -> None:
    await step.deploy(step.chart("web"))
    await step.client.patch(DEPLOYMENTS, "web-web", {"metadata": metadata}, namespace=step.namespace)
    with pytest.raises(PermanentError, match="no longer in the chart and would be deleted") as error:
        await step.deploy(step.chart("web", version="2.0.0"))
    assert told in str(error.value)
    assert await step.get(DEPLOYMENTS, "web-web")
    keep = {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}
    await step.client.patch(DEPLOYMENTS, "web-web", keep, namespace=step.namespace)
    await step.deploy(step.chart("web", version="2.0.0"))
    assert await step.get(DEPLOYMENTS, "web-web")


async def test_an_upgrade_does_not_delete_what_keeps_others_by_the_policy_of_its_namespace(step: Step) -> None:
    await step.deploy(step.chart("web"))
    patch = {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "detach-on-delete"}}}
    await step.client.patch(NAMESPACES, step.namespace, patch)
    with pytest.raises(PermanentError, match=r"annotation unwind\.dev/delete-policy of its namespace"):
        await step.deploy(step.chart("web", version="2.0.0"))
    assert await step.get(DEPLOYMENTS, "web-web")


async def test_an_upgrade_does_not_delete_an_object_before_its_external_resource(step: Step) -> None:
    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[End]:
        raise AssertionError("nothing is deleted")
        yield

    await step.deploy(step.chart("web"))
    store = External(name="store", kinds=(Kinds("apps/*", "Deployment"),), open=opened)
    with pytest.raises(PermanentError, match="before store deletes its external resource"):
        await step.deploy(step.chart("web", version="2.0.0"), external=store)
    assert await step.get(DEPLOYMENTS, "web-web")
