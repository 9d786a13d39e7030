"""Shared connections to members, without a cluster."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.unit.kube.test_fencing import Owner
from unwind.kube.errors import UnreachableError
from unwind.kube.fencing import Fences
from unwind.members.members import Members
from unwind.testing.clock import StillClock
from unwind.testing.objects import Objects


async def test_a_member_that_stays_open_does_not_keep_the_fence_of_its_first_user() -> None:
    fences, clock = Fences(Owner()), StillClock()
    async with Members(Objects(resources=()).client, clock=clock) as members:

        async def reconcile(_: str) -> float | None:
            async with members.management():
                return None

        await fences.around(reconcile, str)("key")
        gc.collect()
        assert members.open == 1
        assert not fences._fences


async def test_a_user_that_fails_or_is_cancelled_gives_the_member_back() -> None:
    clock = StillClock()
    async with Members(Objects(resources=()).client, clock=clock) as members:
        opened = asyncio.Event()

        async def fail() -> None:
            async with members.management():
                raise ValueError("it fails")

        async def hang() -> None:
            async with members.management():
                opened.set()
                await asyncio.Event().wait()

        with pytest.raises(ValueError, match="it fails"):
            await fail()
        hanging = asyncio.ensure_future(hang())
        await opened.wait()
        clock.advance(3600)
        assert members.open == 1
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        clock.advance(3600)
        assert members.open == 0


async def test_no_member_is_opened_after_the_end() -> None:
    members = Members(Objects(resources=()).client)
    async with members:
        pass
    with pytest.raises(UnreachableError, match="shutting down"):
        async with members.management():
            pass
