"""Dummy Responses API in a process of its own: ignores the content of requests and sends the next planned response.

    python dummy_api.py        prints its base URL, and ends when its stdin closes

`POST /plan` with `{"turns": 10, "calls": 1}` sets the next responses: so many with so many calls of `double`, then
one with text. Standard library only, and fast, because the client is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator

ENVELOPE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1794700000,
    "status": "completed",
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "model": "dummy",
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    },
}


def answers(turns: int, calls: int) -> Iterator[bytes]:
    """The encoded responses of one evaluation."""
    head, tail = json.dumps({**ENVELOPE, "output": []}).encode().split(b'"output": []')
    for turn in range(turns):
        items = (_call(turn, number) for number in range(calls))
        yield head + b'"output": [' + b",".join(items) + b"]" + tail
    part = {"type": "output_text", "text": "done", "annotations": [], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    yield json.dumps({**ENVELOPE, "output": [message]}).encode()


def _call(turn: int, number: int) -> bytes:
    name = f"{turn}_{number}"
    return (
        f'{{"id": "fc_{name}", "type": "function_call", "status": "completed", "call_id": "call_{name}", '
        f'"name": "double", "arguments": "{{\\"number\\": {number}}}"}}'
    ).encode()


class DummyApi:
    """Serves one client at a time, over any number of connections."""

    def __init__(self) -> None:
        self.script: Iterator[bytes] = iter(())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                answer = self.plan(body) if head.startswith(b"post /plan") else next(self.script)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
                )
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the last: the server stops
            writer.close()

    def plan(self, body: bytes) -> bytes:
        self.script = answers(**json.loads(body))
        return b"{}"


async def main() -> None:
    """Serve until stdin closes."""
    server = await asyncio.start_server(DummyApi().serve, "127.0.0.1", 0, limit=1 << 20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
