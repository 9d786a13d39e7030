"""Services of a cluster with Pods that run: an address for each, its name in a hosts file, and connections to Pods.

What DNS and kube-proxy do, for processes that read the hosts file. The API server needs none of it: it connects to the
endpoints of a Service.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.resources import SERVICES, Resource
from unwind.kube import decoding
from unwind.kube.informers import Informer

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Key, RawObject
    from unwind.local.pods.addresses import Addresses

log = logs.get(__name__)

ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_SERVICE_NAME = "kubernetes.io/service-name"


class ServiceProxy:
    """Listens for Services that select Pods, and forwards connections to their ready endpoints."""

    def __init__(self, client: Client, addresses: Addresses, hosts: Path) -> None:
        """`hosts`: the hosts file, which is written in place, so that it can be mounted."""
        self._services = Informer(client, decoding.raw(SERVICES))
        self._slices = Informer(client, decoding.raw(ENDPOINT_SLICES))
        self._addresses = addresses
        self._hosts = hosts
        self._names: dict[Key, str] = {}
        self._listeners: dict[tuple[Key, int], asyncio.Server] = {}
        self._endpoints: dict[Key, Object] = {}
        self._turns = count()
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._write_hosts()

    async def run(self) -> None:
        """Follow Services and their endpoints until cancelled."""
        self._services.subscribe(lambda _: self._changed.set())
        self._slices.subscribe(self._endpoints_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._services.run())
                group.create_task(self._slices.run())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    await self._listen()
        finally:
            for listener in self._listeners.values():
                listener.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _endpoints_changed(self, change: Change[RawObject]) -> None:
        if change.new:
            self._endpoints[change.key] = change.new.decode()
        else:
            self._endpoints.pop(change.key, None)

    async def _listen(self) -> None:
        """Open and close listeners, as the Services are now."""
        keys = list(self._services.store.keys())
        found = {key: raw.decode() for key in keys if (raw := self._services.store.get(key))}
        wanted: dict[tuple[Key, int], Object] = {}
        for key, service in found.items():
            if service["spec"].get("selector"):
                wanted |= {(key, port["port"]): port for port in service["spec"].get("ports") or ()}
        for gone in set(self._listeners) - set(wanted):
            self._listeners.pop(gone).close()
        for (key, number), port in wanted.items():
            if (key, number) not in self._listeners:
                if key not in self._names:
                    self._names[key] = self._addresses.take()
                try:
                    listener = await self._listener(key, port.get("name", ""), self._names[key], number)
                except OSError as error:
                    log.warning("cannot listen for a Service", service=str(key), port=number, why=str(error))
                else:
                    self._listeners[key, number] = listener
        for key in set(self._names) - set(found):
            self._addresses.free(self._names.pop(key))
        self._write_hosts()

    async def _listener(self, key: Key, name: str, address: str, number: int) -> asyncio.Server:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._forward(key, name, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return await asyncio.start_server(accept, address, number)

    async def _forward(self, key: Key, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ends = self._ready(key, name)
            if not ends:
                return
            host, number = ends[next(self._turns) % len(ends)]
            upstream, downstream = await asyncio.open_connection(host, number)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, downstream))
                    group.create_task(_copy(upstream, writer))
            finally:
                downstream.close()
        except (OSError, ExceptionGroup) as error:
            log.debug("connection to a Service ended", service=str(key), why=str(error))
        finally:
            writer.close()

    def _ready(self, key: Key, name: str) -> list[tuple[str, int]]:
        """The ready endpoints of a port of a Service."""
        ends: list[tuple[str, int]] = []
        for slice_key, found in self._endpoints.items():
            labels = found["metadata"].get("labels") or {}
            if slice_key.namespace != key.namespace or labels.get(_SERVICE_NAME) != key.name:
                continue
            ports = [port["port"] for port in found.get("ports") or () if (port.get("name") or "") == name]
            for end in found.get("endpoints") or ():
                if end.get("conditions", {}).get("ready", True):
                    ends += [(address, port) for address in end["addresses"] for port in ports]
        return ends

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        for key, address in sorted(self._names.items()):
            lines.append(f"{address} {key.name}.{key.namespace}.svc {key.name}.{key.namespace}")
        self._hosts.write_text("".join(f"{line}\n" for line in lines))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
