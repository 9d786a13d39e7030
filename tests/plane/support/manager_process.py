"""`unwind run` as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp

from tests.eventually import eventually
from tests.forked_commands import UNWIND, ForkedProcess
from unwind.testing.managers import manager_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.local.cluster import LocalCluster


class Manager:
    """A process, and what it has logged."""

    def __init__(self, process: ForkedProcess | asyncio.subprocess.Process) -> None:
        self.process = process
        self.addresses: dict[str, str] = {}
        self.logged: list[dict[str, str]] = []

    async def read(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            entry = json.loads(line)
            self.logged.append(entry)
            if entry["event"] == "listening":
                self.addresses[entry["listener"]] = entry["address"]

    async def until_listening(self, *listeners: str) -> None:
        def listening() -> bool:
            assert self.process.returncode is None, self.logged
            return set(listeners) <= set(self.addresses)

        await eventually(listening, f"listeners {listeners}")

    async def until_ready(self, *listeners: str) -> None:
        """Return when it listens there, and its readiness probe succeeds."""
        await self.until_listening("metrics", *listeners)

        async def ready() -> bool:
            return (await self.probe("/readyz"))[0] == 200

        await eventually(ready, "a ready manager")

    async def until_logged(self, event: str) -> dict[str, str]:
        """The first log entry with this text in its event."""
        return await eventually(
            lambda: next((entry for entry in self.logged if event in entry["event"]), {}), f"the log entry {event!r}"
        )

    async def until_metric(self, line: str) -> None:
        """Return when the metrics contain this line."""

        async def shown() -> bool:
            return line in (await self.probe("/metrics"))[1]

        await eventually(shown, f"the metric {line!r}")

    async def probe(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.addresses['metrics']}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def running(
    cluster: LocalCluster, namespace: str, *options: str, kubeconfig: Path | None = None, **variables: str
) -> AsyncIterator[Manager]:
    """A manager with the rights of a namespace's manager. It is killed at the end, unless it has stopped."""
    told = {"UNWIND_LISTEN": "127.0.0.1:0", "UNWIND_METRICS_LISTEN": "127.0.0.1:0", "UNWIND_NAMESPACE": namespace}
    arguments = "run", "--kubeconfig", str(kubeconfig or await manager_kubeconfig(cluster, namespace)), *options
    env = os.environ | told | variables
    # Python reads this variable when it starts.
    forked = "PYTHONPATH" not in variables
    process = (
        await ForkedProcess.start(*arguments, env=env)
        if forked
        else await asyncio.create_subprocess_exec(UNWIND, *arguments, env=env, stderr=subprocess.PIPE)
    )
    manager = Manager(process)
    reading = asyncio.ensure_future(manager.read())
    try:
        yield manager
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
