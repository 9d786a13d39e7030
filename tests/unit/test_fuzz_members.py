"""Whatever a member or a kubeconfig sends: nothing breaks, nothing counts as absent by mistake, memory is bounded."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import random
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.unit.mangling import Bodies
from unwind.api.meta import ObjectRef
from unwind.api.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, SERVICES
from unwind.api.sveltos import ClusterType
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.kubeconfig import Basic, ClusterConnection, Token
from unwind.kube.transport import HttpTransport
from unwind.kube.watches import Watches
from unwind.kube.workqueue import Backoff
from unwind.members import credentials
from unwind.members.targets import AddonTarget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")
pytestmark = pytest.mark.timeout(1800)
# Together with the hooks and the reviews, 100,000 of each and more.
STREAMS = [1_000, pytest.param(100_000, marks=pytest.mark.soak)]
ANSWERS = [2_000, pytest.param(100_000, marks=pytest.mark.soak)]
KUBECONFIGS = [1_500, pytest.param(100_000, marks=pytest.mark.soak)]
# By how much the process may grow; a leak of a kilobyte a case would be 100 MB.
GROWTH = 96 << 20


def seeded() -> int:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return seed


def resident() -> int:
    """How much memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# What a member sends over HTTP


def config_map(name: str, version: str = "5", *, uid: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}


def chunked(body: bytes, chance: random.Random) -> bytes:
    pieces: list[bytes] = []
    while body:
        size = chance.choice([1, 7, 100, 5_000])
        pieces.append(b"%x\r\n%s\r\n" % (len(body[:size]), body[:size]))
        body = body[size:]
    return b"".join(pieces) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


# After these the connection can be used again.
WHOLE = ("right", "chunked", "gzip", "informational")


class Framing:
    """HTTP around a body: right, or wrong in some way."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._sorts: dict[str, Callable[[int, bytes], bytes]] = {
            "right": self._plain,
            "chunked": lambda status, body: self._head(status, b"Transfer-Encoding: chunked") + self._chunks(body),
            "gzip": self._packed,
            "bomb": lambda status, _: self._plain(status, gzip.compress(bytes(1 << 20)), b"Content-Encoding: gzip\r\n"),
            "informational": lambda status, body: b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + self._plain(status, body),
            "many informational": lambda *_: b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
            "two lengths": lambda status, body: self._plain(status, body, b"Content-Length: 1\r\n"),
            "length and chunks": lambda status, body: self._plain(status, body, b"Transfer-Encoding: chunked\r\n"),
            "long": lambda status, body: self._head(status, b"Content-Length: 99999999999") + body,
            "longer than it says": lambda status, body: self._plain(status, body) + self._chance.randbytes(50),
            "twice": lambda status, body: self._plain(status, body) * 2,
            "headers": lambda status, body: self._head(status, b"X: " + b"x" * 100_000) + body,
            "cut": lambda status, body: (sent := self._plain(status, body))[: self._chance.randrange(len(sent))],
            "flipped head": self._flipped,
            "upgrade": lambda *_: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nxx",
            "random": lambda *_: self._chance.randbytes(self._chance.randrange(300)),
        }

    def next(self, status: int, body: bytes) -> tuple[str, bytes]:
        sort = self._chance.choice(list(self._sorts)) if self._chance.random() < 0.5 else "right"
        return sort, self._sorts[sort](status, body)

    def _head(self, status: int, *headers: bytes) -> bytes:
        return b"HTTP/1.1 %d X\r\n%s\r\n\r\n" % (status, b"\r\n".join(headers))

    def _plain(self, status: int, body: bytes, more: bytes = b"") -> bytes:
        return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, more, len(body), body)

    def _chunks(self, body: bytes) -> bytes:
        return chunked(body[:50_000], self._chance)

    def _packed(self, status: int, body: bytes) -> bytes:
        return self._plain(status, gzip.compress(body, compresslevel=1), b"Content-Encoding: gzip\r\n")

    def _flipped(self, status: int, body: bytes) -> bytes:
        sent = bytearray(self._plain(status, body))
        end = sent.index(b"\r\n\r\n")
        for _ in range(self._chance.randint(1, 3)):
            sent[self._chance.randrange(end)] = self._chance.randrange(256)
        return bytes(sent)


@asynccontextmanager
async def serving(answer: Callable[[str], bytes | None], closes: Callable[[str], bool]) -> AsyncIterator[Client]:
    """A client of a server on loopback that answers each request with these bytes, and may close then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ")[1].decode()
                sent = answer(target)
                if sent is None:
                    break
                writer.write(sent)
                await writer.drain()
                if closes(target):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = listening.sockets[0].getsockname()[1]
        async with Client(ClusterConnection(server=f"http://127.0.0.1:{port}"), deadline=0.3) as client:
            yield client
    finally:
        listening.close()


def answer_to_a_get(chance: random.Random) -> Any:
    """What says nothing of the object, or that it is there."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound", "message": "no"}
    return chance.choice(
        [
            config_map("a"),
            config_map("a"),
            config_map("b"),
            status | {"details": {"name": "b", "kind": "configmaps"}},
            status | {"details": {"name": "a", "kind": "secrets"}},
            status | {"details": {"name": "a", "kind": "configmaps", "group": "example.com"}},
            status | {"details": {"name": "n", "kind": "namespaces"}},
            {"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []},
        ]
    )


# More is not understood by anybody.
_DEEP = 500


def says_absent(status: int, body: bytes) -> bool:
    """Whether an answer says that the object is gone, or that another one has its name. Not made by what is tested."""
    if body.count(b"[") + body.count(b"{") > _DEEP:
        return False
    try:
        it = json.loads(body.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return False
    if not isinstance(it, dict):
        return False
    if status == 200:
        meta = it.get("metadata")
        if not isinstance(meta, dict) or (meta.get("name"), meta.get("namespace")) != ("a", "n"):
            return False
        return it.get("kind") == "ConfigMap" and bool(meta.get("uid")) and meta.get("uid") != "uid-a"
    details = it.get("details")
    return (
        status == 404
        and (it.get("kind"), it.get("reason")) == ("Status", "NotFound")
        and isinstance(details, dict)
        and (details.get("name"), details.get("kind"), details.get("group", "")) == ("a", "configmaps", "")
    )


@pytest.mark.parametrize("number", ANSWERS)
async def test_no_answer_brings_it_down_or_makes_an_object_absent(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.http1.MOST_BODY", 1 << 19)
    seed = seeded()
    bodies = Bodies(seed, answer_to_a_get, words=["v1", "Status", "ConfigMap"], versioned=lambda it: [it], swell=_swell)
    framing, chance, seen = Framing(seed), random.Random(seed), Counter[str]()
    last: list[tuple[str, int, bytes]] = []
    closing = [False]

    def answer(_: str) -> bytes | None:
        status = chance.choice([200, 200, 404, 404, 403, 410, 500])
        _, body = bodies.next()
        sort, sent = framing.next(status, body)
        last.append((sort, status, body))
        closing[0] = sort not in WHOLE
        return sent if chance.random() < 0.98 else None

    async with serving(answer, lambda _: closing[0]) as client:
        before = resident()
        for _ in range(number):
            last.clear()
            sighting = await client.sighting(CONFIG_MAPS, "a", uid="uid-a", namespace="n")
            if sighting.absent:
                # What it goes by may have been the answer to a try before the last one.
                assert any(says_absent(status, body) or sort == "flipped head" for sort, status, body in last), last
            seen[sighting.presence.value] += 1
        assert resident() - before < GROWTH
    assert seen["present"] > number / 100, "some of them were understood"
    assert seen["unknown"] > number / 4, "and most were not"


def _swell(it: Any, chance: random.Random) -> None:
    it["more"] = {f"k{number}": "v" * 50 for number in range(chance.randrange(200))}


# Watches


def event(chance: random.Random) -> Any:
    kind = chance.choice(["ADDED", "MODIFIED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"])
    name = chance.choice(["b", "c", "d"]) if kind == "DELETED" else chance.choice(["a", "b", "c", "d"])
    if kind == "ERROR":
        return {"type": kind, "object": {"kind": "Status", "code": 410, "reason": "Expired", "apiVersion": "v1"}}
    version = chance.choice(["6", "7", "1" * 30, "x-1", "", "0"])
    return {"type": kind, "object": config_map(name, version)}


def wrong(line: bytes) -> bool:
    """Whether a line says that the object that is there is gone, or that another has its name: those are not sent."""
    if line.count(b"[") + line.count(b"{") > _DEEP:
        return False
    try:
        # What is not read need not be UTF-8.
        it = json.loads(line.decode("utf-8", "replace"), strict=False)
        meta = it["object"]["metadata"]
        return bool(meta["name"] == "a" and (it["type"] == "DELETED" or meta["uid"] != "uid-a"))
    except (ValueError, RecursionError, LookupError, TypeError):
        return False


@pytest.mark.parametrize("number", STREAMS)
async def test_no_stream_ends_a_watch_or_makes_an_object_absent(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.kube.informers._RETRY", Backoff(first=0.0001, limit=0.0005))
    monkeypatch.setattr("unwind.kube.transport.MOST_LINE", 1 << 19)
    seed = seeded()
    bodies = Bodies(seed, event, words=["v1", "Status", "ConfigMap"], versioned=lambda it: [it["object"]], swell=_swell)
    chance, framing = random.Random(seed), Framing(seed)
    sent, over = 0, asyncio.Event()
    listed = {
        "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "5"},
        "items": [config_map("a"), config_map("b")],
    }
    whole = json.dumps(listed).encode()

    def answer(target: str) -> bytes | None:
        nonlocal sent
        if "watch=true" not in target:
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), whole)
        sent += 1
        if sent >= number:
            over.set()
        lines = [bodies.next()[1] for _ in range(chance.randint(1, 3))]
        body = b"\n".join(line for line in lines if not any(map(wrong, line.split(b"\n")))) + b"\n"
        if chance.random() < 0.7:
            return HEAD + chunked(body[:200_000], chance)
        return framing.next(200, body)[1]

    async with serving(answer, lambda target: "watch=true" in target) as client, Watches(client) as watches:
        before = resident()
        absences = [
            await watches.absence(resource, name="a", uid="uid-a", namespace="n")
            for resource in (CONFIG_MAPS, SECRETS, SERVICES, SERVICE_ACCOUNTS)
        ]
        await over.wait()
        assert len(watches.open) == 4
        for absence in absences:
            assert not absence.lost
            assert not absence.happened
            absence.close()
        assert resident() - before < GROWTH


# Kubeconfigs


def config(chance: random.Random) -> Any:
    cluster: dict[str, Any] = {"server": chance.choice(["https://127.0.0.1:6443", "http://127.0.0.1:80"])}
    if chance.random() < 0.3:
        cluster["insecure-skip-tls-verify"] = chance.choice([True, False, "false", 1])
    if chance.random() < 0.3:
        cluster["proxy-url"] = chance.choice(["http://me:hunter2@proxy:3128", "socks5://me:hunter2@proxy:1"])
    if chance.random() < 0.2:
        cluster["certificate-authority-data"] = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    user: dict[str, Any] = chance.choice(
        [
            {"token": "abc"},
            {"token": "abc\r\nX-Remote-User: admin"},
            {"username": "me", "password": "hunter2"},
            {"as": "me\r\nX-Remote-Group: system:masters"},
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": ["/tmp/owned"]}},
            {"tokenFile": "/etc/passwd"},
            {"client-certificate": "/etc/passwd", "client-key": "/etc/passwd"},
            {"auth-provider": {"name": "gcp"}},
        ]
    )
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "n"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": user}],
    }


def aliased(chance: random.Random) -> bytes:
    """A few lines that aliases make large."""
    many, deep = chance.randint(2, 12), chance.randint(2, 12)
    merge = "<<: " if chance.random() < 0.5 else "x: "
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{{merge}[{', '.join([f'*a{n - 1}'] * many)}]}}" for n in range(1, deep)]
    field = chance.choice(["current-context", "contexts", "clusters", "users", "other"])
    return "\n".join([*lines, f"{field}: *a{deep - 1}"]).encode()


def attempted(work: Callable[[], T]) -> T | str:
    """What comes of it, or the error for people: short, and without secrets. Nothing else is raised."""
    try:
        return work()
    except UnwindError as error:
        told = str(error)
    assert len(told) < 5_000
    assert "hunter2" not in told
    return told


@pytest.mark.parametrize("number", KUBECONFIGS)
async def test_no_kubeconfig_breaks_or_borrows_anything(number: int) -> None:
    seed = seeded()
    bodies = Bodies(seed, config, words=["v1", "v2", "Config"], versioned=lambda it: [it], swell=_swell)
    chance, seen = random.Random(seed), Counter[str]()
    ref = ObjectRef(version="v1", kind="SveltosCluster", namespace="n", name="edge", uid="1")
    target = AddonTarget(type=ClusterType.SVELTOS, ref=ref, secret="edge")  # noqa: S106 - its name
    before = resident()
    for _ in range(number):
        sent = aliased(chance) if chance.random() < 0.05 else bodies.next()[1]
        found = attempted(lambda sent=sent: kubeconfig.parse(sent, source="it"))  # type: ignore[misc]
        if isinstance(found, str):
            seen["refused"] += 1
            continue
        assert found.credential is None or isinstance(found.credential, Token | Basic)
        assert isinstance(found.insecure, bool)
        # Nothing that would be two headers.
        attempted(lambda found=found: HttpTransport(found, user_agent="test"))  # type: ignore[misc]
        # A member is reached by https, or not at all.
        data = {"data": {"value": base64.b64encode(sent).decode()}}
        way = attempted(lambda data=data: credentials.connection(target, data))  # type: ignore[misc]
        if not isinstance(way, str):
            assert way.server.lower().startswith("https://")
            assert "\n" not in (way.impersonate or "")
            seen["taken"] += 1
    assert resident() - before < GROWTH
    assert seen["taken"] > number / 50
    assert seen["refused"] > number / 4
