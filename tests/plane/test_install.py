"""`unwind install` and `unwind uninstall` as a person calls them, on clusters of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from tests.eventually import eventually
from tests.plane.support.commands import command, run
from tests.plane.support.extension_registration import create_cluster, serve
from tests.plane.support.objects import absent, define, new_object, until_allowed
from unwind.api import names, sveltos, unwind
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.crds import DEFINITIONS
from unwind.api.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_ADMISSION_POLICIES,
    Resource,
)
from unwind.api.rights import Setting
from unwind.install.install import established
from unwind.install.manifests import called, manifests, resource_of
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.testing.managers import expecting_refusals

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


HOME = "unwind-system"


SECRET = 1
"""The one with the key of the paths, which no manifest shows."""


def deployment(namespace: str, name: str, image: str = "registry.example/app") -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return new_object(DEPLOYMENTS, name, namespace, spec=spec)


async def versions(cluster: LocalCluster) -> dict[str, str]:
    """The version of everything that install has put there; of policies, whose status comes later, the generation."""
    policies = VALIDATING_ADMISSION_POLICIES
    return {
        f"{manifest['kind']} {called(manifest)}": (
            await cluster.client.get(
                resource_of(manifest), manifest["metadata"]["name"], namespace=manifest["metadata"].get("namespace")
            )
        )["metadata"]["generation" if resource_of(manifest) == policies else "resourceVersion"]
        for manifest in manifests(Setting())
        if called(manifest) != "clusters.cluster.karmada.io" and resource_of(manifest) != EXTENSION_CONFIGS
    }


async def test_install_waits_for_rivals_to_stop_and_changes_nothing_the_second_time(fresh_member: LocalCluster) -> None:
    client = fresh_member.client
    for namespace in ("projectsveltos", "karmada-system", "kruise-system"):
        await fresh_member.create_namespace(namespace)
    await client.create(DEPLOYMENTS, deployment("projectsveltos", "addon-controller"))
    await client.create(DEPLOYMENTS, deployment("kruise-system", "kruise-controller-manager"))

    async def until_replicas(field: str, count: int | None) -> None:
        await object_watch.until(
            client,
            DEPLOYMENTS,
            "addon-controller",
            lambda it: it is not None and it.get("status", {}).get(field) == count,
            f"at {count} {field}",
            namespace="projectsveltos",
        )

    await until_replicas("availableReplicas", 1)
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    lease = {"holderIdentity": "host_1", "renewTime": now, "leaseDurationSeconds": 3600}
    await client.create(LEASES, new_object(LEASES, "karmada-controller-manager", "karmada-system", spec=lease))
    # Karmada serves its Clusters from an API server of its own, which does not answer here.
    service = {"namespace": "karmada-system", "name": "karmada-aggregated-apiserver"}
    priorities = {"groupPriorityMinimum": 2000, "versionPriority": 10}
    spec = {"group": "cluster.karmada.io", "version": "v1alpha1", "service": service, **priorities}
    spec["insecureSkipTLSVerify"] = True
    await client.create(API_SERVICES, new_object(API_SERVICES, "v1alpha1.cluster.karmada.io", spec=spec))

    refusal = (await command(fresh_member, "install")).refusal
    assert "Sveltos' addon-controller is running (Deployment projectsveltos/addon-controller, 1 of 1 avail" in refusal
    assert "kubectl -n projectsveltos scale deployment addon-controller --replicas=0" in refusal
    assert "Karmada's controller-manager is running (Lease karmada-system/karmada-controller-manager" in refusal
    assert await client.list(CUSTOM_RESOURCE_DEFINITIONS) == [], "it looks before it touches anything"
    assert await absent(fresh_member.client, NAMESPACES, HOME)

    await client.patch(DEPLOYMENTS, "addon-controller", {"spec": {"replicas": 0}}, namespace="projectsveltos")
    await until_replicas("replicas", None)
    free = {"spec": {"holderIdentity": ""}}
    await client.patch(LEASES, "karmada-controller-manager", free, namespace="karmada-system")

    first = await command(fresh_member, "install")
    home = await client.get(NAMESPACES, HOME)
    with pytest.raises(ApiError, match="ValidatingAdmissionPolicy"):  # no wait: the policies are in effect by now
        await client.delete(NAMESPACES, HOME, uid=home["metadata"]["uid"], dry_run=True)
    assert first.counts == {"created": len(manifests(Setting())) - 2 + SECRET, "left alone": 1, "left out": 1}
    without = "ExtensionConfig unwind-system left out (Cluster API is not installed: the manager registers"
    assert without in first.err
    elsewhere = "clusters.cluster.karmada.io"
    assert (
        f"{elsewhere} left alone (served by aggregated API server karmada-system/karmada-aggregated-apiserver)"
        in first.err
    )
    assert "warning: OpenKruise is running" in first.err
    crds = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
    assert {crd["metadata"]["name"] for crd in crds} == {definition.name for definition in DEFINITIONS} - {elsewhere}
    assert all(established(crd) for crd in crds), "who has installed wants to use it"

    before = await versions(fresh_member)
    second = await command(fresh_member, "install", "-o", "json")
    results = {item["result"] for item in msgspec.json.decode(second.out)["items"]}
    assert results == {"unchanged", "left alone", "left out"}
    assert await versions(fresh_member) == before

    await _check_rights(fresh_member)
    await _check_that_somebody_elses_service_account_is_not_taken_over(fresh_member)

    # What does not answer may hold objects that wait for us: then it is not known whether all would be let go.
    refusal = (await command(fresh_member, "uninstall", "--yes")).refusal
    assert "v1alpha1.cluster.karmada.io: it does not answer" in refusal
    assert await versions(fresh_member) == before


async def _check_rights(cluster: LocalCluster) -> None:
    manager = cluster.connection(f"system:serviceaccount:{HOME}:unwind")
    async with Client(manager) as client:
        await client.list(unwind.TEARDOWNS)
        await client.list(unwind.INVENTORIES, namespace=HOME)
        await client.list(SECRETS, namespace=HOME)
        await client.list(CUSTOM_RESOURCE_DEFINITIONS)
        await client.cluster_uid()
        # What there is of a kind has to be counted where it is protected: all are read, and none of these is written.
        for resource in (SECRETS, CONFIG_MAPS, PODS, SERVICES, unwind.INVENTORIES):
            await client.list(resource, namespace="default")
            with expecting_refusals(resource.plural), pytest.raises(ApiError) as refusal:
                await client.create(resource, new_object(resource, "ours", "default"))
            assert refusal.value.code == 403


async def _check_that_somebody_elses_service_account_is_not_taken_over(cluster: LocalCluster) -> None:
    await cluster.create_namespace("shared")
    await cluster.client.create(SERVICE_ACCOUNTS, new_object(SERVICE_ACCOUNTS, "unwind", "shared"))
    refusal = (await command(cluster, "install", "--namespace", "shared")).refusal
    assert "were not created by Unwind: ServiceAccount shared/unwind" in refusal
    taken = await cluster.client.get(SERVICE_ACCOUNTS, "unwind", namespace="shared")
    assert "labels" not in taken["metadata"]


# A release of Sveltos: two versions, a rule, an annotation and columns of its own, and not the field of the proposal.
FOREIGN = yaml.safe_load("""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusterprofiles.config.projectsveltos.io
  annotations: {controller-gen.kubebuilder.io/version: v0.21.0}
spec:
  group: config.projectsveltos.io
  names: {kind: ClusterProfile, listKind: ClusterProfileList, plural: clusterprofiles, singular: clusterprofile}
  scope: Cluster
  conversion: {strategy: None}
  versions:
  - name: v1alpha1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            properties:
              tier: {type: integer, format: int32, default: 50, minimum: 1}
              stopMatchingBehavior: {type: string, enum: [WithdrawPolicies, LeavePolicies], default: WithdrawPolicies}
              policyRefs:
                type: array
                items: {type: object, required: [name], properties: {name: {type: string}}}
              options: {type: object, additionalProperties: {type: string}}
            x-kubernetes-validations: [{rule: "self.tier < 1000", message: "theirs"}]
          status: {type: object, properties: {matchingClusters: {type: array, items: {type: object}}}}
""")


async def test_a_crd_of_somebody_elses_is_left_alone_and_adopting_only_adds_to_it(fresh_member: LocalCluster) -> None:
    client, name = fresh_member.client, FOREIGN["metadata"]["name"]
    profiles = sveltos.CLUSTER_PROFILES
    await define(client, FOREIGN)
    await client.create(profiles, new_object(profiles, "old", spec={"tier": 7, "policyRefs": [{"name": "a"}]}))
    await fresh_member.create_namespace(HOME)
    theirs = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)

    refusal = (await command(fresh_member, "install")).refusal
    assert name in refusal
    assert "--adopt-crds" in refusal
    assert len(await client.list(CUSTOM_RESOURCE_DEFINITIONS)) == 1, "it looks before it touches anything"

    told = await command(fresh_member, "install", "--adopt-crds")
    assert told.counts == {
        "left alone": 1,
        "adopted": 1,
        "created": len(manifests(Setting())) - 3 + SECRET,
        "left out": 1,
    }
    adopted = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    _check_only_added(theirs, adopted)

    before = adopted["metadata"]["resourceVersion"]
    assert (await command(fresh_member, "install", "--adopt-crds")).counts["unchanged"] == len(
        manifests(Setting())
    ) - 2 + SECRET
    adopted = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    assert adopted["metadata"]["resourceVersion"] == before

    strict = new_object(profiles, "strict", spec={"clusterDeletionBehavior": "EnforceRemovePolicies"})
    await _until_kept(client, profiles, strict)
    with pytest.raises(ApiError, match="Unsupported value"):
        await client.create(profiles, new_object(profiles, "bad", spec={"clusterDeletionBehavior": "Typo"}))

    gone = await command(fresh_member, "uninstall", "--yes")
    assert gone.counts["kept"] == 1, "the namespace was there before, and no CRD of ours has objects"
    assert f"kept added fields of CRD {name}" in gone.out
    kept = await client.get(profiles, "strict", type=sveltos.ClusterProfile)
    assert kept.spec.deletion is sveltos.ClusterDeletionBehavior.ENFORCE
    assert [crd["metadata"]["name"] for crd in await client.list(CUSTOM_RESOURCE_DEFINITIONS)] == [name]
    assert not await absent(fresh_member.client, NAMESPACES, HOME)


def _check_only_added(theirs: Object, adopted: Object) -> None:
    old, new = (crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"] for crd in (theirs, adopted))
    spec = new["spec"]["properties"]
    assert spec["clusterDeletionBehavior"]["default"] == "RemovePolicies"
    assert "tier" in spec["policyRefs"]["items"]["properties"]
    fields = adopted["metadata"]["annotations"].pop(names.ADOPTED_FIELDS_ANNOTATION).split(",")
    assert {"spec.clusterDeletionBehavior", "spec.policyRefs[].tier", "status.conditions"} <= set(fields)

    # Without what was noted as added, it is what it was.
    for field in fields:
        node = adopted["spec"]["versions"][1]["schema"]["openAPIV3Schema"]
        *parents, last = field.split(".")
        for part in parents:
            node = node["properties"][part.removesuffix("[]")]
            node = node["items"] if part.endswith("[]") else node
        del node["properties"][last]
    assert new == old
    assert adopted["spec"] == theirs["spec"]
    assert adopted["metadata"]["annotations"] == theirs["metadata"]["annotations"]
    assert adopted["metadata"].get("labels") is None


async def _until_kept(client: Client, resource: Resource, wanted: Object) -> None:
    """A changed CRD is heeded a moment after it is written."""

    async def kept() -> bool:
        return "clusterDeletionBehavior" in (await client.apply(resource, wanted))["spec"]

    await eventually(kept, "a field that the CRD keeps", within=30)


def teardown(phase: str) -> Object:
    target = {"kind": "Cluster", "namespace": "default", "name": "prod-7", "uid": "u-1"}
    spec = {"title": "Cluster default/prod-7", "target": target, "cause": "ClusterDeleted"}
    return new_object(unwind.TEARDOWNS, "u-1", spec=spec, status={"phase": phase})


async def test_uninstall_waits_for_teardowns_keeps_data_unless_told_and_leaves_nothing(
    fresh_member: LocalCluster,
) -> None:
    client = fresh_member.client
    assert (await command(fresh_member, "install", "--url", "https://127.0.0.1:9443")).code == 0
    assert (await command(fresh_member, "install")).counts["created"] == 1, "now with the Service"

    await client.create(unwind.TEARDOWNS, teardown("Removing"))
    refusal = (await command(fresh_member, "uninstall", "--yes")).refusal
    assert "unfinished teardowns: u-1 (Cluster default/prod-7, Pending)" in refusal
    await client.patch(unwind.TEARDOWNS, "u-1", {"status": {"phase": "Complete"}}, subresource="status")

    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    lease = {"holderIdentity": "replica-a", "renewTime": now, "leaseDurationSeconds": 3600}
    await client.create(LEASES, new_object(LEASES, "unwind-shard-00", HOME, spec=lease))
    assert "a manager is running (replica-a)" in (await command(fresh_member, "uninstall", "--yes")).refusal
    await client.patch(LEASES, "unwind-shard-00", {"spec": {"holderIdentity": ""}}, namespace=HOME)
    assert "use --yes" in (await command(fresh_member, "uninstall")).refusal

    # An object that waits for us, one that waits for somebody else as well, and what was deployed.
    held = new_object(CONFIG_MAPS, "held", "default")
    held["metadata"]["finalizers"] = ["unwind.dev/external"]
    uid = (await client.create(CONFIG_MAPS, held))["metadata"]["uid"]
    await client.delete(CONFIG_MAPS, "held", namespace="default", uid=uid)
    both = new_object(SECRETS, "both", "default")
    both["metadata"]["finalizers"] = ["example.io/theirs", "unwind.dev/credentials"]
    await client.create(SECRETS, both)
    # In place of a Machine: the annotation is removed from every kind.
    machine = new_object(CONFIG_MAPS, "machine", "default")
    machine["metadata"]["annotations"] = {names.MACHINE_GATE_ANNOTATION: "unwind", "example.io/theirs": "stays"}
    await client.create(CONFIG_MAPS, machine)
    spec = {
        "owner": {"kind": "ClusterSummary", "name": "s"},
        "member": {"object": {"kind": "Cluster", "name": "prod-7"}, "systemUid": "u-3"},
    }
    inventory = new_object(unwind.INVENTORIES, "i", HOME, spec=spec)
    inventory["metadata"]["finalizers"] = [names.Finalizer.INVENTORY.value]
    await client.create(unwind.INVENTORIES, inventory)

    first = await command(fresh_member, "uninstall", "--yes")
    assert first.counts == {"deleted": len(manifests(Setting())) - 4 + SECRET, "finalizers removed": 4, "kept": 3}
    assert "kept CustomResourceDefinition teardowns.unwind.dev: it has 1 object" in first.out
    assert f"kept Namespace {HOME}: it contains Inventory i" in first.out
    assert await absent(fresh_member.client, CONFIG_MAPS, "held", namespace="default")
    released = await client.get(SECRETS, "both", namespace="default")
    assert released["metadata"]["finalizers"] == ["example.io/theirs"]
    assert "finalizers" not in (await client.get(unwind.INVENTORIES, "i", namespace=HOME))["metadata"]
    disarmed = await client.get(CONFIG_MAPS, "machine", namespace="default")
    assert disarmed["metadata"]["annotations"] == {"example.io/theirs": "stays"}

    # Somebody put something of theirs into our namespace: it stays, until they take it out.
    await client.create(CONFIG_MAPS, new_object(CONFIG_MAPS, "theirs", HOME))
    second = await command(fresh_member, "uninstall", "--yes", "--delete-crds")
    assert second.counts == {"deleted": 2, "finalizers removed": 0, "kept": 1}
    assert "CustomResourceDefinition teardowns.unwind.dev deleted, with 1 object" in second.err
    assert f"kept Namespace {HOME}: it contains ConfigMap theirs" in second.out
    theirs = await client.get(CONFIG_MAPS, "theirs", namespace=HOME)
    await client.delete(CONFIG_MAPS, "theirs", namespace=HOME, uid=theirs["metadata"]["uid"])

    assert (await command(fresh_member, "uninstall", "--yes")).counts == {
        "deleted": 1,
        "finalizers removed": 0,
        "kept": 0,
    }
    for manifest in manifests(Setting()):
        metadata = manifest["metadata"]
        where = {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
        if resource_of(manifest) != EXTENSION_CONFIGS:  # which is not served here
            assert await absent(fresh_member.client, resource_of(manifest), metadata["name"], **where)
    assert (await command(fresh_member, "uninstall", "--yes")).out == "Unwind is not installed.\n"


async def test_install_succeeds_beside_a_running_sveltos_without_the_feature_that_replaces_it(
    fresh_member: LocalCluster,
) -> None:
    await fresh_member.create_namespace("projectsveltos")
    await fresh_member.client.create(DEPLOYMENTS, deployment("projectsveltos", "addon-controller"))
    for features in ("capi,flux", "capi,flux,protection"):  # protection looks for a rival of its own
        assert (await command(fresh_member, "install", "--features", features, features="")).code == 0
    served = {crd["metadata"]["name"] for crd in await fresh_member.client.list(CUSTOM_RESOURCE_DEFINITIONS)}
    assert "teardownpolicies.unwind.dev" in served
    assert not [name for name in served if name.endswith("projectsveltos.io")]
    refusal = (await command(fresh_member, "install", "--features", "addons,capi,flux", features="")).refusal
    assert "Sveltos' addon-controller is running" in refusal


async def test_clusters_that_unwind_paused_are_unpaused_and_held_ones_refuse_to_uninstall(
    plane: Plane, fresh_member: LocalCluster
) -> None:
    client = fresh_member.client
    await serve(plane, client)
    assert (await command(fresh_member, "install", "--features", "addons,capi,gates,protection")).code == 0
    ours, theirs = {names.PAUSED_ANNOTATION: names.PAUSED_BY_GATE}, {names.PAUSED_ANNOTATION: "true"}
    await create_cluster(client, "living", annotations=ours | {"example.io/theirs": "stays"})
    await create_cluster(client, "paused", annotations=theirs)
    held = await create_cluster(client, "held", annotations=ours, finalizers=["example.io/theirs"])
    uid = held["metadata"]["uid"]
    await until_allowed(partial(client.delete, CLUSTERS, "held", uid=uid, namespace="default"))

    refusal = (await command(fresh_member, "uninstall", "--yes")).refusal
    assert "Clusters are being deleted and held: default/held" in refusal
    removed = (await command(fresh_member, "install", "--features", "addons,capi,protection")).refusal
    assert "Cluster default/living" in removed
    free = {"metadata": {"finalizers": None}}
    await client.patch(CLUSTERS, "held", free, namespace="default")
    assert (await command(fresh_member, "uninstall", "--yes")).code == 0
    living, paused = [await client.get(CLUSTERS, name, namespace="default") for name in ("living", "paused")]
    assert living["metadata"]["annotations"] == {"example.io/theirs": "stays"}
    assert paused["metadata"]["annotations"] == theirs


async def test_an_api_server_without_admission_policies_is_refused_before_anything_is_changed(
    fresh_member: LocalCluster,
) -> None:
    # As before Kubernetes 1.30.
    kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    server = fresh_member.api_server
    await server.stop()
    server.argv += [
        "--disable-admission-plugins=ValidatingAdmissionPolicy",
        f"--runtime-config={','.join(f'admissionregistration.k8s.io/v1/{kind}=false' for kind in kinds)}",
    ]
    await server.start()
    refusal = (await command(fresh_member, "install")).refusal
    assert "does not serve ValidatingAdmissionPolicies; use a cluster with Kubernetes 1.30 or later" in refusal
    assert await fresh_member.client.list(CUSTOM_RESOURCE_DEFINITIONS) == []
    assert await absent(fresh_member.client, NAMESPACES, HOME)


async def test_without_a_cluster_manifests_are_printed_and_the_rest_is_one_line(tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    printed = await run("install", "--dry-run", "-o", "yaml", "--namespace", "mine", kubeconfig=nowhere)
    assert list(yaml.safe_load_all(printed.out)) == manifests(Setting(namespace="mine"))
    listed = await run("install", "--dry-run", "-o", "json", kubeconfig=nowhere)
    assert msgspec.json.decode(listed.out)["items"] == manifests(Setting())

    group = await run("crds", "--group", "unwind.dev", kubeconfig=nowhere)
    assert [crd["spec"]["names"]["kind"] for crd in yaml.safe_load_all(group.out)] == [
        "Teardown",
        "Inventory",
        "TeardownPolicy",
    ]
    assert "valid: cluster.karmada.io" in (await run("crds", "--group", "x", kubeconfig=nowhere)).refusal
    for name in ("install", "uninstall"):
        assert str(nowhere) in (await run(name, kubeconfig=nowhere)).refusal
    assert "use https://HOST:PORT" in (await run("install", "--dry-run", "--url", "x", kubeconfig=nowhere)).refusal
