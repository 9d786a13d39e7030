"""What Unwind relies on in Flux, shown with the real kustomize-controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.flux_sources import FluxSources, artifacts, config_map, kustomization
from unwind.api.flux import DISABLED, FLUX_FINALIZER, KUSTOMIZATIONS, RECONCILE
from unwind.api.names import Finalizer
from unwind.api.resources import CONFIG_MAPS
from unwind.kube import object_watch
from unwind.kube.updates import revise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.plane import Plane


pytestmark = pytest.mark.usefixtures("kustomize_controller")


@pytest_asyncio.fixture(loop_scope="session")
async def sources(plane: Plane, namespace: str) -> AsyncIterator[FluxSources]:
    async with artifacts() as server:
        yield FluxSources(plane.management.client, namespace, server)


async def hold(sources: FluxSources, name: str) -> Object:
    """What Unwind writes before it deletes a handle."""
    found = await sources.client.get(KUSTOMIZATIONS, name, namespace=sources.namespace)
    patch = {
        "metadata": {
            "annotations": {RECONCILE: DISABLED},
            "finalizers": [*found["metadata"]["finalizers"], Finalizer.CREDENTIALS],
        }
    }
    return await sources.client.revise(KUSTOMIZATIONS, found, patch)


async def until_done(sources: FluxSources, name: str) -> Object:
    """The handle without Flux's finalizer."""
    found = await object_watch.until(
        sources.client,
        KUSTOMIZATIONS,
        name,
        lambda it: it is not None and FLUX_FINALIZER not in it["metadata"]["finalizers"],
        "let go by Flux",
        namespace=sources.namespace,
    )
    assert found
    return found


async def let_go(sources: FluxSources, held: Object) -> None:
    await revise(sources.client, KUSTOMIZATIONS, held, lambda _: {"metadata": {"finalizers": []}})


def applies(plane: Plane, namespace: str) -> int:
    """How often Flux has written the ConfigMap."""
    entries = plane.management.audit.entries(verbs=("patch", "update", "create"), namespace=namespace)
    return sum(entry.object_ref.name == "prices" for entry in entries)


async def test_a_held_handle_is_not_applied_again_and_still_prunes(plane: Plane, sources: FluxSources) -> None:
    client, namespace = sources.client, sources.namespace
    await sources.kustomization("apps", [config_map("prices", namespace)])
    await sources.until_ready("apps")
    applied = applies(plane, namespace)

    held = await hold(sources, "apps")
    await client.delete(KUSTOMIZATIONS, "apps", uid=held["metadata"]["uid"], namespace=namespace)
    await object_watch.until_absent(client, CONFIG_MAPS, "prices", namespace=namespace)
    done = await until_done(sources, "apps")
    assert applies(plane, namespace) == applied
    # The inventory is still readable on the handle that Flux has let go of.
    assert [item["id"] for item in done["status"]["inventory"]["entries"]] == [f"{namespace}_prices__ConfigMap"]
    await let_go(sources, done)


async def test_a_parent_creates_its_child_again_only_after_the_child_is_let_go(sources: FluxSources) -> None:
    client, namespace = sources.client, sources.namespace
    await sources.source("child", [config_map("prices", namespace)])
    child = kustomization("child", namespace)
    await sources.kustomization("parent", [child])
    await sources.until_ready("parent", "child")

    held = await hold(sources, "child")
    await client.delete(KUSTOMIZATIONS, "child", uid=held["metadata"]["uid"], namespace=namespace)
    done = await until_done(sources, "child")
    await _reconcile_parent(sources, child)
    still = await client.get(KUSTOMIZATIONS, "child", namespace=namespace)
    assert still["metadata"]["uid"] == held["metadata"]["uid"]
    assert still["metadata"]["generation"] == done["metadata"]["generation"]
    assert still["metadata"]["annotations"][RECONCILE] == DISABLED

    await let_go(sources, still)
    await _reconcile_parent(sources, child)
    again = await client.get(KUSTOMIZATIONS, "child", namespace=namespace)
    assert again["metadata"]["uid"] != held["metadata"]["uid"]


async def _reconcile_parent(sources: FluxSources, child: Object) -> None:
    """Return when the parent has applied a new revision."""
    found = await sources.client.get(KUSTOMIZATIONS, "parent", namespace=sources.namespace)
    before = found["status"]["lastAppliedRevision"]
    more = config_map(f"more-{before[-6:]}", sources.namespace)
    await sources.source("parent", [child, more])
    await object_watch.until(
        sources.client,
        KUSTOMIZATIONS,
        "parent",
        lambda it: it is not None and it["status"].get("lastAppliedRevision") != before,
        "applied",
        namespace=sources.namespace,
    )
