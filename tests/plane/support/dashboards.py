"""`unwind dashboard` as a person starts it, and a real browser that looks at it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from playwright.async_api import async_playwright

from tests.forked_commands import UNWIND
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from playwright.async_api import Browser, Page

    from unwind.local.plane import Plane

_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


# Where screenshots go.
PICTURES = os.environ.get("UNWIND_SCREENSHOTS")


class Started(msgspec.Struct, frozen=True):
    """A running dashboard."""

    address: str
    """With the token that works once."""

    @property
    def origin(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        return self.address.partition("?token=")[2]


class Caller:
    """A program that knows the session of a dashboard, and asks without a browser."""

    def __init__(self, http: aiohttp.ClientSession, site: Started, session: str) -> None:
        self._http = http
        self._site = site
        self._session = session

    @property
    def headers(self) -> dict[str, str]:
        return {"Origin": self._site.origin, "X-Unwind-Session": self._session}

    async def get(self, path: str) -> tuple[int, str]:
        async with self._http.get(f"{self._site.origin}{path}", headers=self.headers) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        """`headers`: instead of the right ones."""
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._http.post(f"{self._site.origin}{path}", json=body, headers=sent) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def calling(site: Started) -> AsyncIterator[Caller]:
    """Exchange the token, as a page does."""
    async with aiohttp.ClientSession() as http:
        _, session = await exchange(http, site, site.token)
        yield Caller(http, site, session)


async def exchange(session: aiohttp.ClientSession, site: Started, token: str) -> tuple[int, str]:
    async with session.post(f"{site.origin}/api/session", json={"token": token}, headers={"Origin": site.origin}) as it:
        return it.status, (await it.json()).get("session", "")


@asynccontextmanager
async def opened(browser: Browser, address: str) -> AsyncIterator[Page]:
    """A page in a profile of its own. At the end, nothing was refused by the policy and no script has failed."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    try:
        await page.goto(address)
        yield page
    finally:
        await context.close()
    assert not faults


async def shoot(page: Page, name: str) -> None:
    """A screenshot for people who look at them."""
    if PICTURES:
        await page.screenshot(path=f"{PICTURES}/{name}.png")


async def person(plane: Plane, name: str, *rules: dict[str, list[str]], role: str = "") -> Path:
    """The kubeconfig of a person with these rights, in addition to those that they have. `role`: its name."""
    role = role or name
    client = plane.management.client
    await client.create(
        CLUSTER_ROLES,
        {
            "apiVersion": CLUSTER_ROLES.api_version,
            "kind": CLUSTER_ROLES.kind,
            "metadata": {"name": role},
            "rules": list(rules),
        },
    )
    await client.create(
        CLUSTER_ROLE_BINDINGS,
        {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": CLUSTER_ROLE_BINDINGS.kind,
            "metadata": {"name": role},
            "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": role},
            "subjects": [{"apiGroup": CLUSTER_ROLES.group, "kind": "User", "name": name}],
        },
    )
    return plane.management.write_kubeconfig(name)


@asynccontextmanager
async def dashboard(kubeconfig: Path) -> AsyncIterator[Started]:
    """The program, until the end of the block. It ends by itself after Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        UNWIND,
        "dashboard",
        "--no-browser",
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    try:
        line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("http://127.0.0.1:"), line or await process.communicate()
        yield Started(line)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130, err.decode()
    assert "Traceback" not in err.decode(), err.decode()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed: see `make browser`")
    # Chromium refuses to run as root in its own sandbox.
    flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            await browser.close()
