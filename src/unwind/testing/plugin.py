"""Pytest fixtures on a real control plane: add `pytest_plugins = ["unwind.testing.plugin"]` to a conftest.py.

Tests and fixtures share one event loop for the session, because the plane runs on it: set
`asyncio_default_fixture_loop_scope` and `asyncio_default_test_loop_scope` to `session`.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.testing import managers
from unwind.testing.namespaces import delete_namespace, new_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


# The fixtures that need no plane.
pytest_plugins = ["unwind.testing.fixtures"]


@pytest.fixture(scope="session")
def plane_shape() -> Shape:
    """The components of the plane; override it in a conftest.py."""
    return Shape(members=1)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(plane_shape: Shape) -> AsyncIterator[Plane]:
    """The plane of this session. At the end, the requests of all managers on it are checked."""
    async with running(plane_shape, announce=print) as plane:
        yield plane
        for cluster in plane.clusters():
            managers.check_requests(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(plane: Plane) -> AsyncIterator[str]:
    """A namespace of the management cluster for one test. It is deleted afterwards, without waiting."""
    name = await new_namespace(plane)
    yield name
    await managers.remove_rights(plane.management.client, name)
    await delete_namespace(plane.management.client, name)


@pytest_asyncio.fixture(loop_scope="session")
async def fresh_member(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A member that no other test has used."""
    async with another_member(plane) as member:
        yield member


@asynccontextmanager
async def another_member(plane: Plane) -> AsyncIterator[LocalCluster]:
    """One more member within the block. At its end, the requests of all managers on it are checked."""
    member = await plane.add_member(f"fresh-{uuid.uuid4().hex[:8]}")
    yield member
    try:
        managers.check_requests(member)
    finally:
        await plane.remove_member(member.name)
