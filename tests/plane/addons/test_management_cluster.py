"""Add-ons on the management cluster itself, and what a profile of a namespace may read and write."""

from __future__ import annotations

import msgspec
import pytest

from tests.plane.support.addon_site import CREATED, FAILED, AddonSite, outcomes
from unwind.addons import policy_refs
from unwind.api.resources import CONFIG_MAPS
from unwind.api.rights import HOME, Right
from unwind.api.sveltos import PolicyRef
from unwind.api.unwind import TEARDOWNS
from unwind.deploy.deployment import deploy
from unwind.members.members import Members
from unwind.testing.managers import granting, manager_client

# What a person has to grant for ConfigMaps to be deployed to the management cluster itself.
LOCAL = (Right("", ("configmaps",), ("create", "patch", "delete")),)


async def test_deployment_type_local_deploys_to_the_management_cluster(site: AddonSite) -> None:
    owner = site.owner()
    local = msgspec.structs.replace(await site.source("l", site.config_map("local")), deployment_type="Local")
    remote = await site.source("r", site.config_map("remote"))
    read = await site.read(remote, local)
    assert [item.local for item in read] == [False, True]
    granted = granting(site.here, f"local-{site.namespace}", *LOCAL)
    async with granted, manager_client(site.here, HOME) as own, Members(own) as fleet, fleet.management() as home:
        for member in (site.member, home):
            some = [item for item in read if item.local is (member is home)]
            assert (await deploy(member, site.inventories, owner, some)).counts == {CREATED: 1}
        chunks = await site.inventories.of(owner.uid)
        assert [chunk.spec.chunk for chunk in chunks] == [0, 1]
        assert [chunk.spec.member.object for chunk in chunks] == [site.member.ref, home.ref]
        assert (await site.here.get(CONFIG_MAPS, "local", namespace=site.namespace))["metadata"]["labels"]
        assert await site.get("remote")
        # Each is pruned on its own cluster only.
        report = await deploy(home, site.inventories, owner, [])
        gone = await site.pruned(owner, report, member=home)
        assert [item.object.name for item in gone] == ["local"]
    assert list(await site.entries(owner)) == ["remote"]


async def test_a_namespaced_profile_deploys_to_its_namespace_of_the_management_cluster_only(site: AddonSite) -> None:
    owner = site.owner()
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "all"}}
    read = await site.read(await site.source("s", role, site.config_map("mine")))
    granted = granting(site.here, f"local-{site.namespace}", *LOCAL)
    async with granted, manager_client(site.here, HOME) as own, Members(own) as fleet, fleet.management() as home:
        report = await deploy(home, site.inventories, owner, read, within=site.namespace)
    assert outcomes(report) == {"mine": CREATED, "all": FAILED}


async def test_a_profile_deploys_no_object_that_controls_the_manager(site: AddonSite) -> None:
    owner = site.owner()
    forged = {
        "apiVersion": TEARDOWNS.api_version,
        "kind": TEARDOWNS.kind,
        "metadata": {"name": f"forged-{site.namespace}"},
        "spec": {"title": "forged", "target": {"kind": "Cluster", "name": "x"}, "cause": "ClusterDeleted"},
    }
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ours", "namespace": HOME}}
    read = await site.read(await site.source("s", forged, ours, site.config_map("mine")))
    async with Members(site.here) as fleet, fleet.management() as home:
        report = await deploy(home, site.inventories, owner, read)
    assert outcomes(report) == {"mine": CREATED, "ours": FAILED, forged["metadata"]["name"]: FAILED}  # type: ignore[index]
    assert "may not deploy objects of Unwind to the management cluster" in report.trouble


async def test_a_namespaced_profile_reads_sources_of_its_namespace_only(site: AddonSite) -> None:
    ref = PolicyRef(kind="ConfigMap", name="kube-root-ca.crt", namespace="kube-system")
    [source] = await policy_refs.read_sources(site.own, [ref], namespace=site.namespace, tenant=site.namespace)
    assert source.manifests == ()
    assert "cannot reference another namespace" in source.faults[0]


async def test_a_template_is_refused_as_a_whole(site: AddonSite) -> None:
    await site.source("s", site.config_map("it"))
    patch = {"metadata": {"annotations": {"projectsveltos.io/template": "ok"}}}
    await site.here.patch(CONFIG_MAPS, "s", patch, namespace=site.namespace)
    with pytest.raises(policy_refs.UnsupportedError, match=r"annotation projectsveltos\.io/template"):
        await site.read(PolicyRef(kind="ConfigMap", name="s"))
