"""Releases that two profiles want: the lower tier takes one over, as a whole, and nothing of it is lost on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.helm_steps import Step, stepping
from unwind.api.names import CHART_TIER_LABEL, HELM_RELEASE_ANNOTATION, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, SECRETS, Resource
from unwind.api.sveltos import DEFAULT_TIER
from unwind.deleters.outcomes import TransientError
from unwind.deploy.helm_install import HelmConflictError, ReleaseTakenError
from unwind.helm import release_secrets
from unwind.helm.program import Helm
from unwind.helm.release_secrets import HelmStatus
from unwind.kube.client import Client
from unwind.members.member import Member

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

LOWER = DEFAULT_TIER - 50


@pytest_asyncio.fixture(loop_scope="session")
async def first(plane: Plane, namespace: str, repository: ChartRepository) -> AsyncIterator[Step]:
    async with stepping(plane, namespace, repository) as step:
        yield step


@pytest_asyncio.fixture(loop_scope="session")
async def second(plane: Plane, namespace: str, repository: ChartRepository, first: Step) -> AsyncIterator[Step]:
    async with stepping(plane, namespace, repository, tier=LOWER, beside=first) as step:
        yield step


async def test_the_lower_tier_takes_a_release_over_and_who_lost_it_says_so_and_forgets_it(
    first: Step, second: Step
) -> None:
    await first.deploy(first.chart("web"))
    settings = await first.get(CONFIG_MAPS, "web-settings")
    assert settings
    shown = await second.preview(second.chart("web", version="2.0.0"))
    assert (shown.taken_from, shown.conflicts) == (f"step {first.owner}", ())
    done = await second.deploy(second.chart("web", version="2.0.0", values=("colour: red",)))
    assert (done.changed, done.taken_from, done.release.version) == (True, first.owner, 2)
    now = await second.get(CONFIG_MAPS, "web-settings")
    assert now
    assert (now["metadata"]["uid"], now["data"]) == (settings["metadata"]["uid"], {"colour": "red"})
    # What the other chart has no more is gone, as with every upgrade.
    assert await second.get(DEPLOYMENTS, "web-web") is None
    assert (await second.states())[f"ConfigMap {first.namespace}/web-settings"] == "Confirmed"
    assert f"Deployment {first.namespace}/web-web" not in await second.states()
    last = (await second.releases("web"))[-1]
    assert (last.owner, last.tier) == (second.owner, LOWER)
    with pytest.raises(ReleaseTakenError, match=rf"managed by step {second.owner} \(tier {LOWER}\)"):
        await first.deploy(first.chart("web"))
    assert list(await first.states()) == [f"Deployment {first.namespace}/web-web"], "nobody else answers for it"
    await first.remove()
    assert await second.get(CONFIG_MAPS, "web-settings")
    await second.remove()
    assert await second.releases("web") == []
    assert await second.get(NAMESPACES, first.namespace) is None, "it went over with the release"


async def test_who_lost_a_release_and_has_not_looked_since_leaves_all_of_it(first: Step, second: Step) -> None:
    await first.deploy(first.chart("farewell"))
    before = await first.entries()
    await second.deploy(second.chart("farewell"))
    assert await first.entries() == before
    removal = await first.remove()
    assert await second.get(DEPLOYMENTS, "farewell-web")
    assert [release.release.status for release in await second.releases("farewell")][-1] is HelmStatus.DEPLOYED
    left = {str(entry.object): entry.ledger.message for entry in (await first.entries()).values() if entry.ledger}
    said = f"Release {first.namespace}/farewell taken over by ClusterSummary"
    assert left[f"Deployment {first.namespace}/farewell-web"].startswith(said)
    assert left[f"Namespace {first.namespace}"] == f"taken over by {second.owner}; it is left in place"
    assert removal.progress.left == 3
    removal = await second.remove()
    assert await second.releases("farewell") == []
    assert await second.get(NAMESPACES, first.namespace) is None


async def test_a_tie_keeps_the_owner(first: Step, plane: Plane, namespace: str, repository: ChartRepository) -> None:
    await first.deploy(first.chart("settings"))
    async with stepping(plane, namespace, repository, beside=first) as other:
        with pytest.raises(ReleaseTakenError, match=rf"\(tier {DEFAULT_TIER}\)"):
            await other.deploy(other.chart("settings", values=("colour: red",)))
        assert await other.entries() == {}
    [revision] = await first.releases("settings")
    assert (revision.owner, revision.release.version) == (first.owner, 1)


async def test_an_owner_adopts_the_release_that_it_had_in_a_former_management_cluster(
    first: Step, plane: Plane, namespace: str, repository: ChartRepository
) -> None:
    await first.deploy(first.chart("web"))
    settings = await first.get(CONFIG_MAPS, "web-settings")
    assert settings
    await first.lose_inventory()
    former = frozenset([first.owner])
    async with stepping(plane, namespace, repository, beside=first, former=former) as other:
        done = await other.deploy(other.chart("web"))
        assert done.release.version == 2
        now = await other.get(CONFIG_MAPS, "web-settings")
        assert now
        assert now["metadata"]["uid"] == settings["metadata"]["uid"]
        assert (await other.releases("web"))[-1].owner == other.owner
        assert (await other.states())[f"ConfigMap {first.namespace}/web-settings"] == "Confirmed"
        await other.remove()
        assert await other.releases("web") == []
        assert await other.get(NAMESPACES, first.namespace) is None, "it was created for the release"


async def test_the_first_deployment_after_a_move_deletes_what_the_new_version_of_the_chart_dropped(
    first: Step, plane: Plane, namespace: str, repository: ChartRepository
) -> None:
    await first.deploy(first.chart("web"))
    await first.lose_inventory()
    async with stepping(plane, namespace, repository, beside=first, former=frozenset([first.owner])) as other:
        assert (await other.preview(other.chart("web", version="2.0.0"))).conflicts == ()
        await other.deploy(other.chart("web", version="2.0.0"))
        assert await other.get(DEPLOYMENTS, "web-web") is None
        states = await other.states()
        assert states[f"ConfigMap {first.namespace}/web-settings"] == "Confirmed"
        assert f"Deployment {first.namespace}/web-web" not in states
        await other.remove()


async def test_the_first_deployment_after_a_move_goes_on_if_it_was_killed_before_helm(
    first: Step, plane: Plane, namespace: str, repository: ChartRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first.deploy(first.chart("web"))
    await first.lose_inventory()
    async with stepping(plane, namespace, repository, beside=first, former=frozenset([first.owner])) as other:
        with monkeypatch.context() as killed:
            killed.setattr(Helm, "upgrade", AsyncMock(side_effect=asyncio.CancelledError))
            with pytest.raises(asyncio.CancelledError):
                await other.deploy(other.chart("web", version="2.0.0"))
        assert (await other.releases("web"))[-1].owner == other.owner
        await other.deploy(other.chart("web", version="2.0.0"))
        assert await other.get(DEPLOYMENTS, "web-web") is None
        await other.remove()


async def test_the_first_deployment_after_a_move_deletes_no_object_without_the_mark_of_the_release(
    first: Step, plane: Plane, namespace: str, repository: ChartRepository
) -> None:
    await first.deploy(first.chart("web"))
    taken = {"metadata": {"annotations": {HELM_RELEASE_ANNOTATION: "another"}}}
    await first.client.patch(DEPLOYMENTS, "web-web", taken, namespace=first.namespace)
    await first.lose_inventory()
    async with stepping(plane, namespace, repository, beside=first, former=frozenset([first.owner])) as other:
        with pytest.raises(HelmConflictError, match=r"Deployment .*/web-web"):
            await other.deploy(other.chart("web", version="2.0.0"))
        assert await other.get(DEPLOYMENTS, "web-web")
        assert (await other.releases("web"))[-1].owner == first.owner


async def test_a_release_that_does_not_say_its_tier_stays_whose_it_is_until_it_does(first: Step, second: Step) -> None:
    await first.deploy(first.chart("settings"))
    [revision] = await first.releases("settings")
    await first.client.revise(SECRETS, revision.secret, {"metadata": {"labels": {CHART_TIER_LABEL: None}}})
    with pytest.raises(ReleaseTakenError, match=rf"managed by step {first.owner}: release"):
        await second.deploy(second.chart("settings"))
    assert not (await first.deploy(first.chart("settings"))).changed
    [revision] = await first.releases("settings")
    assert (revision.tier, revision.release.version) == (DEFAULT_TIER, 1), "it says so, and Helm had nothing to do"
    assert (await second.deploy(second.chart("settings"))).taken_from == first.owner


async def test_what_is_being_uninstalled_is_not_taken_over(first: Step, second: Step) -> None:
    await first.deploy(first.chart("settings"))
    release = next(item for item in map(first.releaser.release_of, (await first.entries()).values()) if item)
    assert await first.releaser.reserve(first.member, release, owner=first.owner) == ""
    with pytest.raises(TransientError, match=f"is being uninstalled for step {first.owner}"):
        await second.deploy(second.chart("settings"))
    assert await second.entries() == {}
    await first.remove()
    done = await second.deploy(second.chart("settings"))
    assert (done.release.version, done.taken_from) == (1, "")


async def test_who_reserves_in_the_moment_of_a_takeover_sees_whose_it_is(first: Step, second: Step) -> None:
    await first.deploy(first.chart("settings"))
    [revision] = await first.releases("settings")
    await release_secrets.mark(first.client, revision, owner=second.owner, tier=LOWER)
    release = next(item for item in map(first.releaser.release_of, (await first.entries()).values()) if item)
    assert await first.releaser.reserve(first.member, release, owner=first.owner) == second.owner


class Breaking(Client):
    """Refuses to write to some kind: what is done before that is done."""

    def __init__(self, original: Client, resource: Resource) -> None:
        super().__init__(original.connection)
        self._broken = resource

    async def revise(self, resource: Resource, read: Object, patch: Object, **more: Any) -> Object:
        if resource == self._broken:
            raise TransientError("the machine stopped")
        return await super().revise(resource, read, patch, **more)


async def dying_over(step: Step, resource: Resource, name: str) -> None:
    """A deployment that dies before it writes to a kind."""
    async with Breaking(step.client, resource) as client:
        member = step.member
        async with Member(member.ref, client, system_uid=member.system_uid) as step.member:
            with pytest.raises(TransientError, match="the machine stopped"):
                await step.deploy(step.chart(name))
        step.member = member


async def test_who_dies_before_the_release_is_its_own_leaves_it_to_its_owner(first: Step, second: Step) -> None:
    await first.deploy(first.chart("farewell"))
    await dying_over(second, SECRETS, "farewell")
    assert f"Deployment {first.namespace}/farewell-web" in await second.states()
    assert [release.owner for release in await first.releases("farewell")] == [first.owner]
    removal = await second.remove()
    assert await first.get(DEPLOYMENTS, "farewell-web")
    namespace = await first.get(NAMESPACES, first.namespace)
    assert namespace
    assert namespace["metadata"]["labels"][OWNER_LABEL] == first.owner
    assert removal.progress.total == removal.progress.removed + removal.progress.left
    assert not (await first.deploy(first.chart("farewell"))).changed
    await first.remove()
    assert await first.releases("farewell") == []
    assert await first.get(NAMESPACES, first.namespace) is None


async def test_who_dies_after_the_release_is_its_own_goes_on(first: Step, second: Step) -> None:
    await first.deploy(first.chart("web"))
    await dying_over(second, NAMESPACES, "web")
    assert [release.owner for release in await first.releases("web")] == [second.owner]
    # Whatever comes next, all of it is accounted for by the second.
    with pytest.raises(ReleaseTakenError):
        await first.deploy(first.chart("web"))
    assert await first.states() == {}
    await second.deploy(second.chart("web"))
    namespace = await second.get(NAMESPACES, first.namespace)
    assert namespace
    assert namespace["metadata"]["labels"][OWNER_LABEL] == second.owner
    await second.remove()
    assert await second.get(NAMESPACES, first.namespace) is None


async def test_an_object_that_was_made_anew_by_somebody_else_is_not_taken_over(first: Step, second: Step) -> None:
    await first.deploy(first.chart("settings"))
    found = await first.get(CONFIG_MAPS, "settings-settings")
    assert found
    await first.client.delete(CONFIG_MAPS, "settings-settings", uid=found["metadata"]["uid"], namespace=first.namespace)
    marks = {key: found["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    theirs = await first.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": marks})
    with pytest.raises(HelmConflictError, match="objects exist that are not part of the release"):
        await second.deploy(second.chart("settings"))
    assert [release.owner for release in await first.releases("settings")] == [first.owner]
    assert msgspec.json.encode(await first.get(CONFIG_MAPS, "settings-settings")) == msgspec.json.encode(theirs)
