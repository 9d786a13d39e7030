"""Cluster API's hooks for tests: the real handlers and rules on real caches, called as Cluster API calls them."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.owners import Owner
from tests.plane.support import hook_schema
from tests.plane.support.controllers import addon_controllers, removal_deps
from unwind.addons import builtin_hook_rules
from unwind.addons.caches import AddonCaches
from unwind.addons.chart_availability import ChartAvailability
from unwind.addons.summary_gate_source import SummaryGateSource
from unwind.api.capi import CLUSTERS
from unwind.api.hooks import API_VERSION, Hook
from unwind.capi import hook_protocol
from unwind.capi.hook_handlers import HookHandlers
from unwind.capi.hook_registry import HookRegistry
from unwind.kube.metrics import Metrics
from unwind.manager.health import new_registry
from unwind.server.routes import Request
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from tests.plane.support.hook_schema import Schema
    from unwind.helm.program import Helm
    from unwind.hooks import Rule
    from unwind.kube.client import Client, Object

Answer = tuple[int, str]
"""In how many seconds to ask again (0: go on), and what is waited for."""


class Asked:
    """The handlers, called as Cluster API calls them. Requests and responses are checked against its own schema."""

    def __init__(self, asking: HookHandlers, schema: Schema) -> None:
        self._routes = {route.path: route for route in asking.routes()}
        self._schema = schema
        self.settings: dict[str, str] = {}

    async def ask(self, hook: Hook, cluster: Object, **fields: Any) -> Answer:
        # As it is sent: without status, managedFields, and what kubectl remembers.
        metadata = {name: value for name, value in cluster["metadata"].items() if name != "managedFields"}
        about = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster"}
        body = {
            "apiVersion": API_VERSION,
            "kind": f"{hook.value}Request",
            "settings": self.settings,
            "cluster": about | {"metadata": metadata, "spec": cluster.get("spec", {})},
            **fields,
        }
        known = self._schema.hooks[hook]
        assert self._schema.violations(hook, known.request, body) == []
        route = self._routes[hook_protocol.path(hook)]
        request = Request(
            method="POST", path=route.path, query="", headers={}, peer="", ends=time.monotonic() + route.timeout
        )
        said = route.handler(msgspec.json.encode(body), request)
        response = await said if asyncio.iscoroutine(said) else said
        assert response.status == 200, response
        told = msgspec.json.decode(response.body)
        assert self._schema.violations(hook, known.response, told) == []
        assert told["status"] == "Success"
        return told.get("retryAfterSeconds", 0), told["message"]

    async def until(self, says: Callable[[Answer], bool], hook: Hook, cluster: Object, **fields: Any) -> Answer:
        """Ask again and again, as Cluster API does, until the answer is like that."""
        answer: Answer = (-1, "never asked")

        async def expected() -> bool:
            nonlocal answer
            answer = await self.ask(hook, cluster, **fields)
            return says(answer)

        try:
            await eventually(expected, every=0.05)
        except AssertionError:
            raise AssertionError(f"the last answer was {answer}") from None
        return answer

    async def until_open(self, hook: Hook, cluster: Object, **fields: Any) -> None:
        await self.until(lambda answer: answer[0] == 0, hook, cluster, **fields)

    async def until_held(self, words: str, hook: Hook, cluster: Object, **fields: Any) -> str:
        return (await self.until(lambda it: it[0] > 0 and words in it[1], hook, cluster, **fields))[1]


@asynccontextmanager
async def answering(
    client: Client,
    *,
    followed: Client | None = None,
    helm: Helm | None = None,
    more: Iterable[Rule] = (),
    controllers: str = "",
) -> AsyncIterator[Asked]:
    """The handlers, with all hooks switched on. `followed`: the client of the caches. `controllers`: run those of
    add-ons as well, with their inventories in this namespace."""
    schema = await asyncio.to_thread(hook_schema.load)
    clock = StillClock()
    home = controllers or "default"
    async with (
        manager_client(client, home) as own,
        manager_client(followed or client, home) as following,
        removal_deps(own, home, clock=clock) as deps,
        asyncio.TaskGroup() as group,
    ):
        caches = AddonCaches(following, clock=clock)
        charts = ChartAvailability(helm)
        builtin = builtin_hook_rules.builtin(caches, charts=charts, deps=deps)
        registry = HookRegistry([*builtin, *more])
        source = SummaryGateSource(own, caches, deps.inventories)
        asking = HookHandlers(own, caches, source, namespace=home, registry=registry, hooks=Hook)
        parts: list[Any] = [caches, registry, charts]
        if controllers:
            owner, metrics = Owner(), Metrics(new_registry())
            parts += addon_controllers(own, caches, deps, owner=owner, metrics=metrics)
        tasks = [group.create_task(part.run()) for part in parts]
        try:
            await eventually(lambda: caches.settled and caches.teardowns.synced, "settled caches")
            yield Asked(asking, schema)
        finally:
            for task in tasks:
                task.cancel()
