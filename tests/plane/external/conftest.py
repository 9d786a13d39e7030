"""Fixtures of the tests of external objects: a kind of its own for each test, and the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.plane.support.bucket_chains import remove_kind
from tests.plane.support.buckets import Buckets, define
from tests.plane.support.profiles import serve
from unwind.api.unwind import INVENTORIES, TEARDOWNS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def buckets(plane: Plane, namespace: str) -> AsyncIterator[Buckets]:
    """A kind of this test's own; whatever is left of it in the end is let go."""
    client = plane.management.client
    resource = await define(client, f"{namespace}.example.dev")
    yield Buckets(client, resource, namespace)
    await remove_kind(client, Buckets(client, resource, namespace))


@pytest_asyncio.fixture(loop_scope="session")
async def records(plane: Plane) -> None:
    """The CRDs of Unwind itself, for the ledger."""
    await serve(plane.management.client, ("unwind.dev",), (INVENTORIES, TEARDOWNS))
