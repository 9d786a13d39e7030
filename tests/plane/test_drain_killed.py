"""The manager killed at its writes while it drains a cluster: what goes, what stays and the ledger are the same."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.plane.support.cluster_teardowns import MEMBER, scene
from tests.plane.support.drains import DrainScene
from unwind.api.names import Reason
from unwind.api.resources import INGRESSES, PERSISTENT_VOLUME_CLAIMS, SERVICES
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from unwind.local.plane import Plane

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

_MOST = 200
_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class Life:
    """One process of the manager. It ends at its n-th write: before that is sent, or before it is answered."""

    def __init__(self, number: int) -> None:
        self.over = asyncio.Event()
        self.begun = False
        self._left, self._sent = number, number % 2 == 0

    async def write(self, send: Any) -> Any:
        self._left -= self.begun
        if self._left > 0:
            return await send()
        if self._left == 0 and self._sent:
            await send()
        self.over.set()
        return await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def killing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writes of each client that a manager uses end its life."""
    call = Client._call

    async def counted(self: Client, verb: str, resource: Any, method: str, *arguments: Any, **more: Any) -> Any:
        life = _LIFE.get()

        async def send() -> bytes:
            return await call(self, verb, resource, method, *arguments, **more)

        return await (life.write(send) if life and method != "GET" else send())

    monkeypatch.setattr(Client, "_call", counted)


async def _ended(it: DrainScene) -> Teardown | None:
    try:
        found = msgspec.convert(await it.client.get(TEARDOWNS, it.cluster.uid), Teardown)
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
    drain = {"loadBalancers": "Enforce", "exclude": {"matchLabels": {"unwind.dev/keep": "true"}}}
    await it.policy("prod", drain)
    await it.cluster.delete()
    lives = 0
    while (ended := await _ended(it)) is None:
        lives += 1
        assert lives < _MOST
        life = Life(lives)
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
    assert lives > 5
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
    assert {entry.object_ref.name for entry in deleted} == {"shop"}
    await it.forget_policies()
    await it.cluster.let_go()
