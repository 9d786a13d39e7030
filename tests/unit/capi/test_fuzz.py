"""Whatever is sent to the hooks: it is answered, and without a word of the API server no cluster is let go."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.unit.capi.answering import DELETE, Standin
from tests.unit.capi.asked import V1BETA1, V1BETA2, cluster, request, teardown
from tests.unit.mangling import Bodies
from unwind.api.hooks import API_VERSION, Hook
from unwind.capi import hook_protocol
from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.transport import ServerAnswer
from unwind.server.listener import Address, Listener, address_of, bind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.teardown.signatures import RecordKeys

# The first is some 20 s of work.
pytestmark = pytest.mark.timeout(900)
BODIES = [2_000, pytest.param(100_000, marks=pytest.mark.soak)]
OVER_THE_WIRE = [200, pytest.param(5_000, marks=pytest.mark.soak)]
# By how much the process may grow.
GROWTH = 96 << 20
PATHS = [*(hook_protocol.path(hook) for hook in Hook), *[hook_protocol.path(DELETE)] * 10, hook_protocol.DISCOVERY_PATH]
HELD = [f"00000000-0000-4000-8000-{number:012d}" for number in range(50)]
DONE = [f"00000000-0000-4000-8000-{number:012d}" for number in range(50, 60)]
"""Clusters from which everything was removed: they may go."""


class Keeping:
    """An API server that has a Teardown of the manager for every cluster, and something left in all but a few."""

    keys: RecordKeys

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> ServerAnswer:
        uid = target.partition("?")[0].rpartition("/")[2]
        state = "Removed" if uid in DONE else "Removing"
        return ServerAnswer(200, msgspec.json.encode(self.keys.signed(teardown(("read", "Enforce", state), uid=uid))))

    @asynccontextmanager
    async def stream(self, target: str, *, headers: Mapping[str, str], silence: float) -> AsyncIterator[Any]:
        yield ServerAnswer(405, b"")

    async def close(self) -> None:
        pass  # there is no connection


def keeper() -> Standin:
    keeping = Keeping()
    standin = Standin(client=Client(ClusterConnection(server="https://keeping.invalid"), transport=keeping))
    keeping.keys = standin.keys
    standin.knows(*(teardown(("cached", "Enforce", "Removing"), uid=uid) for uid in HELD))
    standin.knows(*(teardown(("cached", "Enforce", "Removed"), uid=uid) for uid in DONE))
    return standin


def bodies_from(seed: int) -> Bodies:
    return Bodies(seed, valid, words=WORDS, versioned=lambda it: [it, it["cluster"]], swell=swell)


WORDS = ["v1", "v1alpha4", "v1beta3", API_VERSION, "cluster.x-k8s.io/v1beta2", "Cluster", "Request"]


def valid(chance: random.Random) -> Any:
    uid = chance.choice([*HELD, *DONE]) if chance.random() < 0.8 else f"{chance.getrandbits(128):032x}"
    hook = chance.choice([DELETE, DELETE, *Hook])
    return request(hook, cluster=cluster(uid=uid, version=chance.choice([V1BETA1, V1BETA2])))


def swell(it: Any, chance: random.Random) -> None:
    if chance.random() < 0.9:  # a few are enough: each takes as long as a hundred others
        it["settings"] = {f"k{number}": "v" * 50 for number in range(chance.randrange(500))}
    else:
        it["cluster"]["metadata"]["annotations"]["x"] = "y" * chance.randrange(1 << 20)


def may_go(sent: bytes) -> bool:
    """Whether the cluster that a request names may go. Not made by what is tested."""
    try:
        # What is not read need not be UTF-8.
        it = json.loads(sent.decode("utf-8", "replace"), strict=False)
        return it["cluster"]["metadata"]["uid"] in DONE
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


def resident() -> int:
    """How much memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check(path: str, sent: bytes, status: int, answered: bytes) -> bool:
    """Whether it lets a cluster go, which then is one that may go."""
    assert status in (200, 400)
    told = json.loads(answered)
    if status == 400:
        assert told["message"]
        return False
    assert told["status"] == "Success"
    if path == hook_protocol.path(DELETE) and not told["retryAfterSeconds"] >= 1:
        assert may_go(sent), "this lets a cluster go"
        return True
    return False


@pytest.mark.parametrize("number", BODIES)
async def test_no_body_brings_it_down_or_opens_the_gate(number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies, standin, seen = bodies_from(seed), keeper(), Counter[str]()
    chance, before = random.Random(seed), resident()
    for _ in range(number):
        sort, sent = bodies.next()
        path = chance.choice(PATHS)
        answer = await standin.post(path, sent)
        seen["let go"] += check(path, sent, answer.status, answer.body)
        seen[f"{sort} {answer.status}"] += 1
    assert resident() - before < GROWTH
    assert seen["valid 200"] > number / 1_000, "some of them were understood"
    assert seen["let go"] > number / 1_000, "some were let go, of those that may go"
    assert seen["retyped 400"] > number / 1_000, "and some were not"


@pytest.mark.parametrize("number", OVER_THE_WIRE)
async def test_no_body_over_the_wire_does(number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies, chance = bodies_from(seed), random.Random(seed)
    listener = Listener("hooks", keeper().asking.routes())
    listening = bind(Address("127.0.0.1", 0), option="")
    await listener.open(listening)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(_call(address_of(listening), bodies, chance, number // 4))
    finally:
        await listener.close(grace=0.5)
        listening.close()


async def _call(address: Address, bodies: Bodies, chance: random.Random, number: int) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    for _ in range(number):
        (_, sent), path = bodies.next(), chance.choice(PATHS)
        writer.write(
            b"POST %b?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(sent))
        )
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length"))
        check(path, sent, status, await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
