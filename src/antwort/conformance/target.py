"""`Target`: the server under test, the options of the run, and the objects that several checks use."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from antwort.conformance.checks import MALFORMED, Inconclusive, Skipped, Unsupported
from antwort.conformance.client import ApiClient, Exchange, Json, Reply, Unreachable, UploadedContent, quoted
from antwort.conformance.grammar import Violation, require, require_equal

T = TypeVar("T")

ABSENT: Final = (404, 405, 501)
"""Statuses of an endpoint that a server does not have."""
DOCUMENT: Final = UploadedContent(
    "conformance.txt", b"The password of the blue box is: marigold. The red box has no password.\n"
)
_CONTAINER_RE: Final = re.compile(rb'"container_id": ?"(cntr_\w+)"')
_FIRST_PAUSE: Final = 0.02
_MAX_PAUSE: Final = 2.0
_MAX_OUTPUT_TOKENS: Final = 4000


class _HasClient(Protocol):
    @property
    def client(self) -> ApiClient: ...


class Once(Generic[T]):
    """Property that is computed once. If that failed, later uses skip their check: each fault is one failure."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = ""
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: _HasClient, owner: type) -> T:
        made: dict[str, tuple[T, Exchange | None]] = instance.__dict__.setdefault("_made", {})
        failed: dict[str, Exception] = instance.__dict__.setdefault("_failed", {})
        if self._name in failed:
            raise failed[self._name]
        if self._name not in made:
            before, instance.client.last = instance.client.last, None
            try:
                value = self._make(instance)
                made[self._name] = (value, instance.client.last)
                instance.client.last = instance.client.last or before
            except (Unsupported, Inconclusive, Skipped) as reason:
                failed[self._name] = reason
                raise
            except (Violation, Unreachable, *MALFORMED):
                failed[self._name] = Skipped("it needs an answer that an earlier check of this row has reported")
                raise
        value, exchange = made[self._name]
        instance.client.last = exchange or instance.client.last
        return value


@dataclass
class Target:
    """The server under test."""

    client: ApiClient
    model: str
    other: ApiClient | None = None
    """A client with the key of another tenant."""
    mcp_url: str | None = None
    is_slow_allowed: bool = False
    """Whether to run the checks that wait for more than a minute."""
    _cleanup: list[str] = field(default_factory=list[str])
    _containers: set[str] = field(default_factory=set[str])

    def request(self, prompt: Any, **fields: Any) -> Json:
        """The body of a request to the model. The output is limited: some models repeat themselves without an end."""
        return {"model": self.model, "input": prompt, "max_output_tokens": _MAX_OUTPUT_TOKENS, **fields}

    def create(self, body: Json) -> Reply:
        """Create a response. The containers that it uses are deleted when the run ends."""
        reply = self.client.post("/responses", body)
        self._note_containers(reply)
        return reply

    def _note_containers(self, reply: Reply) -> None:
        self._containers |= {one.decode() for one in _CONTAINER_RE.findall(reply.content)}

    def delete_later(self, path: str) -> None:
        """Delete an object when the run ends."""
        self._cleanup.append(path)

    @Once
    def file(self) -> Json:
        """A file with a text."""
        reply = self.client.upload("/files", DOCUMENT, purpose="user_data")
        if reply.status in ABSENT:
            raise Unsupported("POST /files is answered with 404")
        file = reply.ok()
        self.delete_later(f"/files/{quoted(file['id'])}")
        return file

    @Once
    def vector_store(self) -> str:
        """The id of a vector store with the file."""
        reply = self.client.post("/vector_stores", {"name": "conformance", "file_ids": [self.file["id"]]})
        if reply.status in ABSENT:
            raise Unsupported("POST /vector_stores is answered with 404")
        store = reply.ok()
        path = f"/vector_stores/{quoted(store['id'])}"
        self.delete_later(path)
        store = self.poll(path, lambda store: store["file_counts"]["in_progress"] == 0)
        require_equal(store["file_counts"]["completed"], 1, "one completed file in the vector store")
        return store["id"]

    def poll(self, path: str, is_ended: Callable[[Json], bool]) -> Json:
        """Retrieve an object until it has ended, at growing intervals."""
        deadline = time.monotonic() + self.client.timeout
        pause = _FIRST_PAUSE
        while True:
            reply = self.client.get(path)
            found = reply.ok()
            self._note_containers(reply)
            if is_ended(found):
                return found
            require(time.monotonic() < deadline, f"GET {path} ends within {self.client.timeout:g} seconds", found)
            self.client.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def close(self) -> None:
        """Delete the objects of `delete_later`, the newest first."""
        containers = {f"/containers/{quoted(one)}" for one in self._containers} - set(self._cleanup)
        for path in (*containers, *reversed(self._cleanup)):
            with contextlib.suppress(Unreachable, Violation):
                self.client.delete(path)
        self._cleanup.clear()
        self._containers.clear()


def message(text: str) -> Json:
    """An input message of the user."""
    return {"type": "message", "role": "user", "content": text}


def require_completed(response: Json) -> None:
    """A response is completed, unless the model wrote too much."""
    if response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}:
        raise Inconclusive(f"the model wrote more than {response.get('max_output_tokens')} tokens")
    require_equal(response["status"], "completed", "the status of the response")
