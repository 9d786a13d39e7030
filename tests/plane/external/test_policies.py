"""Delete policies of external objects: what is kept is recorded before the finalizer is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from tests.plane.support.bucket_chains import Dying, dying, events, group_of, written_down
from tests.plane.support.buckets import Buckets, Store, external, running
from unwind.api.annotation_values import DeletePolicy
from unwind.api.names import DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION, Finalizer
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import INVENTORIES
from unwind.inventory import ledger
from unwind.kube import object_watch
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, APIStatus
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_connection

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane


class AtRelease(Dying):
    """Acts right before the first removal of the last finalizer."""

    async def revise(self, resource: Any, read: Object, patch: Object, **more: Any) -> Object:
        if patch.get("metadata", {}).get("finalizers") == [] and not self.died.is_set():
            self.died.set()
            await self.act()
        return await Client.revise(self, resource, read, patch, **more)

    async def act(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("annotation", [DELETE_POLICY_ANNOTATION, RECONCILE_POLICY_ANNOTATION])
@pytest.mark.parametrize("policy", ["skip", "detach-on-delete"])
@pytest.mark.usefixtures("records")
async def test_the_policy_of_an_object_keeps_the_external_resource(
    buckets: Buckets, annotation: str, policy: str
) -> None:
    store = Store()
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))) as it:
        ref = await buckets.claimed("kept", annotations={annotation: policy})
        await buckets.delete(ref)
        await buckets.until_gone("kept")
        line = await written_down(buckets, ref)
        assert await events(buckets, ref, 3) == ["FinalizerSet", "DeletionStarted", "Kept"]
        assert it.sample("unwind_deletions_total", kind=f"buckets.{group_of(buckets)}", end="kept") == 1
    assert store.calls == []
    assert (line.object, line.fate, line.reason) == (ref, ledger.Fate.KEPT, "KeptByPolicy")
    assert (line.message, line.by) == (
        f"its policy is {policy}, so it is left in place",
        f"the annotation {annotation}",
    )


@pytest.mark.usefixtures("records")
async def test_the_policies_of_the_namespace_and_of_the_process_are_the_defaults(buckets: Buckets) -> None:
    store, client = Store(), buckets.client
    known = external(store, group_of(buckets))
    async with running(client, buckets.namespace, known, policy=DeletePolicy.SKIP):
        by_process = await buckets.claimed("by-process")
        await buckets.delete(by_process)
        await buckets.until_gone("by-process")
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "detach-on-delete"}}}
        )
        by_namespace = await buckets.claimed("by-namespace")
        managed = await buckets.claimed("managed", annotations={DELETE_POLICY_ANNOTATION: "manage"})
        for ref in (by_namespace, managed):
            await buckets.delete(ref)
            await buckets.until_gone(ref.name)
    assert store.calls == ["managed"]
    assert (await written_down(buckets, by_process)).by == "the manager's default"
    line = await written_down(buckets, by_namespace)
    assert line.by == f"the annotation {DELETE_POLICY_ANNOTATION} of its namespace"


async def test_an_unknown_policy_holds_until_it_is_corrected(buckets: Buckets) -> None:
    store, client = Store(), buckets.client
    async with running(client, buckets.namespace, external(store, group_of(buckets))):
        await buckets.delete(await buckets.claimed("typo", annotations={DELETE_POLICY_ANNOTATION: "Manage"}))
        said = await buckets.until_said("typo", "UnknownValue")
        assert "'Manage' is not known" in said["message"]
        assert said["severity"] == "Error"
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "kepp"}}}
        )
        await buckets.delete(await buckets.claimed("by-namespace"))
        said = await buckets.until_said("by-namespace", "UnknownValue")
        assert "'kepp' is not known" in said["message"]
        assert store.calls == []
        await buckets.annotate("typo", **{DELETE_POLICY_ANNOTATION: "manage"})
        await buckets.until_gone("typo")
        await client.patch(
            NAMESPACES, buckets.namespace, {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: None}}}
        )
        await buckets.until_gone("by-namespace")
    assert store.calls == ["typo", "by-namespace"]


@pytest.mark.usefixtures("records")
async def test_a_kept_resource_is_in_the_ledger_before_the_finalizer_is_removed(plane: Plane, buckets: Buckets) -> None:
    known = external(Store(), group_of(buckets))
    async with dying(plane, buckets.namespace) as client, running(client, buckets.namespace, known):
        ref = await buckets.claimed("kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
        await buckets.delete(ref)
        await client.died.wait()
    line = await written_down(buckets, ref)
    assert Finalizer.EXTERNAL in (await buckets.get("kept"))["metadata"]["finalizers"]
    async with running(buckets.client, buckets.namespace, known):
        await buckets.until_gone("kept")
    assert await written_down(buckets, ref) == line, "the second try finds what the first has written"


@pytest.mark.usefixtures("records")
async def test_a_policy_that_changes_at_the_last_moment_is_respected(plane: Plane, buckets: Buckets) -> None:
    store = Store()

    class Late(AtRelease):
        """Somebody else is faster, once."""

        async def act(self) -> None:
            await buckets.annotate("kept", **{DELETE_POLICY_ANNOTATION: "manage"})

    connection = await manager_connection(plane.management.client, buckets.namespace)
    async with Late(connection) as client, running(client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
        await buckets.delete(ref)
        await buckets.until_gone("kept")
    assert store.calls == ["kept"]
    await object_watch.until_absent(buckets.client, INVENTORIES, f"kept-{ref.uid}", namespace=buckets.namespace)


async def test_a_finalizer_that_the_api_server_keeps_is_reported(plane: Plane, buckets: Buckets) -> None:
    clock = StillClock()

    class Refused(AtRelease):
        """A webhook of somebody else's is in the way, once."""

        async def act(self) -> None:
            raise ApiError(APIStatus(code=500, message="a webhook does not answer"), request="PATCH bucket")

    connection = await manager_connection(plane.management.client, buckets.namespace)
    known = external(Store(), group_of(buckets))
    async with Refused(connection) as client, running(client, buckets.namespace, known, clock=clock):
        ref = await buckets.claimed("stuck")
        await buckets.delete(ref)
        said = await buckets.until_said("stuck", "Failed")
        assert said["message"].startswith(f"cannot remove the finalizer from {ref}: ")
        await eventually(lambda: any(item < 2 for item in clock.waiting))
        clock.advance(2)
        await buckets.until_gone("stuck")


@pytest.mark.usefixtures("records")
async def test_an_object_can_be_freed_without_credentials(buckets: Buckets) -> None:
    store = Store()
    store.refuses = PermissionError("no credentials")
    async with running(buckets.client, buckets.namespace, external(store, group_of(buckets))):
        ref = await buckets.claimed("one")
        await buckets.delete(ref)
        await buckets.until_said("one", "Failed")
        await buckets.annotate("one", **{DELETE_POLICY_ANNOTATION: "detach-on-delete"})
        await buckets.until_gone("one")
    assert (await written_down(buckets, ref)).fate is ledger.Fate.KEPT
