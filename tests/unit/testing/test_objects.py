"""The fake API server answers like a real one, as far as deletions depend on it."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, Resource
from unwind.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from unwind.testing import Objects


def config(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", **metadata}}


async def test_what_is_deleted_is_gone_and_its_absence_is_believed() -> None:
    objects = Objects(config("a", uid="1"))
    await objects.client.delete(CONFIG_MAPS, "a", uid="1", namespace="default")
    with pytest.raises(NotFoundError):
        await objects.client.get(CONFIG_MAPS, "a", namespace="default")
    assert (await objects.client.sighting(CONFIG_MAPS, "a", uid="1", namespace="default", cluster="standin")).absent
    assert not (await objects.client.sighting(CONFIG_MAPS, "a", uid="1", namespace="default", cluster="other")).absent


async def test_another_uid_or_version_is_a_conflict() -> None:
    objects = Objects(config("a", uid="1"))
    with pytest.raises(ConflictError):
        await objects.client.delete(CONFIG_MAPS, "a", uid="2", namespace="default")
    with pytest.raises(ConflictError):
        await objects.client.delete(CONFIG_MAPS, "a", uid="1", version="0", namespace="default")
    with pytest.raises(ConflictError):
        await objects.client.patch(CONFIG_MAPS, "a", {"metadata": {"uid": "2"}, "data": {}}, namespace="default")


async def test_a_finalizer_holds_an_object_until_it_is_taken_off() -> None:
    objects = Objects(config("a", uid="1", finalizers=["example.dev/hold"]))
    held = await objects.client.delete(CONFIG_MAPS, "a", uid="1", namespace="default")
    assert held["metadata"]["deletionTimestamp"]
    objects.change(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
    assert objects.get(CONFIG_MAPS, "a") is None


async def test_the_generation_counts_changes_of_the_spec_and_only_those() -> None:
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}}
    objects = Objects(web)
    seen = await objects.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 0}}, namespace="default")
    assert seen["metadata"]["generation"] == 2
    seen = await objects.client.patch(
        DEPLOYMENTS,
        "web",
        {"spec": {"replicas": 9}, "status": {"replicas": 1}},
        namespace="default",
        subresource="status",
    )
    assert (seen["metadata"]["generation"], seen["spec"], seen["status"]) == (2, {"replicas": 0}, {"replicas": 1})


async def test_an_owner_deleted_in_the_foreground_goes_after_what_it_owns() -> None:
    owner = {
        "apiVersion": "example.dev/v1",
        "kind": "Bucket",
        "metadata": {"name": "b", "namespace": "default", "uid": "1"},
    }
    objects = Objects(owner, config("owned", ownerReferences=[{"uid": "1", "kind": "Bucket", "name": "b"}]))
    buckets = Resource("example.dev", "v1", "buckets", "Bucket")
    await objects.client.delete(buckets, "b", uid="1", namespace="default", propagation="Foreground")
    assert objects.get(buckets, "b")
    objects.settle()
    assert objects.get(CONFIG_MAPS, "owned") is None
    objects.settle()
    assert objects.get(buckets, "b") is None


async def test_lists_go_by_namespace_and_labels() -> None:
    objects = Objects(config("a", labels={"app": "x"}), config("b"), config("c", namespace="other"))
    listed = await objects.client.list(CONFIG_MAPS, namespace="default")
    assert [item["metadata"]["name"] for item in listed] == ["a", "b"]
    listed = await objects.client.list(CONFIG_MAPS, labels="app=x")
    assert [item["metadata"]["name"] for item in listed] == ["a"]
    listed = await objects.client.list(CONFIG_MAPS, labels="app in (w,x)")
    assert [item["metadata"]["name"] for item in listed] == ["a"]
    with pytest.raises(ApiError, match="only by key=value"):
        await objects.client.list(CONFIG_MAPS, labels="!app")


async def test_what_is_there_already_is_not_created_and_what_is_not_served_says_nothing_of_objects() -> None:
    objects = Objects(config("a"))
    with pytest.raises(AlreadyExistsError):
        await objects.client.create(CONFIG_MAPS, config("a"))
    unserved = Resource("nobody.dev", "v1", "nothings", "Nothing")
    seen = await objects.client.sighting(unserved, "a", uid="1", namespace="default")
    assert not seen.absent
