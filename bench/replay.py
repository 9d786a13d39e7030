"""Serves an empty list and then a recorded watch, read from standard input, as often as it is asked."""

from __future__ import annotations

import asyncio
import sys

EMPTY = b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}'


async def main() -> None:
    recorded = sys.stdin.buffer.read()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readuntil(b"\r\n\r\n"):
            if b"watch=true" in request.split(b"\r\n", 1)[0]:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                for start in range(0, len(recorded), 1 << 16):
                    writer.write(recorded[start : start + (1 << 16)])
                    await writer.drain()
                await asyncio.sleep(60)  # a watch stays open when there is nothing to tell
                return
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(EMPTY)}\r\n\r\n"
            writer.write(head.encode() + EMPTY)

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the reader has seen enough
        finally:
            writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
