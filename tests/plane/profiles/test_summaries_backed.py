"""A ClusterSummary that no profile backs deploys nothing and holds nothing, even where no policy refuses it.

Each is written with the rights of an administrator here, so that no admission policy stands between it and the
manager: policies may be missing, or come late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest_asyncio
import yaml

from tests.plane.support import cluster_teardowns
from tests.plane.support.profiles import ProfileScene, config_map, running
from unwind.api.names import CLUSTER_UID_ANNOTATION, CREDENTIALS_ANNOTATION, Finalizer
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.rights import Right
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.api.unwind import TEARDOWNS
from unwind.kube import object_watch
from unwind.testing.managers import granting

if TYPE_CHECKING:
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(plane: Plane, namespace: str) -> str:
    """A namespace beside that of the scene."""
    name = f"{namespace}-tenant"
    await plane.management.create_namespace(name)
    return name


def edge(scene: ProfileScene) -> tuple[str, str, str]:
    """The type, namespace and name of the cluster of the scene."""
    return "Sveltos", scene.namespace, "edge"


async def plant(
    client: Client,
    namespace: str,
    name: str,
    *,
    cluster: tuple[str, str, str],
    owner: Object | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A ClusterSummary that the manager did not write, with our finalizer on it. `cluster`: type, namespace, name."""
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "finalizers": [Finalizer.SUMMARY.value],
        "annotations": annotations or {},
    }
    if owner:
        metadata["ownerReferences"] = [
            {
                "apiVersion": CLUSTER_PROFILES.api_version,
                "kind": "ClusterProfile",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
        ]
    type_, where, called = cluster
    body = {
        "apiVersion": CLUSTER_SUMMARIES.api_version,
        "kind": "ClusterSummary",
        "metadata": metadata,
        "spec": {
            "clusterType": type_,
            "clusterNamespace": where,
            "clusterName": called,
            "clusterProfileSpec": spec,
        },
    }
    return await client.create(CLUSTER_SUMMARIES, body)


async def source(client: Client, namespace: str, name: str, *documents: Object) -> list[Object]:
    """A ConfigMap with manifests; returns the policyRefs that name it."""
    await client.create(CONFIG_MAPS, config_map(namespace, name, **{"all.yaml": yaml.dump_all(documents)}))
    return [{"kind": "ConfigMap", "namespace": namespace, "name": name}]


async def until_idle(client: Client, summary: Object) -> Object:
    """The summary, once the manager says that no profile backs it."""
    meta = summary["metadata"]
    found = await object_watch.until(
        client,
        CLUSTER_SUMMARIES,
        meta["name"],
        lambda it: bool(it) and _reasons(it).get("Blocked") == "NoProfile",
        "idle",
        namespace=meta["namespace"],
        within=30,
    )
    assert found
    return found


def _reasons(it: Object | None) -> dict[str, str]:
    conditions = ((it or {}).get("status") or {}).get("conditions") or []
    return {condition["type"]: condition["reason"] for condition in conditions}


async def test_a_summary_in_another_namespace_than_its_cluster_puts_nothing_there(
    scene: ProfileScene, tenant: str
) -> None:
    await scene.register()
    refs = await source(scene.client, tenant, "web", config_map(scene.namespace, "planted"))
    profile = await scene.profile("web", clusterSelector={"matchLabels": scene.label})
    for owner in (None, profile):
        name = f"planted-{'owned' if owner else 'alone'}"
        made = await plant(scene.client, tenant, name, cluster=edge(scene), owner=owner, policyRefs=refs)
        async with running(scene.client, scene.namespace):
            found = await until_idle(scene.client, made)
            assert "is in namespace" in found["status"]["dependencies"]
            await object_watch.until(
                scene.client,
                CLUSTER_SUMMARIES,
                name,
                lambda it: it is not None and not it["metadata"].get("finalizers"),
                "without our finalizer",
                namespace=tenant,
                within=30,
            )
    assert "planted" not in await scene.on_member()


async def test_a_summary_that_no_profile_owns_puts_nothing_on_the_management_cluster(
    scene: ProfileScene, tenant: str
) -> None:
    await scene.register()
    # Not in Unwind's own namespace, where no profile may put anything; and the manager has the rights for it.
    refs = await source(scene.client, scene.namespace, "web", config_map(tenant, "planted"))
    local = [ref | {"deploymentType": "Local"} for ref in refs]
    made = await plant(scene.client, scene.namespace, "planted", cluster=edge(scene), policyRefs=local)
    deploys = Right("", (CONFIG_MAPS.plural,), ("create", "patch", "delete"))
    async with granting(scene.client, tenant, deploys), running(scene.client, scene.namespace):
        found = await until_idle(scene.client, made)
        assert "not owned by a profile" in found["status"]["dependencies"]
    there = await scene.client.list(CONFIG_MAPS, namespace=tenant)
    assert "planted" not in {item["metadata"]["name"] for item in there}


async def test_a_summary_whose_profile_does_not_select_the_cluster_puts_nothing_there(scene: ProfileScene) -> None:
    await scene.register()
    await scene.source("web", config_map(scene.namespace, "planted"))
    await scene.source("real", config_map(scene.namespace, "real"))
    other = await scene.profile("other", clusterSelector={"matchLabels": {"no": "cluster"}})
    await plant(
        scene.client,
        scene.namespace,
        "planted",
        cluster=edge(scene),
        owner=other,
        policyRefs=scene.refs("web"),
    )
    async with running(scene.client, scene.namespace):
        await object_watch.until_absent(
            scene.client, CLUSTER_SUMMARIES, "planted", namespace=scene.namespace, within=30
        )
        await scene.profile("real", "real")
        await scene.until_provisioned("real")
    assert set(await scene.on_member()) == {"real"}


async def test_a_summary_of_a_profile_with_another_uid_puts_nothing_there(scene: ProfileScene) -> None:
    await scene.register()
    await scene.source("web", config_map(scene.namespace, "planted"))
    await scene.source("real", config_map(scene.namespace, "real"))
    real = await scene.profile("real", "real")
    forged = {"metadata": {"name": real["metadata"]["name"], "uid": "0b8c1a52-0000-4000-8000-000000000000"}}
    planted = await plant(
        scene.client,
        scene.namespace,
        scene.summary_name("real"),
        cluster=edge(scene),
        owner=forged,
        policyRefs=scene.refs("web"),
    )
    async with running(scene.client, scene.namespace):
        uid = planted["metadata"]["uid"]
        await scene.until_summary("real", lambda it: it.metadata.uid != uid, "another one")
        await scene.until_provisioned("real")
    assert scene.created() == ["real"]


async def test_a_summary_that_was_edited_by_hand_deploys_only_what_its_profile_says(scene: ProfileScene) -> None:
    await scene.register()
    await scene.source("web", config_map(scene.namespace, "real"))
    await scene.source("evil", config_map(scene.namespace, "planted"))
    await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        name = scene.summary_name("web")
        edited = {"spec": {"clusterProfileSpec": {"policyRefs": scene.refs("evil")}}}
        await scene.client.patch(CLUSTER_SUMMARIES, name, edited, namespace=scene.namespace)
        await scene.until_summary(
            "web", lambda it: [ref.name for ref in it.spec.cluster_profile_spec.policy_refs] == ["web"], "corrected"
        )
        await scene.edit("web", config_map(scene.namespace, "real"), config_map(scene.namespace, "later"))
        await scene.until_on_member("later")
    assert "planted" not in scene.created()


async def test_a_planted_summary_holds_neither_its_profile_nor_what_it_claims_to_need(
    scene: ProfileScene, tenant: str
) -> None:
    await scene.register()
    await scene.source("base", config_map(scene.namespace, "base"))
    base = await scene.profile("base", "base")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("base")
        top = await scene.profile("top", clusterSelector={"matchLabels": {"no": "cluster"}})
        for name, owner, depends_on in (("of-base", base, []), ("of-top", top, scene.needs("base"))):
            made = await plant(scene.client, tenant, name, cluster=edge(scene), owner=owner, dependsOn=depends_on)
            await until_idle(scene.client, made)
        await scene.delete_profile("base")
        await scene.until_profile_gone("base")
    assert await scene.on_member() == {}


async def test_a_planted_summary_does_not_let_another_clusters_credentials_go(scene: ProfileScene) -> None:
    await scene.provide()
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
        await plant(
            scene.client,
            scene.namespace,
            "planted",
            cluster=("Sveltos", scene.namespace, "gone"),
            annotations={CREDENTIALS_ANNOTATION: "edge-sveltos-kubeconfig", CLUSTER_UID_ANNOTATION: "gone"},
        )
        meta = (await scene.client.get(CLUSTER_SUMMARIES, "planted", namespace=scene.namespace))["metadata"]
        await scene.client.delete(CLUSTER_SUMMARIES, "planted", uid=meta["uid"], namespace=scene.namespace)
        await object_watch.until_absent(
            scene.client, CLUSTER_SUMMARIES, "planted", namespace=scene.namespace, within=30
        )
        secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]


async def test_what_was_deployed_is_removed_though_its_profile_is_gone(scene: ProfileScene) -> None:
    await scene.source("web", config_map(scene.namespace, "a"))
    await scene.register()
    profile = await scene.profile("web", "web")
    async with running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    # While no manager runs, the profile is deleted by force and the garbage collector orphans the summary.
    name, summary = profile["metadata"]["name"], scene.summary_name("web")
    free: Object = {"metadata": {"finalizers": None}}
    await scene.client.patch(CLUSTER_PROFILES, name, free)
    orphan: Object = {"metadata": {"ownerReferences": None}}
    await scene.client.patch(CLUSTER_SUMMARIES, summary, orphan, namespace=scene.namespace)
    await scene.client.delete(CLUSTER_PROFILES, name, uid=profile["metadata"]["uid"])
    await object_watch.until_absent(scene.client, CLUSTER_PROFILES, name, within=30)
    found = await scene.client.get(CLUSTER_SUMMARIES, summary, namespace=scene.namespace)
    async with running(scene.client, scene.namespace):
        idle = await until_idle(scene.client, found)
        assert Finalizer.SUMMARY in idle["metadata"]["finalizers"], "its Inventory keeps it"
        uid = found["metadata"]["uid"]
        await scene.client.delete(CLUSTER_SUMMARIES, summary, uid=uid, namespace=scene.namespace)
        await scene.until_summary_gone("web")
    assert await scene.on_member() == {}


async def test_a_planted_summary_neither_holds_a_cluster_nor_ends_the_record_of_another(
    plane: Plane, namespace: str
) -> None:
    it = cluster_teardowns.DeployedScene(plane, namespace)
    await it.begin()
    await it.add_on("web")
    victim = it.cluster
    async with cluster_teardowns.all_controllers(it.client, it.namespace):
        await it.deployed("web")
        # One that would hold the cluster for ever, because its behaviour is Enforce and its member never answers.
        await plant(
            it.client,
            it.namespace,
            "planted",
            cluster=("Capi", it.namespace, victim.name),
            annotations={CLUSTER_UID_ANNOTATION: victim.uid},
            clusterDeletionBehavior="EnforceRemovePolicies",
        )
        # And one of a cluster that never was, with the uid of the real one: as if that were gone.
        ghost = await plant(
            it.client,
            it.namespace,
            "ghost",
            cluster=("Capi", it.namespace, "ghost"),
            annotations={CLUSTER_UID_ANNOTATION: victim.uid},
        )
        await until_idle(it.client, ghost)
        with_record = await it.client.list(TEARDOWNS)
        assert victim.uid not in {item["metadata"]["name"] for item in with_record}
        await victim.delete()
        ended = await victim.ended()
        assert ended.spec.plan
        assert [step.name for step in ended.spec.plan.steps] == [f"ClusterProfile/{it.called('web')}"]
        assert ended.status.phase == "Complete"
        await victim.go()
    assert await it.on_member() == {}
    await it.clear()


async def test_a_summary_says_why_when_its_cluster_has_no_profile(scene: ProfileScene) -> None:
    """The cluster itself is left alone, too: no finalizer lands on its Secret."""
    await scene.register()
    made = await plant(scene.client, scene.namespace, "planted", cluster=edge(scene))
    async with running(scene.client, scene.namespace):
        await until_idle(scene.client, made)
    secret = await scene.client.get(SECRETS, "edge-sveltos-kubeconfig", namespace=scene.namespace)
    assert not secret["metadata"].get("finalizers")
    found = await scene.client.get(SVELTOS_CLUSTERS, "edge", namespace=scene.namespace)
    assert not found["metadata"].get("finalizers")
