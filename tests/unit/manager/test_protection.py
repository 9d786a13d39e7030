"""What a process runs and answers for protection, with the feature on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from tests.unit.protection.asking import Server
from unwind.kube.client import Client
from unwind.kube.events import Recorder
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.metrics import Metrics
from unwind.kube.shards import Shards
from unwind.manager.context import ManagerContext, ManagerOptions
from unwind.manager.feature_gates import parse
from unwind.manager.health import new_registry
from unwind.manager.wiring import protection
from unwind.protection.webhook_configuration import LABELS_PATH, PROTECTION_PATH

if TYPE_CHECKING:
    from unwind.components import Components
    from unwind.protection.namespace_cache import ProtectionCaches


@pytest.fixture
def client() -> Client:
    return Client(ClusterConnection(server="https://example.invalid"), transport=Server())


def share(client: Client, features: str) -> Components:
    registry = new_registry()
    return protection(
        ManagerContext(
            ManagerOptions(namespace="unwind-system", feature_gates=parse(features)),
            client=client,
            registry=registry,
            metrics=Metrics(registry),
            shards=Shards(client, namespace="unwind-system", identity="me"),
            recorder=Recorder(client, instance="me"),
        )
    )


def test_while_the_feature_is_off_nothing_is_followed_and_nothing_answered(client: Client) -> None:
    off = share(client, "")
    assert (off.serving, off.routes, off.ca_bundle_targets) == ((), (), ())
    assert [part.name for part in off.controllers] == ["protection"], "somebody takes away what was there"


def test_while_it_is_on_questions_are_answered_from_the_first_moment(client: Client) -> None:
    on = share(client, "ResourcesDeletionProtection=true")
    assert {route.path for route in on.routes} == {PROTECTION_PATH, LABELS_PATH}
    [caches] = on.serving
    assert not cast("ProtectionCaches", caches).synced
    assert all(route.ready() for route in on.routes)
    assert [item.name for item in on.ca_bundle_targets] == ["unwind-protection-webhooks.unwind-system"]
