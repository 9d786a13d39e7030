"""Exit code 4 of `unwind plan`: one rule for what would be left behind, for every kind of target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from tests.plane.support.cluster_teardowns import TeardownScene, ensure_installed
from tests.plane.support.commands import command
from tests.plane.support.flux_handles import FluxScene
from tests.plane.support.flux_sources import FluxSources, artifacts, kustomization
from tests.plane.support.helm_release_proxies import Proxies, config_maps
from tests.plane.support.helm_steps import KEPT, SETTINGS, VALUES
from tests.plane.support.helm_users import HelmUser
from tests.plane.support.objects import crd, teardown_policy
from tests.plane.support.removals import stateful_set, until_claimed
from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.capi import CLUSTERS
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import NAMESPACES, SECRETS, SERVICES, Resource
from unwind.kube.object_watch import until_absent
from unwind.preview.companion_preview import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.companions import CompanionController
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository

PRUNE_DISABLED = {"kustomize.toolkit.fluxcd.io/prune": "disabled"}


class PlanScene:
    """A cluster with a member that has nothing of other tests on it."""

    def __init__(self, cluster: TeardownScene, flux: FluxScene) -> None:
        self.cluster = cluster
        self.flux = flux

    async def policy(self, *sources: Object, **spec: Any) -> None:
        """The only policy of the cluster."""
        await self.forget_policies()
        patch = {"metadata": {"labels": {"env": self.cluster.name}}}
        await self.cluster.client.patch(CLUSTERS, self.cluster.name, patch, namespace=self.cluster.namespace)
        body = teardown_policy(self.cluster.name, {"env": self.cluster.name}, *sources, **spec)
        await self.cluster.client.create(TEARDOWN_POLICIES, body)

    async def forget_policies(self) -> None:
        for item in await self.cluster.client.list(TEARDOWN_POLICIES):
            if (meta := item["metadata"])["name"] == self.cluster.name:
                await self.cluster.client.delete(TEARDOWN_POLICIES, meta["name"], uid=meta["uid"])

    async def planned(self, target: str, *more: str, namespace: str = "", code: int) -> tuple[Object, dict[str, str]]:
        """The plan, which exits with this code also as a table, and why each object is left behind."""
        where = (target, "-n", namespace or self.cluster.namespace, *more)
        table = await command(self.cluster.management, "plan", *where)
        told = await command(self.cluster.management, "plan", *where, "-o", "json")
        assert (told.code, table.code) == (code, code), told.out + told.err
        assert ("Left behind, or not known:" in table.out) == (code == 4), table.out
        seen = json.loads(told.out)
        return seen, {item["object"]["name"]: item["why"] for item in seen["leaks"]}

    async def cluster_planned(self, *, code: int) -> tuple[Object, dict[str, str]]:
        return await self.planned(f"cluster/{self.cluster.name}", code=code)

    async def policy_planned(self, tmp_path: Path, *sources: Object) -> Object:
        """What `unwind plan --policy` says about the cluster."""
        await self.forget_policies()
        patch = {"metadata": {"labels": {"env": self.cluster.name}}}
        await self.cluster.client.patch(CLUSTERS, self.cluster.name, patch, namespace=self.cluster.namespace)
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.dump(teardown_policy("proposed", {"env": self.cluster.name}, *sources)))
        table = await command(self.cluster.management, "plan", "--policy", str(file))
        told = await command(self.cluster.management, "plan", "--policy", str(file), "-o", "json")
        assert (told.code, table.code) == (0, 0), told.err + table.err
        [seen] = json.loads(told.out)["clusters"]
        for item in (*seen["notCounted"], *(it["why"] for it in seen["elsewhere"])):
            assert " ".join(item.split()[:6]) in " ".join(table.out.split())
        found: Object = seen
        return found

    @property
    def database(self) -> Object:
        """A StatefulSet with a claim, in the namespace on the member."""
        body = stateful_set(self.cluster.on_member, "db", replicas=1)
        return {"apiVersion": "apps/v1", "kind": "StatefulSet", **body}


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str, module_member: LocalCluster) -> AsyncIterator[PlanScene]:
    await ensure_installed(plane.management.client)
    cluster = TeardownScene(plane.management, module_member, namespace)
    await cluster.begin()
    await cluster.lead_to(module_member.client.connection)
    async with artifacts() as server:
        made = PlanScene(cluster, FluxScene(cluster, FluxSources(plane.management.client, namespace, server)))
        yield made
        await made.forget_policies()
        await cluster.delete()
        await cluster.let_go()
        found = await module_member.client.get(NAMESPACES, cluster.on_member)
        await module_member.client.delete(NAMESPACES, cluster.on_member, uid=found["metadata"]["uid"])
        await until_absent(module_member.client, NAMESPACES, cluster.on_member)


async def test_a_cluster_that_cannot_be_read_is_not_known_whether_or_not_a_policy_selects_it(scene: PlanScene) -> None:
    await scene.cluster_planned(code=0)
    secret = await scene.cluster.secret()
    await scene.cluster.client.delete(
        SECRETS, secret["metadata"]["name"], uid=secret["metadata"]["uid"], namespace=scene.cluster.namespace
    )
    for policy in (False, True):
        if policy:
            await scene.policy({"kind": "Flux", "effort": "Try"})
        _, left = await scene.cluster_planned(code=4)
        assert "cannot read" in left[scene.cluster.name]


async def test_what_costs_money_is_left_behind_unless_a_policy_decides_about_it(scene: PlanScene) -> None:
    spec = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    body: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"}, "spec": spec}
    body["metadata"]["namespace"] = scene.cluster.on_member
    await scene.cluster.member.client.create(SERVICES, body)
    await scene.cluster_planned(code=0)
    await scene.policy({"kind": "Flux", "effort": "Enforce"})
    _, left = await scene.cluster_planned(code=4)
    assert left == {"shop": "load balancer: no TeardownPolicy drains it"}
    for effort in ("Leave", "Enforce"):
        await scene.policy({"kind": "Flux", "effort": "Enforce"}, drain={"loadBalancers": effort})
        await scene.cluster_planned(code=0)


async def test_profiles_that_leave_their_objects_are_a_choice(scene: PlanScene) -> None:
    await scene.cluster.add_on("left", behaviour="LeavePolicies", objects=1)
    for policy in (False, True):
        if policy:
            await scene.policy({"kind": "Flux", "effort": "Enforce"})
        seen, _ = await scene.cluster_planned(code=0)
        assert [item["object"]["name"] for item in seen["staying"]] == ["left-0"]


async def test_what_flux_leaves_is_left_behind_with_its_cluster_and_with_its_handle(
    scene: PlanScene, kustomize_controller: CompanionController
) -> None:
    flux, namespace = scene.flux, scene.cluster.namespace
    await flux.kustomization("apps", "apps-0", manifests=[flux.config_map("data", annotations=PRUNE_DISABLED)])
    await flux.kustomization("base", "base-0", manifests=[scene.database])
    await flux.kustomization("web", "web-0")
    await flux.sources.until_ready("apps", "base", "web")
    await until_claimed(scene.cluster.member.client, scene.cluster.on_member, "data-db-0")
    _, left = await scene.cluster_planned(code=4)
    assert set(left) == {"apps", "base", "web"}, "no policy"
    await scene.policy({"kind": "Flux", "effort": "Leave"}, drain={"volumes": "Leave"})
    await scene.cluster_planned(code=0)

    await scene.policy({"kind": "Flux", "effort": "Enforce"})
    seen, left = await scene.cluster_planned(code=4)
    assert set(left) == {"data", "data-db-0"}
    assert "prune is disabled" in left["data"]
    assert "a claim of StatefulSet db" in left["data-db-0"]
    assert seen["staying"] == []
    _, left = await scene.planned("kustomization/apps", code=4)
    assert "prune is disabled" in left["data"]
    _, left = await scene.planned("kustomization/base", code=4)
    assert set(left) == {"data-db-0"}
    await scene.planned("kustomization/web", code=0)

    # It would be given up, and what it deployed would stay.
    await scene.cluster.client.patch(KUSTOMIZATIONS, "web", {"spec": {"suspend": True}}, namespace=namespace)
    await scene.policy({"kind": "Flux", "effort": "Try"})
    seen, left = await scene.cluster_planned(code=4)
    assert set(left) == {"data", "data-db-0", "web"}
    assert "is suspended" in left["web"]
    assert seen["objects"][f"Kustomization/{namespace}/web"] == []
    assert [item["object"]["name"] for item in seen["staying"]] == ["web-0"]


async def test_what_helm_controller_leaves_is_left_behind(
    scene: PlanScene, helm_controller: CompanionController
) -> None:
    group = f"{scene.cluster.on_member}.helm.test"
    files = {"values.yaml": VALUES, "templates/a.yaml": SETTINGS}
    definition = yaml.dump(crd(Resource(group, "v1", "gadgets", "Gadget")))
    sources, secret, target = scene.flux.sources, scene.flux.secret, scene.cluster.on_member
    await sources.helm_release("clean", files, secret=secret, target=target)
    kept = files | {"templates/b.yaml": KEPT, "crds/gadget.yaml": definition}
    await sources.helm_release("kept", kept, secret=secret, target=target)
    await sources.until_ready("clean", "kept", resource=HELM_RELEASES)
    await scene.planned("helmrelease/clean", code=0)
    _, left = await scene.planned("helmrelease/kept", code=4)
    assert set(left) == {"kept-kept", f"gadgets.{group}"}
    await scene.policy({"kind": "Flux", "effort": "Enforce"})
    _, left = await scene.cluster_planned(code=4)
    assert set(left) == {"kept-kept", f"gadgets.{group}"}


async def test_what_caaph_leaves_is_left_behind(
    scene: PlanScene, caaph: CompanionController, charts: ChartRepository
) -> None:
    cluster = scene.cluster
    proxies = Proxies(cluster.client, charts, namespace=cluster.namespace, on_member=cluster.on_member)
    group = f"{cluster.on_member}.caaph.test"
    definition = yaml.dump(crd(Resource(group, "v1", "gadgets", "Gadget")))
    kept = config_maps("data", metadata="annotations: {helm.sh/resource-policy: keep}")
    web = {"templates/web.yaml": config_maps("web"), "templates/kept.yaml": kept, "crds/gadget.yaml": definition}
    leaving, clean = await proxies.deploy("web", templates=web), await proxies.deploy("clean")
    _, left = await scene.planned(f"helmreleaseproxy/{leaving.name}", code=4)
    assert set(left) == {"data", f"gadgets.{group}"}
    await scene.planned(f"helmreleaseproxy/{clean.name}", code=0)
    await scene.policy({"kind": "HelmReleaseProxy", "effort": "Enforce"})
    _, left = await scene.cluster_planned(code=4)
    assert set(left) == {"data", f"gadgets.{group}"}
    await proxies.clear()


async def test_what_helm_leaves_is_left_behind(scene: PlanScene, repository: ChartRepository) -> None:
    user = await HelmUser.of(scene.cluster, repository)
    database = scene.database
    del database["metadata"]["namespace"]
    templates = {"templates/a.yaml": SETTINGS, "templates/b.yaml": KEPT, "templates/c.yaml": yaml.dump(database)}
    repository.add("left-behind", {"values.yaml": VALUES, **templates})
    await user.install("shop", "left-behind")
    await user.install("clean", "web")
    await until_claimed(user.client, user.namespace, "data-db-0")
    on = ("--cluster", f"{scene.cluster.namespace}/{scene.cluster.name}")
    seen, left = await scene.planned("release/shop", *on, namespace=user.namespace, code=4)
    assert (set(left), seen["staying"]) == ({"shop-kept", "data-db-0"}, [])
    await scene.planned("release/clean", *on, namespace=user.namespace, code=0)
    helm = {"kind": "Helm", "effort": "Enforce", "selector": {"namespaces": [user.namespace], "names": ["*"]}}
    await scene.policy(helm)
    seen, left = await scene.cluster_planned(code=4)
    assert (set(left), seen["staying"]) == ({"shop-kept", "data-db-0"}, [])
    await scene.policy(helm | {"effort": "Leave"}, drain={"volumes": "Leave"})
    await scene.cluster_planned(code=0)


@pytest.mark.parametrize("target", ["configmap/kube-root-ca.crt", "namespace/default"])
async def test_other_targets_never_leave_anything_behind(scene: PlanScene, target: str) -> None:
    await scene.planned(target, code=0)


async def test_a_handle_in_another_namespace_is_shown_and_is_no_step_until_a_policy_names_its_namespace(
    scene: PlanScene, kustomize_controller: CompanionController, caaph: CompanionController, tmp_path: Path
) -> None:
    cluster, elsewhere = scene.cluster, f"{scene.cluster.namespace}-elsewhere"
    await cluster.management.create_namespace(elsewhere)
    meta = {"name": "copied", "namespace": elsewhere}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": (await cluster.secret())["data"]}
    await cluster.client.create(SECRETS, secret)
    for name, of in (("apps", "copied"), ("other", "another-cluster")):
        await cluster.client.create(KUSTOMIZATIONS, kustomization(name, elsewhere, secret=of))
    body = {
        "apiVersion": HELM_RELEASE_PROXIES.api_version,
        "kind": HELM_RELEASE_PROXIES.kind,
        "metadata": {"name": "web", "namespace": elsewhere},
        "spec": {
            "clusterRef": {"namespace": cluster.namespace, "name": cluster.name, "kind": "Cluster"},
            "chartName": "web",
            "repoURL": "https://charts.example.com",
            "namespace": "apps",
            "releaseName": "web",
        },
    }
    await cluster.client.create(HELM_RELEASE_PROXIES, body)
    _, left = await scene.cluster_planned(code=4)
    assert left == dict.fromkeys(("apps", "web"), NO_POLICY)
    sources = [{"kind": kind, "effort": "Enforce"} for kind in ("Flux", "HelmReleaseProxy")]
    await scene.policy(*sources)
    seen, left = await scene.cluster_planned(code=4)
    why = f"not a step: namespace {elsewhere} is in no sources[].namespaces of a TeardownPolicy"
    assert (left, seen["plan"].get("steps", [])) == (dict.fromkeys(("apps", "web"), why), [])
    shown = await scene.policy_planned(tmp_path, *sources)
    assert [step["name"] for step in shown["steps"]] == []
    assert [item["object"]["name"] for item in shown["elsewhere"]] == ["web", "apps"]
    named = [source | {"namespaces": [elsewhere]} for source in sources]
    shown = await scene.policy_planned(tmp_path, *named)
    steps = {f"Kustomization/{elsewhere}/apps", f"HelmReleaseProxy/{elsewhere}/web"}
    assert ({step["name"] for step in shown["steps"]}, shown["elsewhere"]) == (steps, [])


async def test_the_preview_of_a_policy_counts_releases_on_the_cluster_and_says_what_it_cannot_read(
    scene: PlanScene, repository: ChartRepository, tmp_path: Path
) -> None:
    user = await HelmUser.of(scene.cluster, repository)
    await user.install("clean", "web")
    helm = {"kind": "Helm", "effort": "Try", "selector": {"namespaces": [user.namespace], "names": ["*"]}}
    shown = await scene.policy_planned(tmp_path, helm)
    steps = [(step["name"], step["effort"]) for step in shown["steps"]]
    assert steps == [(f"Release/{user.namespace}/clean", "Try")]
    assert shown["notCounted"] == []
    secret = await scene.cluster.secret()
    await scene.cluster.client.delete(
        SECRETS, secret["metadata"]["name"], uid=secret["metadata"]["uid"], namespace=scene.cluster.namespace
    )
    shown = await scene.policy_planned(tmp_path, helm)
    [why] = shown["notCounted"]
    assert (shown["steps"], why.startswith("not counted: handles on the cluster itself, Helm releases")) == ([], True)
