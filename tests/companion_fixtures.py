"""Deployers on the plane of the session, started once for each module that uses them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from unwind.local import companions, tools
from unwind.testing.charts import ChartRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster
    from unwind.local.companions import CompanionController
    from unwind.local.plane import Plane
    from unwind.local.tools import Tool


@asynccontextmanager
async def flux_on(management: LocalCluster, member: LocalCluster) -> AsyncIterator[None]:
    """Flux on the management cluster and on a member."""
    async with (
        companions.running(tools.KUSTOMIZE_CONTROLLER, management),
        companions.running(tools.HELM_CONTROLLER, management),
        companions.running(tools.KUSTOMIZE_CONTROLLER, member),
    ):
        yield


def _fixture(tool: Tool, *, member: bool = False) -> Any:
    """A fixture with the controller of the management cluster, or of the member."""

    @pytest_asyncio.fixture(scope="module", loop_scope="session")
    async def controller(plane: Plane) -> AsyncIterator[CompanionController]:
        place = plane.management
        if member:
            [place] = plane.members.values()
        async with companions.running(tool, place) as controller:
            yield controller

    return controller


kustomize_controller = _fixture(tools.KUSTOMIZE_CONTROLLER)
kustomize_controller_on_member = _fixture(tools.KUSTOMIZE_CONTROLLER, member=True)
helm_controller = _fixture(tools.HELM_CONTROLLER)
caaph = _fixture(tools.CAAPH)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def charts() -> AsyncIterator[ChartRepository]:
    """A server for the charts that tests add."""
    async with ChartRepository() as charts:
        yield charts
