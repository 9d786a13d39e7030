"""Fixtures that several tests on the control plane share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.cluster_teardowns import TeardownScene, ensure_installed, scene
from tests.plane.support.helm_steps import Step, stepping
from tests.plane.support.helm_users import HelmUser, helm_program
from tests.plane.support.requested_deletions import Command, Room
from tests.plane.support.teardown_records import Record
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.pods.agent import PodAgent
from unwind.testing.plugin import another_member

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from image.build import Image
    from unwind.helm.program import Helm
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane
    from unwind.testing.charts import ChartRepository


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_member(plane: Plane) -> AsyncIterator[LocalCluster]:
    """A member for the tests of one module, which use different names. A start takes about three CPU seconds."""
    async with another_member(plane) as member:
        yield member


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agent(plane: Plane, image: Image) -> AsyncIterator[PodAgent]:
    """Nodes of the management cluster that run Pods of our image for real."""
    async with PodAgent(plane.management, {"unwind": image.archive}) as agent:
        yield agent


@pytest_asyncio.fixture(loop_scope="session")
async def it(plane: Plane, namespace: str) -> TeardownScene:
    """A cluster that is ready, on the plane's first member."""
    return await scene(plane, namespace)


@pytest_asyncio.fixture(loop_scope="session")
async def record(plane: Plane) -> AsyncIterator[Record]:
    """A Teardown that no manager carries out, with what belongs to it."""
    await ensure_installed(plane.management.client)
    record = Record(plane.management.client)
    await record.begin()
    yield record
    await record.remove()


@pytest_asyncio.fixture(loop_scope="session")
async def step(plane: Plane, namespace: str, repository: ChartRepository) -> AsyncIterator[Step]:
    """A step that deploys charts to the member, in a namespace of its own."""
    async with stepping(plane, namespace, repository) as step:
        yield step


@pytest_asyncio.fixture(loop_scope="session")
async def room(plane: Plane, home: str) -> Room:
    """A namespace of the management cluster for one test. `home`: a fixture of the module, Unwind's own namespace."""
    room = Room(plane.management, home)
    await room.open()
    return room


@pytest.fixture
async def user(it: TeardownScene, repository: ChartRepository) -> HelmUser:
    """A user of Helm on the member."""
    return await HelmUser.of(it, repository)


@pytest.fixture
async def helm() -> Helm:
    """The program that Unwind uninstalls releases with."""
    return await helm_program()


@pytest.fixture
def command(plane: Plane, home: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """The commands of a user. `home`: a fixture of the module, Unwind's own namespace."""
    return Command(plane.management.kubeconfig, home, capsys)


@pytest.fixture
def planner(plane: Plane, home: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """The same for a user of its own: the audit log knows what it has asked for."""
    return Command(plane.management.write_kubeconfig("planner", groups=ALL_RIGHTS), home, capsys)
