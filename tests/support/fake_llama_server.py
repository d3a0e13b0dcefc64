"""Fake llama.cpp server process: sends the reply that a file contains.

    python fake_llama_server.py    reads its settings as one line of input, as `antwort.models.embedded.server` does

The file replaces the weights: a `LlamaReply` as JSON. It is read again for each request.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAKE_SERVER_COMMAND = (sys.executable, __file__)


@dataclass
class LlamaReply:
    """The reply of the model: text, then optionally the opening of a fence and the content of its block."""

    text: str = ""
    opening: str = ""
    block: str = ""
    is_truncated: bool = False
    exits: bool = False
    """The process exits after the text."""
    error_status: int = 0
    """The status of every completion, if not 0."""

    def write(self, path: Path) -> Path:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)
        return path


def received_requests(path: Path) -> list[dict]:
    """The bodies of the received completion requests, which are recorded in a file next to the reply."""
    return [json.loads(line) for line in path.with_suffix(".requests").read_text().splitlines()]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    settings: dict

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("authorization") != f"Bearer {self.settings['key']}":
            return self._json({"error": {"message": "Invalid API Key"}}, 401)
        if self.path == "/apply-template":
            parts = [f"<{message['role']}>{message['content']}" for message in body["messages"]]
            return self._json({"prompt": "".join([*parts, "<assistant>"])})
        if self.path == "/tokenize":
            return self._json({"tokens": list(range(len(body["content"].split())))})
        return self._complete(body)

    def _complete(self, body: dict) -> None:
        path = Path(self.settings["weights"])
        with path.with_suffix(".requests").open("a") as log:
            log.write(json.dumps(body) + "\n")
        reply = LlamaReply(**json.loads(path.read_text()))
        if reply.error_status:
            return self._json({"error": {"message": "request exceeds the available context size"}}, reply.error_status)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True  # without announcing it, like llama.cpp
        with suppress(ConnectionError):  # the client may disconnect
            self._send_completion(body, reply)
            self.wfile.write(b"0\r\n\r\n")
        return None

    def _send_completion(self, body: dict, reply: LlamaReply) -> None:
        is_opened = reply.opening in body["stop"]
        is_block = "json_schema" in body or "\n```" in body["stop"]
        text = reply.opening if "grammar" in body else reply.block if is_block else reply.text
        for at in range(0, len(text), 7):
            token = {"token": text[at : at + 7], "logprob": -0.5}
            logprobs = {"completion_probabilities": [{**token, "top_logprobs": [token] * body.get("n_probs", 0)}]}
            self._event({"content": text[at : at + 7], "stop": False, **(logprobs if "n_probs" in body else {})})
        if reply.exits:
            os._exit(9)
        kind, word = ("word", reply.opening) if is_opened else ("limit", "") if reply.is_truncated else ("eos", "")
        counts = {"tokens_evaluated": 20, "tokens_predicted": 5, "timings": {"cache_n": 12}}
        self._event({"content": "", "stop": True, "stop_type": kind, "stopping_word": word, **counts})

    def _event(self, payload: dict) -> None:
        data = f"data: {json.dumps(payload)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _json(self, payload: dict, status: int = 200) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
        pass


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"settings": settings}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"address": f"http://127.0.0.1:{server.server_port}"}), flush=True)  # noqa: T201 - the protocol with the supervisor
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
