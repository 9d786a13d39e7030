"""Fixtures that several tests on the control plane share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.plane.support.helm_steps import Step, serving, stepping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def repository() -> AsyncIterator[ChartRepository]:
    """A server with the charts of `helm_steps`."""
    async with serving() as repository:
        yield repository


@pytest_asyncio.fixture(loop_scope="session")
async def step(plane: Plane, namespace: str, repository: ChartRepository) -> AsyncIterator[Step]:
    """A step that deploys charts to the member, in a namespace of its own."""
    async with stepping(plane, namespace, repository) as step:
        yield step
