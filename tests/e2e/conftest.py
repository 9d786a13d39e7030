"""What the tests of the gate share: one plane whose Cluster API asks Unwind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.e2e.cluster_costs import FEATURES
from tests.e2e.gated_clusters import GateScene, grounds, new_namespace
from unwind.local import companions, tools
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import Ground
    from tests.plane.support.manager_process import Manager


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane of these tests' own, with Unwind installed and nobody who answers yet."""
    async with grounds() as ground:
        yield ground


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def costs_ground() -> AsyncIterator[Ground]:
    """A plane with the controller of KubeadmControlPlanes and a cloud, and a manager."""
    async with (
        grounds(features=FEATURES, cloud=True) as ground,
        companions.running(tools.KUBEADM_CONTROL_PLANE, ground.management),
        ground.registered_manager(),
    ):
        yield ground


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def manager(ground: Ground) -> AsyncIterator[Manager]:
    """A manager for all tests of a module, which Cluster API asks."""
    async with ground.registered_manager() as manager:
        yield manager
        assert await manager.stop() == 0
    check_requests(ground.management)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(ground: Ground) -> AsyncIterator[GateScene]:
    """A namespace for one test, on both sides."""
    scene = GateScene(ground, new_namespace())
    await scene.begin()
    yield scene
    await scene.clear()
