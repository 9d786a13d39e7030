"""Whatever is sent to the hooks: it is answered, and without a word of the API server no cluster is let go."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.unit.gating.answering import DELETE, Standin
from tests.unit.gating.asked import V1BETA1, V1BETA2, cluster, request, teardown
from unwind.api.hooks import API_VERSION, Hook
from unwind.gating import protocol
from unwind.kube.client import Client
from unwind.kube.kubeconfig import Connection
from unwind.kube.transport import Answer
from unwind.serving import addresses
from unwind.serving.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

# The first is some 20 s of work.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
BODIES, OVER_THE_WIRE = 100_000, 5_000
PATHS = [*(protocol.path(hook) for hook in Hook), *[protocol.path(DELETE)] * 10, protocol.DISCOVERY_PATH]
HELD = [f"00000000-0000-4000-8000-{number:012d}" for number in range(50)]


class Keeping:
    """An API server that has a Teardown for every cluster, and something left in each."""

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> Answer:
        uid = target.partition("?")[0].rpartition("/")[2]
        return Answer(200, msgspec.json.encode(teardown(("read", "Enforce", "Removing"), uid=uid)))

    @asynccontextmanager
    async def stream(self, target: str, *, headers: Mapping[str, str], silence: float) -> AsyncIterator[Any]:
        yield Answer(405, b"")

    async def close(self) -> None:
        pass  # there is no connection


def keeper() -> Standin:
    standin = Standin(client=Client(Connection(server="https://keeping.invalid"), transport=Keeping()))
    standin.knows(*(teardown(("cached", "Enforce", "Removing"), uid=uid) for uid in HELD))
    return standin


class Bodies:
    """Bodies of every bad sort, and good ones, from one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._sorts: dict[str, Callable[[], bytes]] = {
            "valid": lambda: self._sent(self._valid()),
            "truncated": self._truncated,
            "flipped": self._flipped,
            "spliced": self._spliced,
            "random": lambda: self._chance.randbytes(self._chance.randrange(400)),
            "retyped": self._retyped,
            "missing": self._missing,
            "versions": self._versions,
            "doubled": self._doubled,
            "deep": self._deep,
            "huge": self._huge,
            "encoded": self._encoded,
        }

    def next(self) -> tuple[str, bytes]:
        sort = self._chance.choice(list(self._sorts))
        return sort, self._sorts[sort]()

    def _valid(self) -> Any:
        chance = self._chance
        uid = chance.choice(HELD) if chance.random() < 0.8 else f"{chance.getrandbits(128):032x}"
        hook = chance.choice([DELETE, DELETE, *Hook])
        return request(hook, cluster=cluster(uid=uid, version=chance.choice([V1BETA1, V1BETA2])))

    def _sent(self, it: Any) -> bytes:
        return json.dumps(it).encode()

    def _truncated(self) -> bytes:
        sent = self._sent(self._valid())
        return sent[: self._chance.randrange(len(sent))]

    def _flipped(self) -> bytes:
        sent = bytearray(self._sent(self._valid()))
        for _ in range(self._chance.randint(1, 8)):
            sent[self._chance.randrange(len(sent))] = self._chance.randrange(256)
        return bytes(sent)

    def _spliced(self) -> bytes:
        one, other = self._sent(self._valid()), self._sent(self._valid())
        cut = self._chance.randrange(len(one))
        return one[:cut] + other[self._chance.randrange(len(other)) :]

    def _place(self, it: Any) -> tuple[Any, Any]:
        """Somewhere in it: what holds it, and under which key."""
        holder, key = it, self._chance.choice(list(it))
        while isinstance(holder[key], dict | list) and holder[key] and self._chance.random() < 0.8:
            holder = holder[key]
            key = self._chance.choice(list(holder)) if isinstance(holder, dict) else 0
        return holder, key

    def _retyped(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        strange: list[Any] = [
            None,
            True,
            -1,
            2**70,
            1e308,
            float("nan"),
            "",
            "null",
            "../..",
            "\x00",
            [],
            {},
            [[]],
            {"": 0},
        ]
        holder[key] = self._chance.choice(strange)
        return self._sent(it)

    def _missing(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        del holder[key]
        return self._sent(it)

    def _versions(self) -> bytes:
        it = self._valid()
        words = [
            "v1",
            "v1alpha4",
            "v1beta3",
            "",
            API_VERSION,
            "cluster.x-k8s.io/v1beta2",
            "Cluster",
            "Request",
            "X" * 5000,
        ]
        holder = self._chance.choice([it, it["cluster"]])
        holder[self._chance.choice(["apiVersion", "kind"])] = self._chance.choice(words)
        return self._sent(it)

    def _doubled(self) -> bytes:
        it = self._valid()
        again = copy.deepcopy(it)
        key = self._chance.choice(list(it))
        first, second = self._sent(it), self._sent({key: self._chance.choice([again[key], None, {}, "x"])})
        return first[:-1] + b"," + second[1:]

    def _deep(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        holder[key] = "DEEP"
        depth = self._chance.choice([10, 100, 1_000, 10_000, 100_000])
        opened, closed = self._chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
        inside = opened * depth + (b"1" + closed * depth if self._chance.random() < 0.8 else b"")
        return self._sent(it).replace(b'"DEEP"', inside)

    def _huge(self) -> bytes:
        it = self._valid()
        if self._chance.random() < 0.9:  # a few are enough: each takes as long as a hundred others
            it["settings"] = {f"k{number}": "v" * 50 for number in range(self._chance.randrange(500))}
        else:
            it["cluster"]["metadata"]["annotations"]["x"] = "y" * self._chance.randrange(1 << 20)
        return self._sent(it)

    def _encoded(self) -> bytes:
        text = json.dumps(self._valid(), ensure_ascii=False)
        return self._chance.choice(
            [
                text.encode("utf-16"),
                text.encode("utf-8-sig"),
                text.replace("e", "\\u0065").encode(),
                text.replace("prod", "pr\udcffod").encode("utf-8", "surrogatepass"),
                b" " * 5000 + text.encode() + b"\n",
                text.encode() + b"{}",
            ]
        )


def check(path: str, status: int, answered: bytes) -> None:
    assert status in (200, 400)
    told = json.loads(answered)
    if status == 400:
        assert told["message"]
        return
    assert told["status"] == "Success"
    if path == protocol.path(DELETE):
        assert told["retryAfterSeconds"] >= 1, "this lets a cluster go"


async def test_no_body_brings_it_down_or_opens_the_gate() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies, standin, seen = Bodies(seed), keeper(), Counter[str]()
    chance = random.Random(seed)
    for _ in range(BODIES):
        sort, sent = bodies.next()
        path = chance.choice(PATHS)
        answer = await standin.post(path, sent)
        check(path, answer.status, answer.body)
        seen[f"{sort} {answer.status}"] += 1
    assert seen["valid 200"] > 100, "some of them were understood"
    assert seen["retyped 400"] > 100, "and some were not"


async def test_no_body_over_the_wire_does() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    bodies, chance = Bodies(seed), random.Random(seed)
    listener = Listener("hooks", keeper().asking.routes())
    listening = addresses.listen(addresses.Address("127.0.0.1", 0), option="")
    await listener.open(listening)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(_call(addresses.of(listening), bodies, chance, OVER_THE_WIRE // 4))
    finally:
        await listener.close(grace=0.5)
        listening.close()


async def _call(address: addresses.Address, bodies: Bodies, chance: random.Random, number: int) -> None:
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
        check(path, status, await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
