"""Deployers on the plane of the session, started once for each module that uses them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest_asyncio

from unwind.local import companions, tools
from unwind.testing.charts import ChartRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster
    from unwind.local.companions import CompanionController
    from unwind.local.plane import Plane


@asynccontextmanager
async def flux_on(management: LocalCluster, member: LocalCluster) -> AsyncIterator[None]:
    """Flux on the management cluster and on a member."""
    async with (
        companions.running(tools.KUSTOMIZE_CONTROLLER, management),
        companions.running(tools.HELM_CONTROLLER, management),
        companions.running(tools.KUSTOMIZE_CONTROLLER, member),
    ):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kustomize_controller(plane: Plane) -> AsyncIterator[CompanionController]:
    async with companions.running(tools.KUSTOMIZE_CONTROLLER, plane.management) as controller:
        yield controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kustomize_controller_on_member(plane: Plane) -> AsyncIterator[CompanionController]:
    [member] = plane.members.values()
    async with companions.running(tools.KUSTOMIZE_CONTROLLER, member) as controller:
        yield controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def helm_controller(plane: Plane) -> AsyncIterator[CompanionController]:
    async with companions.running(tools.HELM_CONTROLLER, plane.management) as controller:
        yield controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def caaph(plane: Plane) -> AsyncIterator[CompanionController]:
    async with companions.running(tools.CAAPH, plane.management) as controller:
        yield controller


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def charts() -> AsyncIterator[ChartRepository]:
    """A server for the charts that tests add."""
    async with ChartRepository() as charts:
        yield charts
