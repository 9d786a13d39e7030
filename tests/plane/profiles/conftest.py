"""Fixtures of the profile tests: the installed CRDs, and a namespace with its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.plane.support.profiles import ProfileScene, install, playing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def installed(plane: Plane) -> None:
    await install(plane.management.client)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str, installed: None) -> AsyncIterator[ProfileScene]:
    async with playing(plane, namespace) as scene:
        yield scene
