"""Fake Responses API: a server on loopback that sends prepared responses and records the requests.

The responses are written from the documented API, as JSON below `tests/wire`. Tests connect with the real SDK over real
sockets.
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
    """A complete response with this output."""
    return {**ENVELOPE, "output": list(output), **fields}


def load(name: str) -> list[dict[str, Any]]:
    """The responses of a file in `tests/wire`; each one has only the fields that differ from the envelope."""
    return [{**ENVELOPE, **part} for part in json.loads((WIRE / f"{name}.json").read_text(encoding="utf-8"))]


@dataclass
class RecordedRequest:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class FakeResponse:
    """A response: JSON, bytes, or an iterator of chunks, after `delay` seconds; `disconnect` closes the connection."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0
    disconnect: bool = False


def error(
    status: int, message: str, *, code: str | None = None, param: str | None = None, **headers: str
) -> FakeResponse:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
    return FakeResponse(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


class FakeResponsesApi:
    """Sends `responses` to `POST /responses`, one after the other; other requests are handled by `routes`."""

    def __init__(self, *responses: Any) -> None:
        self.responses = self.to_responses(responses)
        self.routes: dict[str, Callable[[RecordedRequest], FakeResponse]] = {}
        self.requests: list[RecordedRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @staticmethod
    def to_responses(given: Iterable[Any]) -> list[FakeResponse]:
        """Wrap JSON bodies as responses."""
        return [one if isinstance(one, FakeResponse) else FakeResponse(one) for one in given]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the requests to `/responses`, in order."""
        return [one.body for one in self.requests if one.path.endswith("/responses")]

    def adapter(self, **options: Any) -> OpenAIAdapter:
        """An adapter that uses this server."""
        options = {"model": "a-model", **options}
        if "client" not in options:
            options.setdefault("client_config", OpenAIClientConfig(base_url=self.url, api_key="none", timeout=30))
        return OpenAIAdapter(**options)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def respond(self, request: RecordedRequest) -> FakeResponse:
        self.requests.append(request)
        for pattern, route in self.routes.items():
            if re.fullmatch(pattern, f"{request.method} {request.path.removeprefix('/v1')}"):
                return route(request)
        if not request.path.endswith("/responses"):
            return error(404, f"there is no {request.path}")
        return self.responses.pop(0) if self.responses else error(500, "no response is left", x_should_retry="false")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # header and body are two packets; Nagle's algorithm delays the second

            def handle_any(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0))) or b"".join(self.chunks())
                request = RecordedRequest(
                    self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, raw
                )
                response = api.respond(request)
                time.sleep(response.delay)
                if response.disconnect:
                    self.close_connection = True
                    return
                if isinstance(response.body, Iterator):
                    _send_chunks(self, response)
                    return
                plain = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
                self.send_response(response.status)
                kind = "application/octet-stream" if isinstance(response.body, bytes) else "application/json"
                headers = {"content-type": kind, "content-length": str(len(plain)), "x-request-id": "req_1"}
                for name, value in {**headers, **response.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(plain)

            def chunks(self) -> Iterator[bytes]:
                while self.headers.get("transfer-encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
                    yield self.rfile.read(size)
                    self.rfile.readline()
                if self.headers.get("transfer-encoding") == "chunked":
                    self.rfile.readline()

            do_POST = do_GET = do_PUT = do_DELETE = handle_any  # noqa: N815 - names that http.server requires

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
                pass

        return Handler


def _send_chunks(handler: BaseHTTPRequestHandler, response: FakeResponse) -> None:
    handler.close_connection = True
    handler.send_response(response.status)
    for name, value in {**response.headers, "connection": "close"}.items():
        handler.send_header(name, value)
    handler.end_headers()
    with suppress(OSError):  # the client has disconnected
        for chunk in response.body:
            handler.wfile.write(chunk)


@contextmanager
def responses_api(*responses: Any) -> Iterator[FakeResponsesApi]:
    """Run a fake Responses API."""
    api = FakeResponsesApi(*responses)
    try:
        yield api
    finally:
        api.close()
