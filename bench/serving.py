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
from unwind.routes import Request, Response, Route
from unwind.serving import addresses
from unwind.serving.listener import Listener
from unwind.serving.tls import Tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CALLERS, SECONDS, BODY = 16, 3, 4096
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
    processor: float = 0.0
    """Seconds of processor time that the server took."""

    @property
    def each(self) -> float:
        return self.seconds / self.requests


def constant(body: bytes, request: Request) -> Response:
    return ANSWER


async def waiting(body: bytes, request: Request) -> Response:
    return ANSWER


async def main() -> None:
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority("bench")
        pair = authority.server("localhost", hosts=("localhost", "127.0.0.1"))
        for name, content in (("ca", authority.certificate), ("crt", pair.certificate), ("key", pair.key)):
            (scratch / name).write_bytes(content)
        echo = scratch / "echo"
        build = (find_go(), "build", "-o", echo, ".")
        subprocess.run(build, cwd=Path(__file__).parent / "echo", check=True)  # noqa: ASYNC221 - nothing else runs yet
        pems = (str(scratch / "crt"), str(scratch / "key"))
        ours = await stack.enter_async_context(server(sys.executable, "-m", "bench.serving", "serve", *pems))
        go = await stack.enter_async_context(server(str(echo), "serve", *pems))

        seen: dict[str, list[Load]] = {"def": [], "async def": [], "go": []}
        for _ in range(RUNS):
            seen["def"].append(await load(echo, ours, "/constant", scratch / "ca"))
            seen["go"].append(await load(echo, go, "/constant", scratch / "ca"))
            seen["async def"].append(await load(echo, ours, "/waiting", scratch / "ca"))
        for handler in ("def", "async def"):
            tell(handler, seen[handler], seen["go"])


def tell(handler: str, ours: list[Load], go: list[Load]) -> None:
    assert not any(one.failures for one in ours + go)

    def medians(loads: list[Load]) -> tuple[float, float, float]:
        return (
            statistics.median(one.each for one in loads) * 10_000,
            statistics.median(one.p99 for one in loads) * 1_000,
            statistics.median(one.processor / one.requests for one in loads) * 10_000,
        )

    for work, took, limit in zip(
        ("10,000 POSTs over TLS", "their p99, in ms", "processor time of 10,000"),
        medians(ours),
        medians(go),
        strict=True,
    ):
        print(Ratio(f"{work} ({handler})", "net/http in Go", took, limit, goal=1.0))


class Server(msgspec.Struct, frozen=True):
    pid: int
    address: str

    def processor(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@asynccontextmanager
async def server(*command: str) -> AsyncIterator[Server]:
    """A server that prints its address, and ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdin
    yield Server(process.pid, (await process.stdout.readline()).decode().strip())
    process.stdin.close()
    await process.wait()


async def load(echo: Path, called: Server, path: str, authority: Path) -> Load:
    before = called.processor()
    options = (called.address, str(authority), str(CALLERS), str(SECONDS), str(BODY), path)
    process = await asyncio.create_subprocess_exec(echo, "load", *options, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return msgspec.structs.replace(msgspec.json.decode(output, type=Load), processor=called.processor() - before)


async def serve(pair: KeyPair) -> None:
    routes = [
        Route(path="/constant", name="constant", handler=constant),
        Route(path="/waiting", name="waiting", handler=waiting),
    ]
    listener = Listener("https", routes, tls=Tls(pair))
    listening = addresses.listen(addresses.Address("127.0.0.1", 0), option="")
    await listener.open(listening)
    print(addresses.of(listening), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(KeyPair(*(Path(one).read_bytes() for one in sys.argv[2:]))))
    else:
        asyncio.run(main())
