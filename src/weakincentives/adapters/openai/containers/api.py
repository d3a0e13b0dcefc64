"""The Containers API, one request at a time: what can go wrong with each, and what a server offers beyond it.

Every request is tried again where that may help, and within the deadline. A container that is gone shows in several
ways; here they all become `ContainerGone`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

from weakincentives.adapters.openai.sdk import faults, http_library, shorter
from weakincentives.adapters.openai.wire import STREAMED, Malformed, Wire, as_object, objects_in, text_in
from weakincentives.adapters.retry import ThrottlePolicy, with_backoff
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

PLACE = "/mnt/data"
"""Where the files of a container are, for the code in it."""

_PAGE = 100
_BAD_REQUEST, _NOT_FOUND = 400, 404
_NO_SUCH_ROUTE = frozenset({400, 404, 405, 415, 501})
_EMPTY_TAR = bytes(1024)
_LOST = "antwort:lost"


class ContainerGone(ProviderFault):
    """The provider no longer has a container, or has lost what was in it: then there `is_a_rest` of it."""

    def __init__(self, container_id: str, why: str, status: int | None = None, *, is_a_rest: bool = False) -> None:
        super().__init__(why, status=status, should_retry=False)
        self.container_id = container_id
        self.is_a_rest = is_a_rest


class FileGone(ProviderFault):
    """The container is there, and the file is not."""


@dataclass(frozen=True, slots=True)
class Container:
    """What is known of a container. `lifetime` is how many idle seconds it is kept."""

    id: str
    status: str
    memory_limit: str | None
    lifetime: float | None
    lost: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can be used, and holds what was put into it."""
        return self.status == "running" and self.lost is None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as it is listed. `place` is where code finds it, below `/mnt/data`; a size may not be known."""

    id: str
    place: str
    size: int | None
    created_at: int
    source: str = "user"


class ContainerApi:
    """One server's containers, by way of one client of the SDK's."""

    def __init__(self, client: OpenAI, *, throttle: ThrottlePolicy | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.client = client
        self.deadline: Deadline | None = None
        self._throttle = throttle or ThrottlePolicy()
        self._clock = clock

    # ── containers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, *, name: str, memory_limit: str, minutes: int | None = None) -> Container:
        body: Wire = {"name": name, "memory_limit": memory_limit}
        if minutes is not None:
            body["expires_after"] = {"anchor": "last_active_at", "minutes": minutes}
        with _reading():
            return _container(self._ask(lambda more: self._post("/containers", body, more)))

    def retrieve(self, container_id: str) -> Container:
        """What is known of it; asking is using, so its idleness begins anew."""
        with _reading():
            return _container(self._ask(lambda more: self._get(_path(container_id), more), container_id))

    def delete(self, container_id: str) -> None:
        """Tried once: what is left of a container expires by itself, and nobody wants to wait for that."""
        self._ask(lambda more: self.client.containers.delete(container_id, **more), tries=1)

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def files(self, container_id: str) -> Iterator[RemoteFile]:
        """All of them, page by page. What lies elsewhere than below `/mnt/data` is left out."""
        path = _files(container_id)
        after: str | None = None
        while True:
            query: Wire = {"limit": _PAGE, "order": "asc"} | ({} if after is None else {"after": after})
            answer = self._ask(lambda more, q=query: self._get(path, more, params=q), container_id)
            with _reading():
                page = as_object(answer, "the page")
                data = objects_in(page.get("data"), "data")
                found = list(map(_file, data))
            yield from (file for file in found if file is not None)
            if not page.get("has_more") or not data:
                return
            before, after = after, str(data[-1].get("id"))
            if after == before:
                raise ProviderFault(f"the listing of {container_id} does not go on behind {after}", should_retry=False)

    def upload(self, container_id: str, name: str, source: Callable[[], BinaryIO]) -> RemoteFile:
        """Put a file there; `source` opens it, once for each try. Where it lies then is the server's to say."""

        def send(more: Wire) -> object:
            options: Any = {**more, "headers": {"Content-Type": "multipart/form-data"}}
            with source() as file:
                parts = [("file", (name, file))]
                return self.client.post(_files(container_id), cast_to=object, files=parts, options=options)

        with _reading():
            made = _file(as_object(self._ask(send, container_id), "the file"))
        if made is None:
            raise ProviderFault(f"the server put {name!r} where no code finds it", should_retry=False)
        return made

    @contextmanager
    def content(self, container_id: str, file_id: str) -> Generator[Iterator[bytes]]:
        """A file's bytes, as they come."""
        path = f"{_files(container_id)}/{quote(file_id, safe='')}/content"
        with self._streaming(path, container_id, file_id) as pieces:
            yield pieces

    def remove(self, container_id: str, file_id: str) -> None:
        """Remove a file; `FileGone` where it has gone already."""
        files = self.client.containers.files
        self._ask(lambda more: files.delete(file_id, container_id=container_id, **more), container_id, file_id)

    # ── archives, where the server takes them ────────────────────────────────────────────────────────────────────────

    def takes_archives(self, container_id: str) -> bool:
        """Ask the server, by an archive with nothing in it. One that has never heard of archives says so at once."""
        try:
            answer = self._ask(lambda more: self._put(container_id, _EMPTY_TAR, more), tries=1)
        except ProviderFault as fault:
            if fault.status not in _NO_SUCH_ROUTE:
                answer = self._ask(lambda more: self._put(container_id, _EMPTY_TAR, more), container_id)
            elif not self.retrieve(container_id).is_alive:  # then it was refused for another reason
                raise ContainerGone(container_id, str(fault), fault.status) from fault
            else:
                return False
        return isinstance(answer, dict) and cast("Wire", answer).get("object") == "container.archive"

    def unpack(self, container_id: str, tar: Callable[[], Iterator[bytes]]) -> None:
        """Send a tar to be unpacked; `tar` makes it, once for each try."""
        self._ask(lambda more: self._put(container_id, tar(), more), container_id)

    @contextmanager
    def pack(self, container_id: str) -> Generator[Iterator[bytes]]:
        """All files as one tar."""
        with self._streaming(f"{_path(container_id)}/archive", container_id) as pieces:
            yield pieces

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        request: Callable[[Wire], T],
        container_id: str | None = None,
        file_id: str | None = None,
        tries: int | None = None,
    ) -> T:
        def once() -> T:
            with faults():
                return request(self._patience())

        policy = self._throttle if tries is None else replace(self._throttle, max_attempts=tries)
        try:
            return with_backoff(once, policy=policy, deadline=self.deadline, clock=self._clock)
        except ProviderFault as fault:
            explained = self._explained(fault, container_id, file_id)
            if explained is fault:
                raise
            raise explained from fault

    @contextmanager
    def _streaming(self, path: str, container_id: str, file_id: str | None = None) -> Generator[Iterator[bytes]]:
        response = self._ask(lambda more: self._get(path, more, headers=STREAMED), container_id, file_id)
        try:
            yield _pieces(response)
        finally:
            response.close()

    def _patience(self) -> Wire:
        return {} if self.deadline is None else {"timeout": shorter(self.client, max(0.001, self.deadline.remaining))}

    def _explained(self, fault: ProviderFault, container_id: str | None, file_id: str | None) -> ProviderFault:
        """What a refusal means. Whatever it is, it has been tried often enough."""
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

    def _post(self, path: str, body: Wire, more: Wire) -> object:
        return self.client.post(path, cast_to=object, body=body, options=cast("Any", more))

    def _get(self, path: str, more: Wire, **options: object) -> Any:  # noqa: ANN401 - plain data, or a body to be read
        return self.client.get(path, cast_to=object, options=cast("Any", {**more, **options}))

    def _put(self, container_id: str, tar: bytes | Iterator[bytes], more: Wire) -> object:
        options: Any = {**more, "headers": {"Content-Type": "application/x-tar"}}
        return self.client.put(f"{_path(container_id)}/archive", cast_to=object, content=tar, options=options)


@contextmanager
def _reading() -> Generator[None]:
    """An answer that is none of this API's is a fault like others."""
    try:
        yield
    except Malformed as error:
        raise ProviderFault(f"the answer is not of the Containers API: {error}", should_retry=False) from error


def _path(container_id: str) -> str:
    return f"/containers/{quote(container_id, safe='')}"


def _files(container_id: str) -> str:
    return f"{_path(container_id)}/files"


def _pieces(response: Any) -> Iterator[bytes]:  # noqa: ANN401 - what the SDK has is generated
    """What comes; one that breaks off is a fault, and no end."""
    try:
        with faults():
            yield from response.iter_bytes()
    except http_library().HTTPError as error:
        raise ProviderFault(f"the answer broke off: {error}") from error


def _container(answer: object) -> Container:
    raw = as_object(answer, "the container")
    minutes = as_object(raw.get("expires_after") or {}, "expires_after").get("minutes")
    if not text_in(raw, "id"):
        raise Malformed("the container has no id")
    return Container(
        id=text_in(raw, "id"),
        status=text_in(raw, "status"),
        memory_limit=text_in(raw, "memory_limit") or None,
        lifetime=minutes * 60.0 if isinstance(minutes, int | float) else None,
        lost=text_in(raw, _LOST) or None,
    )


def _file(raw: Wire) -> RemoteFile | None:
    path = text_in(raw, "path")
    place = path.removeprefix(f"{PLACE}/")
    if place == path or not place:
        return None
    size = raw.get("bytes")
    created = raw.get("created_at")
    return RemoteFile(
        id=text_in(raw, "id"),
        place=place,
        size=size if isinstance(size, int) else None,
        created_at=created if isinstance(created, int) else 0,
        source=text_in(raw, "source"),
    )
