"""What the tests of the gate share: one plane whose Cluster API asks Unwind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.e2e.gated_clusters import GateScene, grounds, new_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import Ground


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def ground() -> AsyncIterator[Ground]:
    """A plane of these tests' own, with Unwind installed and nobody who answers yet."""
    async with grounds() as ground:
        yield ground


@pytest_asyncio.fixture(loop_scope="session")
async def scene(ground: Ground) -> AsyncIterator[GateScene]:
    """A namespace for one test, on both sides."""
    scene = GateScene(ground, new_namespace())
    await scene.begin()
    yield scene
    await scene.clear()
