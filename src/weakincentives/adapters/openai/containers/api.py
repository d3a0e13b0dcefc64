"""Client of the Containers API (`/containers`): containers, their files, and the archive extension of some servers.

Every request is retried with back-off within the deadline. HTTP 404, HTTP 400 "Container is expired.", a status other
than `running` and lost content all mean that a container is gone: they all become `ContainerGone`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

from weakincentives.adapters.openai.sdk import http_library, request_timeout, translate_errors
from weakincentives.adapters.openai.wire import STREAM_HEADERS, MalformedResponse, Wire, as_object, as_objects, get_str
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

CONTAINER_ROOT = "/mnt/data"
"""The directory of a container's files, as code in the container sees it."""

_PAGE_SIZE = 100
_BAD_REQUEST, _NOT_FOUND = 400, 404
_NO_SUCH_ROUTE = frozenset({400, 404, 405, 415, 501})
_EMPTY_TAR = bytes(1024)
_LOST_FIELD = "antwort:lost"


class ContainerGone(ProviderFault):
    """The container expired, was deleted, or lost its content; in the last case it is `still_billable`."""

    def __init__(self, container_id: str, why: str, status: int | None = None, *, still_billable: bool = False) -> None:
        super().__init__(why, status=status, should_retry=False)
        self.container_id = container_id
        self.still_billable = still_billable


class FileGone(ProviderFault):
    """The container exists, the file does not."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the API describes it. `lifetime` is its idle timeout in seconds."""

    id: str
    status: str
    memory_limit: str | None
    lifetime: float | None
    lost: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it is running and has not lost its content."""
        return self.status == "running" and self.lost is None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the API lists it. `remote_path` is relative to `/mnt/data`; `size` may be unknown."""

    id: str
    remote_path: str
    size: int | None
    created_at: int
    source: str = "user"


@dataclass(frozen=True, slots=True)
class ContainerApi:
    """Requests to the Containers API through one SDK client, within one deadline."""

    client: OpenAI
    deadline: Deadline | None = None
    throttle: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    clock: Clock = SYSTEM_CLOCK

    # ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, *, name: str, memory_limit: str, minutes: int | None = None) -> Container:
        body: Wire = {"name": name, "memory_limit": memory_limit}
        if minutes is not None:
            body["expires_after"] = {"anchor": "last_active_at", "minutes": minutes}
        with _shape_errors():
            return _container(self._request(lambda options: self._post("/containers", body, options)))

    def retrieve(self, container_id: str) -> Container:
        """Describe a container. This counts as use, so its idle time starts again."""
        with _shape_errors():
            return _container(self._request(lambda options: self._get(_path(container_id), options), container_id))

    def require_alive(self, container_id: str) -> Container:
        """Describe a container; `ContainerGone` if it is not running, or lost its content."""
        found = self.retrieve(container_id)
        if not found.is_alive:
            why = found.lost or f"its status is {found.status!r}"
            raise ContainerGone(container_id, why, still_billable=found.status == "running")
        return found

    def delete(self, container_id: str) -> None:
        """Delete a container. Tried once: a container that is not deleted expires."""
        self._request(lambda options: self.client.containers.delete(container_id, **options), max_attempts=1)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_files(self, container_id: str) -> Iterator[RemoteFile]:
        """List all files below `/mnt/data`, page by page."""
        path = _files_path(container_id)
        after: str | None = None
        while True:
            query: Wire = {"limit": _PAGE_SIZE, "order": "asc"} | ({} if after is None else {"after": after})
            answer = self._request(lambda options, q=query: self._get(path, options, params=q), container_id)
            with _shape_errors():
                page = as_object(answer, "the page")
                data = as_objects(page.get("data"), "data")
                found = list(map(_file, data))
            yield from (file for file in found if file is not None)
            if not page.get("has_more") or not data:
                return
            before, after = after, str(data[-1].get("id"))
            if after == before:
                raise ProviderFault(f"the listing of {container_id} repeats its page after {after}", should_retry=False)

    def upload_file(self, container_id: str, name: str, source: Callable[[], BinaryIO]) -> RemoteFile:
        """Upload a file; `source` opens it, once per attempt. The server chooses the path in the container."""

        def send(options: Wire) -> object:
            request_options: Any = {**options, "headers": {"Content-Type": "multipart/form-data"}}
            with source() as file:
                parts = [("file", (name, file))]
                return self.client.post(_files_path(container_id), cast_to=object, files=parts, options=request_options)

        with _shape_errors():
            created = _file(as_object(self._request(send, container_id), "the file"))
        if created is None:
            raise ProviderFault(f"the server stored {name!r} outside of {CONTAINER_ROOT}", should_retry=False)
        return created

    def stream_file(self, container_id: str, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """Stream the content of a file."""
        path = f"{_files_path(container_id)}/{quote(file_id, safe='')}/content"
        return self._stream(path, container_id, file_id)

    def delete_file(self, container_id: str, file_id: str) -> None:
        """Delete a file; `FileGone` if it does not exist."""
        delete = self.client.containers.files.delete
        self._request(lambda options: delete(file_id, container_id=container_id, **options), container_id, file_id)

    # ── archives: an extension ───────────────────────────────────────────────────────────────────────────────────────

    def takes_archives(self, container_id: str) -> bool:
        """Probe for the archive extension with an empty tar."""

        def probe(options: Wire) -> object:
            return self._put_archive(container_id, _EMPTY_TAR, options)

        try:
            answer = self._request(probe, max_attempts=1)
        except ProviderFault as fault:
            if fault.status not in _NO_SUCH_ROUTE:
                answer = self._request(probe, container_id)
            elif not self.retrieve(container_id).is_alive:  # refused because the container is gone
                raise ContainerGone(container_id, str(fault), fault.status) from fault
            else:
                return False
        return isinstance(answer, dict) and cast("Wire", answer).get("object") == "container.archive"

    def upload_archive(self, container_id: str, tar: Callable[[], Iterator[bytes]]) -> None:
        """Send a tar for the server to unpack; `tar` produces it, once per attempt."""
        self._request(lambda options: self._put_archive(container_id, tar(), options), container_id)

    def stream_archive(self, container_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """Stream all files as one tar."""
        return self._stream(f"{_path(container_id)}/archive", container_id)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(
        self,
        request: Callable[[Wire], T],
        container_id: str | None = None,
        file_id: str | None = None,
        max_attempts: int | None = None,
    ) -> T:
        def attempt() -> T:
            with translate_errors():
                return request(self._timeout_options())

        policy = self.throttle if max_attempts is None else replace(self.throttle, max_attempts=max_attempts)
        try:
            return with_backoff(attempt, policy=policy, deadline=self.deadline, clock=self.clock)
        except ProviderFault as fault:
            classified = self._classify(fault, container_id, file_id)
            if classified is fault:
                raise
            raise classified from fault

    @contextmanager
    def _stream(self, path: str, container_id: str, file_id: str | None = None) -> Generator[Iterator[bytes]]:
        body = self._request(lambda options: self._get(path, options, headers=STREAM_HEADERS), container_id, file_id)
        try:
            yield _chunks(body)
        finally:
            body.close()

    def _timeout_options(self) -> Wire:
        if self.deadline is None:
            return {}
        return {"timeout": request_timeout(self.client, max(0.001, self.deadline.remaining))}

    def _classify(self, fault: ProviderFault, container_id: str | None, file_id: str | None) -> ProviderFault:
        """Tell a gone container or file from other faults. The retries are used up, so none of them is retried."""
        fault.should_retry = False
        if container_id is None:
            return fault
        if fault.status == _BAD_REQUEST and "container is expired" in str(fault).lower():
            return ContainerGone(container_id, str(fault), fault.status)
        if fault.status != _NOT_FOUND:
            return fault
        if file_id is not None and self.retrieve(container_id).is_alive:
            return FileGone(str(fault), status=fault.status, should_retry=False)
        return ContainerGone(container_id, str(fault), fault.status)

    def _post(self, path: str, body: Wire, options: Wire) -> object:
        return self.client.post(path, cast_to=object, body=body, options=cast("Any", options))

    def _get(self, path: str, options: Wire, **more: object) -> Any:  # noqa: ANN401 - JSON, or a body to be read
        return self.client.get(path, cast_to=object, options=cast("Any", {**options, **more}))

    def _put_archive(self, container_id: str, tar: bytes | Iterator[bytes], options: Wire) -> object:
        request_options: Any = {**options, "headers": {"Content-Type": "application/x-tar"}}
        return self.client.put(f"{_path(container_id)}/archive", cast_to=object, content=tar, options=request_options)


@contextmanager
def _shape_errors() -> Generator[None]:
    """Turn an answer with an unexpected shape into a `ProviderFault`."""
    try:
        yield
    except MalformedResponse as error:
        raise ProviderFault(f"the answer is not of the Containers API: {error}", should_retry=False) from error


def _path(container_id: str) -> str:
    return f"/containers/{quote(container_id, safe='')}"


def _files_path(container_id: str) -> str:
    return f"{_path(container_id)}/files"


def _chunks(response: Any) -> Iterator[bytes]:  # noqa: ANN401 - the SDK's response types are generated
    """Yield the body; a body that ends early is a `ProviderFault`."""
    try:
        with translate_errors():
            yield from response.iter_bytes()
    except http_library().HTTPError as error:
        raise ProviderFault(f"the connection closed before the answer was complete: {error}") from error


def _container(answer: object) -> Container:
    raw = as_object(answer, "the container")
    minutes = as_object(raw.get("expires_after") or {}, "expires_after").get("minutes")
    if not get_str(raw, "id"):
        raise MalformedResponse("the container has no id")
    return Container(
        id=get_str(raw, "id"),
        status=get_str(raw, "status"),
        memory_limit=get_str(raw, "memory_limit") or None,
        lifetime=minutes * 60.0 if isinstance(minutes, int | float) else None,
        lost=get_str(raw, _LOST_FIELD) or None,
    )


def _file(raw: Wire) -> RemoteFile | None:
    path = get_str(raw, "path")
    remote_path = path.removeprefix(f"{CONTAINER_ROOT}/")
    if remote_path == path or not remote_path:
        return None
    size, created = raw.get("bytes"), raw.get("created_at")
    return RemoteFile(
        id=get_str(raw, "id"),
        remote_path=remote_path,
        size=size if isinstance(size, int) else None,
        created_at=created if isinstance(created, int) else 0,
        source=get_str(raw, "source"),
    )
