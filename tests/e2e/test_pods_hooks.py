"""Cluster API calls the lifecycle hooks of replicas that run in the cluster, through their Service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.e2e.gated_clusters import OURS
from tests.plane.support.commands import command
from tests.plane.support.real_pods import manager_deployment, new_object
from unwind.api.capi import EXTENSION_CONFIGS
from unwind.api.resources import DEPLOYMENTS
from unwind.api.rights import HOME
from unwind.kube.object_watch import until_absent, until_true
from unwind.local import plane as planes
from unwind.local.home import Shape
from unwind.testing.managers import check_requests

if TYPE_CHECKING:
    from image.build import Image

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the files of an image"),
]


async def test_cluster_api_discovers_replicas_through_their_service(image: Image) -> None:
    shape = Shape(nodes=True, capi=True, image=str(image.archive))
    async with planes.running(shape, announce=print) as plane:
        client = plane.management.client
        told = await command(plane.management, "install")
        assert told.code == 0, told.err
        made = await client.create(
            DEPLOYMENTS, new_object(DEPLOYMENTS, "unwind", HOME, manager_deployment("registry.test/unwind:0.2.0"))
        )
        await until_true(client, DEPLOYMENTS, "unwind", "Available", namespace=HOME, within=120)
        await until_true(client, EXTENSION_CONFIGS, OURS, "Discovered", within=120)
        await client.delete(
            DEPLOYMENTS, "unwind", uid=made["metadata"]["uid"], namespace=HOME, propagation="Foreground"
        )
        await until_absent(client, DEPLOYMENTS, "unwind", namespace=HOME, within=120)
        check_requests(plane.management)
