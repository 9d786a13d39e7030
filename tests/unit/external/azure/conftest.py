"""The Azure fake, and a client that gets its tokens from it as from Entra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.unit.external.azure.scenes import Azure, azure_client
from unwind.testing.arm import Arm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest_asyncio.fixture
async def arm() -> AsyncIterator[Arm]:
    async with Arm() as arm:
        yield arm


@pytest_asyncio.fixture
async def azure(arm: Arm) -> AsyncIterator[Azure]:
    async with azure_client(arm) as client:
        yield Azure(arm, client)
