"""Add-ons on a member: they are deployed, kept up to date, and pruned."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml

from tests.plane.support.addon_site import (
    CONFLICT,
    CREATED,
    FAILED,
    UNCHANGED,
    UPDATED,
    AddonSite,
    inventory_writes,
    message,
    outcomes,
    writes,
)
from unwind.api.annotation_values import VolumePolicy
from unwind.api.names import OWNER_LABEL, SVELTOS_HASH_ANNOTATION, SVELTOS_REASON_LABEL
from unwind.api.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS
from unwind.api.sveltos import PolicyRef
from unwind.api.unwind import INVENTORIES, EntryState
from unwind.deploy.deployment import intend
from unwind.deploy.dry_run import rehearse
from unwind.deploy.reports import ObjectOutcome
from unwind.inventory.writer import SealedError
from unwind.kube.errors import NotFoundError
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from unwind.local.cluster import LocalCluster


async def test_deployed_objects_are_labelled_and_recorded(site: AddonSite) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"), site.config_map("two"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"one": CREATED, "two": CREATED}
    assert report.complete
    live = await site.get("one")
    labels, annotations = live["metadata"]["labels"], live["metadata"]["annotations"]
    assert labels == {OWNER_LABEL: owner.uid, SVELTOS_REASON_LABEL: "Resources"}
    assert annotations.pop(SVELTOS_HASH_ANNOTATION)
    assert annotations == {
        "projectsveltos.io/reference-kind": "ConfigMap",
        "projectsveltos.io/reference-namespace": site.namespace,
        "projectsveltos.io/reference-name": "add-ons",
        "projectsveltos.io/reference-tier": "100",
        "projectsveltos.io/owner-kind": "ClusterProfile",
        "projectsveltos.io/owner-name": "base",
        "projectsveltos.io/owner-tier": "100",
    }
    entry = (await site.entries(owner))["one"]
    assert (entry.state, entry.object.uid) == (EntryState.CONFIRMED, live["metadata"]["uid"])
    assert (entry.source, entry.order, entry.resource) == (f"ConfigMap {site.namespace}/add-ons", 0, "configmaps")


async def test_the_writers_of_fields_are_not_tracked_in_an_inventory_with_confirmed_objects(site: AddonSite) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("add-ons", site.config_map("one")))
    [chunk] = await site.inventories.of(owner.uid)
    live = await site.inventories.client.get(INVENTORIES, chunk.metadata.name, namespace=chunk.metadata.namespace)
    assert "managedFields" not in live["metadata"]


async def test_unchanged_objects_are_not_written(site: AddonSite, cluster: LocalCluster) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", *(site.config_map(f"it-{number}") for number in range(6)))
    await site.deploy(owner, ref)
    before = writes(cluster, site.namespace), inventory_writes(site, owner)
    report = await site.deploy(owner, ref)
    assert report.counts == {UNCHANGED: 6}
    assert (writes(cluster, site.namespace), inventory_writes(site, owner)) == before


async def test_objects_that_are_recorded_in_advance_are_created_without_another_write(site: AddonSite) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"), site.config_map("two"))
    intended = await intend(site.member, site.inventories, owner, await site.read(ref))
    assert {name: it.state for name, it in (await site.entries(owner)).items()} == {
        "one": EntryState.INTENDED,
        "two": EntryState.INTENDED,
    }
    with pytest.raises(NotFoundError):
        await site.get("one")
    report = await site.deploy(owner, ref, first=True, intended=intended)
    assert outcomes(report) == {"one": CREATED, "two": CREATED}
    assert {it.state for it in (await site.entries(owner)).values()} == {EntryState.CONFIRMED}
    assert inventory_writes(site, owner) == 2  # in advance, and the confirmation


async def test_objects_that_are_recorded_in_advance_follow_a_changed_source(site: AddonSite) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"), site.config_map("two"))
    intended = await intend(site.member, site.inventories, owner, await site.read(ref))
    ref = await site.source("add-ons", site.config_map("two"), site.config_map("three"))
    report = await site.deploy(owner, ref, first=True, intended=intended)
    assert outcomes(report) == {"two": CREATED, "three": CREATED}
    entries = await site.entries(owner)
    assert {name: it.state for name, it in entries.items()} == {
        "two": EntryState.CONFIRMED,
        "three": EntryState.CONFIRMED,
    }


async def test_objects_that_are_recorded_in_advance_are_deployed_by_a_process_that_does_not_know_it(
    site: AddonSite,
) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"))
    await intend(site.member, site.inventories, owner, await site.read(ref))
    report = await site.deploy(owner, ref, first=True)
    assert outcomes(report) == {"one": CREATED}
    assert (await site.entries(owner))["one"].state == EntryState.CONFIRMED


async def test_a_removal_of_objects_that_were_only_recorded_in_advance_deletes_nothing(site: AddonSite) -> None:
    owner = site.owner()
    ref = await site.source("add-ons", site.config_map("one"))
    intended = await intend(site.member, site.inventories, owner, await site.read(ref))
    theirs = await site.put("one")
    await site.remove(owner)
    assert (await site.get("one"))["metadata"]["uid"] == theirs["metadata"]["uid"]
    # The inventory is sealed now.
    await site.there.delete(CONFIG_MAPS, "one", uid=theirs["metadata"]["uid"], namespace=site.namespace)
    with pytest.raises(SealedError):
        await site.deploy(owner, ref, first=True, intended=intended)
    with pytest.raises(NotFoundError):
        await site.get("one")


async def test_nothing_is_recorded_in_advance_while_namespaces_or_kinds_are_missing(site: AddonSite) -> None:
    owner, elsewhere = site.owner(), f"{site.namespace}-later"
    body = site.config_map("it") | {"metadata": {"name": "it", "namespace": elsewhere}}
    unserved = {"apiVersion": "later.example.dev/v1", "kind": "Later", "metadata": {"name": "it"}}
    for manifest in (body, unserved):
        sources = await site.read(await site.source("add-ons", manifest))
        assert await intend(site.member, site.inventories, owner, sources) is None
    assert await site.inventories.of(owner.uid) == []


async def test_a_field_that_is_removed_from_a_manifest_is_removed_from_the_object(site: AddonSite) -> None:
    owner = site.owner()
    made = await site.deploy(owner, await site.source("s", site.config_map("it", data={"a": "1", "b": "1"})))
    for data in ({"b": "2", "c": "2"}, {"c": "3"}):
        report = await site.deploy(owner, await site.source("s", site.config_map("it", data=data)))
        assert outcomes(report) == {"it": UPDATED}
        live = await site.get("it")
        assert live["data"] == data
        assert live["metadata"]["uid"] == made.results[0].object.uid


async def test_fields_of_other_managers_stay(site: AddonSite) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    await site.there.apply(CONFIG_MAPS, site.config_map("it", data={"theirs": "x"}), field_manager="them", force=False)
    await site.deploy(owner, await site.source("s", site.config_map("it", data={"a": "2"})))
    assert (await site.get("it"))["data"] == {"a": "2", "theirs": "x"}


async def test_drift_is_corrected_if_requested(site: AddonSite) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    await site.there.patch(CONFIG_MAPS, "it", {"data": {"a": "x"}}, namespace=site.namespace, field_manager="them")
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED}
    assert outcomes(await site.deploy(owner, ref, sure=())) == {"it": UPDATED}
    assert (await site.get("it"))["data"] == {"a": "1"}
    assert outcomes(await site.deploy(owner, ref, sure=())) == {"it": UNCHANGED}


async def test_a_deleted_object_is_created_again(site: AddonSite) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    first = (await site.deploy(owner, ref)).results[0].object.uid
    await site.there.delete(CONFIG_MAPS, "it", uid=first, namespace=site.namespace)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": CREATED}
    assert (await site.entries(owner))["it"].object.uid == report.results[0].object.uid != first


async def test_an_object_that_is_removed_from_the_sources_is_deleted(site: AddonSite) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("stays"), site.config_map("goes")))
    report = await site.deploy(owner, await site.source("s", site.config_map("stays")))
    assert await site.prune(owner, report) == ["goes Removed"]
    with pytest.raises(NotFoundError):
        await site.get("goes")
    assert list(await site.entries(owner)) == ["stays"]
    assert await site.get("stays")


async def test_nothing_is_deleted_while_a_source_is_broken_or_missing(site: AddonSite) -> None:
    owner = site.owner()
    ref = await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    await site.text("s", {"all.yaml": "a: [", "more.yaml": yaml.safe_dump(site.config_map("more"))})
    report = await site.deploy(owner, ref, PolicyRef(kind="ConfigMap", name="missing"))
    assert outcomes(report) == {"more": CREATED}
    assert not report.complete
    broken, missing = report.faults
    assert f"ConfigMap {site.namespace}/s, key all.yaml, document 1: invalid YAML" in broken
    assert missing == f"ConfigMap {site.namespace}/missing: not found; create it"
    assert await site.prune(owner, report) == []
    assert await site.get("it")


async def test_a_crd_is_established_before_its_resources_are_applied(site: AddonSite) -> None:
    kind = f"K{uuid.uuid4().hex[:6]}"
    plural, group = f"{kind.lower()}s", "example.dev"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    definition = {
        "apiVersion": CUSTOM_RESOURCE_DEFINITIONS.api_version,
        "kind": CUSTOM_RESOURCE_DEFINITIONS.kind,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": versions,
        },
    }
    custom = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "mine", "namespace": site.namespace}}
    owner = site.owner()
    # The resource first: it is the kind that decides on the order.
    ref = await site.source("s", custom, definition)
    report = await site.deploy(owner, ref)
    assert report.counts == {CREATED: 2}, report.trouble
    assert (await site.deploy(owner, ref)).counts == {UNCHANGED: 2}
    await site.remove(owner)
    with pytest.raises(NotFoundError):
        await site.there.get(CUSTOM_RESOURCE_DEFINITIONS, f"{plural}.{group}")


async def test_an_object_that_needs_another_of_its_source_is_retried(site: AddonSite) -> None:
    metadata = {"namespace": site.namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner", **metadata}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "first", **metadata},
        "spec": {"serviceAccountName": "runner", "containers": [{"name": "it", "image": "it"}]},
    }
    owner = site.owner()
    report = await site.deploy(owner, await site.source("s", pod, account))
    assert report.counts == {CREATED: 2}, report.trouble
    await site.remove(owner)
    with pytest.raises(NotFoundError):
        await site.there.get(PODS, "first", namespace=site.namespace)


async def test_a_missing_namespace_is_created_and_deleted_again(site: AddonSite) -> None:
    owner, name = site.owner(), f"{site.namespace}-more"
    body = site.config_map("it") | {"metadata": {"name": "it", "namespace": name}}
    ref = await site.source("s", body, site.config_map("here"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": CREATED, "here": CREATED, name: CREATED}
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED, "here": UNCHANGED, name: UNCHANGED}
    report = await site.deploy(owner, await site.source("s", site.config_map("here")))
    assert sorted(await site.prune(owner, report)) == ["it Removed", f"{name} Removed"]
    with pytest.raises(NotFoundError):
        await site.there.get(NAMESPACES, name)
    assert await site.there.get(NAMESPACES, site.namespace)


async def test_a_namespace_with_foreign_content_stays_until_that_is_gone(site: AddonSite) -> None:
    owner, name = site.owner(), f"{site.namespace}-kept"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await site.deploy(owner, await site.source("s", namespace))
    body = site.config_map("theirs") | {"metadata": {"name": "theirs", "namespace": name}}
    theirs = await site.there.create(CONFIG_MAPS, body)
    report = await site.deploy(owner, await site.text("s", {}))
    [left] = await site.pruned(owner, report)
    assert left.outcome is ObjectOutcome.LEFT
    assert f"ConfigMap {name}/theirs" in left.message
    note = (await site.entries(owner))[name].ledger
    assert (note.reason, note.provisional) == ("ForeignContent", True)
    await site.there.delete(CONFIG_MAPS, "theirs", uid=theirs["metadata"]["uid"], namespace=name)
    assert await site.prune(owner, report) == [f"{name} Removed"]
    assert await site.entries(owner) == {}


@pytest.mark.parametrize("policy", [VolumePolicy.RETAIN, VolumePolicy.DELETE])
async def test_claims_of_a_pruned_stateful_set_stay_unless_their_deletion_is_requested(
    site: AddonSite, policy: VolumePolicy
) -> None:
    owner = site.owner()
    labels = {"app": "db"}
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": site.namespace},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "db", "image": "db"}]}},
            "volumeClaimTemplates": [claim],
        },
    }
    # As many as a chunk holds: what its removal adds to the inventory has to find room elsewhere.
    others = [site.config_map(f"it-{number}") for number in range(499)]
    await site.deploy(owner, await site.source("s", stateful_set, *others))
    await until(
        site.there,
        PERSISTENT_VOLUME_CLAIMS,
        "data-db-0",
        lambda it: it is not None,
        "made",
        namespace=site.namespace,
    )
    report = await site.deploy(owner, await site.source("s", *others))
    for _ in range(2):  # what is kept is kept the second time as well
        await site.pruned(owner, report, volumes=policy)
        left = await site.there.list(PERSISTENT_VOLUME_CLAIMS, namespace=site.namespace)
        entries = await site.entries(owner)
        if policy is VolumePolicy.DELETE:
            assert left == []
            assert len(entries) == 499
        else:
            assert [item["metadata"]["name"] for item in left] == ["data-db-0"]
            assert len(entries) == 500
            assert entries["data-db-0"].ledger


async def test_a_dry_run_changes_nothing(site: AddonSite, cluster: LocalCluster) -> None:
    owner = site.owner()
    await site.put("foreign")
    old = await site.source("s", site.config_map("same"), site.config_map("other"), site.config_map("dropped"))
    await site.deploy(owner, old)
    ref = await site.source(
        "s",
        site.config_map("same"),
        site.config_map("other", data={"a": "2"}),
        site.config_map("new"),
        site.config_map("foreign"),
        site.config_map("Bad Name"),
        site.config_map("far") | {"metadata": {"name": "far", "namespace": f"{site.namespace}-far"}},
    )
    before = await state(site), inventory_writes(site, owner), len(undry(cluster, site.namespace))
    report = await rehearse(site.member, site.inventories, owner, await site.read(ref))
    assert report.dry_run
    assert outcomes(report) == {
        "same": UNCHANGED,
        "other": UPDATED,
        "new": CREATED,
        "foreign": CONFLICT,
        "Bad Name": FAILED,
        "far": CREATED,
        f"{site.namespace}-far": CREATED,
        "dropped": ObjectOutcome.REMOVED,
    }
    assert message(report, "far") == "not checked: its namespace does not exist yet"
    assert (await state(site), inventory_writes(site, owner), len(undry(cluster, site.namespace))) == before
    assert await site.prune(owner, report) == []


async def state(site: AddonSite) -> dict[str, str]:
    found = await site.there.list(CONFIG_MAPS, namespace=site.namespace)
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found}


def undry(cluster: LocalCluster, namespace: str) -> list[str]:
    """What was asked to be written, and not only as a dry run."""
    with cluster.audit.path.open("rb") as log:
        entries = [msgspec.json.decode(line) for line in log if line.endswith(b"\n") and namespace.encode() in line]
    return [
        entry["requestURI"]
        for entry in entries
        if entry["verb"] not in ("get", "list", "watch") and "dryRun=All" not in entry["requestURI"]
    ]
