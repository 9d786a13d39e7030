"""A real Prometheus that scrapes a manager: Debian's package, unpacked into the cache and not installed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from tests.eventually import eventually
from unwind.local.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def program() -> Path:
    """The program, downloaded with apt if it is not installed."""
    if found := shutil.which("prometheus"):
        return Path(found)
    place = cache_dir() / "debian" / "prometheus"
    unpacked = place / "usr" / "bin" / "prometheus"
    if not unpacked.exists():
        place.mkdir(parents=True, exist_ok=True)
        get = ["apt-get", "--quiet", "download", "prometheus"]
        if subprocess.run(get, cwd=place, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "--quiet", "update"], check=True, capture_output=True)
            subprocess.run(get, cwd=place, check=True, capture_output=True)
        [package] = place.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, place], check=True)
    return unpacked


class Prometheus:
    """Its HTTP API."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session

    async def get(self, path: str, **query: str) -> Any:
        async with self._session.get(f"http://{self._address}/api/v1/{path}", params=query) as answer:
            told = await answer.json()
            assert told["status"] == "success", told
            return told["data"]

    async def query(self, expression: str) -> list[Any]:
        """The series of an expression, now."""
        found: list[Any] = (await self.get("query", query=expression))["result"]
        return found

    async def ready(self) -> bool:
        try:
            async with self._session.get(f"http://{self._address}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def scraping(target: str, rules: Any, place: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes an address and evaluates these rules, several times a second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (place / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "unwind", "static_configs": [{"targets": [target]}]}],
    }
    (place / "prometheus.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        await asyncio.to_thread(program),
        f"--config.file={place / 'prometheus.yaml'}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address={address}",
        stderr=subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(address, session)
            await eventually(prometheus.ready, "a ready Prometheus")
            yield prometheus
    finally:
        process.terminate()
        await process.wait()
