"""A stage for the embedded model: a process that listens as llama.cpp does, and says what a file tells it.

    python fake_llama_server.py    reads its settings as one line of input, as `antwort.models.embedded.server` does

The file stands where the weights would: a `Reply` as JSON. It is read anew for each request.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMAND = (sys.executable, __file__)


@dataclass
class Reply:
    """What the model says: text, then perhaps the opening of a fence, then what stands in it."""

    text: str = ""
    opens: str = ""
    inside: str = ""
    cut: bool = False
    die: bool = False
    """The process ends itself behind the text."""
    refuse: int = 0
    """Every completion is answered with this status."""
    asked: list[dict] = field(default_factory=list)
    """Not to be set: the completions that were asked for are written beside the file."""

    def write(self, path: Path) -> Path:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)
        return path


def asked(path: Path) -> list[dict]:
    """The completions that were asked for."""
    return [json.loads(line) for line in path.with_suffix(".asked").read_text().splitlines()]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    settings: dict

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("authorization") != f"Bearer {self.settings['key']}":
            return self._json({"error": {"message": "Invalid API Key"}}, 401)
        if self.path == "/apply-template":
            turns = [f"<{message['role']}>{message['content']}" for message in body["messages"]]
            return self._json({"prompt": "".join([*turns, "<assistant>"])})
        if self.path == "/tokenize":
            return self._json({"tokens": list(range(len(body["content"].split())))})
        return self._complete(body)

    def _complete(self, body: dict) -> None:
        path = Path(self.settings["weights"])
        with path.with_suffix(".asked").open("a") as log:
            log.write(json.dumps(body) + "\n")
        reply = Reply(**json.loads(path.read_text()))
        if reply.refuse:
            return self._json({"error": {"message": "request exceeds the available context size"}}, reply.refuse)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True  # and says nothing of it, as llama.cpp does
        with suppress(ConnectionError):  # whoever asked may leave
            self._say(body, reply)
            self.wfile.write(b"0\r\n\r\n")
        return None

    def _say(self, body: dict, reply: Reply) -> None:
        opens = reply.opens in body["stop"]
        inside = "json_schema" in body or "\n```" in body["stop"]
        words = reply.opens if "grammar" in body else reply.inside if inside else reply.text
        for at in range(0, len(words), 7):
            likely = {"token": words[at : at + 7], "logprob": -0.5}
            told = {"completion_probabilities": [{**likely, "top_logprobs": [likely] * body.get("n_probs", 0)}]}
            self._event({"content": words[at : at + 7], "stop": False, **(told if "n_probs" in body else {})})
        if reply.die:
            os._exit(9)
        kind, word = ("word", reply.opens) if opens else ("limit", "") if reply.cut else ("eos", "")
        numbers = {"tokens_evaluated": 20, "tokens_predicted": 5, "timings": {"cache_n": 12}}
        self._event({"content": "", "stop": True, "stop_type": kind, "stopping_word": word, **numbers})

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
    print(json.dumps({"address": f"http://127.0.0.1:{server.server_port}"}), flush=True)  # noqa: T201 - as agreed
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
