"""`kubectl delete cluster` prints what is removed from the cluster, and how to follow it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.eventually import eventually
from tests.plane.support.commands import command, kubectl
from tests.plane.support.extension_registration import HOME, create_cluster, discovered, serve
from tests.plane.support.manager_process import running
from unwind.api.capi import CLUSTERS
from unwind.api.karmada import CLUSTERS as MEMBERS
from unwind.api.karmada import WORKS
from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import CLUSTER_PROFILES

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

HOLD = "example.dev/hold"


def _typed(resource: Resource) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind}


async def ready(client: Client, name: str, *, namespace: str = "default", topology: bool = True) -> None:
    """A Cluster that add-ons match."""
    metadata = {"name": name, "namespace": namespace, "finalizers": [HOLD]}
    endpoint = {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 1}}
    spec = {"topology": {"classRef": {"name": "stub"}, "version": "v1.36.3"}} if topology else endpoint
    await client.create(CLUSTERS, {**_typed(CLUSTERS), "metadata": metadata, "spec": spec})
    status = {"initialization": {"controlPlaneInitialized": True}}
    await client.patch(CLUSTERS, name, {"status": status}, namespace=namespace, subresource="status")


async def profile(client: Client, cluster: str, behaviour: str, *, namespace: str = "default") -> None:
    reference = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster", "name": cluster, "namespace": namespace}
    body: dict[str, Any] = {
        **_typed(CLUSTER_PROFILES),
        "metadata": {"generateName": f"{cluster}-"},
        "spec": {"clusterRefs": [reference], "clusterDeletionBehavior": behaviour},
    }
    await client.create(CLUSTER_PROFILES, body)


async def member(client: Client, name: str, strategy: str, works: int, *, mode: str = "Push") -> None:
    spec = {"syncMode": mode, "removeStrategy": strategy}
    await client.create(MEMBERS, {**_typed(MEMBERS), "metadata": {"name": name, "finalizers": [HOLD]}, "spec": spec})
    home = f"karmada-es-{name}"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}})
    for number in range(works):
        metadata = {"name": f"work-{number}", "namespace": home}
        await client.create(WORKS, {**_typed(WORKS), "metadata": metadata, "spec": {"workload": {"manifests": []}}})


async def delete(cluster: LocalCluster, *options: str, target: str, namespace: str = "default") -> list[str]:
    """The warnings of the API server that kubectl prints."""
    done = await kubectl(cluster.kubeconfig, "delete", target, "-n", namespace, "--wait=false", *options)
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("Warning: ") for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    # This one is of kubectl itself.
    return [line for line in told if not line.startswith("deleting cluster-scoped resources")]


async def test_kubectl_delete_cluster_says_what_is_removed_first(plane: Plane, fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    await serve(plane, client)
    assert (await command(fresh_member, "install")).code == 0
    kubeconfig = fresh_member.write_kubeconfig(
        f"system:serviceaccount:{HOME}:unwind", groups=("system:serviceaccounts",)
    )
    async with running(fresh_member, HOME, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("https")
        address = manager.addresses["https"]
        assert (await command(fresh_member, "install", "--url", f"https://{address}")).code == 0
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        await ready(client, "none")
        await ready(client, "one")
        await ready(client, "many")
        await ready(client, "many", namespace="team")
        await ready(client, "unclassed", topology=False)
        await profile(client, "one", "EnforceRemovePolicies")
        for behaviour in ("EnforceRemovePolicies", "EnforceRemovePolicies", "RemovePolicies", "LeavePolicies"):
            await profile(client, "many", behaviour)
        await profile(client, "many", "RemovePolicies", namespace="team")
        await profile(client, "unclassed", "EnforceRemovePolicies")
        await member(client, "required", "Required", 2)
        await member(client, "needless", "Needless", 1)
        await member(client, "pulled", "Required", 1, mode="Pull")

        clusters, members = f"{CLUSTERS.plural}.{CLUSTERS.group}", f"{MEMBERS.plural}.{MEMBERS.group}"
        waits = "Cluster API does not wait for that"
        blocking = "will be removed if possible, without blocking the deletion"
        expected = [
            ("default", f"{clusters}/one", "1 add-on will be removed first", "one"),
            (
                "default",
                f"{clusters}/many",
                f"2 add-ons will be removed first, 1 add-on {blocking}, 1 add-on will be left in place",
                "default/many",
            ),
            ("team", f"{clusters}/many", f"1 add-on {blocking}", "team/many"),
            (
                "default",
                f"{clusters}/unclassed",
                f"1 add-on will be removed, but {waits}: the Cluster has no ClusterClass",
                "unclassed",
            ),
            ("default", f"{members}/required", "the objects of 2 Works will be removed first", "required"),
            ("default", f"{members}/needless", "the objects of 1 Work will be left in place", "needless"),
        ]
        preview = partial(delete, fresh_member, "--dry-run=server")

        async def undiscovered() -> bool:
            told = await preview(target=f"{clusters}/one")
            return bool(told) and f"{waits}: Cluster API has not discovered" in told[0]

        await eventually(undiscovered, "the warning about the gate")
        await discovered(client)
        for namespace, target, what, name in expected:
            text = f"{what}; follow with: unwind status {name}"

            async def told(namespace: str = namespace, target: str = target, text: str = text) -> bool:
                # The API server and the caches need a moment to know all of this.
                return await preview(target=target, namespace=namespace) == [text]

            await eventually(told, f"the warning {text!r}")
            assert await delete(fresh_member, target=target, namespace=namespace) == [text]
            # Only the first deletion is one.
            assert await delete(fresh_member, target=target, namespace=namespace) == []
        for target in (f"{clusters}/none", f"{members}/pulled"):
            assert await delete(fresh_member, target=target) == []
        assert await manager.stop() == 0
    # Without a manager, the deletion succeeds without a warning.
    await create_cluster(client, "late", finalizers=[HOLD])
    assert await delete(fresh_member, target=f"{clusters}/late") == []
