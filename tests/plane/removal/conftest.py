"""What the tests of removals share: a scene, and a namespace on the member for each test."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.removals import RemovalScene, define_inventories
from unwind.inventory.inventories import Inventories
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system_uid(plane: Plane) -> str:
    await define_inventories(plane.management.client)
    return await plane.members["member-1"].client.cluster_uid()


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str, system_uid: str) -> AsyncIterator[RemovalScene]:
    async with manager_client(plane.management.client, namespace) as own:
        yield RemovalScene(plane, Inventories(own, namespace=namespace), plane.members["member-1"], system_uid)


@pytest.fixture
def room() -> str:
    """The name of a namespace on the member that no other test has."""
    return f"removal-{uuid.uuid4().hex[:8]}"
