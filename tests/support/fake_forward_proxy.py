"""A real HTTP forward proxy on loopback: CONNECT tunnels and absolute-form requests. Records the request lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class ForwardProxy:
    """`url` for the client; `request_lines` of everything that it received."""

    url: str

    def __init__(self) -> None:
        self.request_lines: list[str] = []
        self.handlers: set[asyncio.Task[None] | None] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.handlers.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            line, _, rest = head.partition(b"\r\n")
            self.request_lines.append(line.decode())
            method, target, _ = line.decode().split(" ")
            if method == "CONNECT":
                host, _, port = target.partition(":")
                upstream_reader, upstream = await asyncio.open_connection(host, int(port))
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                url = urlsplit(target)
                upstream_reader, upstream = await asyncio.open_connection(url.hostname, url.port or 80)
                upstream.write(f"{method} {url.path} HTTP/1.1\r\n".encode() + rest)
            await asyncio.gather(_copy(reader, upstream), _copy(upstream_reader, writer))
        await _close(writer)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    await _close(target)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def forward_proxy() -> AsyncIterator[ForwardProxy]:
    """Run a proxy on a free port."""
    proxy = ForwardProxy()
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await asyncio.gather(*filter(None, proxy.handlers))
