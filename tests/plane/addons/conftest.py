"""Fixtures of the add-on tests: a namespace on the member and one for the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.addon_site import AddonSite, target
from unwind.api.rights import HOME, Setting
from unwind.install.install import install
from unwind.members.member import Member
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def equipped(plane: Plane) -> Plane:
    await install(plane.management.client, Setting(), accept_shadowing=True)
    return plane


@pytest.fixture
def cluster(plane: Plane) -> LocalCluster:
    return plane.members["member-1"]


@pytest_asyncio.fixture(loop_scope="session")
async def site(equipped: Plane, cluster: LocalCluster, namespace: str) -> AsyncIterator[AddonSite]:
    await cluster.create_namespace(namespace)
    uid = await cluster.client.cluster_uid()
    async with (
        Member(target(namespace), cluster.client, system_uid=uid) as member,
        manager_client(equipped.management.client, HOME) as own,
    ):
        yield AddonSite(equipped, namespace, member, own)
