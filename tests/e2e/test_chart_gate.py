"""Unwind by its chart, beside the real Cluster API: a deleted cluster is held while replicas come and go."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.e2e.gated_clusters import OURS, Balancer, GateScene, Ground, new_namespace
from tests.plane.support.objects import absent
from tests.plane.test_chart import CHART
from tests.plane.test_chart_lifecycle import VALUES, _ready_pods, helm
from unwind.api.capi import EXTENSION_CONFIGS
from unwind.api.resources import DEPLOYMENTS
from unwind.api.rights import HOME
from unwind.kube.object_watch import until_true
from unwind.local import plane as planes
from unwind.local.home import Shape
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from pathlib import Path

    from image.build import Image

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image"),
]


async def test_a_deleted_cluster_is_held_while_a_replica_is_killed_and_the_release_upgraded(
    image: Image, tmp_path: Path
) -> None:
    values = tmp_path / "values.json"
    values.write_bytes(msgspec.json.encode(VALUES))
    shape = Shape(members=1, nodes=True, capi=True, image=str(image.archive))
    async with planes.running(shape, announce=print) as plane:
        client, management = plane.management.client, plane.management
        await management.create_namespace(HOME)
        await helm(management, "install", "unwind", str(CHART), "--values", str(values))
        pods = await _ready_pods(client, 2)
        await until_true(client, EXTENSION_CONFIGS, OURS, "Discovered", within=120)

        scene = GateScene(Ground(plane, Balancer()), new_namespace())
        await scene.begin()
        cluster = await scene.held_cluster()

        assert plane.agent
        process = plane.agent.runner(pods[0]).containers[0].process
        assert process
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        await helm(management, "upgrade", "unwind", str(CHART), "--reuse-values", "--set", "podLabels.team=a")
        await until_true(client, DEPLOYMENTS, "unwind", "Available", namespace=HOME, within=120)
        await cluster.until_held("web-0")
        assert "unwind-uninstall" in await helm(management, "uninstall", "unwind", fails=True)
        await cluster.until_held("web-0")

        await scene.unblock("web-0")
        await cluster.until_gone()
        assert await scene.on_member() == {}
        await scene.clear()
        await helm(management, "uninstall", "unwind", "--timeout", "240s")
        assert await absent(client, EXTENSION_CONFIGS, OURS)
        check_requests(management)
