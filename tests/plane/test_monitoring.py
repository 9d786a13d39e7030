"""Alerts and the dashboard, evaluated by a real Prometheus that scrapes a manager at work."""

from __future__ import annotations

import base64
import ssl
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from tests.eventually import eventually
from tests.plane.support import profiles
from tests.plane.support.manager_process import running
from tests.plane.support.prometheus import scraping
from tests.plane.support.requested_deletions import ANYTHING, Room, tidy
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import API_VERSION, Hook
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.unwind import Phase
from unwind.capi import hook_protocol
from unwind.install.alerts import ALERTS, rule_groups
from unwind.install.grafana_dashboard import PANELS
from unwind.server.certificate_secret import NAME as CERTIFICATE
from unwind.server.path_keys import NAME as PATHS
from unwind.server.path_segments import prefix
from unwind.testing.managers import granting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plane.support.manager_process import Manager
    from tests.plane.support.prometheus import Prometheus
    from unwind.kube.client import Client
    from unwind.local.plane import Plane

_DELETE = Hook.BEFORE_CLUSTER_DELETE


async def call_hook(client: Client, namespace: str, manager: Manager) -> None:
    """Ask BeforeClusterDelete about a Cluster, as Cluster API does."""
    found = await client.get(SECRETS, CERTIFICATE, namespace=namespace)
    trusted = ssl.create_default_context(cadata=base64.b64decode(found["data"]["ca.crt"]).decode())
    keys = await client.get(SECRETS, PATHS, namespace=namespace)
    key = base64.b64decode(keys["data"]["key"])
    path = hook_protocol.path(_DELETE)
    metadata = {"name": "prod", "namespace": namespace, "uid": "u-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster", "metadata": metadata, "spec": {}}
    body = {"apiVersion": API_VERSION, "kind": f"{_DELETE.value}Request", "settings": {}, "cluster": cluster}
    async with aiohttp.ClientSession() as session:
        url = f"https://{manager.addresses['https']}{prefix(key, path)}{path}"
        async with session.post(url, data=msgspec.json.encode(body), ssl=trusted) as answer:
            assert answer.status == 200


async def has_data(prometheus: Prometheus, expression: str) -> bool:
    return bool(await prometheus.query(expression))


async def test_every_query_of_the_dashboard_has_data_and_a_held_teardown_alerts_with_who_must_act(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    client = plane.management.client
    await profiles.install(client)
    room = Room(plane.management, namespace)
    await room.open()
    await room.config_map("done")
    await room.config_map("stuck", finalizers=["example.dev/nobody"])
    async with granting(client, f"monitoring-{namespace}", ANYTHING), running(plane.management, namespace) as manager:
        await manager.until_ready("https")
        async with scraping(manager.addresses["metrics"], rule_groups(runbooks="/alerts"), tmp_path) as prometheus:
            await eventually(partial(has_data, prometheus, "unwind_shards_owned"), "a first scrape")
            await call_hook(client, namespace, manager)
            for name in ("done", "stuck"):
                await room.ask(CONFIG_MAPS, name, name)
            await room.teardown(lambda it: it.phase is Phase.COMPLETE, "complete", target="done")
            await room.teardown(lambda it: it.phase is Phase.HELD, "held", target="stuck")

            for panel in PANELS:
                for expression, _ in panel.queries:
                    await eventually(partial(has_data, prometheus, expression), f"data for {panel.title}: {expression}")

            [group] = (await prometheus.get("rules"))["groups"]
            assert {rule["name"] for rule in group["rules"]} == {alert.name for alert in ALERTS}
            assert [rule["name"] for rule in group["rules"] if rule["health"] == "err"] == []
            stuck = f'unwind_teardown_held_seconds{{blocker="ConfigMap {room.name}/stuck",actor!=""}}'
            [held] = await eventually(partial(prometheus.query, stuck), "a diagnosed blocker")
            assert held["metric"]["target"] == f"ConfigMap {room.name}/stuck"
            assert "example.dev" in held["metric"]["actor"]
        await room.let_go(CONFIG_MAPS, "stuck")
        await room.teardown(lambda it: it.phase is Phase.COMPLETE, "complete", target="stuck")
    await tidy(client)
