"""Fake Containers API without extensions: file ids and no paths, and names that the server changes.

Keeps files in memory and answers `POST /responses` like `FakeResponsesApi`. Options select the behaviour that OpenAI's
API does not document: whether a file name gets a prefix, loses its directories or is refused for them, and whether
sizes are listed. Tests can also add files and responses that a hostile server might send.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fake_responses_api import FakeResponse, FakeResponsesApi, RecordedRequest, error
from openai import OpenAI

EXPIRED = "Container is expired."


@dataclass
class FakeFile:
    """A stored file."""

    id: str
    path: str
    content: bytes
    source: str = "user"
    created_at: int = field(default_factory=lambda: int(time.time()))


@dataclass
class FakeContainer:
    """A stored container."""

    id: str
    memory_limit: str
    name: str
    status: str = "running"
    files: dict[str, FakeFile] = field(default_factory=dict)


class FakeContainersApi(FakeResponsesApi):
    """The fake server. `naming` selects what it does with the name of an upload."""

    def __init__(
        self,
        *responses: Any,
        naming: Literal["kept", "prefixed", "flattened", "refused"] = "prefixed",
        sizes: bool = True,
    ) -> None:
        self.naming = naming
        self.sizes = sizes
        self.containers: dict[str, FakeContainer] = {}
        self.faults: list[FakeResponse] = []
        """Sent instead of the responses to the next requests for files."""
        self.max_containers = 99
        super().__init__(*responses)
        container_route, file_route = r"/containers/([^/?]+)", r"/files/([^/?]+)"
        self.routes = {
            "POST /containers": self._create,
            "GET " + container_route: self._retrieve,
            "DELETE " + container_route: self._delete,
            "POST " + container_route + "/files": self._upload,
            "GET " + container_route + r"/files(\?.*)?": self._list,
            "GET " + container_route + file_route + "/content": self._content,
            "DELETE " + container_route + file_route: self._remove,
            r"PUT .*": lambda request: error(404, f"Invalid URL (PUT {request.path})"),
        }

    @cached_property
    def client(self) -> Any:
        """A client of the real SDK for this server."""
        return OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=30)

    def close(self) -> None:
        if "client" in vars(self):
            self.client.close()
        super().close()

    @property
    def newest(self) -> FakeContainer:
        """The newest container."""
        return list(self.containers.values())[-1]

    def put(self, name: str, content: bytes, *, source: str = "assistant") -> FakeFile:
        """Create a file as code in the newest container does."""
        path = name if name.startswith("/") else f"/mnt/data/{name}"
        file = FakeFile(f"cfile_{secrets.token_hex(8)}", path, content, source)
        self.newest.files[file.id] = file
        return file

    def _create(self, request: RecordedRequest) -> FakeResponse:
        if sum(container.status == "running" for container in self.containers.values()) >= self.max_containers:
            return error(429, "No more containers.", code="insufficient_quota")
        container = FakeContainer(f"cntr_{secrets.token_hex(8)}", request.body["memory_limit"], request.body["name"])
        self.containers[container.id] = container
        return FakeResponse(self._describe(container))

    @staticmethod
    def _describe(container: FakeContainer) -> dict[str, Any]:
        return {
            "id": container.id,
            "object": "container",
            "status": container.status,
            "memory_limit": container.memory_limit,
            "name": container.name,
            "expires_after": {"anchor": "last_active_at", "minutes": 20},
        }

    def _find(self, request: RecordedRequest, *, alive: bool = True) -> FakeContainer | FakeResponse:
        (identifier,) = re.findall(r"/containers/([^/?]+)", request.path)
        container = self.containers.get(identifier)
        if container is None:
            return error(404, f"Container with id '{identifier}' not found.")
        return container if container.status == "running" or not alive else error(400, EXPIRED)

    def _retrieve(self, request: RecordedRequest) -> FakeResponse:
        container = self._find(request, alive=False)
        return container if isinstance(container, FakeResponse) else FakeResponse(self._describe(container))

    def _delete(self, request: RecordedRequest) -> FakeResponse:
        container = self._find(request, alive=False)
        if isinstance(container, FakeResponse):
            return container
        del self.containers[container.id]
        return FakeResponse({"id": container.id, "object": "container.deleted", "deleted": True})

    def _upload(self, request: RecordedRequest) -> FakeResponse:
        if self.faults:
            return self.faults.pop(0)
        container = self._find(request)
        if isinstance(container, FakeResponse):
            return container
        head, _, rest = request.raw.partition(b"\r\n\r\n")
        (name,) = re.findall(r'filename="(.*?)"', head.decode())
        boundary = request.raw.partition(b"\r\n")[0]
        content = rest[: rest.rindex(b"\r\n" + boundary)]
        if "/" in name and self.naming == "refused":
            return error(400, "Invalid file name.")
        if self.naming in ("prefixed", "flattened"):
            name = name.rpartition("/")[2]
        if self.naming == "prefixed":
            name = f"{secrets.token_hex(16)}-{name}"
        file = FakeFile(f"cfile_{secrets.token_hex(8)}", f"/mnt/data/{name}", content)
        container.files[file.id] = file
        return FakeResponse(self._file(file, container))

    def _file(self, file: FakeFile, container: FakeContainer) -> dict[str, Any]:
        return {
            "id": file.id,
            "object": "container.file",
            "created_at": file.created_at,
            "bytes": len(file.content) if self.sizes else None,
            "container_id": container.id,
            "path": file.path,
            "source": file.source,
        }

    def _list(self, request: RecordedRequest) -> FakeResponse:
        if self.faults:
            return self.faults.pop(0)
        container = self._find(request)
        if isinstance(container, FakeResponse):
            return container
        query = dict(re.findall(r"(\w+)=([^&]*)", request.path.partition("?")[2]))
        files = list(container.files.values())
        start = next((at + 1 for at, one in enumerate(files) if one.id == query.get("after")), 0)
        page = files[start : start + int(query["limit"])]
        more = start + len(page) < len(files)
        return FakeResponse({"object": "list", "data": [self._file(one, container) for one in page], "has_more": more})

    def _find_file(self, request: RecordedRequest) -> tuple[FakeFile, FakeContainer] | FakeResponse:
        if self.faults:
            return self.faults.pop(0)
        container = self._find(request)
        if isinstance(container, FakeResponse):
            return container
        (identifier,) = re.findall(r"/files/([^/?]+)", request.path)
        if identifier not in container.files:
            return error(404, f"File {identifier} not found on container {container.id}.")
        return container.files[identifier], container

    def _content(self, request: RecordedRequest) -> FakeResponse:
        found = self._find_file(request)
        return found if isinstance(found, FakeResponse) else FakeResponse(found[0].content)

    def _remove(self, request: RecordedRequest) -> FakeResponse:
        found = self._find_file(request)
        if isinstance(found, FakeResponse):
            return found
        file, container = found
        del container.files[file.id]
        return FakeResponse({"id": file.id, "object": "container.file.deleted", "deleted": True})

    def count_requests(self, method: str, pattern: str) -> int:
        """The number of requests with this method and path."""
        return sum(one.method == method and bool(re.fullmatch(pattern, one.path)) for one in self.requests)

    @property
    def contents(self) -> dict[str, bytes]:
        """The files of the newest container, by path below `/mnt/data`."""
        return {one.path.removeprefix("/mnt/data/"): one.content for one in self.newest.files.values()}


@contextmanager
def containers_api(*responses: Any, **options: Any) -> Iterator[FakeContainersApi]:
    """Run a fake Containers API."""
    api = FakeContainersApi(*responses, **options)
    try:
        yield api
    finally:
        api.close()
