"""A stage for adapters: a server on loopback that plays answers of the Responses API, and keeps what it was asked.

The answers are written by us from the facts of the API, as JSON below `tests/wire`. The client in front of it is the
real SDK, over real sockets.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig

WIRE = Path(__file__).parents[1] / "wire"
ENVELOPE = json.loads((WIRE / "envelope.json").read_text(encoding="utf-8"))


def message(text: str, *annotations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part], **fields}


def function_call(name: str, call_id: str = "call_1", /, **arguments: Any) -> dict[str, Any]:
    return {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments),
    }


def response(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole response with this output."""
    return {**ENVELOPE, "output": list(output), **fields}


def load(name: str) -> list[dict[str, Any]]:
    """The responses of a file in `tests/wire`; each is written as what differs from the envelope."""
    return [{**ENVELOPE, **part} for part in json.loads((WIRE / f"{name}.json").read_text(encoding="utf-8"))]


@dataclass
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Answer:
    """What to answer: JSON, or bytes as they are, or piece by piece; after `delay` seconds; or nothing, and hang up."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0
    hang_up: bool = False


def error(status: int, message: str, *, code: str | None = None, param: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
    return Answer(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


class FakeApi:
    """Answers `POST /responses` one after the other, and everything else by `routes`: pattern → answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = self.answers_of(answers)
        self.routes: dict[str, Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @staticmethod
    def answers_of(given: Iterable[Any]) -> list[Answer]:
        """Whole answers from these, or from the responses that they are to hold."""
        return [one if isinstance(one, Answer) else Answer(one) for one in given]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The requests for responses, in order."""
        return [one.body for one in self.asked if one.path.endswith("/responses")]

    def adapter(self, **options: Any) -> OpenAIAdapter:
        """An adapter in front of it."""
        options = {"model": "a-model", **options}
        if "client" not in options:
            options.setdefault("client_config", OpenAIClientConfig(base_url=self.url, api_key="none", timeout=30))
        return OpenAIAdapter(**options)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        for pattern, route in self.routes.items():
            if re.fullmatch(pattern, f"{asked.method} {asked.path.removeprefix('/v1')}"):
                return route(asked)
        if not asked.path.endswith("/responses"):
            return error(404, f"there is no {asked.path}")
        return self.answers.pop(0) if self.answers else error(500, "nothing is left to play", x_should_retry="false")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0))) or b"".join(self.chunks())
                asked = Asked(
                    self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, raw
                )
                answer = api.answer(asked)
                time.sleep(answer.delay)
                if answer.hang_up:
                    self.close_connection = True
                    return
                if isinstance(answer.body, Iterator):
                    _send_pieces(self, answer)
                    return
                plain = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                kind = "application/octet-stream" if isinstance(answer.body, bytes) else "application/json"
                headers = {"content-type": kind, "content-length": str(len(plain)), "x-request-id": "req_1"}
                for name, value in {**headers, **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(plain)

            def chunks(self) -> Iterator[bytes]:
                while self.headers.get("transfer-encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
                    yield self.rfile.read(size)
                    self.rfile.readline()
                if self.headers.get("transfer-encoding") == "chunked":
                    self.rfile.readline()

            do_POST = do_GET = do_PUT = do_DELETE = handle_any  # noqa: N815 - what http.server looks for

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
                pass

        return Handler


def _send_pieces(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.close_connection = True
    handler.send_response(answer.status)
    for name, value in {**answer.headers, "connection": "close"}.items():
        handler.send_header(name, value)
    handler.end_headers()
    with suppress(OSError):  # whoever asked has gone
        for piece in answer.body:
            handler.wfile.write(piece)


@contextmanager
def playing(*answers: Any) -> Iterator[FakeApi]:
    """A fake for a while."""
    api = FakeApi(*answers)
    try:
        yield api
    finally:
        api.close()
