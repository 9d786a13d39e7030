"""A profile whose clusters are not understood keeps its add-ons where they are, until it is corrected or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from tests.plane.support.profiles import condition, config_map, running
from unwind.api import meta
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from tests.plane.support.profiles import ProfileScene
    from unwind.api.sveltos import ClusterSummary

HELD = "nothing is removed from clusters that stay, and nothing is deployed to more clusters, until it is corrected"
MISSPELT = {"apiVersion": SVELTOS_CLUSTERS.api_version, "kind": "SveltosClusters", "namespace": "n", "name": "edge"}
TYPOS: dict[str, tuple[dict[str, Any], str]] = {
    "an operator without values": (
        {"clusterSelector": {"matchExpressions": [{"key": "test", "operator": "In"}]}},
        "clusterSelector: operator In for key test needs values",
    ),
    "a misspelt field": (
        {"clusterSelector": {"matchLabel": {"a": "b"}}},
        "clusterSelector.matchLabel is not known (valid: matchLabels, matchExpressions)",
    ),
    "a misspelt kind": (
        {"clusterSelector": {}, "clusterRefs": [MISSPELT]},
        "SveltosClusters edge (apiVersion lib.projectsveltos.io/v1beta1) is not a Cluster",
    ),
    "a ClusterSet": ({"clusterSelector": {}, "setRefs": ["prod"]}, "setRefs is not supported"),
}


async def replace(scene: ProfileScene, spec: dict[str, Any]) -> None:
    patch = [{"op": "add", "path": f"/spec/{name}", "value": value} for name, value in spec.items()]
    await scene.client.patch(CLUSTER_PROFILES, scene.called("web"), patch)


def held(summary: ClusterSummary) -> str:
    """What the summary says that it waits for, if it is held by an unknown value."""
    blocked = meta.find(summary.status.conditions, "Blocked")
    return blocked.message if blocked and blocked.reason == "UnknownValue" else ""


async def mistyped(scene: ProfileScene, spec: dict[str, Any], told: str) -> None:
    """Edit the deployed profile, and wait until the profile and its summary say what is not understood."""
    await replace(scene, spec)
    found = await scene.until_profile("web", lambda it: told in condition(it, "UnknownValue").get("message", ""))
    assert HELD in condition(found, "UnknownValue")["message"]
    assert condition(found, "Accepted")["status"] == "False"
    summary = await scene.until_summary("web", lambda it: told in held(it), "held")
    assert HELD in held(summary)


@pytest.mark.parametrize(("spec", "told"), TYPOS.values(), ids=TYPOS)
async def test_a_typo_in_what_selects_the_clusters_withdraws_nothing_until_it_is_corrected(
    scene: ProfileScene, spec: dict[str, Any], told: str
) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        uid = (await scene.summary("web")).metadata.uid
        await mistyped(scene, spec, told)
        # It gets nothing new either: not the cluster that it would have selected before, and nothing in the first one.
        await scene.register("other")
        await scene.edit("web", config_map(scene.namespace, "a"), config_map(scene.namespace, "b"))
        other = {"metadata": {"labels": {"other": "label"}}}
        await scene.client.patch(SVELTOS_CLUSTERS, "edge", other, namespace=scene.namespace)
        profile = await scene.until_profile("web", lambda it: bool(it["status"].get("matchingClusters")))
        assert [item["name"] for item in profile["status"]["matchingClusters"]] == ["edge"], "it still has the add-ons"
    async with running(scene.client, scene.namespace):
        # Nor after a restart, which reads everything again.
        await eventually(lambda: _is_idle(scene), "no summary for the other cluster")
        assert (await scene.summary("web")).metadata.uid == uid
        assert not (await scene.summary("web")).metadata.terminating
        assert set(await scene.on_member()) == {"a"}
        assert scene.deleted() == []
        # Corrected: what is selected is deployed, and what is not selected is withdrawn.
        right: dict[str, Any] = {name: [] for name in spec if name != "clusterSelector"}
        await replace(scene, {"clusterSelector": {"matchLabels": scene.label}, **right})
        await scene.until_on_member("b")
        await scene.until_summary("web", lambda it: not held(it), "no longer held")
        profile = await scene.until_profile("web", lambda it: not condition(it, "UnknownValue"))
        await scene.client.patch(
            SVELTOS_CLUSTERS, "edge", {"metadata": {"labels": {"test": None}}}, namespace=scene.namespace
        )
        await scene.until_summary_gone("web")


async def _is_idle(scene: ProfileScene) -> bool:
    found = await scene.client.list(CLUSTER_SUMMARIES, namespace=scene.namespace)
    return [item["metadata"]["name"] for item in found] == [scene.summary_name("web")]


async def test_a_profile_whose_clusters_are_not_understood_is_withdrawn_when_it_is_deleted(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await mistyped(scene, *TYPOS["a misspelt field"])
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    assert await scene.on_member() == {}


async def test_a_typo_while_no_manager_runs_withdraws_nothing_also_of_a_summary_of_sveltos(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    await replace(scene, {"clusterSelector": {"matchLabel": scene.label}})
    # A summary that Sveltos created names no cluster by uid.
    await scene.client.patch(
        CLUSTER_SUMMARIES,
        scene.summary_name("web"),
        {"metadata": {"annotations": {"unwind.dev/cluster-uid": None}}},
        namespace=scene.namespace,
    )
    async with running(scene.client, scene.namespace):
        await scene.until_summary("web", lambda it: bool(held(it)), "held")
        assert not (await scene.summary("web")).metadata.terminating
    assert scene.deleted() == []


async def test_a_behaviour_counts_also_while_a_profile_deploys_nothing_new(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        # Refused as a whole: nothing else of it is copied.
        spec = {"reloader": True, "tier": 7, "clusterDeletionBehavior": "EnforceRemovePolicies"}
        await scene.edit_profile("web", spec)
        said = await scene.until_summary(
            "web",
            lambda it: it.spec.cluster_profile_spec.cluster_deletion_behavior == "EnforceRemovePolicies",
            "enforced",
        )
        assert said.spec.cluster_profile_spec.tier == 100
        uid = said.metadata.uid

        async def recorded() -> bool:
            return [chunk.spec.effort for chunk in await scene.inventories(uid)] == ["Enforce"]

        await eventually(recorded, "effort Enforce")


async def test_a_profile_with_a_selector_from_before_the_enum_can_be_changed_in_other_fields(
    scene: ProfileScene,
) -> None:
    name = "clusterprofiles.config.projectsveltos.io"
    path = (
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/clusterSelector/properties/"
        "matchExpressions/items/properties/operator/enum"
    )
    words: Any = await scene.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    for step in path.strip("/").split("/"):
        words = words[int(step)] if isinstance(words, list) else words[step]
    assert words == ["In", "NotIn", "Exists", "DoesNotExist"]
    typo = {"matchExpressions": [{"key": "test", "operator": "in", "values": [scene.namespace]}]}

    async def accepts() -> bool:
        try:
            await scene.profile("web", clusterSelector=typo)
        except ApiError:
            return False
        return True

    async def refuses() -> bool:
        try:
            await scene.profile("probe", clusterSelector=typo)
        except ApiError as error:
            return "Unsupported value" in str(error)
        await scene.delete_profile("probe")
        return False

    await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, [{"op": "remove", "path": path}])
    try:
        await eventually(accepts, "a CRD that accepts any operator", within=30)
    finally:
        add = [{"op": "add", "path": path, "value": words}]
        await scene.client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, add)
    await eventually(refuses, "a CRD that refuses unknown operators", within=30)
    # Other fields, metadata and status of the existing profile: the manager needs all of them.
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    named = {"apiVersion": SVELTOS_CLUSTERS.api_version, "kind": "SveltosCluster", "name": "edge"}
    references = [named | {"namespace": scene.namespace}]
    await scene.edit_profile("web", {"tier": 50, "policyRefs": scene.refs("web"), "clusterRefs": references})
    async with running(scene.client, scene.namespace):
        found = await scene.until_profile(
            "web", lambda it: "unknown operator 'in'" in str(condition(it, "UnknownValue"))
        )
        assert found["metadata"]["finalizers"]
        assert found["spec"]["tier"] == 50
        await scene.until_provisioned("web")
    with pytest.raises(ApiError, match="Unsupported value"):
        await replace(scene, {"clusterSelector": {"matchExpressions": [{"key": "test", "operator": "Inn"}]}})
