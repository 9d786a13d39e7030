"""Health checks of local components."""

from __future__ import annotations

from urllib.parse import urlsplit

from unwind.kube.client import Client
from unwind.kube.kubeconfig import Connection


async def well(url: str, *, authority: bytes | None = None) -> bool:
    """Whether a health endpoint answers 200; False also if there is no answer."""
    parts = urlsplit(url)
    connection = Connection(server=f"{parts.scheme}://{parts.netloc}", authority=authority)
    async with Client(connection) as client:
        return await client.healthy(parts.path)
