"""Asking a program of the plane whether it is well."""

from __future__ import annotations

from urllib.parse import urlsplit

from unwind.kube.client import Client
from unwind.kube.kubeconfig import Connection


async def well(url: str, *, authority: bytes | None = None) -> bool:
    """Whether the program that serves its health there says that it is well; False also if nobody answers."""
    parts = urlsplit(url)
    connection = Connection(server=f"{parts.scheme}://{parts.netloc}", authority=authority)
    async with Client(connection) as client:
        return await client.healthy(parts.path)
