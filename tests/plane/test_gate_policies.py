"""Admission policies that close the ways around Cluster API's gate, on a real API server."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD
from tests.plane.support.events import until_event
from tests.plane.support.extension_registration import HOME, create_cluster, create_teardown, say, serve
from tests.plane.support.manager_process import running
from tests.plane.support.objects import delete, until_allowed, until_refused
from unwind.api.capi import CLUSTERS
from unwind.api.names import (
    DELETION_BEHAVIOR_ANNOTATION,
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    OK_TO_DELETE_ANNOTATION,
    REMOVE_STRATEGY_BY_ANNOTATION,
)
from unwind.api.resources import NAMESPACES, ROLE_BINDINGS, ROLES
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS
from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane

ROOM = "fleet"
MANAGER = f"system:serviceaccount:{HOME}:unwind"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gated(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A cluster with the CRDs of Cluster API, and Unwind installed. Each test has Clusters with names of its own."""
    member = await plane.add_member("gate-policies")
    await serve(plane, member.client)
    assert (await command(member, "install")).code == 0
    yield member
    try:
        check_requests(member)
    finally:
        await plane.remove_member(member.name)


# The first test: later ones leave Clusters and Teardowns behind that a manager would act on.
async def test_a_cluster_that_was_created_with_ok_to_delete_is_reported_and_cleaned(gated: LocalCluster) -> None:
    client = gated.client
    marked = await create_cluster(client, "moved", annotations={OK_TO_DELETE_ANNOTATION: "", "kept": "yes"})
    # One that is being deleted carries it by right, where nothing holds it; where something does, that is reported.
    leaving = [
        await create_cluster(client, name, finalizers=[HOLD], annotations={OK_TO_DELETE_ANNOTATION: ""})
        for name in ("leaving", "marked")
    ]
    for item in leaving:
        meta = item["metadata"]
        # For a moment after the installation, the API server refuses by every policy that reads a new kind.
        await until_allowed(partial(client.delete, CLUSTERS, meta["name"], uid=meta["uid"], namespace="default"))
    teardown = await create_teardown(client, leaving[1], "Enforce")
    kubeconfig = gated.write_kubeconfig(MANAGER, groups=("system:serviceaccounts",))
    async with running(gated, HOME, kubeconfig=kubeconfig) as manager:
        await manager.until_listening("metrics")

        def clean(it: Object | None) -> bool:
            assert it
            assert it["metadata"]["uid"] == marked["metadata"]["uid"]
            return bool(it["metadata"]["annotations"] == {"kept": "yes"})

        await until(client, CLUSTERS, "moved", clean, "without the mark", namespace="default")
        moved_uid = (await client.get(CLUSTERS, "moved", namespace="default"))["metadata"]["uid"]
        await until_event(client, moved_uid, reason="GateNotArmed")

        def reported(it: Object | None) -> bool:
            return profiles.condition(it or {}, "GateNotArmed").get("reason") == "MarkedOkToDelete"

        await until(client, TEARDOWNS, teardown, reported, "reported")
        for item in leaving:
            found = await client.get(CLUSTERS, item["metadata"]["name"], namespace="default")
            assert OK_TO_DELETE_ANNOTATION in found["metadata"]["annotations"]
        assert await manager.stop() == 0
    asked = list(gated.audit.entries(user=MANAGER))
    assert [entry for entry in asked if entry.code == 403] == []


async def _mark(client: Client, name: str) -> None:
    """Set the mark, and take it off again: it is refused only where it is new."""
    for value in ("", None):
        patch = {"metadata": {"annotations": {OK_TO_DELETE_ANNOTATION: value}}}
        await client.patch(CLUSTERS, name, patch, namespace="default")


async def test_ok_to_delete_is_refused_to_everyone_while_the_teardown_of_the_cluster_holds(gated: LocalCluster) -> None:
    client = gated.client
    held, other = [await create_cluster(client, name, finalizers=[HOLD]) for name in ("held", "other")]
    await until_refused(partial(_mark, client, "held"))  # it is not being deleted
    for item in (held, other):
        await client.delete(CLUSTERS, item["metadata"]["name"], uid=item["metadata"]["uid"], namespace="default")
    teardown = await create_teardown(client, held, "Try", "Enforce")
    refused = await until_refused(partial(_mark, client, "held"))
    assert refused.code == 403
    assert f"Wait until Teardown {teardown} is finished" in str(refused)
    assert "unwind.dev/force-release=REASON" in str(refused)
    # Another update passes, and so does the mark of another Cluster.
    await client.patch(CLUSTERS, "held", {"metadata": {"labels": {"team": "a"}}}, namespace="default")
    await _mark(client, "other")

    for phase, *states in (("Removing", "Removed", "Removing"), ("Held", "Removed", "Waiting")):
        await say(client, teardown, phase, *states)
        with pytest.raises(ApiError, match="is blocked until its add-ons are removed"):
            await _mark(client, "held")
    for phase, *states in (("Removing", "Removing", "Removed"), ("Released", "Waiting", "GivenUp")):
        await say(client, teardown, phase, *states)
        await until_allowed(partial(_mark, client, "held"))


async def _delete(client: Client, name: str, **options: Any) -> None:
    path = CLUSTERS.path(name, namespace=ROOM)
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]} | options
    await client._call("delete", CLUSTERS, "DELETE", path, body=msgspec.json.encode(body))


async def _delete_namespace(client: Client, name: str) -> None:
    async def decided() -> bool:
        try:
            await delete(client, NAMESPACES, name, dry_run=True)
        except ApiError as error:
            # For a moment after a CRD was created, the API server refuses by every policy that reads its objects.
            if "not yet synced" in str(error):
                return False
            raise
        return True

    await eventually(decided, "policies that read the new kind")


async def _summary(client: Client, cluster: str, behaviour: str | None, **more: Any) -> Object:
    body = {
        "apiVersion": CLUSTER_SUMMARIES.api_version,
        "kind": CLUSTER_SUMMARIES.kind,
        "metadata": {"name": f"web-{cluster}", "namespace": ROOM, **more.pop("metadata", {})},
        "spec": {
            "clusterNamespace": ROOM,
            "clusterName": cluster,
            "clusterType": "Capi",
            "clusterProfileSpec": {"clusterDeletionBehavior": behaviour} if behaviour else {},
            **more,
        },
    }
    return await client.create(CLUSTER_SUMMARIES, body)


FOREGROUND = {"propagationPolicy": "Foreground"}


async def test_a_gated_cluster_is_deleted_in_the_background_only_and_its_namespace_not_at_all(
    gated: LocalCluster,
) -> None:
    client = gated.client
    for name in (ROOM, "empty"):
        await gated.create_namespace(name)
    for name in ("gated", "tried", "plain"):
        await create_cluster(client, name, ROOM)
    await create_cluster(client, "planted", ROOM, finalizers=["foregroundDeletion"])
    await _summary(client, "tried", "RemovePolicies")
    await _delete_namespace(client, ROOM)
    await _delete(client, "gated", **FOREGROUND)

    gate = await _summary(client, "gated", "EnforceRemovePolicies")
    await _summary(client, "planted", "EnforceRemovePolicies")
    refused = await until_refused(partial(_delete, client, "gated", **FOREGROUND))
    assert refused.code == 403
    assert "kubectl delete cluster.cluster.x-k8s.io gated -n fleet (without --cascade=foreground" in str(refused)
    assert "ClusterSummary web-gated" in str(refused)
    # Without a word in the request, the finalizer that is there decides.
    with pytest.raises(ApiError, match="Delete it in the background"):
        await _delete(client, "planted")
    for name, options in (
        ("gated", {}),
        ("gated", {"propagationPolicy": "Background"}),
        ("gated", {"propagationPolicy": "Orphan"}),
        ("gated", {"orphanDependents": False}),
        ("planted", {"propagationPolicy": "Background"}),
        ("planted", {"orphanDependents": False}),
        ("tried", FOREGROUND),
        ("plain", FOREGROUND),
    ):
        await _delete(client, name, **options)
    query = {"dryRun": "All", "propagationPolicy": "Foreground"}
    with pytest.raises(ApiError, match="Delete it in the background"):
        await client._call("deletecollection", CLUSTERS, "DELETE", CLUSTERS.path(namespace=ROOM), query=query)

    refused = await until_refused(partial(_delete_namespace, client, ROOM))
    assert refused.code == 403
    assert "-n fleet" in str(refused)
    assert "Delete the Cluster first" in str(refused)
    await _delete_namespace(client, "empty")
    for item in (gate["metadata"]["name"], "web-planted"):
        found = await client.get(CLUSTER_SUMMARIES, item, namespace=ROOM)
        await client.delete(CLUSTER_SUMMARIES, item, uid=found["metadata"]["uid"], namespace=ROOM)
    await until_allowed(partial(_delete_namespace, client, ROOM))
    await until_allowed(partial(_delete, client, "gated", **FOREGROUND))

    # Where the field is not served, the annotation says what it said.
    kept = {"annotations": {DELETION_BEHAVIOR_ANNOTATION: "EnforceRemovePolicies"}}
    await _summary(client, "plain", None, metadata=kept)
    found = await client.get(CLUSTER_SUMMARIES, "web-plain", namespace=ROOM)
    if "clusterDeletionBehavior" not in found["spec"]["clusterProfileSpec"]:
        await until_refused(partial(_delete, client, "plain", **FOREGROUND))


async def test_nobody_writes_down_that_another_user_deletes_or_releases_a_cluster(gated: LocalCluster) -> None:
    client = gated.client
    await create_cluster(client, "prod-7")
    rule = {"apiGroups": [CLUSTERS.group], "resources": ["clusters"], "verbs": ["get", "patch"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "tenants", "namespace": "default"}}
    await client.create(ROLES, role | {"kind": "Role", "rules": [rule]})
    subject = {"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenants"}
    await client.create(ROLE_BINDINGS, role | {"kind": "RoleBinding", "roleRef": ref, "subjects": [subject]})
    async with Client(gated.connection("tenant", groups=())) as tenant:

        async def annotate(annotations: dict[str, str | None]) -> None:
            patch = {"metadata": {"annotations": annotations}}
            await tenant.patch(CLUSTERS, "prod-7", patch, namespace="default")

        async def forge(name: str, value: str) -> None:
            """Write it, and take it back: it is refused only where it is new."""
            await annotate({name: value})
            await annotate({name: None})

        for name, value in (
            (DELETION_REQUESTED_BY_ANNOTATION, "alice"),
            (DELETION_REQUESTED_BY_ANNOTATION, "tenant"),
            (FORCE_RELEASE_BY_ANNOTATION, "alice"),
            (REMOVE_STRATEGY_BY_ANNOTATION, "Needless by alice"),
        ):
            refused = await until_refused(partial(forge, name, value))
            assert (refused.code, name in str(refused)) == (403, True)
        await annotate({FORCE_RELEASE_ANNOTATION: "now", FORCE_RELEASE_BY_ANNOTATION: "tenant"})
        await annotate({FORCE_RELEASE_ANNOTATION: None, FORCE_RELEASE_BY_ANNOTATION: None})
