"""The manager killed at its writes while it drains a cluster: what goes, what stays and the ledger are the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plane.support.cluster_teardowns import MEMBER, scene
from tests.plane.support.drains import DrainScene
from tests.plane.support.killed_managers import Killer, Managers, killed_user, progress_signature
from tests.plane.support.requested_deletions import tidy
from unwind.api.capi import CLUSTERS
from unwind.api.names import DRAIN_RESOURCE, REQUEST_PREFIX, Reason
from unwind.api.resources import INGRESSES, PERSISTENT_VOLUME_CLAIMS, SERVICES
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.inventory.inventories import Inventories, items
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.members.targets import capi_ref
from unwind.teardown.requests import request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.plane.support.killed_managers import Signature
    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
# What every manager writes to be one at all, and what it only tells people.
_NOT_COUNTED = ("/leases", "/events")
_DRAIN = {"loadBalancers": "Enforce", "exclude": {"matchLabels": {"unwind.dev/keep": "true"}}}
# The user agent of the manager on members.
_ON_MEMBERS = "unwind"


class Life:
    """One process of the manager. It ends at the first write at which not enough of them have ended: one before the
    write is sent, and one before it is answered."""

    def __init__(self, killed: Counter[Signature]) -> None:
        self.over = asyncio.Event()
        self.begun = False
        self._killed = killed
        self._ending = False

    async def write(self, which: Signature, send: Callable[[], Awaitable[bytes]]) -> bytes:
        if self._ending:
            return await _never()
        if not self.begun or self._killed[which] == 2:
            return await send()
        self._ending = True
        self._killed[which] += 1
        if self._killed[which] == 2:
            await send()
        self.over.set()
        return await _never()


async def _never() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture(autouse=True)
def killing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writes of each client that a manager uses end its life."""
    call = Client._call

    async def counted(self: Client, verb: str, resource: Any, method: str, path: str, **more: Any) -> bytes:
        life = _LIFE.get()

        async def send() -> bytes:
            return await call(self, verb, resource, method, path, **more)

        if life is None or method == "GET" or any(part in path for part in _NOT_COUNTED):
            return await send()
        return await life.write(progress_signature(method, path, more.get("body") or b""), send)

    monkeypatch.setattr(Client, "_call", counted)


async def _ended(it: DrainScene, prefix: str = "") -> Teardown | None:
    try:
        found = msgspec.convert(await it.client.get(TEARDOWNS, f"{prefix}{it.cluster.uid}"), Teardown)
    except NotFoundError:
        return None
    return found if found.finished else None


async def test_a_drain_that_is_killed_at_each_write_removes_leaves_and_proves_the_same(
    plane: Plane, namespace: str
) -> None:
    it = DrainScene(await scene(plane, namespace), plane.clouds[MEMBER])
    await it.begin()
    service = await it.service("shop")
    await it.service("shared", labels={"unwind.dev/keep": "true"})
    await it.ingress("web")
    await it.volume("data")
    await it.cluster.add_on("app", objects=1)
    await it.policy("prod", _DRAIN)
    await it.cluster.delete()
    killed: Counter[Signature] = Counter()
    while (ended := await _ended(it)) is None:
        life = Life(killed)
        token = _LIFE.set(life)
        # The tasks of the manager are created with this life, and the test itself goes on without.
        running = it.manager(clock=SYSTEM)
        await running.__aenter__()
        _LIFE.reset(token)
        life.begun = True  # what an administrator writes to start it does not count
        finished = asyncio.ensure_future(it.cluster.ended())
        dead = asyncio.ensure_future(life.over.wait())
        await asyncio.wait([finished, dead], return_when=asyncio.FIRST_COMPLETED)
        for task in (finished, dead):
            task.cancel()
        await running.__aexit__(None, None, None)
    print(f"{killed.total()} kills at {len(killed)} writes:")
    for item in killed:
        print("  ", *item)
    assert ended.phase is Phase.COMPLETE
    assert service.uid not in it.cloud.load_balancers
    assert not await it.exists(INGRESSES, "web")
    assert await it.exists(SERVICES, "shared")
    assert await it.exists(PERSISTENT_VOLUME_CLAIMS, "data")
    assert await it.ledger(ended) == {
        f"Service {it.namespace}/shared": Reason.KEPT_BY_POLICY,
        f"Ingress {it.namespace}/web": Reason.NOT_VERIFIED,
        f"PersistentVolumeClaim {it.namespace}/data": Reason.KEPT_BY_POLICY,
    }
    deleted = it.cluster.member.audit.deletions(resource="services", namespace=it.namespace)
    assert [entry.uid for entry in deleted] == [service.uid]
    # It was there at all that matters: the plan, what is recorded with its uid, and each deletion.
    kinds = {(method, path.split("/")[-1]) for method, path, _ in killed}
    assert {("POST", "teardowns"), ("POST", "inventories"), ("DELETE", "shop"), ("DELETE", "web")} <= kinds
    assert {count for which, count in killed.items() if which[0] in ("POST", "DELETE")} == {2}
    await it.forget_policies()
    await it.cluster.let_go()


async def test_a_requested_drain_that_is_killed_at_each_write_deletes_the_same_and_the_cluster_stays(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    it = DrainScene(await scene(plane, namespace), plane.clouds[MEMBER])
    await it.begin()
    service = await it.service("shop")
    await it.service("shared", labels={"unwind.dev/keep": "true"})
    ingress = await it.ingress("web")
    await it.volume("data")
    await it.policy("prod", _DRAIN)
    managers = Managers(tmp_path / "kubeconfig", namespace, tmp_path / "manager.log")
    killer = Killer(managers, before=True, twice=True, tell_apart=progress_signature)
    async with killer.intercepted(it.client, it.cluster.member, user_agent=_ON_MEMBERS) as way:
        await it.cluster.lead_to(way)
        cluster = capi_ref(it.cluster.namespace, it.cluster.name, it.cluster.uid)
        await request(it.client, cluster, plural=DRAIN_RESOURCE, now=SYSTEM.now())
        await managers.until(lambda: _ended(it, REQUEST_PREFIX), it.client)
    killer.report()
    ended = await _ended(it, REQUEST_PREFIX)
    assert ended
    assert ended.phase is Phase.COMPLETE
    found = await it.client.get(CLUSTERS, it.cluster.name, namespace=it.cluster.namespace)
    assert (found["metadata"]["uid"], "deletionTimestamp" in found["metadata"]) == (it.cluster.uid, False)
    assert service.uid not in it.cloud.load_balancers
    assert await it.exists(SERVICES, "shared")
    assert await it.exists(PERSISTENT_VOLUME_CLAIMS, "data")
    # Each of the two once, by its uid; and nothing else.
    sent = [entry.uid for entry in it.cluster.member.audit.deletions() if entry.username == killed_user(namespace)]
    assert sorted(sent) == sorted([service.uid, ingress.uid])
    chunks = await Inventories(it.client, namespace=namespace).of_requests_on(it.cluster.uid)
    ledger = {str(item.entry.object): item.entry.ledger.reason for item in items(chunks) if item.entry.ledger}
    assert ledger == {
        f"Service {it.namespace}/shared": Reason.KEPT_BY_POLICY,
        f"Ingress {it.namespace}/web": Reason.NOT_VERIFIED,
    }
    # It was there at all that matters: what is recorded with its uid, the plan, and each deletion.
    kinds = {(method, path.split("/")[-1]) for method, path, _ in killer.killed}
    assert {("POST", "inventories"), ("DELETE", "shop"), ("DELETE", "web")} <= kinds
    record = f"/{REQUEST_PREFIX}{it.cluster.uid}"
    assert any(path.endswith(record) and "spec.plan" in fields for _, path, fields in killer.killed)
    await it.forget_policies()
    await tidy(it.client)
