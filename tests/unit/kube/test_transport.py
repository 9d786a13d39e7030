"""Requests over a socket: complete, in pieces, broken, or unanswered."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.unit.kube.talking import HEADERS, PLAIN, STREAM, Call, Server, chunk, forever, get, saying, served
from unwind.errors import UnwindError
from unwind.kube.errors import UnreachableError
from unwind.kube.transport import ServerAnswer

if TYPE_CHECKING:
    from unwind.kube.transport import HttpTransport


async def test_one_connection_serves_one_request_after_the_other() -> None:
    async with served(forever(PLAIN)) as (transport, server):
        assert await get(transport) == ServerAnswer(200, b"{}")
        await transport.request("POST", "/y?a=b", body=b"[1]", headers=HEADERS, within=10.0)
        assert server.heard == ["GET /x HTTP/1.1", "POST /y?a=b HTTP/1.1 [1]"]
        assert server.connections == 1


async def test_as_many_connections_are_made_as_requests_are_under_way() -> None:
    async with served(forever(PLAIN)) as (transport, server):
        await asyncio.gather(*(get(transport) for _ in range(5)))
        assert server.connections == 5
        await asyncio.gather(*(get(transport) for _ in range(5)))
        assert server.connections == 5


async def test_of_the_connections_of_a_burst_a_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.transport._LINGER", 0.05)
    async with served(forever(PLAIN)) as (transport, server):
        await asyncio.gather(*(get(transport) for _ in range(10)))
        await eventually(lambda: server.ended >= 6, "the end of six connections", within=10)
        # Each sweep of the idle connections decides on all of them: the next one keeps those that this one kept.
        assert len(transport._idle) == 4
        await get(transport)
        assert (server.connections, server.ended) == (10, 6)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n3\r\n 2]\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
        % (len(gzip.compress(b"[1, 2]")), gzip.compress(b"[1, 2]")),
    ],
    ids=["chunked", "gzip"],
)
async def test_an_answer_is_whole_however_it_was_packed(answer: bytes) -> None:
    async with served(forever(answer)) as (transport, _):
        assert (await get(transport)).body == b"[1, 2]"


async def test_the_servers_wish_to_wait_is_passed_on() -> None:
    busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    async with served(forever(busy)) as (transport, _):
        assert await get(transport) == ServerAnswer(429, b"", 7.0)


async def test_a_connection_that_the_server_ends_is_not_used_again() -> None:
    ending = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with served(saying(ending)) as (transport, server):
        await get(transport)
        await get(transport)
        assert server.connections == 2


async def _twice(method: str) -> tuple[Server, ServerAnswer]:
    """Send a request on a connection that is closed at the moment of the second request, and on another that is not."""
    async with served(saying(PLAIN, b""), forever(PLAIN)) as (transport, server):
        await get(transport)
        answer = await transport.request(method, "/second", headers=HEADERS, within=10.0)
        return server, answer


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_what_may_be_sent_twice_is_sent_again_if_the_connection_was_closed_meanwhile(method: str) -> None:
    server, answer = await _twice(method)
    assert answer.status == 200
    assert server.connections == 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_may_not_be_sent_twice_is_not(method: str) -> None:
    with pytest.raises(UnreachableError, match="broke"):
        await _twice(method)


async def test_an_answer_that_nobody_waits_for_is_not_taken_for_that_of_the_next_question() -> None:
    answered = asyncio.Event()

    async def late(call: Call) -> None:
        await call.asked()
        await answered.wait()
        call.writer.write(PLAIN)

    other = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue"
    async with served(late, forever(other)) as (transport, server):
        with pytest.raises(UnreachableError, match="does not answer"):
            await get(transport, within=0.05)
        answered.set()
        assert (await get(transport)).body == b"true"
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b""],
    ids=["something else", "cut off", "nothing"],
)
async def test_what_is_no_answer_is_said_to_be_a_broken_connection(answer: bytes) -> None:
    async with served(saying(answer)) as (transport, _):
        with pytest.raises(UnreachableError, match="broke"):
            await get(transport)


@pytest.mark.parametrize("target", ["/a b", "/a\r\nHost: other", "/ü"])
async def test_a_path_cannot_smuggle_anything_into_a_request(target: str) -> None:
    async with served(forever(PLAIN)) as (transport, server):
        with pytest.raises(UnwindError, match="invalid characters in request path"):
            await get(transport, target)
        assert server.heard == []


async def read(transport: HttpTransport, lines: list[bytes], *, silence: float = 10.0) -> None:
    """Collect all lines of a stream in the list."""
    async with transport.stream("/w", headers=HEADERS, silence=silence) as answer:
        assert not isinstance(answer, ServerAnswer)
        async for batch in answer:
            lines += batch


async def test_a_stream_gives_whole_lines_until_its_end() -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        call.writer.write(STREAM + chunk(b"one\ntw"))
        await call.writer.drain()
        call.writer.write(chunk(b"o\nthree\n") + b"0\r\n\r\n")

    lines: list[bytes] = []
    async with served(talk) as (transport, _):
        await read(transport, lines)
    assert lines == [b"one", b"two", b"three"]


async def test_a_stream_that_breaks_off_says_so() -> None:
    lines: list[bytes] = []
    async with served(saying(STREAM + chunk(b"one\n"))) as (transport, _):
        with pytest.raises(UnreachableError, match="broke"):
            await read(transport, lines)
    assert lines == [b"one"]


async def test_a_stream_that_falls_silent_is_given_up() -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        call.writer.write(STREAM)
        await call.asked()  # there is none

    async with served(talk) as (transport, _):
        with pytest.raises(UnreachableError, match="does not answer"):
            await read(transport, [], silence=0.05)


async def test_a_stream_that_is_refused_is_an_answer() -> None:
    gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 2\r\n\r\n{}"
    async with served(forever(gone)) as (transport, _), transport.stream("/w", headers=HEADERS, silence=9.0) as answer:
        assert answer == ServerAnswer(410, b"{}")


async def test_a_reader_that_is_slow_makes_the_server_wait() -> None:
    piece = chunk(b"x" * 65_535 + b"\n")
    sent = 0

    async def talk(call: Call) -> None:
        nonlocal sent
        await call.asked()
        call.writer.write(STREAM)
        for _ in range(400):  # 25 MB
            call.writer.write(piece)
            await call.writer.drain()
            sent += 1
        call.writer.write(b"0\r\n\r\n")

    async with served(talk) as (transport, _), transport.stream("/w", headers=HEADERS, silence=10.0) as answer:
        assert not isinstance(answer, ServerAnswer)
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert sent < 400  # the sockets buffer some of it, and the client a little
        assert sum([len(batch) async for batch in answer]) == 400


async def test_nobody_is_asked_after_the_end() -> None:
    async with served(forever(PLAIN)) as (transport, _):
        await transport.close()
        with pytest.raises(RuntimeError, match="closed"):
            await get(transport)


async def test_a_health_probe_does_not_wait_behind_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.transport._IN_FLIGHT", 1)

    async def busy(call: Call) -> None:
        while True:
            if "/x" not in await call.asked():
                call.writer.write(PLAIN)

    async with served(busy) as (transport, server), asyncio.timeout(10):
        slow = [asyncio.ensure_future(get(transport)) for _ in range(2)]
        while not server.heard:
            await asyncio.sleep(0)
        for path in ("/api/v1/namespaces/kube-system", "/version"):
            assert (await transport.request("GET", path, headers=HEADERS, within=10.0)).status == 200
        assert server.heard.count("GET /x HTTP/1.1") == 1
        for request in slow:
            request.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
