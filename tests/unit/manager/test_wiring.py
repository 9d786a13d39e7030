"""What the parts of a process are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from unwind.api.annotation_values import DeletePolicy
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.components import ManagerContext, Role
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.kube.metrics import Metrics
from unwind.kube.server_time import ServerClock
from unwind.manager.health import new_registry
from unwind.manager.wiring import components
from unwind.teardown.request_controller import RequestController
from unwind.testing.objects import Objects


class Shards:
    """An owner of everything."""

    def owns(self, key: str) -> bool:
        return True

    def subscribe(self, changed: object) -> None:
        pass


def test_whoever_carries_teardowns_out_goes_by_the_api_servers_clock_and_by_the_same_keys() -> None:
    registry = new_registry()
    client = Objects(resources=()).client
    found = components(
        ManagerContext(
            client=client,
            namespace="home",
            roles=(Role.CONTROLLERS,),
            features={},
            registry=registry,
            metrics=Metrics(registry),
            shards=cast("Any", Shards()),
            recorder=cast("Any", None),
            policy=DeletePolicy.MANAGE,
            best_effort=60.0,
            keep_teardowns=timedelta(days=7),
        )
    )
    carriers = [
        controller
        for share in found
        for controller in share.controllers
        if isinstance(controller, ClusterTeardownController | RequestController | UnjoinController)
    ]
    assert len(carriers) == 3
    for carrier in carriers:
        assert isinstance(carrier._clock, ServerClock)
        assert carrier._clock._time is client.time
    assert len({id(carrier._keys) for carrier in carriers}) == 1
