"""A stage for the plain Containers API, as its facts are known: ids and no paths, names that the server changes.

It keeps files in memory and answers `POST /responses` like the stage that it is built on. What the real one leaves open
is a choice here: whether a name gets a prefix, loses its directories or is refused for them, whether sizes are told.
Also a server that is not to be trusted: what it lists and sends can be put in by hand.
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

from fake_responses_api import Answer, Asked, FakeApi, error
from openai import OpenAI

EXPIRED = "Container is expired."


@dataclass
class Kept:
    """A file."""

    id: str
    path: str
    content: bytes
    source: str = "user"
    created_at: int = field(default_factory=lambda: int(time.time()))


@dataclass
class Box:
    """A container."""

    id: str
    memory_limit: str
    name: str
    status: str = "running"
    files: dict[str, Kept] = field(default_factory=dict)


class PlainContainers(FakeApi):
    """The API. `naming` is what it does to the name of an upload."""

    def __init__(
        self,
        *answers: Any,
        naming: Literal["kept", "prefixed", "flattened", "refused"] = "prefixed",
        sizes: bool = True,
    ) -> None:
        self.naming = naming
        self.sizes = sizes
        self.boxes: dict[str, Box] = {}
        self.faults: list[Answer] = []
        """Played before anything else is done about a file."""
        self.most = 99
        super().__init__(*answers)
        box, file = r"/containers/([^/?]+)", r"/files/([^/?]+)"
        self.routes = {
            "POST /containers": self._create,
            "GET " + box: self._retrieve,
            "DELETE " + box: self._delete,
            "POST " + box + "/files": self._upload,
            "GET " + box + r"/files(\?.*)?": self._list,
            "GET " + box + file + "/content": self._content,
            "DELETE " + box + file: self._remove,
            r"PUT .*": lambda asked: error(404, f"Invalid URL (PUT {asked.path})"),
        }

    @cached_property
    def client(self) -> Any:
        """The real SDK, in front of it."""
        return OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=30)

    def close(self) -> None:
        if "client" in vars(self):
            self.client.close()
        super().close()

    @property
    def box(self) -> Box:
        """The newest container."""
        return list(self.boxes.values())[-1]

    def put(self, name: str, content: bytes, *, source: str = "assistant") -> Kept:
        """As code in the newest container does it."""
        path = name if name.startswith("/") else f"/mnt/data/{name}"
        kept = Kept(f"cfile_{secrets.token_hex(8)}", path, content, source)
        self.box.files[kept.id] = kept
        return kept

    def _create(self, asked: Asked) -> Answer:
        if sum(box.status == "running" for box in self.boxes.values()) >= self.most:
            return error(429, "No more containers.", code="insufficient_quota")
        box = Box(f"cntr_{secrets.token_hex(8)}", asked.body["memory_limit"], asked.body["name"])
        self.boxes[box.id] = box
        return Answer(self._shown(box))

    @staticmethod
    def _shown(box: Box) -> dict[str, Any]:
        return {
            "id": box.id,
            "object": "container",
            "status": box.status,
            "memory_limit": box.memory_limit,
            "name": box.name,
            "expires_after": {"anchor": "last_active_at", "minutes": 20},
        }

    def _find(self, asked: Asked, *, alive: bool = True) -> Box | Answer:
        (identifier,) = re.findall(r"/containers/([^/?]+)", asked.path)
        box = self.boxes.get(identifier)
        if box is None:
            return error(404, f"Container with id '{identifier}' not found.")
        return box if box.status == "running" or not alive else error(400, EXPIRED)

    def _retrieve(self, asked: Asked) -> Answer:
        box = self._find(asked, alive=False)
        return box if isinstance(box, Answer) else Answer(self._shown(box))

    def _delete(self, asked: Asked) -> Answer:
        box = self._find(asked, alive=False)
        if isinstance(box, Answer):
            return box
        del self.boxes[box.id]
        return Answer({"id": box.id, "object": "container.deleted", "deleted": True})

    def _upload(self, asked: Asked) -> Answer:
        if self.faults:
            return self.faults.pop(0)
        box = self._find(asked)
        if isinstance(box, Answer):
            return box
        head, _, rest = asked.raw.partition(b"\r\n\r\n")
        (name,) = re.findall(r'filename="(.*?)"', head.decode())
        boundary = asked.raw.partition(b"\r\n")[0]
        content = rest[: rest.rindex(b"\r\n" + boundary)]
        if "/" in name and self.naming == "refused":
            return error(400, "Invalid file name.")
        if self.naming in ("prefixed", "flattened"):
            name = name.rpartition("/")[2]
        if self.naming == "prefixed":
            name = f"{secrets.token_hex(16)}-{name}"
        kept = Kept(f"cfile_{secrets.token_hex(8)}", f"/mnt/data/{name}", content)
        box.files[kept.id] = kept
        return Answer(self._file(kept, box))

    def _file(self, kept: Kept, box: Box) -> dict[str, Any]:
        return {
            "id": kept.id,
            "object": "container.file",
            "created_at": kept.created_at,
            "bytes": len(kept.content) if self.sizes else None,
            "container_id": box.id,
            "path": kept.path,
            "source": kept.source,
        }

    def _list(self, asked: Asked) -> Answer:
        if self.faults:
            return self.faults.pop(0)
        box = self._find(asked)
        if isinstance(box, Answer):
            return box
        query = dict(re.findall(r"(\w+)=([^&]*)", asked.path.partition("?")[2]))
        files = list(box.files.values())
        start = next((at + 1 for at, one in enumerate(files) if one.id == query.get("after")), 0)
        page = files[start : start + int(query["limit"])]
        more = start + len(page) < len(files)
        return Answer({"object": "list", "data": [self._file(one, box) for one in page], "has_more": more})

    def _one(self, asked: Asked) -> tuple[Kept, Box] | Answer:
        if self.faults:
            return self.faults.pop(0)
        box = self._find(asked)
        if isinstance(box, Answer):
            return box
        (identifier,) = re.findall(r"/files/([^/?]+)", asked.path)
        if identifier not in box.files:
            return error(404, f"File {identifier} not found on container {box.id}.")
        return box.files[identifier], box

    def _content(self, asked: Asked) -> Answer:
        found = self._one(asked)
        return found if isinstance(found, Answer) else Answer(found[0].content)

    def _remove(self, asked: Asked) -> Answer:
        found = self._one(asked)
        if isinstance(found, Answer):
            return found
        kept, box = found
        del box.files[kept.id]
        return Answer({"id": kept.id, "object": "container.file.deleted", "deleted": True})

    def asked_for(self, method: str, pattern: str) -> int:
        """How often."""
        return sum(one.method == method and bool(re.fullmatch(pattern, one.path)) for one in self.asked)

    @property
    def told(self) -> dict[str, bytes]:
        """What is in the newest container, by place."""
        return {one.path.removeprefix("/mnt/data/"): one.content for one in self.box.files.values()}


@contextmanager
def plain_containers(*answers: Any, **options: Any) -> Iterator[PlainContainers]:
    """One for a while."""
    api = PlainContainers(*answers, **options)
    try:
        yield api
    finally:
        api.close()
