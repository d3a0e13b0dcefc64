"""Fake upstream model server on loopback: sends canned replies and records the requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from waiting import INTERVAL

from antwort.testing.model import ModelAnswer


class Disconnect(Exception):
    """Closes a connection during the reply."""


@dataclass
class CannedReply:
    """One reply, in the chunks in which it is sent."""

    chunks: list[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    pause: float = 0.0
    disconnect: bool = False
    hold: threading.Event | None = None
    """The reply waits until this is set."""


@dataclass
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    body: dict
    port: int


class FakeUpstream:
    """A chat completions and Responses API server. Replies are sent in order; the last one is repeated."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.sent_chunks = 0
        self.client_disconnected = threading.Event()
        self._replies: dict[str, list[CannedReply]] = {}
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # connections wait until the server is up
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["POST"])])
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def set_replies(self, *replies: CannedReply, path: str | None = None) -> None:
        for route in [path] if path else ["v1/chat/completions", "v1/responses"]:
            self._replies[route] = list(replies)

    def reset(self) -> None:
        self.requests.clear()
        self._replies.clear()
        self.client_disconnected.clear()
        self.sent_chunks = 0

    # ── replies ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def sse(*payloads, **options) -> CannedReply:
        """SSE frames of JSON or text; [DONE] is sent only if it is given."""
        return CannedReply([sse_frame(payload) for payload in payloads], **options)

    @staticmethod
    def json(body, status: int = 200, headers: dict[str, str] | None = None) -> CannedReply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return CannedReply([data], status=status, headers=headers or {}, content_type="application/json")

    @staticmethod
    def chat(answer: ModelAnswer) -> CannedReply:
        return CannedReply([sse_frame(chunk) for chunk in chat_chunks(answer)])

    @staticmethod
    def responses(answer: ModelAnswer) -> CannedReply:
        return CannedReply([sse_frame(event) for event in response_events(answer)])

    # ── server ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        body = await request.body()
        self.requests.append(ReceivedRequest(path, dict(request.headers), json.loads(body), request.scope["client"][1]))
        reply = self.reply_to(self.requests[-1])
        if reply is None:
            return Response(b'{"detail":"Not Found"}', 404, media_type="application/json")
        if reply.hold is not None:
            await self._wait_for(reply.hold, request)
        return StreamingResponse(self._send(reply), reply.status, {**reply.headers, "content-type": reply.content_type})

    async def _wait_for(self, released: threading.Event, request: Request) -> None:
        """Return when the event is set, or the client has disconnected."""
        while not released.is_set():
            if await request.is_disconnected():
                self.client_disconnected.set()
                return
            await asyncio.sleep(INTERVAL)

    def reply_to(self, request: ReceivedRequest) -> CannedReply | None:
        """The reply to a request: the next one of its path."""
        replies = self._replies.get(request.path)
        if not replies:
            return None
        return replies.pop(0) if len(replies) > 1 else replies[0]

    async def _send(self, reply: CannedReply) -> AsyncIterator[bytes]:
        try:
            for chunk in reply.chunks:
                yield chunk
                self.sent_chunks += 1
                await asyncio.sleep(reply.pause)
        except asyncio.CancelledError:
            self.client_disconnected.set()
            raise
        if reply.disconnect:
            raise Disconnect


def sse_frame(payload) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def chat_chunks(answer: ModelAnswer) -> list:
    """An answer as vLLM streams it: role, fragments, finish reason, usage, [DONE]."""

    def chunk(delta, reason=None):
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    chunks: list = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": part}) for part in split_text(answer.reasoning)]
    chunks += [chunk({"content": part}) for part in split_text(answer.text)]
    chunks += [chunk({"refusal": part}) for part in split_text(answer.refusal)]
    for index, call in enumerate(answer.calls):
        named = {"name": call.name, "arguments": ""}
        chunks.append(
            chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": named}]})
        )
        for part in split_text(call.arguments):
            chunks.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]}))
    chunks.append(chunk({}, {"calls": "tool_calls"}.get(answer.reason, answer.reason)))
    usage = answer.usage
    usage_chunk = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.input_tokens_details.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.output_tokens_details.reasoning_tokens},
    }
    return [*chunks, {"choices": [], "usage": usage_chunk}, "[DONE]"]


def response_events(answer: ModelAnswer) -> list:
    """An answer as events of the Responses API."""
    events: list = [{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}]
    index = 0
    if answer.reasoning:
        where = {"item_id": "rs_1", "output_index": index}
        item = {"id": "rs_1", "type": "reasoning", "summary": []}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        reasoning = {"type": "response.reasoning_text.delta", **where, "content_index": 0}
        events += [{**reasoning, "delta": part} for part in split_text(answer.reasoning)]
        done = {"type": "response.reasoning_text.done", **where, "content_index": 0, "text": answer.reasoning}
        sealed = {**item, "encrypted_content": "gAAAA-sealed"}
        events += [done, {"type": "response.output_item.done", "output_index": index, "item": sealed}]
        index += 1
    for kind, text in (("output_text", answer.text), ("refusal", answer.refusal)):
        if text:
            where = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
            item = {"id": f"msg_{index}", "type": "message", "role": "assistant", "content": []}
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            events += [{"type": f"response.{kind}.delta", **where, "delta": part} for part in split_text(text)]
            final = {"text": text} if kind == "output_text" else {"refusal": text}
            events.append({"type": f"response.{kind}.done", **where, **final})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
            index += 1
    for call in answer.calls:
        events += call_events(index, call)
        index += 1
    is_incomplete = answer.reason in ("length", "content_filter")
    reason = "max_output_tokens" if answer.reason == "length" else answer.reason
    response = {
        "id": "resp_1",
        "status": "incomplete" if is_incomplete else "completed",
        "incomplete_details": {"reason": reason} if is_incomplete else None,
        "usage": msgspec.to_builtins(answer.usage),
    }
    return [*events, {"type": f"response.{response['status']}", "response": response}]


def call_events(index: int, call) -> list:
    """A function call, or (for run_sql) a custom tool call with free text."""
    custom = call.name == "run_sql"
    text = json.loads(call.arguments)["input"] if custom else call.arguments
    field_name, stem = ("input", "custom_tool_call_input") if custom else ("arguments", "function_call_arguments")
    kind = "custom_tool_call" if custom else "function_call"
    item = {"id": f"fc_{index}", "type": kind, "call_id": f"call_{index}", "name": call.name, field_name: ""}
    where = {"item_id": f"fc_{index}", "output_index": index}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        *({"type": f"response.{stem}.delta", **where, "delta": part} for part in split_text(text)),
        {"type": f"response.{stem}.done", **where, field_name: text},
        {"type": "response.output_item.done", "output_index": index, "item": {**item, field_name: text}},
    ]


def split_text(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)]


@contextmanager
def running_upstream() -> Iterator[FakeUpstream]:
    """Run an upstream during the context."""
    upstream = FakeUpstream()
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()
