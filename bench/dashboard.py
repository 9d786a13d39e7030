"""The dashboard with many teardowns, in Chromium: how long until they are shown and filtered, and what open pages cost.

`UNWIND_BENCH_TEARDOWNS` (500) teardowns, `UNWIND_BENCH_PAGES` (10) open pages, `UNWIND_BENCH_CHANGES` (200) changes,
`UNWIND_BENCH_IDLE` (20) seconds without changes.
There is no bare limit for it: the first figure is shown beside that of an empty page, the second for each change.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import uvloop
from playwright.async_api import async_playwright

from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.rights import Setting
from unwind.api.unwind import TEARDOWNS, Plan, Step, Teardown, TeardownSpec, TeardownStatus
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from unwind.kube.client import Client

TEARDOWNS_THERE = int(os.environ.get("UNWIND_BENCH_TEARDOWNS", "500"))
PAGES = int(os.environ.get("UNWIND_BENCH_PAGES", "10"))
CHANGES = int(os.environ.get("UNWIND_BENCH_CHANGES", "200"))
IDLE = float(os.environ.get("UNWIND_BENCH_IDLE", "20"))
ROUNDS = int(os.environ.get("UNWIND_BENCH_ROUNDS", "3"))
UNWIND = Path(sys.executable).with_name("unwind")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


async def main() -> None:
    async with running(Shape()) as plane, async_playwright() as playwright:
        client = plane.management.client
        await install(client, Setting())
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        kubeconfig = plane.management.kubeconfig
        empty = [await painted(browser, kubeconfig, rows=0) for _ in range(ROUNDS)]
        names = [str(uuid.uuid4()) for _ in range(TEARDOWNS_THERE)]
        await gather_limited((create(client, name) for name in names), limit=8)
        full = [await painted(browser, kubeconfig, rows=TEARDOWNS_THERE) for _ in range(ROUNDS)]
        print(
            f"{TEARDOWNS_THERE} teardowns shown after {statistics.median(full):.2f} s, an empty page after "
            f"{statistics.median(empty):.2f} s (median of {ROUNDS}, from the request of the page)",
            flush=True,
        )
        lag = await filtered(browser, kubeconfig, rows=TEARDOWNS_THERE)
        print(
            f"a character in the search is shown after {1000 * statistics.median(lag):.0f} ms, at most "
            f"{1000 * max(lag):.0f} ms ({len(lag)} characters, {TEARDOWNS_THERE} rows)",
            flush=True,
        )
        await followed(kubeconfig, client, names)
        await browser.close()


class Program:
    """`unwind dashboard`, and the processor time that it has used."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    def seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def end(self) -> None:
        self._process.terminate()
        await self._process.wait()


async def start(kubeconfig: Path) -> Program:
    process = await asyncio.create_subprocess_exec(
        UNWIND,
        "dashboard",
        "--no-browser",
        "--kubeconfig",
        kubeconfig,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout
    return Program(process, (await process.stdout.readline()).decode().strip())


async def painted(browser: Browser, kubeconfig: Path, *, rows: int) -> float:
    """Seconds until the rows are shown."""
    program = await start(kubeconfig)
    context = await browser.new_context()
    page = await context.new_page()
    began = time.perf_counter()
    await page.goto(program.address)
    await shown(page, rows)
    took = time.perf_counter() - began
    await context.close()
    await program.end()
    return took


async def shown(page: Page, rows: int) -> None:
    await page.wait_for_function(
        "rows => rows ? document.querySelectorAll('#live > tr').length === rows"
        " : document.getElementById('connection').textContent === 'Live'",
        arg=rows,
    )


async def filtered(browser: Browser, kubeconfig: Path, *, rows: int) -> list[float]:
    """Seconds from each character in the search until the frame that shows the result."""
    program = await start(kubeconfig)
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(program.address)
    await shown(page, rows)
    took = await page.evaluate(
        """async () => {
            const field = document.querySelector("input[name=q]");
            const took = [];
            for (const text of ["c", "c-", "c-1", "c-12", "c-1", "c-", "c", ""]) {
                const began = performance.now();
                field.value = text;
                field.dispatchEvent(new Event("input", {bubbles: true}));
                // The second frame begins when the first one was painted.
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                took.push((performance.now() - began) / 1000);
            }
            return took;
        }"""
    )
    await context.close()
    await program.end()
    return [float(one) for one in took]


async def followed(kubeconfig: Path, client: Client, names: list[str]) -> None:
    """Over HTTP: a browser opens at most six connections to a host."""
    program = await start(kubeconfig)
    address, _, token = program.address.partition("?token=")
    origin = address.rstrip("/")
    async with aiohttp.ClientSession(read_bufsize=1 << 26) as http:
        async with http.post(f"{origin}/api/session", json={"token": token}, headers={"Origin": origin}) as answer:
            headers = {"X-Unwind-Session": (await answer.json())["session"]}
        ready = asyncio.Semaphore(0)

        async def follow() -> None:
            async with http.get(f"{origin}/api/fleet", headers=headers, timeout=None) as stream:
                while names[-1].encode() not in await stream.content.readline():
                    pass
                ready.release()
                while b"%d/100000" % (CHANGES - 1) not in await stream.content.readline():
                    pass

        async with asyncio.TaskGroup() as group:
            for _ in range(PAGES):
                group.create_task(follow())
            for _ in range(PAGES):
                await ready.acquire()
            before = program.seconds()
            await asyncio.sleep(IDLE)
            idle = program.seconds() - before
            before, began = program.seconds(), time.perf_counter()
            await gather_limited(
                (change(client, names[number % len(names)], number) for number in range(CHANGES)), limit=4
            )
        took, used = time.perf_counter() - began, program.seconds() - before
    print(f"{PAGES} open pages without changes: {100 * idle / IDLE:.1f} % of a core ({IDLE:.0f} s)")
    print(
        f"{CHANGES} changes on {PAGES} open pages in {took:.1f} s: {used:.2f} s of processor time of the dashboard, "
        f"{1000 * used / CHANGES:.1f} ms for each change"
    )
    await program.end()


async def create(client: Client, name: str) -> None:
    ref = ObjectRef(kind="Cluster", namespace="fleet", name=f"c-{name[:8]}", uid=name)
    steps = tuple(
        Step(name=f"ClusterProfile/p-{number}", object=ref, effort="Enforce", wave=1 + number // 3, objects=10)
        for number in range(9)
    )
    spec = TeardownSpec(title=str(ref), target=ref, cause="ClusterDeleted", plan=Plan(steps=steps, waves=3, objects=90))
    await client.create(TEARDOWNS, manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=name), spec=spec)))


async def change(client: Client, name: str, number: int) -> None:
    status = TeardownStatus(phase="Removing", wave="1/3", removed=f"{number}/100000")
    body = {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, "metadata": {"name": name}}
    await client.apply(TEARDOWNS, body | {"status": msgspec.to_builtins(status)}, subresource="status")


if __name__ == "__main__":
    uvloop.run(main())
