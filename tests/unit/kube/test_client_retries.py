"""Which responses the client retries: on a real socket, with scripted responses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from unwind.kube.client import Client
from unwind.kube.errors import ApiError
from unwind.kube.kubeconfig import ClusterConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[Client, list[str]]]:
    """A server on a real socket that gives these answers, one after another."""
    asked: list[str] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                asked.append(request.split("\r\n")[0])
                writer.write(left.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError, IndexError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with Client(ClusterConnection(server=address), deadline=5.0) as client:
            yield client, asked
    finally:
        server.close()


def answer(status: str, body: bytes = b"{}", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


async def refusal(client: Client) -> int:
    with pytest.raises(ApiError) as error:
        await client.cluster_uid()
    return error.value.code


async def test_a_busy_server_is_asked_again_after_the_time_that_it_names() -> None:
    busy = answer("429 Too Many Requests", Retry_After="0.1")
    down = answer("503 Service Unavailable", Retry_After="0.1")
    async with answering(busy, down, answer("200 OK", b'{"metadata": {"uid": "1"}}')) as (client, asked):
        assert await client.cluster_uid() == "1"
        assert len(asked) == 3


async def test_a_retry_after_beyond_the_deadline_is_an_error() -> None:
    async with answering(answer("429 Too Many Requests", Retry_After="60")) as (client, _):
        assert await refusal(client) == 429


async def test_an_error_without_retry_after_is_not_retried() -> None:
    async with answering(answer("500 Internal Server Error", b"oh")) as (client, asked):
        with pytest.raises(ApiError, match="oh"):
            await client.cluster_uid()
        assert len(asked) == 1


async def test_a_redirect_is_not_followed_because_it_would_expose_the_credentials() -> None:
    async with answering(answer("302 Found", Location="http://127.0.0.1:1/")) as (client, asked):
        assert await refusal(client) == 302
        assert len(asked) == 1
