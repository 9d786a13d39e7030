"""`unwind dashboard` as a person starts it, and a real browser that looks at it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import pytest
from playwright.async_api import async_playwright

from tests.forked_commands import UNWIND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser

_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


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
