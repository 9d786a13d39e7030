"""Unwind as it is installed by default, on a plane of its own: no kinds of Sveltos or Karmada, and few rights."""

from __future__ import annotations

from tests.e2e.gated_clusters import Balancer, Ground, new_namespace
from tests.plane.support.commands import command
from tests.plane.support.manager_process import running
from unwind.api.capi import CLUSTERS
from unwind.api.features import DEFAULT
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from unwind.api.rights import HOME, Right
from unwind.kube.object_watch import until_absent
from unwind.local import plane as planes
from unwind.local.capi import create_cluster, until_available
from unwind.local.home import Shape
from unwind.testing import managers

GATES = "ResourcesDeletionProtection=true"


async def test_clusters_are_gated_and_objects_deleted_with_the_default_features() -> None:
    async with planes.running(Shape(members=1, capi=True), announce=print) as plane, Balancer() as balancer:
        ground = Ground(plane, balancer)
        management, client = plane.management, plane.management.client
        installed = await command(management, "install", "--url", balancer.url, features="")
        assert installed.code == 0, installed.err
        served = {crd["spec"]["group"] for crd in await client.list(CUSTOM_RESOURCE_DEFINITIONS)}
        assert not {group for group in served if "karmada" in group or "sveltos" in group}
        shop = new_namespace()
        await management.create_namespace(shop)
        await client.create(CONFIG_MAPS, {"metadata": {"name": "prices", "namespace": shop}})
        namespaces = Right("", ("namespaces", "configmaps"), ("get", "list", "watch", "delete", "patch"))
        await managers.grant(client, "shops", namespaces)

        kubeconfig = await managers.manager_kubeconfig(management, HOME, features=DEFAULT)
        async with running(management, HOME, "--feature-gates", GATES, kubeconfig=kubeconfig) as manager:
            await manager.until_ready("https")
            balancer.add(manager.addresses["https"])
            assert [entry["features"] for entry in manager.logged if entry["event"] == "started"] == ["capi,protection"]
            await ground.until_discovered()

            # Cluster API asks before it deletes a Cluster, and nothing has to be removed.
            where = new_namespace()
            await management.create_namespace(where)
            await create_cluster(client, name="prod", namespace=where, member="member-1")
            await until_available(client, name="prod", namespace=where)
            cluster = await client.get(CLUSTERS, "prod", namespace=where)
            await client.delete(CLUSTERS, "prod", namespace=where, uid=cluster["metadata"]["uid"])
            await until_absent(client, CLUSTERS, "prod", namespace=where)
            allowed = await manager.until_logged("cluster deletion allowed")
            assert allowed["uid"] == cluster["metadata"]["uid"], "Cluster API asked"

            # A requested deletion.
            deleted = await command(management, "delete", f"ns/{shop}", "--yes")
            assert deleted.code == 0, deleted.err
            await until_absent(client, NAMESPACES, shop)
            await manager.stop()
            wrong = [entry for entry in manager.logged if "watch failed" in entry["event"]]
            assert wrong == []
        managers.check_requests(management)
