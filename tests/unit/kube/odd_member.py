"""A member that answers with what a test gives it: HTTP/1.1 on a socket."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from unwind.kube.client import Client
from unwind.kube.kubeconfig import ClusterConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


CLUSTER = "6e7a-cluster"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def config_map(name: str, *, uid: str = "", version: str = "5") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


class Member:
    """Lists its objects and sends scripted watch events. HTTP/1.1 on a socket."""

    def __init__(self) -> None:
        self.cluster = CLUSTER
        self.objects: list[Any] = []
        self.version = "10"
        self.watched: list[Callable[[asyncio.StreamWriter], None]] = []
        """The events of each watch in turn; later watches stay open."""
        self.answers: dict[str, bytes] = {}
        """Complete responses, by path."""
        self.connections = 0
        self.requests: list[str] = []
        self.port = 0
        self.follows = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        cluster = self.cluster  # a connection leads to one cluster
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split("\r\n")[0].split(" ")
                length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                if length:
                    await reader.readexactly(int(length[0].split(":")[1]))
                self.requests.append(f"{method} {target}")
                path = target.partition("?")[0]
                if path in self.answers:
                    writer.write(self.answers[path])
                elif path == "/api/v1/namespaces/kube-system":
                    self._say(writer, {"kind": "Namespace", "metadata": {"name": "kube-system", "uid": cluster}})
                elif "watch=true" in target:
                    if not self.watched:
                        writer.write(CHUNKED)
                        self.follows.set()
                        await reader.read()
                        return
                    self.watched.pop(0)(writer)
                    await writer.drain()
                    return
                elif path.endswith("configmaps"):
                    meta = {"resourceVersion": self.version}
                    self._say(writer, {"kind": "ConfigMapList", "metadata": meta, "items": self.objects})
                else:
                    self._say(writer, config_map(path.rpartition("/")[2]))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _say(self, writer: asyncio.StreamWriter, body: Any) -> None:
        text = json.dumps(body).encode()
        writer.write(OK % (len(text), text))


@asynccontextmanager
async def member() -> AsyncIterator[tuple[Member, Client]]:
    it = Member()
    listening = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.port = listening.sockets[0].getsockname()[1]
    async with Client(ClusterConnection(server=f"http://127.0.0.1:{it.port}"), deadline=5.0) as client:
        try:
            yield it, client
        finally:
            listening.close()


def sends(*pieces: bytes, head: bytes = CHUNKED) -> Callable[[asyncio.StreamWriter], None]:
    def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"".join(chunk(piece) for piece in pieces) + b"0\r\n\r\n")

    return send


def answers(whole: bytes) -> Callable[[asyncio.StreamWriter], None]:
    return lambda writer: writer.write(whole)


async def restart(it: Member, client: Client) -> None:
    """End the open watch."""
    assert client._transport
    for wire in list(client._transport._open):  # type: ignore[attr-defined]
        wire.abort()
