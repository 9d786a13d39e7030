"""A cluster that cannot be reached for a minute while it is deleted, with each gate: only the time changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.e2e.cluster_costs import GATES, CostScene
from tests.e2e.gated_clusters import new_namespace
from tests.eventually import eventually
from unwind.api.names import Reason
from unwind.api.unwind import Gate, Phase
from unwind.local.cluster import ALL_RIGHTS
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.gated_clusters import Ground

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

_MINUTE = 60.0


@pytest.mark.parametrize("gate", GATES)
async def test_a_cluster_that_is_cut_off_for_a_minute_is_held_until_it_is_known_what_is_gone(
    costs_ground: Ground, gate: Gate, tmp_path: Path
) -> None:
    scene = CostScene(costs_ground, new_namespace(), gate)
    direct = costs_ground.member.connection(f"through-{scene.namespace}", groups=ALL_RIGHTS)
    async with Proxy(direct.server) as proxy, scene.running():
        await scene.profiles()
        cluster = await scene.costly_cluster()
        await scene.make_costs(tmp_path)
        await scene.lead_to(msgspec.structs.replace(direct, server=proxy.url))
        scene.operator.working.clear()
        await scene.delete()
        await cluster.teardown(lambda it: it.phase is Phase.HELD and "orders" in it.status.blocked_by)
        assert proxy.accepted, "the manager does not go by the proxy"

        # It does not answer, and then it refuses connections. Meanwhile everything is cleaned up.
        proxy.hold()
        scene.operator.working.set()
        await eventually(lambda: not scene.outside() & scene.uids, "cleaned up outside")
        await asyncio.sleep(_MINUTE / 2)
        proxy.close()
        proxy.resume()
        await asyncio.sleep(_MINUTE / 2)
        assert scene.gone_at() == []
        held = await cluster.teardown(lambda it: True)
        assert held.phase is Phase.HELD
        [first, *_] = held.status.blockers
        assert (first.reason, first.object.kind) == (Reason.UNREACHABLE, "Cluster")
        assert held.status.blocked_by.startswith(f"{first.object} does not answer: ")

        proxy.reopen()
        await cluster.until_gone()
        await scene.check(await cluster.teardown())
