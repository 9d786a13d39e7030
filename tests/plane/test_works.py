"""Works on a real member: their manifests are applied, kept as written, and removed."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.namespaces import leave_namespace
from tests.plane.support import karmada_members
from tests.plane.support.controllers import HOLD
from tests.plane.support.karmada_members import joined
from tests.plane.support.works import WorkSite, applied, failed, message, said
from unwind.api.karmada import WORKS
from unwind.api.meta import is_true
from unwind.api.names import ADOPT_ANNOTATION, DEPENDS_ON_ANNOTATION, KARMADA_CLUSTER_NAMESPACE, OWNER_LABEL, Finalizer
from unwind.api.resources import DEPLOYMENTS, SECRETS
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(plane: Plane) -> AsyncIterator[WorkSite]:
    client, member = plane.management.client, plane.members["member-1"]
    await karmada_members.install(client)
    home, there = f"works-{uuid.uuid4().hex[:6]}", f"works-{uuid.uuid4().hex[:6]}"
    await plane.management.create_namespace(home)
    await member.create_namespace(there)
    async with joined(client, member) as it:
        yield WorkSite(it, home, there)
    await leave_namespace(client, home)


async def test_a_work_is_applied_to_its_member_and_removed_again(site: WorkSite) -> None:
    async with site.working():
        work = await site.work("first", site.map("first-a", color="red"), site.map("first-b"))
        await site.until_applied("first")
        there = await site.get("first-a")
        assert there["data"] == {"color": "red"}
        assert there["metadata"]["labels"] == {OWNER_LABEL: work.metadata.uid, "karmada.io/managed": "true"}
        annotations = there["metadata"]["annotations"]
        assert annotations["work.karmada.io/name"] == "first"
        assert annotations["work.karmada.io/namespace"] == site.member.execution
        now = await site.until("first", lambda it: len(it.status.manifest_statuses) == 2)
        assert Finalizer.WORK in now.metadata.finalizers
        assert [status.identifier.name for status in now.status.manifest_statuses] == ["first-a", "first-b"]
        assert [status.identifier.ordinal for status in now.status.manifest_statuses] == [0, 1]
        [chunk] = await site.inventory(work.metadata.uid)
        assert {entry.object.uid for entry in chunk.spec.entries.values()} >= {there["metadata"]["uid"]}
        secret = await site.client.get(SECRETS, site.member.name, namespace=KARMADA_CLUSTER_NAMESPACE)
        assert Finalizer.CREDENTIALS in secret["metadata"]["finalizers"]
        await site.delete("first")
        await site.until_gone("first")
        for name in ("first-a", "first-b"):
            await site.until_not_there(name)
    assert sorted(site.deleted("first-a", "first-b")) == ["first-a", "first-b"]
    changed = site.member.cluster.audit.entries(verbs=("patch",), resource="configmaps", namespace=site.there)
    assert [item for item in changed if item.object_ref.name.startswith("first")] == [], "what we wrote is no drift"
    assert await site.inventory(work.metadata.uid) == []


async def test_changed_deleted_and_unmarked_objects_are_restored(site: WorkSite) -> None:
    async with site.working():
        work = await site.work("drift", *(site.map(f"drift-{item}", color="red") for item in "abc"))
        await site.until_applied("drift")
        await site.put("drift-a", {"data": {"color": "blue"}})
        await site.until_there("drift-a", lambda it: it["data"] == {"color": "red"})
        before = (await site.get("drift-b"))["metadata"]["uid"]
        await site.drop("drift-b")
        await site.until_there("drift-b", lambda it: it["metadata"]["uid"] != before)
        await site.put("drift-c", {"metadata": {"labels": {OWNER_LABEL: None}}, "data": {"color": "green"}})
        await site.until_there(
            "drift-c",
            lambda it: (
                it["data"] == {"color": "red"} and it["metadata"]["labels"].get(OWNER_LABEL) == work.metadata.uid
            ),
        )
        await site.delete("drift")
        await site.until_gone("drift")
    for name in ("drift-a", "drift-b", "drift-c"):
        await site.until_not_there(name)


async def test_drift_while_no_manager_ran_is_corrected_afterwards(site: WorkSite) -> None:
    async with site.working():
        await site.work("away", site.map("away-a", color="red"), site.map("away-b"))
        await site.until_applied("away")
    await site.put("away-a", {"data": {"color": "blue"}})
    await site.drop("away-b")
    async with site.working():
        await site.until_there("away-a", lambda it: it["data"] == {"color": "red"})
        await site.until_there("away-b")
        await site.delete("away")
        await site.until_gone("away")


async def test_an_object_removed_from_a_work_is_deleted_without_waiting_for_others(site: WorkSite) -> None:
    async with site.working():
        await site.work("prune", *(site.map(f"prune-{item}") for item in "abc"))
        await site.until_applied("prune")
        await site.put("prune-a", {"metadata": {"finalizers": [HOLD]}})
        await site.until_there("prune-a", lambda it: it["metadata"].get("finalizers") == [HOLD])
        await site.hold("prune", site.map("prune-c", color="blue"))
        await site.until_not_there("prune-b")
        waits = await site.until("prune", lambda it: "prune-a" in message(it, "Blocked"), "waiting")
        assert HOLD in message(waits, "Blocked")
        # What is waited for is in nobody's way.
        await site.hold("prune", site.map("prune-c", color="green"), site.map("prune-d"))
        await site.until_there("prune-d")
        await site.until_there("prune-c", lambda it: it["data"] == {"color": "green"})
        await site.put("prune-a", {"metadata": {"finalizers": None}})
        await site.until_not_there("prune-a")
        await site.until("prune", lambda it: said(it, "Blocked") is None and applied(it), "at rest")
        await site.delete("prune")
        await site.until_gone("prune")


async def test_an_object_of_another_owner_is_reported_as_conflict_and_stays(site: WorkSite) -> None:
    await site.make("foreign-a", mine="yes")
    async with site.working():
        await site.work("foreign", site.map("foreign-a"), site.map("foreign-b"))
        told = await site.until("foreign", failed, "failed")
        assert "foreign-a" in message(told)
        assert "not managed by Unwind" in message(told)
        await site.until_there("foreign-b")
        assert (await site.get("foreign-a"))["data"] == {"mine": "yes"}
        await site.delete("foreign")
        await site.until_gone("foreign")
        assert (await site.get("foreign-a"))["data"] == {"mine": "yes"}
        await site.until_not_there("foreign-b")


async def test_an_object_of_two_works_belongs_to_the_first_and_then_to_the_other(site: WorkSite) -> None:
    async with site.working():
        await site.work("mine", site.map("both", by="mine"))
        await site.until_applied("mine")
        yours = await site.work("yours", site.map("both", by="yours"))
        told = await site.until("yours", failed, "failed")
        assert f"managed by Work {site.member.execution}/mine" in message(told)
        assert (await site.get("both"))["data"] == {"by": "mine"}
        await site.delete("mine")
        await site.until_gone("mine")
        await site.until_applied("yours")
        now = await site.get("both")
        assert now["data"] == {"by": "yours"}
        assert now["metadata"]["labels"][OWNER_LABEL] == yours.metadata.uid
        await site.delete("yours")
        await site.until_gone("yours")


async def test_an_adopted_object_is_updated_and_unmarked_in_the_end(site: WorkSite) -> None:
    made = await site.make("adopt-a", color="blue")
    async with site.working():
        work = await site.work("adopt", site.map("adopt-a", color="red"), annotations={ADOPT_ANNOTATION: "true"})
        await site.until_applied("adopt")
        assert (await site.get("adopt-a"))["data"] == {"color": "red"}
        await site.delete("adopt")
        await site.until_gone("adopt")
    left = await site.get("adopt-a")
    assert left["metadata"]["uid"] == made["metadata"]["uid"]
    assert OWNER_LABEL not in (left["metadata"].get("labels") or {})
    assert await site.ledger(work.metadata.uid) == {"adopt-a": "NotOurs"}


async def test_a_suspended_work_changes_nothing(site: WorkSite) -> None:
    async with site.working():
        await site.work("still", site.map("still-a", color="red"))
        await site.until_applied("still")
        await site.edit("still", suspendDispatching=True)
        await site.until("still", lambda it: said(it, "Dispatching") is not None, "suspended")
        await site.put("still-a", {"data": {"color": "blue"}})
        await site.hold("still", site.map("still-a", color="red"), site.map("still-b"))
        # Another Work that was changed after it is there: by then this one has had its turn.
        await site.work("awake", site.map("awake-a"))
        await site.until_applied("awake")
        assert (await site.get("still-a"))["data"] == {"color": "blue"}
        await site.edit("still", suspendDispatching=False)
        await site.until_there("still-a", lambda it: it["data"] == {"color": "red"})
        await site.until_there("still-b")
        await site.until("still", lambda it: said(it, "Dispatching") is None and applied(it), "applied")
        await site.delete("still", "awake")
        await site.until_gone("still", "awake")


async def test_a_suspended_work_that_is_deleted_is_removed(site: WorkSite) -> None:
    async with site.working():
        await site.work("still", site.map("still-c"))
        await site.until_applied("still")
        await site.edit("still", suspendDispatching=True)
        await site.until("still", lambda it: said(it, "Dispatching") is not None, "suspended")
        await site.delete("still")
        await site.until_gone("still")
        await site.until_not_there("still-c")
    assert site.deleted("still-c") == ["still-c"]


async def test_preserved_objects_stay_unmarked_and_are_in_the_ledger(site: WorkSite) -> None:
    async with site.working():
        work = await site.work("keep", site.map("keep-a"), preserveResourcesOnDeletion=True)
        await site.until_applied("keep")
        before = await site.get("keep-a")
        await site.delete("keep")
        await site.until_gone("keep")
    after = await site.get("keep-a")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["data"] == before["data"]
    assert "labels" not in after["metadata"]
    assert "annotations" not in after["metadata"]
    assert await site.ledger(work.metadata.uid) == {"keep-a": "KeptByPolicy"}


async def test_a_blocked_object_is_reported_and_the_work_waits_for_it(site: WorkSite) -> None:
    async with site.working():
        await site.work("held", site.map("held-a"), site.map("held-b"))
        await site.until_applied("held")
        await site.put("held-a", {"metadata": {"finalizers": [HOLD]}})
        await site.delete("held")
        waits = await site.until("held", lambda it: "held-a" in message(it, "Blocked"), "waiting")
        assert HOLD in message(waits, "Blocked")
        await site.until_not_there("held-b")
        assert Finalizer.WORK in waits.metadata.finalizers
        await site.put("held-a", {"metadata": {"finalizers": None}})
        await site.until_gone("held")
    await site.until_not_there("held-a")


async def test_a_work_that_others_depend_on_waits_for_them_and_reports_it(site: WorkSite) -> None:
    async with site.working():
        await site.work("base", site.map("base-a"))
        await site.work("top", site.map("top-a"), annotations={DEPENDS_ON_ANNOTATION: "base"})
        await site.until_applied("base", "top")
        await site.delete("base")
        waits = await site.until("base", lambda it: bool(message(it, "Blocked")), "waiting")
        assert message(waits, "Blocked") == "waiting for removal of dependent Works: top"
        await site.get("base-a")
        await site.delete("top")
        await site.until_gone("top", "base")
    assert site.deleted("base-a", "top-a") == ["top-a", "base-a"]


async def test_invalid_manifests_are_reported_and_the_others_are_applied(site: WorkSite) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "wrong-s", "namespace": site.there},
        "data": {"word": "c2VzYW1l-not-base64"},
    }
    unknown = {"apiVersion": "example.dev/v1", "kind": "Gadget", "metadata": {"name": "wrong-g"}}
    broken = {"apiVersion": "v1", "metadata": {"name": "wrong-b"}}
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {"name": "wrong-r"},
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    }
    async with site.working():
        await site.work("wrong", site.map("wrong-a"), secret, unknown, broken, asked)
        told = message(await site.until("wrong", failed, "failed"))
        for expected in ("wrong-s", "Gadget", "manifests[3]: kind is required", "SelfSubjectAccessReview"):
            assert expected in told
        assert "c2VzYW1l" not in told
        await site.until_there("wrong-a")
        await site.hold("wrong", site.map("wrong-a"))
        await site.until_applied("wrong")
        await site.delete("wrong")
        await site.until_gone("wrong")


async def test_the_status_of_objects_on_the_member_is_reported_as_it_changes(site: WorkSite) -> None:
    labels = {"app": "web"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": site.there},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "example.dev/web"}]},
            },
        },
    }
    async with site.working():
        await site.work("web", deployment)
        there = await site.until_there("web", lambda it: it["status"].get("readyReplicas") == 1, DEPLOYMENTS)
        told = await site.until(
            "web", lambda it: [status.health for status in it.status.manifest_statuses] == ["Healthy"], "healthy"
        )
        [one] = told.status.manifest_statuses
        assert (one.identifier.group, one.identifier.resource) == ("apps", "deployments")
        assert one.status["readyReplicas"] == there["status"]["readyReplicas"]
        await site.delete("web")
        await site.until_gone("web")


@asynccontextmanager
async def working_by_proxy(site: WorkSite) -> AsyncIterator[Proxy]:
    """Run the controllers, which reach the member only through a proxy."""
    endpoint = (await site.member.get()).spec.api_endpoint
    async with Proxy(endpoint) as proxy:
        await site.lead_to(proxy.url)
        try:
            async with site.working():
                yield proxy
        finally:
            await site.lead_to(endpoint)


async def test_an_unreachable_member_is_waited_for_and_reported_with_the_time(site: WorkSite) -> None:
    async with working_by_proxy(site) as proxy:
        await site.work("far", site.map("far-a"))
        await site.until_applied("far")
        proxy.close()
        await site.delete("far")
        waits = await site.until("far", lambda it: is_true(it.status.conditions, "MemberUnreachable"), "waiting")
        assert "since " in message(waits, "MemberUnreachable")
        assert Finalizer.WORK in waits.metadata.finalizers
        await site.get("far-a")
        proxy.reopen()
        await site.until_gone("far")
    await site.until_not_there("far-a")


async def test_objects_deleted_while_the_member_was_unreachable_are_restored(site: WorkSite) -> None:
    async with working_by_proxy(site) as proxy:
        await site.work("cut", site.map("cut-a"), site.map("cut-b", color="red"))
        await site.until_applied("cut")
        proxy.close()
        await site.drop("cut-a")
        await site.put("cut-b", {"data": {"color": "blue"}})
        await site.until_not_there("cut-a")
        proxy.reopen()
        await site.until_there("cut-a")
        await site.until_there("cut-b", lambda it: it["data"] == {"color": "red"})
        await site.delete("cut")
        await site.until_gone("cut")


async def test_a_work_of_a_member_that_is_being_unjoined_is_left_to_the_unjoin(site: WorkSite) -> None:
    # The last one here: its member is not a member any more.
    async with site.working():
        await site.work("left", site.map("left-a", color="red"))
        await site.until_applied("left")
    await site.member.delete()
    await site.delete("left")
    async with site.working() as works:
        await site.until_idle(works, "left")
        await site.put("left-a", {"data": {"color": "blue"}})
        await site.client.patch(
            WORKS, "left", {"metadata": {"annotations": {"seen": "yes"}}}, namespace=site.member.execution
        )
        await site.until_idle(works, "left", lambda it: "seen" in it.metadata.annotations)
    assert (await site.get("left-a"))["data"] == {"color": "blue"}
    found = await site.until("left", lambda _: True)
    assert Finalizer.WORK in found.metadata.finalizers
    [chunk] = await site.inventory(found.metadata.uid)
    assert not chunk.spec.sealed_for
