"""What tenants attempt in the table of threats, and that it is refused or has no effect."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from tests.plane.support.cluster_teardowns import CapiCluster
from tests.plane.support.objects import new_object
from tests.plane.support.profiles import ProfileScene, config_map
from unwind.api import capi, karmada, sveltos, unwind
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import (
    CLUSTER_UID_ANNOTATION,
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    MEMBER_LABEL,
    OWNER_LABEL,
    OWNERS_ANNOTATION,
    RESOURCE_ANNOTATION,
    Finalizer,
)
from unwind.api.resources import CONFIG_MAPS, LEASES, NAMESPACES, Resource
from unwind.api.rights import HOME
from unwind.kube import object_watch
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unwind.kube.client import Client, Object


class Stage(NamedTuple):
    """What a row is carried out on."""

    victim: ProfileScene
    """Another team's namespace, with a SveltosCluster `edge`; the administrator's client."""
    tenant: Client
    """The tenant's client, with the rights of the row and no others."""
    user: str
    namespace: str
    """The tenant's namespace."""


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The API server refuses it by one of Unwind's policies, and not because RBAC does."""
    with pytest.raises(ApiError) as caught:
        yield
    message = str(caught.value)
    assert "ValidatingAdmissionPolicy 'unwind" in message, message
    assert all(part in message for part in parts), message


# ClusterSummaries


async def summaries_are_not_written(it: Stage) -> None:
    kind = sveltos.CLUSTER_SUMMARIES
    for cluster in (it.victim.namespace, it.namespace):
        spec = {
            "clusterType": "Sveltos",
            "clusterNamespace": cluster,
            "clusterName": "edge",
            "clusterProfileSpec": {"policyRefs": [{"kind": "ConfigMap", "namespace": it.namespace, "name": "evil"}]},
        }
        with refused("created by Unwind only"):
            await it.tenant.create(kind, new_object(kind, "planted", it.namespace, spec=spec))


async def summaries_are_not_changed(it: Stage) -> None:
    """One of the tenant's own namespace, which the manager made."""
    kind, victim = sveltos.CLUSTER_SUMMARIES, it.victim
    await victim.source("web", config_map(victim.namespace, "a"))
    await victim.profile("web", "web")
    await victim.until_provisioned("web")
    name, namespace = victim.summary_name("web"), victim.namespace
    changes: list[tuple[Object, str]] = [
        ({"spec": {"clusterProfileSpec": {"policyRefs": []}}}, "the spec of a ClusterSummary"),
        ({"metadata": {"ownerReferences": None}}, "the ownerReferences"),
        ({"metadata": {"finalizers": None}}, f"the finalizer {Finalizer.SUMMARY.value}"),
        ({"metadata": {"annotations": {CLUSTER_UID_ANNOTATION: "another"}}}, "labels and annotations"),
        ({"metadata": {"annotations": {CLUSTER_UID_ANNOTATION: None}}}, "labels and annotations"),
    ]
    for patch, why in changes:
        with refused(why):
            await it.tenant.patch(kind, name, patch, namespace=namespace)
    meta = (await victim.summary("web")).metadata
    with refused("deleted by Unwind only"):
        await it.tenant.delete(kind, name, uid=meta.uid, namespace=namespace)
    # What is not Unwind's is the tenant's to write.
    note = {"metadata": {"annotations": {"example.dev/note": "seen"}}}
    await it.tenant.patch(kind, name, note, namespace=namespace)
    assert set(await victim.on_member()) == {"a"}


# Profiles


def _profile(kind: Resource, namespace: str, *refs: Object, **spec: Any) -> Object:
    wanted = {"clusterSelector": {"matchLabels": {"no": "cluster"}}, "policyRefs": list(refs), **spec}
    return new_object(kind, f"evil-{namespace}", namespace if kind.namespaced else "", spec=wanted)


def _ref(kind: str, namespace: str, **more: str) -> Object:
    return {"kind": kind, "namespace": namespace, "name": "any", **more}


def _chart(*values: Object) -> Object:
    return {
        "repositoryURL": "https://charts.example",
        "releaseName": "app",
        "releaseNamespace": "app",
        "valuesFrom": list(values),
    }


async def a_profile_reads_no_secret_that_its_author_may_not(it: Stage) -> None:
    kind = sveltos.PROFILES
    for bad in (
        _profile(kind, it.namespace, _ref("Secret", it.namespace)),
        _profile(kind, it.namespace, helmCharts=[_chart(_ref("Secret", it.namespace))]),
    ):
        with refused("may not get the secrets", f"in namespace {it.namespace}"):
            await it.tenant.create(kind, bad)
    with refused("deploymentType Local requires the verb deploy-local"):
        await it.tenant.create(kind, _profile(kind, it.namespace, _ref("ConfigMap", "", deploymentType="Local")))
    await it.tenant.create(kind, _profile(kind, it.namespace, _ref("ConfigMap", it.namespace)))
    edit = {"spec": {"policyRefs": [_ref("Secret", it.namespace)]}}
    with refused("may not get the secrets"):
        await it.tenant.patch(kind, f"evil-{it.namespace}", edit, namespace=it.namespace)


async def a_profile_of_a_namespace_reaches_no_cluster_of_another(it: Stage) -> None:
    """The manager derives no summary from it, and reads nothing outside of its namespace."""
    kind, victim = sveltos.PROFILES, it.victim
    await it.victim.client.create(
        CONFIG_MAPS,
        config_map(it.namespace, "evil", **{"all.yaml": yaml.dump(config_map(victim.namespace, "evil"))}),
    )
    reference = {
        "apiVersion": sveltos.SVELTOS_CLUSTERS.api_version,
        "kind": "SveltosCluster",
        "namespace": victim.namespace,
        "name": "edge",
    }
    wanted = {
        "clusterSelector": {"matchLabels": victim.label},
        "clusterRefs": [reference],
        "policyRefs": [{"kind": "ConfigMap", "name": "evil", "namespace": it.namespace}],
    }
    await it.tenant.create(kind, new_object(kind, "evil", it.namespace, spec=wanted))
    found = await object_watch.until(
        victim.client,
        kind,
        "evil",
        lambda one: bool(one and (one.get("status") or {}).get("conditions")),
        "looked at",
        namespace=it.namespace,
        within=30,
    )
    assert found
    assert not found["status"].get("matchingClusters")
    assert await victim.client.list(sveltos.CLUSTER_SUMMARIES, namespace=it.namespace) == []
    assert await victim.on_member() == {}


async def a_cluster_profile_reads_nothing_that_its_author_may_not(it: Stage) -> None:
    kind = sveltos.CLUSTER_PROFILES
    for refs, charts, why in (
        ([_ref("Secret", it.victim.namespace)], [], "may not get the secrets"),
        ([_ref("ConfigMap", it.victim.namespace)], [], "may not get the configmaps"),
        ([], [_chart(_ref("Secret", "kube-system"))], "may not get the secrets"),
        # The right is for one namespace: a reference to a second one, or to that of each cluster, needs it in all.
        (
            [_ref("ConfigMap", it.namespace), _ref("ConfigMap", "kube-system")],
            [],
            "require this right in all namespaces",
        ),
        ([_ref("ConfigMap", "")], [], "require this right in all namespaces"),
        ([_ref("ConfigMap", it.namespace, deploymentType="Local")], [], "may not deploy to the management cluster"),
    ):
        with refused(why):
            await it.tenant.create(kind, _profile(kind, it.namespace, *refs, helmCharts=charts))
    many = [_ref("ConfigMap", it.namespace) | {"name": f"c-{number}"} for number in range(50)]
    await it.tenant.create(kind, _profile(kind, it.namespace, *many, helmCharts=[_chart(*many)]))


# Clusters


async def a_karmada_cluster_sends_no_token_that_its_author_may_not_read(it: Stage) -> None:
    kind = karmada.CLUSTERS
    secret = {"namespace": it.victim.namespace, "name": "edge-sveltos-kubeconfig"}
    spec = {
        "syncMode": "Push",
        "apiEndpoint": "https://evil.example",
        "insecureSkipTLSVerification": True,
        "secretRef": secret,
    }
    name = f"evil-{it.namespace}"
    with refused(f"may not get Secret {it.victim.namespace}/edge-sveltos-kubeconfig"):
        await it.tenant.create(kind, new_object(kind, name, spec=spec))
    made = await it.tenant.create(kind, new_object(kind, name, spec={"syncMode": "Push"}))
    for change in (spec, {"secretRef": secret}):
        with refused("may not get Secret"):
            await it.tenant.patch(kind, name, {"spec": change})
    await it.tenant.delete(kind, name, uid=made["metadata"]["uid"])


async def a_sveltos_cluster_uses_no_secret_that_its_author_may_not_read(it: Stage) -> None:
    kind = sveltos.SVELTOS_CLUSTERS
    for spec in ({}, {"kubeconfigName": "another"}):
        with refused(f"may not get Secret {it.namespace}/"):
            await it.tenant.create(kind, new_object(kind, "evil", it.namespace, spec=spec))


async def a_cluster_names_no_other_user_as_the_one_who_decided(it: Stage) -> None:
    kind = capi.CLUSTERS
    spec = {"paused": True, "controlPlaneEndpoint": {"host": "evil.example", "port": 6443}}
    for annotation in (FORCE_RELEASE_BY_ANNOTATION, DELETION_REQUESTED_BY_ANNOTATION):
        forged = {FORCE_RELEASE_ANNOTATION: "let it go", annotation: "kubernetes-admin"}
        with refused(f"annotation {annotation}", it.user):
            await it.tenant.create(
                kind, new_object(kind, "evil", it.namespace, spec=spec, metadata={"annotations": forged})
            )
    await it.tenant.create(kind, new_object(kind, "evil", it.namespace, spec=spec))
    for annotation in (FORCE_RELEASE_BY_ANNOTATION, DELETION_REQUESTED_BY_ANNOTATION):
        patch = {"metadata": {"annotations": {annotation: "kubernetes-admin"}}}
        with refused(f"annotation {annotation}"):
            await it.tenant.patch(kind, "evil", patch, namespace=it.namespace)
    own = {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "mine", FORCE_RELEASE_BY_ANNOTATION: it.user}}}
    await it.tenant.patch(kind, "evil", own, namespace=it.namespace)


async def a_cluster_names_no_former_owner_that_is_another_profiles(it: Stage) -> None:
    """The annotation tells whose objects a profile adopts. One is of this management cluster, one of another."""
    victim, kind = it.victim, sveltos.PROFILES
    await victim.source("web", config_map(victim.namespace, "here"))
    await victim.profile("web", "web")
    await victim.until_provisioned("web")
    here = await victim.summary("web")
    elsewhere = str(uuid.uuid4())
    made = (await victim.on_member())["here"]["metadata"]
    labels, annotations = made["labels"] | {OWNER_LABEL: elsewhere}, made["annotations"]
    deployed = config_map(victim.namespace, "elsewhere")
    deployed["metadata"] |= {"labels": labels, "annotations": annotations}
    await victim.member.client.create(CONFIG_MAPS, deployed)
    before = await victim.on_member()

    cluster = CapiCluster(victim.client, it.namespace)
    await cluster.create(labels={"tenant": it.namespace})
    uids = [here.metadata.uid, elsewhere, f"{elsewhere}),{OWNER_LABEL} in ({here.metadata.uid}"]
    for number, uid in enumerate(uids):
        name = f"evil-{number}"
        # As of another Cluster: then its owners are former owners.
        owners = {"cluster": str(uuid.uuid4()), "owners": {f"p--{name}-capi-{cluster.name}": uid}}
        patch = {"metadata": {"annotations": {OWNERS_ANNOTATION: json.dumps(owners)}}}
        await it.tenant.patch(capi.CLUSTERS, cluster.name, patch, namespace=it.namespace)
        own = config_map(victim.namespace, name)
        theirs = config_map(victim.namespace, "elsewhere", taken="by the tenant")
        for source, document in ((name, own), (f"{name}-taken", theirs)):
            await it.tenant.create(CONFIG_MAPS, config_map(it.namespace, source, **{"all.yaml": yaml.dump(document)}))
        spec = {
            "clusterSelector": {"matchLabels": {"tenant": it.namespace}},
            "policyRefs": [{"kind": "ConfigMap", "name": name}],
        }
        await it.tenant.create(kind, new_object(kind, name, it.namespace, spec=spec))
        summary = f"p--{name}-capi-{cluster.name}"
        await _until_told(it, summary, "Provisioned")
        # Nothing is adopted by the owner's uid, so nothing is pruned; nor if the profile names the object.
        named = [*spec["policyRefs"], {"kind": "ConfigMap", "name": f"{name}-taken"}]
        await it.tenant.patch(kind, name, {"spec": {"policyRefs": named}}, namespace=it.namespace)
        await _until_told(it, summary, "managed by ClusterProfile")
        after = await victim.on_member()
        assert {key: after[key] for key in before} == before
    await cluster.delete()
    await cluster.let_go()


async def _until_told(it: Stage, summary: str, word: str) -> None:
    await object_watch.until(
        it.victim.client,
        sveltos.CLUSTER_SUMMARIES,
        summary,
        lambda one: word in json.dumps((one or {}).get("status")),
        word,
        namespace=it.namespace,
        within=60,
    )


# Records


async def an_inventory_outside_of_unwinds_namespace_means_nothing(it: Stage) -> None:
    """It names an object of another team as if the manager had deployed it for a summary."""
    victim, kind = it.victim, unwind.INVENTORIES
    await victim.source("web", config_map(victim.namespace, "a"))
    await victim.profile("web", "web")
    await victim.until_provisioned("web")
    kept = await victim.member.client.create(CONFIG_MAPS, config_map(victim.namespace, "kept"))
    summary = await victim.summary("web")
    [real] = await victim.client.list(kind, labels=f"{OWNER_LABEL}={summary.metadata.uid}")
    entry = {
        "object": {
            "version": "v1",
            "kind": "ConfigMap",
            "namespace": victim.namespace,
            "name": "kept",
            "uid": kept["metadata"]["uid"],
        },
        "resource": "configmaps",
        "state": "Confirmed",
    }
    labels = {OWNER_LABEL: summary.metadata.uid, MEMBER_LABEL: real["metadata"]["labels"][MEMBER_LABEL]}
    forged = real["spec"] | {"entries": {"kept": entry}}
    name = real["metadata"]["name"]
    await it.tenant.create(kind, new_object(kind, name, it.namespace, spec=forged, metadata={"labels": labels}))
    await victim.delete_profile("web")
    await victim.until_profile_gone("web")
    assert set(await victim.on_member()) == {"kept"}


async def records_of_unwind_are_not_written(it: Stage) -> None:
    kind, name = unwind.INVENTORIES, f"planted-{it.namespace}"
    thing = ObjectRef(version="v1", kind="Namespace", name="kube-system", uid="any")
    planted = unwind.Inventory(
        metadata=ObjectMeta(name=name, namespace=HOME),
        spec=unwind.InventorySpec(owner=thing, member=unwind.MemberRef(object=thing, system_uid="any")),
    )
    with refused("can be written by Unwind only"):
        await it.tenant.create(kind, manifest(kind, planted))
    with refused("can be written by Unwind only"):
        await it.tenant.create(LEASES, new_object(LEASES, f"unwind-{it.namespace}", HOME, spec={}))


async def a_teardown_deletes_nothing_that_its_author_may_not(it: Stage) -> None:
    kind = unwind.TEARDOWNS
    found = await it.victim.client.get(NAMESPACES, it.victim.namespace)
    uid = found["metadata"]["uid"]
    for place in ({}, {"namespace": it.namespace}):
        target = {"version": "v1", "kind": "Namespace", "name": it.victim.namespace, "uid": uid, **place}
        spec = {"title": "x", "target": target, "cause": "Requested", "requestedBy": it.user}
        metadata = {"annotations": {RESOURCE_ANNOTATION: "namespaces"}}
        with refused():
            await it.tenant.create(kind, new_object(kind, f"request-{it.namespace}", spec=spec, metadata=metadata))
    assert not (await it.victim.client.get(NAMESPACES, it.victim.namespace))["metadata"].get("deletionTimestamp")
