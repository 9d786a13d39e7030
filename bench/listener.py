"""HTTPS: a constant answer to a 4 KB POST, against net/http in Go doing the same; one load generator calls both.

What was found on the way (two shared cores, 16 callers, processor time of a request on the server's side):

    net/http in Go 1.27                                  37 to 43 µs
    uvicorn, raw ASGI, httptools, uvloop                 60 to 67 µs    half of Go's rate: given up
    uvloop's TLS and a constant written back             12 to 16 µs    the floor
    the same and httptools' parser                       16 to 20 µs
    the same and a task for each request                 21 to 29 µs    one more turn of the loop costs as much as TLS
    our connection, handler an `async def`               32 to 42 µs
    our connection, handler a `def`                      26 to 32 µs

So the connection speaks HTTP by itself (serving/connection.py), a task is made only for handlers that wait, nothing
else adds a turn of the loop, there are no timers, headers go into a dict without a call of ours, and counters are plain
numbers. Without TLS and sockets, what is ours takes 6 µs of a request.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from bench.ratios import RUNS, Ratio
from unwind.certificates import Authority, KeyPair
from unwind.local.golang import find_go
from unwind.server.listener import Address, Listener, address_of, bind
from unwind.server.routes import Request, Response, Route
from unwind.server.tls import Tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CALLERS, SECONDS, BODY = 64, 3, 4096
# The size of an AdmissionReview's answer, the same as in echo/main.go.
ANSWER = Response(
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",'
    b'"response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}'
)


class Load(msgspec.Struct, frozen=True):
    """What the load generator saw."""

    requests: int
    failures: int
    seconds: float
    p50: float
    p99: float

    @property
    def each(self) -> float:
        return self.seconds / self.requests


def constant(body: bytes, request: Request) -> Response:
    return ANSWER


async def waiting(body: bytes, request: Request) -> Response:
    return ANSWER


def prepare(scratch: Path) -> tuple[Path, tuple[str, str]]:
    """The load generator, and the files of a certificate for localhost and its key. The authority is in `ca`."""
    authority = Authority("bench")
    pair = authority.server("localhost", hosts=("localhost", "127.0.0.1"))
    for name, content in (("ca", authority.certificate), ("crt", pair.certificate), ("key", pair.key)):
        (scratch / name).write_bytes(content)
    echo = scratch / "echo"
    subprocess.run((find_go(), "build", "-o", echo, "."), cwd=Path(__file__).parent / "echo", check=True)
    return echo, (str(scratch / "crt"), str(scratch / "key"))


async def main() -> None:
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        echo, pems = prepare(scratch)
        ours = await stack.enter_async_context(server(sys.executable, "-m", "bench.listener", "serve", *pems))
        go = await stack.enter_async_context(server(str(echo), "serve", *pems))

        seen: dict[str, list[Load]] = {"def": [], "async def": [], "go": []}
        for _ in range(RUNS):
            seen["def"].append(await load(echo, ours, "/constant", scratch / "ca"))
            seen["go"].append(await load(echo, go, "/constant", scratch / "ca"))
            seen["async def"].append(await load(echo, ours, "/waiting", scratch / "ca"))
        assert not any(item.failures for loads in seen.values() for item in loads)
        (time, p99), (go_time, go_p99) = medians(seen["def"]), medians(seen["go"])
        print(Ratio("10,000 POSTs of 4 KB over TLS", "net/http in Go", time, go_time, goal=1.0))
        print(Ratio("p99 of 1,000 such", "net/http in Go", p99, go_p99, goal=1.0))
        time, p99 = medians(seen["async def"])
        print(f"with a handler that makes a task: {time / go_time:.2f} x the time, {p99 / go_p99:.2f} x the p99 of Go")


def medians(loads: list[Load]) -> tuple[float, float]:
    """Seconds for 10,000 requests, and a thousand times the p99 of one."""
    return (
        statistics.median(item.each for item in loads) * 10_000,
        statistics.median(item.p99 for item in loads) * 1_000,
    )


def on_core(which: int) -> tuple[str, ...]:
    """Whichever server is measured has a core of its own, and the load generator another.

    Left to share, the generator takes from the server what it does not use, and the ratio says how well three
    programs get along on two cores: the same pair of servers came out between 0.9 and 1.3.
    """
    return ("taskset", "-c", str(sorted(os.sched_getaffinity(0))[which]))


@asynccontextmanager
async def server(*command: str) -> AsyncIterator[str]:
    """The address of a server, which prints it, and ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(*on_core(0), *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdin
    yield (await process.stdout.readline()).decode().strip()
    process.stdin.close()
    await process.wait()


async def load(echo: Path, address: str, path: str, authority: Path) -> Load:
    options = (address, str(authority), str(CALLERS), str(SECONDS), str(BODY), path)
    process = await asyncio.create_subprocess_exec(*on_core(-1), str(echo), "load", *options, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return msgspec.json.decode(output, type=Load)


async def serve(pair: KeyPair) -> None:
    routes = [
        Route(path="/constant", name="constant", handler=constant),
        Route(path="/waiting", name="waiting", handler=waiting),
    ]
    listener = Listener("https", routes, tls=Tls(pair))
    listening = bind(Address("127.0.0.1", 0), option="")
    await listener.open(listening)
    print(address_of(listening), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(KeyPair(*(Path(item).read_bytes() for item in sys.argv[2:]))))
    else:
        asyncio.run(main())
