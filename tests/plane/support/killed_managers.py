"""Managers that are killed: real processes, and what ends them at their writes."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from tests.eventually import eventually
from tests.forked_commands import FORK
from unwind.api.resources import LEASES
from unwind.cli.run import run
from unwind.kube import kubeconfig
from unwind.kube.errors import NotFoundError
from unwind.local.cluster import ALL_RIGHTS
from unwind.testing.managers import manager_connection
from unwind.testing.proxy import Interceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from multiprocessing.context import ForkServerProcess

    from unwind.kube.client import Client
    from unwind.local.cluster import LocalCluster

    OnWrite = Callable[[str, str, bytes], Awaitable[None]]

Signature = tuple[str, str, str]
_LONG = 3600.0


def manage(path: str, namespace: str, log: str, roles: str, listen: str, programs: str) -> None:
    """What a manager's process does: `unwind run`, with all that it says in a file."""
    if programs:
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with Path(log).open("ab") as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
    run(
        kubeconfig=Path(path),
        namespace=namespace,
        roles=roles,
        listen=listen,
        metrics_listen="127.0.0.1:0",
        log_format="json",
    )


class Managers:
    """One manager after the other, each a process of its own."""

    def __init__(
        self, path: Path, namespace: str, log: Path, *, serving: str = "", programs: Path | None = None
    ) -> None:
        """`serving`: the address at which they serve hooks and webhooks; by default they do not. `programs`: a
        directory with programs that they run."""
        serves = ("controllers,serving", serving) if serving else ("controllers", "127.0.0.1:0")
        self.namespace = namespace
        self._told = (str(path), namespace, str(log), *serves, str(programs or ""))
        self.process: ForkServerProcess | None = None

    def go_by(self, way: kubeconfig.ClusterConnection) -> None:
        """Tell those to come how to reach the management cluster."""
        Path(self._told[0]).write_text(kubeconfig.document(way, cluster="management", user="manager"))

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    async def restart(self, client: Client) -> None:
        """Begin another one, as if the Leases of the one before had run out meanwhile."""
        for lease in await client.list(LEASES, namespace=self.namespace):
            meta = lease["metadata"]
            with suppress(NotFoundError):
                await client.delete(LEASES, meta["name"], uid=meta["uid"], namespace=self.namespace)
        await self.start()

    async def start(self) -> None:
        self.process = FORK.Process(target=manage, args=self._told)
        await asyncio.to_thread(self.process.start)

    @asynccontextmanager
    async def following(self, client: Client) -> AsyncIterator[None]:
        """Let another manager follow each that was killed."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(client, over))
            try:
                yield
            finally:
                over.set()

    async def _follow(self, client: Client, over: asyncio.Event) -> None:
        while True:
            await eventually(lambda: over.is_set() or not self.alive, "the end of a manager", within=_LONG, every=0.05)
            if over.is_set():
                return
            await self.restart(client)

    async def until(self, state: Callable[[], Awaitable[object]], client: Client, *, within: float = 600.0) -> None:
        """Return when it is so. Another manager follows each that was killed."""
        async with self.following(client):
            await eventually(state, "the end of all that managers do", within=within)

    def tell(self) -> None:
        log = Path(self._told[2])
        print(log.read_text()[-8000:] if log.exists() else "no manager was started")

    async def ended(self) -> None:
        if self.process:
            await asyncio.to_thread(self.process.join)

    async def kill(self) -> None:
        if self.process:
            self.process.kill()
            await self.ended()


@asynccontextmanager
async def intercepted(
    managers: Managers,
    client: Client,
    member: LocalCluster,
    *,
    before: OnWrite,
    after: OnWrite,
    user: str = "",
    user_agent: str = "",
) -> AsyncIterator[kubeconfig.ClusterConnection]:
    """Managers that reach neither side except through interceptors, and their way to the member. They are killed at
    the end. `user`, `user_agent`: theirs on the member; a user agent if others go the same way."""
    own = await manager_connection(client, managers.namespace)
    there = member.connection(user or killed_user(managers.namespace), groups=ALL_RIGHTS)
    async with AsyncExitStack() as stack:
        home, way = [
            await stack.enter_async_context(Interceptor(way, before=before, after=after, user_agent=agent))
            for way, agent in ((own, ""), (there, user_agent))
        ]
        managers.go_by(home.connection)
        try:
            yield way.connection
        except BaseException:
            managers.tell()
            raise
        finally:
            await managers.kill()


def killed_user(namespace: str) -> str:
    """The user that the managers of a namespace are on the member."""
    return f"killed-{namespace}"


def signature(method: str, path: str, body: bytes) -> Signature:
    """What tells one write of a teardown from another: also which fields a patch is about."""
    fields: set[str] = set()
    with suppress(msgspec.DecodeError):
        it: Any = msgspec.json.decode(body) if method == "PATCH" else None
        for key, value in it.items() if isinstance(it, dict) else ():
            fields |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
    return method, path, " ".join(sorted(fields - {"metadata.uid", "metadata.resourceVersion"}))


def detailed_signature(method: str, path: str, body: bytes) -> Signature:
    """The same, and which objects are created, and which finalizers an object gets."""
    method, path, fields = signature(method, path, body)
    with suppress(msgspec.DecodeError):
        it: Any = msgspec.json.decode(body)
        # A JSON patch is a list.
        metadata: Any = (it.get("metadata") or {}) if isinstance(it, dict) else {}
        if method == "POST":
            return method, path, str(metadata.get("name"))
        if "finalizers" in metadata:
            fields += f" {metadata['finalizers']}"
    return method, path, fields


def progress_signature(method: str, path: str, body: bytes) -> Signature:
    """The same, and how far a teardown has come: the state of each step, the entries of an Inventory, each mark."""
    it: Any = None
    with suppress(msgspec.DecodeError):
        it = msgspec.json.decode(body)
    if method != "PATCH":
        return detailed_signature(method, path, body)
    if isinstance(it, list):  # a JSON patch
        return method, path, " ".join(sorted(f"{one['op']} {one['path']}" for one in it if one["op"] != "test"))
    method, path, fields = detailed_signature(method, path, body)
    it = it if isinstance(it, dict) else {}
    metadata, spec, status = (it.get(part) or {} for part in ("metadata", "spec", "status"))
    found = [f"{mark}{'' if value else '=none'}" for mark, value in (metadata.get("annotations") or {}).items()]
    for key, entry in (spec.get("entries") or {}).items():
        found += [f"{key}.{inner}" for inner in entry or ["none"]]
    found += [str(status["phase"])] if "phase" in status else []
    found += [f"{step.get('name')}={step.get('state')}" for step in status.get("steps") or ()]
    return method, path, " ".join([fields, *sorted(found)])


class Moment(Enum):
    """When a manager is killed at a write."""

    BEFORE = "before it is passed on"
    AFTER = "before it is answered"


class Killer:
    """Kills the manager at each write that it has not killed one at: before it is passed on, or before it is answered,
    or first the one and then, when the next manager repeats the write, the other.

    A write at which it is going to strike is alone on its way: another that is under way when the manager dies was
    neither before nor after anything.
    """

    def __init__(
        self,
        managers: Managers,
        *,
        before: bool | None,
        tell_apart: Callable[[str, str, bytes], Signature] = signature,
        twice: bool = False,
    ) -> None:
        """`before`: None for both in turn, before one write and after the next. `twice`: at both moments."""
        self.managers = managers
        self._in_turn = before is None
        first = Moment.AFTER if before is False else Moment.BEFORE
        self._moments: tuple[Moment, ...] = (Moment.BEFORE, Moment.AFTER) if twice else (first,)
        self._tell_apart = tell_apart
        self._holder: asyncio.Task[Any] | None = None
        self._struck: Counter[Signature] = Counter()
        self.armed = True
        """While it is not, every write passes."""
        self.killed: dict[Signature, None] = {}

    @property
    def kills(self) -> int:
        return self._struck.total()

    def intercepted(
        self, client: Client, member: LocalCluster, *, before: OnWrite | None = None, **more: str
    ) -> AbstractAsyncContextManager[kubeconfig.ClusterConnection]:
        """Managers behind interceptors that kill them. `more`: what `intercepted` takes."""
        return intercepted(self.managers, client, member, before=before or self.before, after=self.after, **more)

    def report(self, of: str = "") -> None:
        print(f"{of}{self.kills} kills at {len(self.killed)} writes:", *self.killed, sep="\n  ")

    async def before(self, method: str, path: str, body: bytes) -> None:
        # What every manager writes to be one at all, and what it only tells people.
        if not self.armed or "/leases" in path or "/events" in path:
            return
        writer = self.managers.process
        await eventually(lambda: not self._holder or self._holder.done(), "the write before it", every=0.002)
        if writer is not self.managers.process or not writer or not writer.is_alive():
            raise web.HTTPServiceUnavailable  # of a manager that is dead by now
        struck = self._struck[self._tell_apart(method, path, body)]
        if struck == len(self._moments):
            return
        self._holder = asyncio.current_task()
        if self._moments[struck] is Moment.BEFORE:
            await self._strike(method, path, body)

    async def after(self, method: str, path: str, body: bytes) -> None:
        if self._holder is asyncio.current_task():
            await self._strike(method, path, body)

    async def _strike(self, method: str, path: str, body: bytes) -> None:
        which = self._tell_apart(method, path, body)
        self.killed[which] = None
        self._struck[which] += 1
        if self._in_turn:
            self._moments = (Moment.AFTER if self._moments == (Moment.BEFORE,) else Moment.BEFORE,)
        try:
            await self.managers.kill()
        finally:
            self._holder = None
        raise web.HTTPServiceUnavailable  # nobody is there to read it
