"""Fake package index on loopback for `uv`, with a URL whose responses can be blocked."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antwort.sandbox.host.process import descendants

WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass
class Index:
    """A running index; `add` adds wheels."""

    url: str
    directory: Path
    unblock: threading.Event = field(default_factory=threading.Event)
    """Requests to `blocked_url` wait for this."""
    requests: list[str] = field(default_factory=list)

    @property
    def blocked_url(self) -> str:
        """The same index, which responds once `unblock` is set."""
        return f"{self.url}blocked/"

    def add(
        self, name: str, files: Mapping[str | zipfile.ZipInfo, str | bytes], requires: tuple[str, ...] = ()
    ) -> None:
        """Add a wheel of this name, version 1.0."""
        folder = self.directory / name
        folder.mkdir()
        module = name.replace("-", "_")
        wheel = folder / f"{module}-1.0-py3-none-any.whl"
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"]
        metadata += [f"Requires-Dist: {other}\n" for other in requires]
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path, content in files.items():
                archive.writestr(path, content)
            archive.writestr(f"{module}-1.0.dist-info/METADATA", "".join(metadata))
            archive.writestr(f"{module}-1.0.dist-info/WHEEL", WHEEL)
            archive.writestr(f"{module}-1.0.dist-info/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        page = f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
        (folder / "index.html").write_text(page, encoding="utf-8")


class _Handler(http.server.SimpleHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        if self.path.startswith("/blocked/"):
            self.index.unblock.wait(60)
            self.path = self.path.removeprefix("/blocked")
        with contextlib.suppress(ConnectionError):  # the installer was killed
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        pass


def installers(pid: int) -> list[int]:
    """The processes named `uv` below this one."""
    found = []
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text(encoding="utf-8") == "uv\n":
                found.append(child)
    return found


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Index]:
    handler = type("Handler", (_Handler,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(directory)))
    handler.index = index = Index(f"http://127.0.0.1:{server.server_port}/", directory)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        index.unblock.set()
        server.shutdown()
        thread.join()
        server.server_close()
