"""A stage for models: a real upstream on loopback, which plays what it is given and remembers what it was asked."""

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

from antwort.testing.model import WholeAnswer


class HangUp(Exception):
    """Ends a connection in the middle."""


@dataclass
class Play:
    """One reply: bytes in the chunks in which they go out."""

    chunks: list[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    pause: float = 0.0
    hang_up: bool = False


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict
    port: int


class Loopback:
    """The upstream. Plays come in the order given; the last one is repeated."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.sent_chunks = 0
        self.left_early = threading.Event()
        self._plays: dict[str, list[Play]] = {}
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # whoever comes before the server is up waits, and is not turned away
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

    def plays(self, *plays: Play, path: str | None = None) -> None:
        for where in [path] if path else ["v1/chat/completions", "v1/responses"]:
            self._plays[where] = list(plays)

    def forget(self) -> None:
        self.asked.clear()
        self._plays.clear()
        self.left_early.clear()
        self.sent_chunks = 0

    # ── what to play ─────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def sse(*payloads, **options) -> Play:
        """Events of JSON or of text; the last is [DONE] only when it is given."""
        return Play([frame(payload) for payload in payloads], **options)

    @staticmethod
    def json(body, status: int = 200, headers: dict[str, str] | None = None) -> Play:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Play([data], status=status, headers=headers or {}, content_type="application/json")

    @staticmethod
    def chat(answer: WholeAnswer) -> Play:
        return Play([frame(chunk) for chunk in chat_chunks(answer)])

    @staticmethod
    def responses(answer: WholeAnswer) -> Play:
        return Play([frame(event) for event in response_events(answer)])

    # ── the server's side ────────────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        body = await request.body()
        self.asked.append(Asked(path, dict(request.headers), json.loads(body), request.scope["client"][1]))
        plays = self._plays.get(path)
        if not plays:
            return Response(b'{"detail":"Not Found"}', 404, media_type="application/json")
        play = plays.pop(0) if len(plays) > 1 else plays[0]
        return StreamingResponse(self._send(play), play.status, {**play.headers, "content-type": play.content_type})

    async def _send(self, play: Play) -> AsyncIterator[bytes]:
        try:
            for chunk in play.chunks:
                yield chunk
                self.sent_chunks += 1
                await asyncio.sleep(play.pause)
        except asyncio.CancelledError:
            self.left_early.set()
            raise
        if play.hang_up:
            raise HangUp


def frame(payload) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def chat_chunks(answer: WholeAnswer) -> list:
    """An answer as vLLM streams it: the role, fragments, the reason, the numbers, [DONE]."""

    def chunk(delta, reason=None):
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    chunks: list = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning_content": part}) for part in parts(answer.reasoning)]
    chunks += [chunk({"content": part}) for part in parts(answer.text)]
    chunks += [chunk({"refusal": part}) for part in parts(answer.refusal)]
    for at, call in enumerate(answer.calls):
        named = {"name": call.name, "arguments": ""}
        chunks.append(chunk({"tool_calls": [{"index": at, "id": f"call_{at}", "type": "function", "function": named}]}))
        for part in parts(call.arguments):
            chunks.append(chunk({"tool_calls": [{"index": at, "function": {"arguments": part}}]}))
    chunks.append(chunk({}, {"calls": "tool_calls"}.get(answer.reason, answer.reason)))
    usage = answer.usage
    numbers = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.input_tokens_details.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.output_tokens_details.reasoning_tokens},
    }
    return [*chunks, {"choices": [], "usage": numbers}, "[DONE]"]


def response_events(answer: WholeAnswer) -> list:
    """An answer as events of the Responses API."""
    events: list = [{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}]
    index = 0
    if answer.reasoning:
        where = {"item_id": "rs_1", "output_index": index}
        item = {"id": "rs_1", "type": "reasoning", "summary": []}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        thinks = {"type": "response.reasoning_text.delta", **where, "content_index": 0}
        events += [{**thinks, "delta": part} for part in parts(answer.reasoning)]
        done = {"type": "response.reasoning_text.done", **where, "content_index": 0, "text": answer.reasoning}
        sealed = {**item, "encrypted_content": "gAAAA-sealed"}
        events += [done, {"type": "response.output_item.done", "output_index": index, "item": sealed}]
        index += 1
    for kind, text in (("output_text", answer.text), ("refusal", answer.refusal)):
        if text:
            where = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
            item = {"id": f"msg_{index}", "type": "message", "role": "assistant", "content": []}
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            events += [{"type": f"response.{kind}.delta", **where, "delta": part} for part in parts(text)]
            whole = {"text": text} if kind == "output_text" else {"refusal": text}
            events.append({"type": f"response.{kind}.done", **where, **whole})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
            index += 1
    for call in answer.calls:
        events += call_events(index, call)
        index += 1
    cut = answer.reason in ("length", "content_filter")
    reason = "max_output_tokens" if answer.reason == "length" else answer.reason
    response = {
        "id": "resp_1",
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": reason} if cut else None,
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
        *({"type": f"response.{stem}.delta", **where, "delta": part} for part in parts(text)),
        {"type": f"response.{stem}.done", **where, field_name: text},
        {"type": "response.output_item.done", "output_index": index, "item": {**item, field_name: text}},
    ]


def parts(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


@contextmanager
def upstreaming() -> Iterator[Loopback]:
    """An upstream for a while."""
    upstream = Loopback()
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()
