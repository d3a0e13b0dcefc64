"""Dummy upstream: a chat completions server on loopback that costs nearly no CPU time, streamed or not.

The model name selects its behaviour:

    quick     eight words, as fast as they can be sent
    paced     a hundred words, one every two milliseconds
    drip      a word every ten seconds, until the client disconnects
    coder     calls the first tool of the request with some Python; after its result it behaves as `quick`

It runs as a process of its own, and prints its port.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import uvloop

PACE = {"quick": 0.0, "paced": 0.002, "drip": 10.0}
LENGTH = {"quick": 8, "paced": 100, "drip": 60}
CODER, CODE, PRINTED = "coder", "print(sum(range(10)))", "45"
BACKLOG = 4096

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_USAGE = {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_END = b"0\r\n\r\n"


def words(model: str) -> list[str]:
    """The words of an answer. The benchmarks look for the first; all differ, as some servers stop on repetition."""
    return ["seven", *(f" word{number}" for number in range(1, LENGTH[model]))]


def answer(model: str) -> bytes:
    """A blocking response."""
    message = {"role": "assistant", "content": "".join(words(model))}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps(_envelope(model, "chat.completion") | {"choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def frames(model: str) -> Iterator[bytes]:
    """A streamed response, one word per chunk; the last chunk has all that follows the last word."""
    for word in words(model):
        yield _frame(_chunk(model, {"role": "assistant", "content": word}, None))
    end = _chunk(model, {}, "stop")
    usage = _envelope(model, "chat.completion.chunk") | {"choices": [], "usage": _USAGE}
    yield _frame(end) + _frame(usage) + _http_chunk(b"data: [DONE]\n\n") + _END


def call(tool: str) -> bytes:
    """A blocking response with a tool call."""
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **_called(tool)}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = json.dumps(_envelope(CODER, "chat.completion") | {"choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def call_frames(tool: str) -> bytes:
    """A streamed response with a tool call."""
    calls = [{"index": 0, "id": "call_1", **_called(tool)}]
    pieces = _frame(_chunk(CODER, {"role": "assistant", "tool_calls": calls}, None))
    usage = _envelope(CODER, "chat.completion.chunk") | {"choices": [], "usage": _USAGE}
    return pieces + _frame(_chunk(CODER, {}, "tool_calls")) + _frame(usage) + _http_chunk(b"data: [DONE]\n\n") + _END


def _called(tool: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool, "arguments": json.dumps({"code": CODE})}}


def _envelope(model: str, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}


def _chunk(model: str, delta: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _envelope(model, "chat.completion.chunk") | {"choices": [choice]}


def _frame(event: dict[str, Any]) -> bytes:
    return _http_chunk(b"data: " + json.dumps(event).encode() + b"\n\n")


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = {model: answer(model) for model in PACE}
PIECES = {model: list(frames(model)) for model in PACE}


class Connection(asyncio.Protocol):
    """Answers one request after the other on one connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a TCP connection has no other kind
        self._received = b""
        self._next: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or (length and len(rest) < int(length[1])):
            return
        self._received = b""
        if not head.startswith(b"POST "):  # some clients list models first; a 404 is enough
            self._transport.write(_NOT_FOUND)
            return
        request = json.loads(rest)
        model = request["model"]
        if model == CODER:
            if request["messages"][-1]["role"] != "tool":
                tool = request["tools"][0]["function"]["name"]
                self._transport.write(_STREAM + call_frames(tool) if request.get("stream") else call(tool))
                return
            if PRINTED not in json.dumps(request["messages"][-1]["content"]):  # the code must have run
                self._transport.write(_NOT_FOUND)
                return
            model = "quick"
        pace = PACE[model]
        if not request.get("stream"):
            self._next = asyncio.get_running_loop().call_later(
                pace * LENGTH[model], self._transport.write, WHOLE[model]
            )
        elif pace:
            self._transport.write(_STREAM)
            self._send_pieces(PIECES[model], 0, pace)
        else:
            self._transport.write(_STREAM + b"".join(PIECES[model]))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._next is not None:
            self._next.cancel()

    def _send_pieces(self, pieces: list[bytes], at: int, pace: float) -> None:
        self._transport.write(pieces[at])
        if at + 1 < len(pieces):
            self._next = asyncio.get_running_loop().call_later(pace, self._send_pieces, pieces, at + 1, pace)


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
