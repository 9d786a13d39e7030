"""Members with unexpected responses: they are retried at a bounded pace, and never trusted by mistake."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.eventually import eventually
from tests.unit.kube.odd_member import CHUNKED, CLUSTER, OK, Member, answers, config_map, event, member, restart, sends
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.kube import decoding
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.errors import (
    AnotherClusterError,
    ApiError,
    NotFoundError,
    UnreachableError,
    UnreadableError,
    UnwatchedError,
)
from unwind.kube.informers import Informer
from unwind.kube.kubeconfig import ClusterConnection
from unwind.kube.watches import Watches
from unwind.kube.workqueue import Backoff
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


GZIPPED = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
ODD = {
    "html": sends(b"<html>\n<body>Sign in</body>\n</html>\n"),
    "gzip": sends(gzip.compress(event("ADDED", config_map("b"))), head=GZIPPED),
    "gzip that is not said": sends(gzip.compress(event("ADDED", config_map("b"))) + b"\n"),
    "not numeric": sends(
        event("ADDED", config_map("b", version="a1-b2")), event("MODIFIED", config_map("b", version="x"))
    ),
    "no version": sends(event("ADDED", config_map("b", version=""))),
    "no metadata": sends(event("ADDED", {"kind": "ConfigMap"})),
    "no uid": sends(event("DELETED", {"metadata": {"name": "a", "namespace": "n", "resourceVersion": "7"}})),
    "empty uid": sends(
        event("DELETED", {"metadata": {"name": "a", "namespace": "n", "uid": "", "resourceVersion": "7"}})
    ),
    "another uid": sends(event("DELETED", config_map("a", uid="other", version="8"))),
    "bookmark": sends(event("BOOKMARK", {"metadata": {}}), event("BOOKMARK", {"metadata": []})),
    "list": sends(b"[1, 2]\n", b"null\n"),
    "unknown event": sends(event("EXPLODED", config_map("b"))),
    "deep": sends(b"[" * 200_000 + b"\n"),
    "not utf-8": sends(b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}\n'),
    "nothing": answers(b""),
    "no http": answers(b"SSH-2.0-OpenSSH\r\n"),
    "half": answers(CHUNKED + b"5\r\nab"),
    "error": sends(event("ERROR", "oh")),
    "410": sends(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})),
    "redirect": answers(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"),
    "early hints": answers(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_an_unreadable_watch_is_restarted_and_ends_no_other(
    odd: Callable[[asyncio.StreamWriter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unwind.kube.informers._RETRY", Backoff(first=0.01, limit=0.1))
    async with member() as (it, client), Watches(client, cluster=CLUSTER) as watches:
        it.objects = [config_map("a")]
        it.watched = [odd, odd]
        async with asyncio.timeout(20):
            absence = await watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n")
            await it.follows.wait()
            assert not absence.happened  # the object exists: nothing that came says otherwise
            assert CONFIG_MAPS in watches.open
            # The next list reports the absence, once the watch is restarted.
            it.objects = []
            it.version = "20"
            it.watched = [sends(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))]
            changed = event("DELETED", config_map("a", version="19"))
            it.watched.append(sends(changed))
            await restart(it, client)
            await absence.wait()
        absence.close()


@pytest.mark.parametrize(
    "odd",
    [
        answers(b""),
        sends(),
        sends(event("BOOKMARK", {"metadata": {"resourceVersion": "11"}})),
        sends(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})),
        answers(b"HTTP/1.1 410 Gone\r\nContent-Length: 40\r\n\r\n" + b'{"kind":"Status","reason":"Expired"}    '),
    ],
    ids=["closes at once", "ends at once", "one bookmark", "expired", "410"],
)
async def test_a_member_that_ends_every_watch_costs_few_connections(
    odd: Callable[[asyncio.StreamWriter], None],
) -> None:
    async with member() as (it, client):
        it.watched = [odd] * 10_000
        clock = StillClock()
        informer = Informer(client, decoding.metadata(CONFIG_MAPS), clock=clock)
        running = asyncio.create_task(informer.run())
        await informer.until_synced()
        # Each pause is twice as long, with some jitter; after each comes at most a list and a watch.
        last = 0.15
        for _ in range(4):
            [pause] = await eventually(lambda: clock.waiting, "a pause")
            assert pause > last
            last = pause
            clock.advance(pause)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert 2 <= it.connections <= 10


async def test_a_server_whose_data_was_restored_from_a_backup_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.informers._RETRY", Backoff(first=0.01, limit=0.1))
    async with member() as (it, client):
        it.objects = [config_map("a")]

        def restored(writer: asyncio.StreamWriter) -> None:
            # Afterwards, it does not answer a watch from the version that we have.
            it.objects, it.version = [config_map("b", version="3")], "4"
            writer.close()

        it.watched = [restored]
        informer = Informer(client, decoding.metadata(CONFIG_MAPS))
        running = asyncio.create_task(informer.run())
        await informer.until_synced()
        await eventually(
            lambda: [key.name for key in list(informer.store.keys())] == ["b"], "the restored state", within=20
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("status", [400, 422, 500, 503])
async def test_a_resource_version_that_the_server_rejects_is_dropped(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unwind.kube.informers._RETRY", Backoff(first=0.01, limit=0.1))
    refusal = b'{"kind": "Status", "code": %d, "message": "invalid resource version"}' % status

    class Strict(Member):
        def refuse(self, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(refusal), refusal))

    it = Strict()
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    async with (
        Client(
            ClusterConnection(server=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"), deadline=5
        ) as client,
        Watches(client) as watches,
    ):
        it.objects = [config_map("a")]
        it.watched = [sends(event("MODIFIED", config_map("b", version="x-1"))), *[it.refuse] * 5]
        absence = await watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n")
        async with asyncio.timeout(10):
            await it.follows.wait()
        last = [request for request in it.requests if "watch=true" in request][-1]
        assert "resourceVersion=10" in last, "it began anew by a list"
        absence.close()
    listening.close()


async def test_waiters_are_woken_when_the_watch_is_closed() -> None:
    async with member() as (it, client):
        it.objects = [config_map("a")]
        async with Watches(client) as watches:
            absence = await watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n")
            waiting = asyncio.create_task(absence.wait())
            await it.follows.wait()
        with pytest.raises(UnreachableError, match="was closed"):
            await asyncio.wait_for(waiting, 5)
        assert absence.lost
        assert not absence.happened


async def test_a_question_during_the_close_fails_at_once() -> None:
    async with member() as (_, client):
        watches = Watches(client)
        await watches.__aenter__()
        asking = asyncio.create_task(watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n"))
        await asyncio.sleep(0)
        await watches.__aexit__(None, None, None)
        with pytest.raises(UnreachableError, match="was closed"):
            await asyncio.wait_for(asking, 5)


async def test_a_kind_whose_watch_is_refused_is_told_from_a_member_that_does_not_answer() -> None:
    async with member() as (it, client), Watches(client) as watches:
        it.answers["/api/v1/secrets"] = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}"
        with pytest.raises(UnwatchedError, match="cannot watch secrets"):
            await watches.absence(SECRETS, name="a", uid="1", namespace="n")
    async with Client(ClusterConnection(server="http://127.0.0.1:1"), deadline=5) as nobody, Watches(nobody) as watches:
        with pytest.raises(UnreachableError) as raised:
            await watches.absence(SECRETS, name="a", uid="1", namespace="n")
        assert not isinstance(raised.value, UnwatchedError)


async def test_one_watch_that_fails_ends_no_other() -> None:
    troubles: list[Exception] = []
    async with member() as (it, client), Watches(client, troubled=troubles.append) as watches:
        it.objects = [config_map("a")]
        absence = await watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n")
        it.answers["/api/v1/secrets"] = OK % (2, b"{}")
        with pytest.raises(UnreachableError, match="secrets"):
            await watches.absence(SECRETS, name="a", uid="1", namespace="n")
        assert CONFIG_MAPS in watches.open
        assert not absence.lost
        absence.close()


async def test_an_object_with_another_uid_proves_nothing() -> None:
    async with member() as (it, client), Watches(client) as watches:
        it.objects = [config_map("a")]
        it.watched = [
            sends(
                event("ADDED", config_map("b", uid="uid-a", version="11")),
                event("DELETED", config_map("b", uid="uid-a", version="12")),
            )
        ]
        absence = await watches.absence(CONFIG_MAPS, name="a", uid="uid-a", namespace="n")
        await asyncio.wait_for(it.follows.wait(), 10)
        assert not absence.happened
        absence.close()


LISTS = {
    "html": b"<html>",
    "empty": b"",
    "null": b"null",
    "no kind": b'{"metadata": {"resourceVersion": "1"}, "items": []}',
    "status": b'{"kind": "Status", "metadata": {}, "status": "Success"}',
    "one object": json.dumps(config_map("a")).encode(),
    "item": b'{"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": [{}]}',
    "item of another sort": b'{"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": ["a"]}',
}


@pytest.mark.parametrize("body", LISTS.values(), ids=LISTS.keys())
async def test_an_invalid_list_is_not_an_empty_list(body: bytes) -> None:
    async with member() as (it, client):
        it.answers["/api/v1/configmaps"] = OK % (len(body), body)
        with pytest.raises(UnreadableError):
            await client.list(CONFIG_MAPS)
        informer = Informer(client, decoding.metadata(CONFIG_MAPS), troubled=lambda _: told.set())
        told = asyncio.Event()
        running = asyncio.create_task(informer.run())
        await asyncio.wait_for(told.wait(), 5)
        running.cancel()
        assert not informer.synced


async def test_an_endless_list_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.client.MOST_LISTED", 10_000)
    async with member() as (it, client):
        body = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "1", "continue": "x"}, "items": []}
        text = json.dumps(body).encode()
        it.answers["/api/v1/configmaps"] = OK % (len(text), text)
        with pytest.raises(UnreadableError):
            await client.list(CONFIG_MAPS)
        assert len(it.requests) == 2  # the second page names itself as the next one


async def test_a_page_that_is_too_large_is_read_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.http1.MOST_BODY", 5_000)
    limits: list[int] = []

    class Large(Member):
        def _say(self, writer: asyncio.StreamWriter, body: Any) -> None:
            limit = int(self.requests[-1].split("limit=")[1].split("&")[0])
            limits.append(limit)
            items = [config_map(f"c{number}") for number in range(min(limit, 70))]
            super()._say(writer, {**body, "items": items})

    it = Large()
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    async with Client(ClusterConnection(server=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")) as client:
        assert len(await client.list(CONFIG_MAPS)) == 7
    listening.close()
    assert limits == [500, 62, 7]


NOT_FOUND = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}


@pytest.mark.parametrize(
    "details",
    [
        None,
        {"name": "b", "kind": "configmaps"},
        {"name": "n", "kind": "namespaces"},
        {"name": "a", "kind": "configmaps", "group": "example.com"},
    ],
)
async def test_a_404_about_something_else_proves_nothing(details: dict[str, str] | None) -> None:
    async with member() as (it, client):
        text = json.dumps({**NOT_FOUND, "details": details}).encode()
        answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
        it.answers["/api/v1/namespaces/n/configmaps/a"] = answer
        for ask in (
            client.get(CONFIG_MAPS, "a", namespace="n"),
            client.delete(CONFIG_MAPS, "a", uid="1", namespace="n"),
            client.patch(CONFIG_MAPS, "a", {}, namespace="n"),
        ):
            with pytest.raises(ApiError) as raised:
                await ask
            assert not isinstance(raised.value, NotFoundError)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"metadata": {"uid": 5}}', b"\xff", b"[" * 100_000])
async def test_an_invalid_object_is_unreadable(body: bytes) -> None:
    async with member() as (it, client):
        it.answers["/api/v1/namespaces/n/configmaps/a"] = OK % (len(body), body)
        it.answers["/api/v1/namespaces/kube-system"] = OK % (len(body), body)
        for ask in (client.get(CONFIG_MAPS, "a", namespace="n"), client.cluster_uid()):
            with pytest.raises(UnreadableError):
                await ask


# The identity of the cluster


async def test_each_connection_is_asked_once_for_its_cluster_ahead_of_the_request() -> None:
    async with member() as (it, client):
        client.pin(await client.cluster_uid())
        assert it.requests == ["GET /api/v1/namespaces/kube-system"]
        await client.get(CONFIG_MAPS, "a", namespace="n")
        assert it.requests[1:] == ["GET /api/v1/namespaces/n/configmaps/a"]  # its connection was just verified
        await asyncio.gather(*(client.get(CONFIG_MAPS, "a", namespace="n") for _ in range(5)))
        asked = [request for request in it.requests[2:] if "kube-system" in request]
        assert asked == ["GET /api/v1/namespaces/kube-system?resourceVersion=0"] * (it.connections - 1)
        before = len(it.requests)
        await asyncio.gather(*(client.get(CONFIG_MAPS, "a", namespace="n") for _ in range(5)))
        assert len(it.requests) == before + 5


async def follow(client: Client) -> None:
    async for _ in client.watch(CONFIG_MAPS):
        pass


ASKED: dict[str, Callable[[Client], Awaitable[object]]] = {
    "get": lambda client: client.get(CONFIG_MAPS, "a", namespace="n"),
    "delete": lambda client: client.delete(CONFIG_MAPS, "a", uid="1", namespace="n"),
    "patch": lambda client: client.patch(CONFIG_MAPS, "a", {}, namespace="n"),
    "list": lambda client: client.list(CONFIG_MAPS),
    "watch": follow,
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
async def test_nothing_is_trusted_or_written_if_another_cluster_answers(
    ask: Callable[[Client], Awaitable[object]],
) -> None:
    async with member() as (it, client):
        client.pin(await client.cluster_uid())
        await restart(it, client)
        it.cluster = "another"
        it.requests.clear()
        with pytest.raises(AnotherClusterError, match="another cluster answers"):
            await ask(client)
        assert not [
            request for request in it.requests if request.startswith("PATCH")
        ]  # only harmless requests are sent ahead
        sighting = await client.sighting(CONFIG_MAPS, "a", uid="1", namespace="n", cluster=CLUSTER)
        assert not sighting.absent
        it.cluster = CLUSTER
        await client.get(CONFIG_MAPS, "a", namespace="n")


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "cannot verify which cluster"), (403, "cannot verify which cluster"), (503, "503"), (401, "401")],
)
async def test_a_connection_without_cluster_identity_is_not_trusted(status: int, words: str) -> None:
    async with member() as (it, client):
        client.pin(CLUSTER)
        text = json.dumps({**NOT_FOUND, "details": {"name": "kube-system", "kind": "namespaces"}}).encode()
        it.answers["/api/v1/namespaces/kube-system"] = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (
            status,
            len(text),
            text,
        )
        with pytest.raises((UnreachableError, ApiError), match=words) as raised:
            await client.get(NAMESPACES, "kube-public")
        assert not isinstance(raised.value, NotFoundError)


async def test_a_server_without_pipelining_gets_one_request_at_a_time() -> None:
    class Impatient(Member):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came = await reader.read(65_536)
            if came.count(b"\r\n\r\n") > 1:
                writer.transport.abort()
                return
            again = asyncio.StreamReader()
            again.feed_data(came)

            async def forward() -> None:
                while more := await reader.read(65_536):
                    again.feed_data(more)
                again.feed_eof()

            passing = asyncio.create_task(forward())
            await super().serve(again, writer)
            passing.cancel()

    it = Impatient()
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    async with Client(ClusterConnection(server=f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")) as client:
        client.pin(CLUSTER)
        with pytest.raises(UnreachableError):
            await client.get(CONFIG_MAPS, "a", namespace="n")
        await client.get(CONFIG_MAPS, "a", namespace="n")
    listening.close()


async def test_the_result_of_a_write_is_not_cached_if_versions_cannot_be_compared() -> None:
    async with member() as (it, client):
        it.objects = [config_map("a", version="x-1")]
        it.version = "x-2"
        informer = Informer(client, decoding.metadata(CONFIG_MAPS))
        running = asyncio.create_task(informer.run())
        await informer.until_synced()
        held = informer.cache.get(Key("n", "a"))
        assert held
        informer.take(held)
        assert informer.cache.get(Key("n", "a")) is held
        running.cancel()
