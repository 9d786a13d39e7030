"""The listener answers what it can, refuses what it must, and says so in words."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventually import eventually
from tests.unit.server.calling import ECHO, Caller, Held, echo, handling, post, serving
from unwind.server.listener import Limits
from unwind.server.routes import Request, Response, Route, sentence


async def test_a_request_gets_what_its_route_answers_and_the_connection_stays() -> None:
    async with serving() as served:
        caller = await served.caller()
        for body in (b"one", b"two" * 100_000, b""):
            answer = await caller.post("/echo?timeout=5s", body)
            assert (answer.status, answer.body) == (200, body)
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["date"].endswith("GMT")
        assert served.listener.connections == 1


async def test_a_handler_knows_what_was_asked() -> None:
    asked: list[Request] = []

    async def handler(body: bytes, request: Request) -> Response:
        asked.append(request)
        return Response(b"")

    async with serving(Route(path="/ask", name="ask", handler=handler)) as served:
        await (await served.caller()).post("/ask?timeout=10s&a=b", headers="X-Word: yes\r\n")
    [request] = asked
    assert (request.method, request.path, request.query, request.peer) == (
        "POST",
        "/ask",
        "timeout=10s&a=b",
        "127.0.0.1",
    )
    assert request.header("x-word") == "yes"
    assert request.header("content-type") is None
    assert 0 < request.remaining <= 9.0


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (post("/nowhere"), 404, b"not found"),
        (post("/echo/"), 404, b"not found"),
        (b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n", 405, b"use POST"),
    ],
)
async def test_what_has_no_route_is_refused_in_a_sentence_and_the_connection_stays(
    sent: bytes, status: int, said: bytes
) -> None:
    async with serving() as served:
        caller = await served.caller()
        await caller.send(sent)
        answer = await caller.answer()
        assert answer.status == status
        assert said in answer.body
        assert (await caller.post("/echo", b"still")).body == b"still"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 hello?\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /echo HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nwhatever", 405),
        (b"POST /echo HTTP/1.1\r\nX: " + b"a" * 100_000, 431),
        (post("/echo", b"a" * 2000), 413),
        (
            b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"a" * 1000 + b"\r\n1\r\na\r\n",
            413,
        ),
    ],
)
async def test_what_cannot_be_read_is_refused_and_the_connection_ends(
    sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unwind.server.connection._LINGER_SECONDS", 0.05)
    async with serving(Route(path="/echo", name="echo", handler=echo, body_limit=1000)) as served:
        caller = await served.caller()
        await caller.send(sent)
        answer = await caller.answer()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert await caller.ended() == b""


async def test_a_refused_caller_that_goes_on_sending_still_reads_why() -> None:
    async with serving(Route(path="/echo", name="echo", handler=echo, body_limit=1000)) as served:
        caller = await served.caller()
        await caller.send(post("/echo", b"a" * 4_000_000))
        assert (await caller.answer()).status == 413


async def test_what_a_handler_says_when_it_breaks_stays_in_the_log() -> None:
    def at_once(body: bytes, request: Request) -> Response:
        raise RuntimeError("the secret is 42")

    async def later(body: bytes, request: Request) -> Response:
        await asyncio.sleep(0)
        raise RuntimeError("the secret is 42")

    routes = [Route(path=f"/{item.__name__}", name=item.__name__, handler=item) for item in (at_once, later)]
    async with serving(*routes) as served:
        caller = await served.caller()
        for route in routes:
            answer = await caller.post(route.path)
            assert answer.status == 500
            assert b"42" not in answer.body


async def test_a_route_that_is_not_ready_answers_503_at_once_and_later_does_not() -> None:
    ready = False
    async with serving(Route(path="/echo", name="echo", handler=echo, ready=lambda: ready)) as served:
        caller = await served.caller()
        answer = await caller.post("/echo", b"x")
        assert answer.status == 503
        assert "retry-after" not in answer.headers, "the API server's client would try until its timeout"
        ready = True
        assert (await caller.post("/echo", b"x")).status == 200


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    held = Held()
    async with serving(ECHO, Route(path="/held", name="held", handler=held)) as served:
        caller = await served.caller()
        await caller.send(post("/held", b"1") + post("/echo", b"2") + post("/held", b"3") + post("/echo", b"4"))
        await held.came.acquire()
        held.go.set()
        assert [(await caller.answer()).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]


async def test_more_requests_sent_ahead_than_are_remembered_are_refused() -> None:
    async with handling() as (held, _, caller):
        await caller.send(post("/held") * 99)
        assert (await caller.answer()).status == 429
        await held.cancelled.wait()
        assert held.came.locked(), "none of the others was begun"


async def test_a_request_that_is_refused_before_its_handler_begins_gives_its_room_back() -> None:
    held = Held()
    async with serving(Route(path="/held", name="held", handler=held)) as served:
        caller = await served.caller()
        await caller.send(post("/held") * 100)
        assert (await caller.answer()).status == 429
        assert served.listener.under_way == 0


async def test_a_caller_that_expects_to_be_told_to_continue_is_told() -> None:
    async with serving() as served:
        caller = await served.caller()
        await caller.send(b"POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(b"ok")
        assert (await caller.answer()).body == b"ok"


async def test_the_body_of_an_answer_to_head_is_not_sent() -> None:
    def hello(body: bytes, request: Request) -> Response:
        return sentence(200, "hello")

    async with serving(Route(path="/", name="index", handler=hello, methods=("GET", "HEAD"))) as served:
        caller = await served.caller()
        await caller.send(b"HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n")
        assert (await caller.answer(to_head=True)).headers["content-length"] == "6"
        assert (await caller.answer()).body == b"hello\n"
        assert await caller.ended() == b"", "HTTP/1.0 is closed"


async def test_a_handler_that_takes_too_long_is_ended_and_its_caller_answered_in_time() -> None:
    held, told = Held(), Held()
    routes = [
        Route(path="/held", name="held", handler=held, timeout=0.4),
        Route(path="/told", name="told", handler=told, timeout=60.0, late=Response(b'{"retryAfterSeconds":1}')),
    ]
    async with serving(*routes) as served:
        caller = await served.caller()
        assert (await caller.post("/held")).status == 504
        await held.cancelled.wait()
        answer = await caller.post("/told?timeout=1s")
        assert (answer.status, answer.body) == (200, b'{"retryAfterSeconds":1}')
        await told.cancelled.wait()


async def test_a_handler_that_will_not_be_ended_keeps_its_place_but_not_its_caller() -> None:
    go = asyncio.Event()

    async def stubborn(body: bytes, request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go.wait()
        return Response(b"too late")

    async with serving(ECHO, Route(path="/stubborn", name="stubborn", handler=stubborn, timeout=0.3)) as served:
        caller = await served.caller()
        assert (await caller.post("/stubborn")).status == 504
        assert served.listener.under_way == 1
        assert (await caller.post("/echo", b"next")).body == b"next", "and nothing of the late answer"
        go.set()
        await eventually(lambda: not served.listener.under_way, "the end of the handler")
        assert (await caller.post("/echo", b"next")).body == b"next"


async def test_requests_beyond_the_limit_wait_for_their_turn() -> None:
    held = Held()
    async with serving(
        Route(path="/held", name="held", handler=held), limits=Limits(under_way=2, patience=60)
    ) as served:
        answers = [asyncio.ensure_future((await served.caller()).post("/held", bytes([number]))) for number in range(6)]
        for _ in range(2):
            await held.came.acquire()
        await eventually(lambda: served.listener.waiting >= 4, "four waiting requests")
        assert (served.listener.under_way, held.came.locked()) == (2, True)
        held.go.set()
        assert [(await answer).status for answer in answers] == [200] * 6


async def test_whoever_waits_too_long_for_a_turn_is_told_to_come_again() -> None:
    held, told = Held(), Response(b'{"retryAfterSeconds":1}')
    routes = [
        Route(path="/held", name="held", handler=held),
        Route(path="/told", name="told", handler=held, busy=told),
    ]
    async with serving(*routes, limits=Limits(under_way=1, patience=0.1)) as served:
        first = asyncio.ensure_future((await served.caller()).post("/held", b"first"))
        await held.came.acquire()
        refused = await (await served.caller()).post("/held")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await (await served.caller()).post("/told")).body == told.body
        held.go.set()
        assert (await first).body == b"first"


async def test_a_caller_that_goes_away_takes_its_request_along() -> None:
    held = Held()
    async with serving(Route(path="/held", name="held", handler=held), limits=Limits(under_way=1)) as served:
        working, waiting = await served.caller(), await served.caller()
        await working.send(post("/held"))
        await held.came.acquire()
        await waiting.send(post("/held"))
        await eventually(lambda: served.listener.waiting, "a waiting request")
        await waiting.close()
        await working.close()
        await held.cancelled.wait()
        held.go.set()
        assert (await (await served.caller()).post("/held", b"next")).body == b"next"


async def test_a_caller_that_sends_slowly_is_not_waited_for() -> None:
    limits = Limits(head_seconds=0.2)
    async with serving(Route(path="/echo", name="echo", handler=echo, timeout=0.4), limits=limits) as served:
        silent, in_head, in_body = [await served.caller() for _ in range(3)]
        await in_head.send(b"POST /echo HTTP/1.1\r\nX-Slow: ")
        await in_body.send(b"POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        assert await silent.ended() == b""
        assert (await in_head.answer()).status == 408
        assert (await in_body.answer()).status == 408
        assert await in_head.ended() == await in_body.ended() == b""


async def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    async with serving(limits=Limits(idle_seconds=0.2)) as served:
        caller = await served.caller()
        assert (await caller.post("/echo", b"x")).status == 200
        assert await caller.ended() == b""


async def test_a_caller_that_does_not_read_its_answers_gets_no_more_of_them() -> None:
    served_to = 0

    def big(body: bytes, request: Request) -> Response:
        nonlocal served_to
        served_to += 1
        return Response(bytes(1_000_000))

    async with serving(Route(path="/big", name="big", handler=big)) as served:
        caller = await served.caller()
        caller.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            caller.writer.write(post("/big"))
            await asyncio.sleep(0.002)
        assert served_to < 50
        caller.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(served_to):
            assert (await caller.answer()).status == 200


async def test_too_many_connections_cost_the_one_that_was_idle_longest() -> None:
    held = Held()
    routes = [ECHO, Route(path="/held", name="held", handler=held)]
    async with serving(*routes, limits=Limits(connections=3)) as served:
        working, first, second = [await served.caller() for _ in range(3)]
        await first.post("/echo", b"x")
        await second.post("/echo", b"x")
        await working.send(post("/held"))
        await held.came.acquire()
        third = await served.caller()
        assert (await third.post("/echo", b"x")).status == 200
        assert await first.ended() == b""
        assert (await second.post("/echo", b"x")).status == 200
        held.go.set()
        assert (await working.answer()).status == 200


async def test_bodies_that_do_not_fit_into_memory_are_refused() -> None:
    async with serving(limits=Limits(bodies_bytes=200_000)) as served:
        big, other, small = [await served.caller() for _ in range(3)]
        await big.send(post("/echo", b"a" * 150_000)[:-1])
        await eventually(lambda: served.listener._bodies >= 149_000, "most of the body")
        assert (await other.post("/echo", b"a" * 150_000)).status == 429
        assert (await small.post("/echo", b"a" * 10_000)).status == 200
        await big.send(b"a")
        assert (await big.answer()).status == 200
        assert (await (await served.caller()).post("/echo", b"a" * 150_000)).status == 200


async def test_a_route_says_itself_what_is_answered_where_a_body_does_not_fit_into_memory() -> None:
    told = Route(path="/told", name="told", handler=echo, busy=Response(b"later"))
    async with serving(ECHO, told, limits=Limits(bodies_bytes=100_000)) as served:
        caller = await served.caller()
        answer = await caller.post("/told", b"a" * 150_000)
        assert (answer.status, answer.body) == (200, b"later")


async def test_closing_lets_what_is_under_way_finish_and_accepts_nothing_more() -> None:
    held = Held()
    async with serving(ECHO, Route(path="/held", name="held", handler=held)) as served:
        working, idle = await served.caller(), await served.caller()
        await idle.post("/echo", b"x")
        await working.send(post("/held", b"kept"))
        await held.came.acquire()
        closing = asyncio.ensure_future(served.listener.close(grace=60))
        assert await idle.ended() == b""
        with pytest.raises(OSError, match=r"refused|failed"):
            await Caller.connect(served.port)
        held.go.set()
        answer = await working.answer()
        assert (answer.body, answer.headers["connection"]) == (b"kept", "close")
        await closing


async def test_closing_waits_no_longer_than_it_was_told() -> None:
    async with handling() as (held, served, _):
        await served.listener.close(grace=0.1)
        await held.cancelled.wait()


@settings(max_examples=30, deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=8),
    seed=st.integers(),
    chunked=st.booleans(),
)
async def test_requests_are_understood_however_they_are_cut(bodies: list[bytes], seed: int, chunked: bool) -> None:
    chance = random.Random(seed)

    def framed(body: bytes) -> bytes:
        if not chunked:
            return post("/echo", body)
        chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body)
        return b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    stream = b"".join(framed(body) for body in bodies)
    cuts = sorted({0, len(stream), *(chance.randrange(len(stream)) for _ in range(6))})
    async with serving() as served:
        caller = await served.caller()
        for start, end in pairwise(cuts):
            await caller.send(stream[start:end])
            await asyncio.sleep(0)
        assert [(await caller.answer()).body for _ in bodies] == bodies


@settings(max_examples=100, deadline=None)
@given(
    noise=st.binary(min_size=1, max_size=400),
    prefix=st.sampled_from([b"", b"POST /echo HTTP/1.1\r\n", post("/echo", b"x")]),
)
async def test_noise_is_answered_or_waited_for_and_harms_nobody(noise: bytes, prefix: bytes) -> None:
    async with serving() as served:
        caller, other = await served.caller(), await served.caller()
        await caller.send(prefix + noise)
        assert (await other.post("/echo", b"x")).status == 200
