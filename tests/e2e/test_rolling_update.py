"""The replicas of the chart are replaced while fifty clusters are being deleted, beside the real Cluster API."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bench.pods import HELD, HeldClusters, charted, rolling_update
from tests.eventually import eventually
from unwind.api.resources import CONFIG_MAPS
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from image.build import Image

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image"),
]
UNDER_WAY = 50


async def test_a_rolling_update_fails_no_hook_call_and_nothing_is_deleted_twice(image: Image) -> None:
    async with charted(image) as replicas:
        clusters = HeldClusters(replicas.plane, UNDER_WAY + 2)
        await clusters.begin()
        *places, last = clusters.places
        before = {pod["metadata"]["uid"] for pod in await replicas.ready()}
        found = await rolling_update(replicas, clusters, before=1, places=places)
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in await replicas.ready())
        assert found.failed_hook_calls == []
        removed = clusters.objects(places) | {name for name in clusters.objects([last]) if name.startswith(_step(last))}
        assert found.deletes == Counter(dict.fromkeys(removed, 1))
        left = await clusters.member.client.list(CONFIG_MAPS)
        assert not [
            item for item in left if item["metadata"]["namespace"] in places and "roll" in item["metadata"]["name"]
        ]

        # A call without an answer would have been seen.
        await replicas.scale(0)

        async def failed() -> list[str]:
            return replicas.failed_hook_calls()

        await eventually(failed, "a failed hook call", within=120)
        await replicas.scale(2)
        await clusters.unblock(last)
        await clusters.absent([last])
        check_requests(replicas.plane.management)


def _step(place: str) -> str:
    """What the objects of the step that is held begin with."""
    return f"{place}/{HELD.rpartition('-')[0]}"
