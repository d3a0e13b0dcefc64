"""Fake HTTP server whose replies never end: it sends a few bytes at a time, so that no wait for data is long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def trickling_server(begin: bytes, repeated: bytes) -> AsyncGenerator[str]:
    """A server that begins each reply with these bytes, and then sends others again and again, without an end.

    `begin` is what follows the status line of a 200.
    """
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + begin)
            while True:
                await writer.drain()
                await asyncio.sleep(0.001)
                writer.write(repeated)
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections)
