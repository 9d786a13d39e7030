"""An untrusted server can cause only bounded work, and no mistakes."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.unit.kube.talking import HEADERS, PLAIN, STREAM, Call, chunk, forever, get, saying, served
from unwind.errors import UnwindError
from unwind.kube import http1
from unwind.kube import transport as transport_module
from unwind.kube.errors import UnreachableError
from unwind.kube.kubeconfig import ClusterConnection, Token
from unwind.kube.transport import HttpTransport, ServerAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MOST_BODY", 100_000, raising=False)
    monkeypatch.setattr(http1, "MOST_HEAD", 8_192, raising=False)
    monkeypatch.setattr(transport_module, "MOST_LINE", 50_000, raising=False)


async def lines_of(transport: HttpTransport) -> list[bytes]:
    async with transport.stream("/w", headers=HEADERS, silence=5.0) as answer:
        assert not isinstance(answer, ServerAnswer)
        return [line async for batch in answer for line in batch]


@pytest.mark.parametrize(
    "before", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3]
)
async def test_informational_answers_are_skipped(before: bytes) -> None:
    async with served(saying(before + PLAIN, before + OTHER)) as (transport, server):
        assert (await get(transport)).body == b"{}"
        assert (await get(transport)).body == b"true"
        assert server.connections == 1


def endlessly(data: bytes) -> Callable[[Call], Awaitable[None]]:
    """A server that answers a request with the same again and again."""

    async def talk(call: Call) -> None:
        await call.asked()
        while True:
            call.writer.write(data)
            await call.writer.drain()

    return talk


async def test_informational_answers_before_a_stream_are_skipped() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    async with served(saying(hint + STREAM + chunk(b"one\n") + b"0\r\n\r\n")) as (transport, _):
        assert await lines_of(transport) == [b"one"]


async def test_endless_informational_answers_are_given_up() -> None:
    async with served(endlessly(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)) as (transport, _):
        with pytest.raises(UnreachableError, match="informational"):
            await get(transport)


async def test_an_answer_without_a_question_is_never_taken_for_the_next_one() -> None:
    for surplus in (OTHER, OTHER[:20]):
        async with served(saying(PLAIN + surplus), forever(PLAIN)) as (transport, server):
            assert (await get(transport)).body == b"{}"
            assert (await get(transport)).body == b"{}"
            assert server.connections == 2


async def test_an_answer_that_comes_while_the_connection_is_idle_closes_it() -> None:
    sent = asyncio.Event()

    async def talk(call: Call) -> None:
        await call.asked()
        call.writer.write(PLAIN)
        await call.writer.drain()
        await sent.wait()
        call.writer.write(OTHER[:20])
        await call.reader.read()

    async with served(talk, forever(PLAIN)) as (transport, server):
        await get(transport)
        sent.set()
        await eventually(lambda: server.ended, "the end of the connection", within=10)
        assert (await get(transport)).body == b"{}"
        assert server.connections == 2


async def test_an_upgrade_that_was_not_asked_for_is_an_error() -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nxx"
    async with served(saying(upgrade)) as (transport, _):
        with pytest.raises(UnreachableError):
            await get(transport)


def _gzipped(size: int) -> bytes:
    packed = gzip.compress(b"x" * size)
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(packed), packed)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        STREAM + chunk(b"x" * 60_000) * 2,
        _gzipped(100_001),
        _gzipped(50_000_000),
    ],
    ids=["length", "absurd length", "chunks", "unpacked", "bomb"],
)
async def test_a_body_is_bounded(answer: bytes) -> None:
    async with served(saying(answer)) as (transport, _):
        with pytest.raises(UnreachableError):
            await get(transport)


async def test_a_body_of_the_bounds_size_is_taken() -> None:
    async with served(forever(_gzipped(100_000))) as (transport, _):
        assert len((await get(transport)).body) == 100_000


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 9_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 2_000 + b"Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 " + b"O" * 9_000 + b"\r\n",
        STREAM + b"2\r\n{}\r\n0\r\n" + b"X: 1\r\n" * 3_000 + b"\r\n",
    ],
    ids=["one long header", "many headers", "reason", "trailers"],
)
async def test_the_head_of_an_answer_is_bounded(answer: bytes) -> None:
    async with served(saying(answer)) as (transport, _):
        with pytest.raises(UnreachableError):
            await get(transport)


async def test_a_line_of_a_stream_is_bounded() -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        call.writer.write(STREAM)
        while True:
            call.writer.write(chunk(b"x" * 1_000))
            await call.writer.drain()

    async with served(talk) as (transport, _):
        with pytest.raises(UnreachableError, match="line"):
            await lines_of(transport)


async def test_a_stream_asks_for_no_compression_and_refuses_it() -> None:
    async def talk(call: Call) -> None:
        head = (await call.reader.readuntil(b"\r\n\r\n")).lower()
        heads.append(head)
        packed = gzip.compress(b"{}\n")
        call.writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        call.writer.write(chunk(packed) + b"0\r\n\r\n")

    heads: list[bytes] = []
    async with served(talk) as (transport, _):
        with pytest.raises(UnreachableError, match=r"Content-Encoding gzip\).*; turn off compression"):
            await lines_of(transport)
    assert heads[0].count(b"accept-encoding:") == 1
    assert b"accept-encoding: identity\r\n" in heads[0]


async def test_an_encoding_that_was_not_asked_for_is_an_error() -> None:
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}"
    async with served(saying(packed)) as (transport, _):
        with pytest.raises(UnreachableError, match=r"Content-Encoding br\).*; turn off compression"):
            await get(transport)


async def test_asking_on_a_connection_that_is_lost_fails_at_once() -> None:
    async with served(forever(PLAIN)) as (transport, _):
        await get(transport)
        one = transport._idle[-1]
        one.abort()
        async with asyncio.timeout(5):
            await eventually(lambda: not one.usable, every=0)
            for ask in (one.ask, one.open):
                with pytest.raises(http1.BrokenError):
                    await ask(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    "fields",
    [
        {"impersonate": "me\r\nX-Remote-User: admin"},
        {"credential": Token("a\nb")},
        {"credential": Token("a\x00b")},
        {"server_name": "a\r\nb"},
        {"proxy": "http://me:pass%0d%0aword@proxy:1\r\nX: 1"},
    ],
)
async def test_nothing_that_becomes_a_header_can_hold_a_line_break(fields: dict[str, object]) -> None:
    with pytest.raises(UnwindError, match="control characters") as raised:
        HttpTransport(ClusterConnection(server="https://127.0.0.1:1", **fields), user_agent="test")  # type: ignore[arg-type]
    assert "pass%0d" not in str(raised.value)
    assert "X-Remote-User" not in str(raised.value)


async def test_a_user_agent_cannot_hold_a_line_break() -> None:
    with pytest.raises(UnwindError, match="control characters"):
        HttpTransport(ClusterConnection(server="https://127.0.0.1:1"), user_agent="a\r\nb")


async def test_a_proxys_password_is_in_no_error() -> None:
    with pytest.raises(UnwindError, match=r"socks5://proxy:1080") as raised:
        HttpTransport(
            ClusterConnection(server="https://h:1", proxy="socks5://me:hunter2@proxy:1080"), user_agent="test"
        )
    assert "hunter2" not in str(raised.value)


async def test_a_proxy_that_answers_with_the_password_has_it_left_out() -> None:
    async def talk(call: Call) -> None:
        await call.asked()
        call.writer.write(b"HTTP/1.1 407 hunter2 is wrong\r\n\r\n")

    async with served(talk) as (transport, _):
        port = transport._way.port
        through = HttpTransport(
            ClusterConnection(server="https://example.invalid:6443", proxy=f"http://me:hunter2@127.0.0.1:{port}"),
            user_agent="test",
        )
        with pytest.raises(UnreachableError, match=r"refused the tunnel: HTTP/1\.1 407") as raised:
            await get(through)
        assert "hunter2" not in str(raised.value)


async def test_what_a_proxy_answers_is_bounded() -> None:
    async with served(endlessly(b"x" * 10_000)) as (transport, _):
        through = HttpTransport(
            ClusterConnection(server="https://example.invalid:6443", proxy=f"http://127.0.0.1:{transport._way.port}"),
            user_agent="test",
        )
        with pytest.raises(UnreachableError, match="too long"):
            await get(through, within=5.0)
