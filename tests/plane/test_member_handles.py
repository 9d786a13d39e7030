"""The finalizer on handles that are on members: an uninstall removes it from what finished teardowns left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest_asyncio

from tests.plane.support.cluster_teardowns import TeardownScene, scene
from tests.plane.support.objects import crd
from unwind.api.flux import DISABLED, FLUX_FINALIZER, KUSTOMIZATIONS, RECONCILE
from unwind.api.meta import ObjectMeta, ObjectRef, manifest, ref_of
from unwind.api.names import Finalizer
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.api.unwind import TEARDOWNS, Cause, Effort, Plan, Step, Teardown, TeardownSpec
from unwind.install import uninstall
from unwind.install.install import established
from unwind.install.member_handles import release_on_members
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> AsyncIterator[TeardownScene]:
    """A cluster with Flux's kind, and without Flux."""
    made = await scene(plane, namespace)
    client, name = made.member.client, f"{KUSTOMIZATIONS.plural}.{KUSTOMIZATIONS.group}"
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd(KUSTOMIZATIONS), field_manager="test")
    await until(client, CUSTOM_RESOURCE_DEFINITIONS, name, lambda one: one is not None and established(one), "served")
    yield made
    for item in await client.list(KUSTOMIZATIONS, namespace=made.on_member):
        meta = item["metadata"]
        await client.patch(KUSTOMIZATIONS, meta["name"], {"metadata": {"finalizers": None}}, namespace=made.on_member)
        await client.delete(KUSTOMIZATIONS, meta["name"], uid=meta["uid"], namespace=made.on_member)


async def _handle(it: TeardownScene, name: str) -> ObjectRef:
    body: Object = {
        "apiVersion": KUSTOMIZATIONS.api_version,
        "kind": KUSTOMIZATIONS.kind,
        "metadata": {
            "name": name,
            "namespace": it.on_member,
            "finalizers": [FLUX_FINALIZER, Finalizer.HANDLE.value],
        },
        # Flux of other tests may run there.
        "spec": {"suspend": True, "interval": "1h", "prune": True, "sourceRef": {"kind": "Bucket", "name": "none"}},
    }
    made = await it.member.client.create(KUSTOMIZATIONS, body)
    return ref_of(KUSTOMIZATIONS, msgspec.convert(made["metadata"], ObjectMeta))


async def _record(it: TeardownScene, *handles: ObjectRef) -> None:
    """A Teardown of the cluster that has ended, with these handles as steps."""
    cluster = ObjectRef(
        group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace=it.namespace, name=it.name, uid=it.uid
    )
    steps = tuple(Step(name=ref.name, object=ref, effort=Effort.TRY.value, wave=1) for ref in handles)
    spec = TeardownSpec(
        title=it.name, target=cluster, cause=Cause.CLUSTER_DELETED.value, plan=Plan(steps=steps, waves=1)
    )
    await it.client.create(TEARDOWNS, manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=it.uid), spec=spec)))
    status = {"status": {"phase": "Complete", "finishedAt": "2026-01-01T00:00:00Z"}}
    await it.client.patch(TEARDOWNS, it.uid, status, subresource="status")


async def _finalizers(it: TeardownScene, name: str) -> list[str]:
    found = await it.member.client.get(KUSTOMIZATIONS, name, namespace=it.on_member)
    return list(found["metadata"]["finalizers"])


async def test_an_uninstall_removes_only_our_finalizer_and_only_from_handles_of_teardowns(it: TeardownScene) -> None:
    apps, recreated = await _handle(it, "apps"), await _handle(it, "recreated")
    await _handle(it, "other")
    gone = ObjectRef(
        group=apps.group, version=apps.version, kind=apps.kind, namespace=it.on_member, name="gone", uid="gone"
    )
    await _record(it, apps, msgspec.structs.replace(recreated, uid="another"), gone)
    told: list[str] = []
    await release_on_members(it.client, told.append)
    assert await _finalizers(it, "apps") == [FLUX_FINALIZER]
    for name in ("recreated", "other"):
        assert await _finalizers(it, name) == [FLUX_FINALIZER, Finalizer.HANDLE.value]
    assert [line for line in told if it.name in line] == [
        f"finalizer removed from {apps} on Cluster {it.namespace}/{it.name}"
    ]


async def _stopped_before_delete(it: TeardownScene, name: str) -> Object:
    """A handle as a manager leaves it that is killed between its patch and its DELETE."""
    await _handle(it, name)
    found = await it.member.client.get(KUSTOMIZATIONS, name, namespace=it.on_member)
    patch = {"metadata": {"annotations": {RECONCILE: DISABLED}}, "spec": {"deletionPolicy": "Delete"}}
    return await it.member.client.revise(KUSTOMIZATIONS, found, patch)


async def _is_restored(it: TeardownScene, name: str) -> bool:
    found = await it.member.client.get(KUSTOMIZATIONS, name, namespace=it.on_member)
    meta, policy = found["metadata"], found["spec"].get("deletionPolicy")
    held = Finalizer.HANDLE in meta["finalizers"]
    return not held and RECONCILE not in (meta.get("annotations") or {}) and policy == "WaitForTermination"


async def test_an_uninstall_restores_handles_that_were_about_to_be_deleted(it: TeardownScene) -> None:
    made = await _stopped_before_delete(it, "there")
    await _record(it, ref_of(KUSTOMIZATIONS, msgspec.convert(made["metadata"], ObjectMeta)))
    await release_on_members(it.client, lambda _: None)
    assert await _is_restored(it, "there")
    # Those on the management cluster are among all objects with a finalizer.
    made = await _stopped_before_delete(it, "here")
    old = msgspec.convert(made["metadata"], ObjectMeta)
    label = {"metadata": {"labels": {"changed": "meanwhile"}}}
    await it.member.client.patch(KUSTOMIZATIONS, "here", label, namespace=it.on_member)
    assert await uninstall._release(it.member.client, KUSTOMIZATIONS, old)
    assert await _is_restored(it, "here")


async def test_an_uninstall_names_the_clusters_that_it_could_not_connect_to(it: TeardownScene) -> None:
    await _record(it, await _handle(it, "apps"))
    nowhere = msgspec.structs.replace(it.member.connection("nobody"), server="https://127.0.0.1:9")
    await it.lead_to(nowhere)
    _, failed = await release_on_members(it.client, lambda _: None)
    [line] = [line for line in failed if it.name in line]
    handles = "Kustomizations and HelmReleases"
    assert line.startswith(f"finalizer unwind.dev/handle of {handles} on Cluster {it.namespace}/{it.name}: ")
    assert await _finalizers(it, "apps") == [FLUX_FINALIZER, Finalizer.HANDLE.value]
