"""`ContainerManager`: the one owner of a workspace's container. It is made, found gone, replaced and deleted here.

Whatever is done to a container is done under its manager's lock, by its filesystems too. So two threads that find it
gone make one new container, and nobody works in one that was given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.api import Container, ContainerApi, ContainerGone
from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import CodeInterpreterResult
from weakincentives.adapters.openai.sdk import Transport, faults
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ContainerExpiredError, FilesystemError, ProviderFault, WorkspaceError
from weakincentives.prompt import SupportsDataclass
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_USUAL_LIFETIME = 20 * 60.0
_MOST_CANDIDATES = 3


class Lodger(Protocol):
    """Somebody whose files are in the container."""

    def prepare(self) -> None:
        """Have everything ready that is to go in. What cannot be is refused here, before a container is made."""
        ...

    def settle(self, container_id: str) -> tuple[str, ...]:
        """Put everything that is kept here into a container that has none of it, and say which paths these are."""
        ...

    def unsaved(self) -> tuple[str, ...]:
        """The paths whose newest content is only in the container."""
        ...


@dataclass(frozen=True, slots=True)
class _Lost:
    """A container that is gone, and of which that has not been told yet."""

    gone: ContainerGone
    unsaved: tuple[str, ...]


class ContainerManager:
    """Gives out the id of a container that is ready, and sees to it that there is one.

    Without a `client` one is made from the environment when it is first needed; an evaluation brings its own. Events
    go to `session`, which also says what `mode="auto"` may find.
    """

    def __init__(
        self,
        *,
        config: ContainerConfig | None = None,
        client: OpenAI | None = None,
        session: Session | None = None,
        throttle: ThrottlePolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.config = config or ContainerConfig()
        self.lock = RLock()
        self._transport = Transport(client, None)
        self._throttle = throttle
        self._clock = clock
        self._session: Callable[[], Session | None] = (lambda: None) if session is None else ref(session)
        self._name = f"workspace-{session.session_id[:16]}" if session is not None else "workspace"
        self._api: ContainerApi | None = None
        self._lodgers: list[Lodger] = []
        self._settled: list[Lodger] = []
        self._container: Container | None = None
        self._is_ours = False
        self._gone: ContainerGone | None = None
        self._lost: _Lost | None = None
        self._seen = 0.0
        self._archives: bool | None = None
        self.is_over = False
        self.recreated: ContainerRecreated | None = None
        """The last time that a container was replaced."""

    @property
    def container_id(self) -> str | None:
        """The container's id; None where there is none yet, or not any more."""
        return self._container.id if self._container is not None and self._gone is None else None

    @property
    def api(self) -> ContainerApi:
        """The way to the server."""
        if self._api is None:
            with faults():
                client = self._transport.client
            self._api = ContainerApi(client, throttle=self._throttle, clock=self._clock)
        return self._api

    @property
    def takes_archives(self) -> bool:
        """Whether the server unpacks and packs whole archives. Asked once, of a container that is there."""
        if self._archives is None and self._container is not None:
            self._archives = self.config.archives and self.api.takes_archives(self._container.id)
            _logger.debug("files go %s", "as archives" if self._archives else "one by one")
        return bool(self._archives)

    @property
    def is_fresh(self) -> bool:
        """Whether the container was made for us, and nobody has put anything into it yet."""
        return self._is_ours and not self._settled

    def admit(self, lodger: Lodger) -> None:
        """From now on its files are in the container too."""
        with self.lock:
            if all(one is not lodger for one in self._lodgers):
                self._lodgers.append(lodger)

    # ── a container that is ready ────────────────────────────────────────────────────────────────────────────────────

    def ensure(self) -> str:
        """The id of a container that is there, with everybody's files in it. Makes or replaces it where need be.

        One that was not used for half of its lifetime is asked after first: that tells, and keeps it alive.
        """
        with self.lock:
            if self.is_over:
                raise WorkspaceError("this workspace was cleaned up; make a new one")
            if self._container is not None and self._gone is None and self._is_doubtful():
                self._gone = self._found_gone(self._container.id)
            self._let_go()
            if self._container is None or len(self._settled) < len(self._lodgers):
                self._fill()
            assert self._container is not None  # noqa: S101 - _fill has made it, or raised
            return self._container.id

    def run(self, work: Callable[[str], T]) -> T:
        """Do something with the container; once more in a new one, where this one turns out to be gone."""
        with self.lock:
            container_id = self.ensure()
            try:
                result = work(container_id)
            except ContainerGone as gone:
                self.report_gone(gone)
                container_id = self.ensure()
                try:
                    result = work(container_id)
                except ContainerGone as again:
                    raise self._expired(again, f"container {container_id}, made in its place, is gone too") from again
            self._seen = self._clock.monotonic()
            return result

    def check(self) -> bool:
        """Ask after the container now, and whether it is there; if it is gone, `ensure` will replace it."""
        with self.lock:
            if self._container is not None and self._gone is None:
                self._gone = self._found_gone(self._container.id)
            return self.container_id is not None

    def require(self) -> None:
        """Ask after the container now, and raise `ContainerGone` where it is not there, or has lost what was in it."""
        with self.lock:
            if not self.check() and self._gone is not None:
                raise self._gone

    def report_gone(self, gone: ContainerGone) -> None:
        """Somebody found it gone. What the caller gave us is not replaced, and raises at once."""
        with self.lock:
            if self.container_id == gone.container_id:
                self._gone = gone
                if self.config.container_id is not None:
                    self._let_go()

    @contextmanager
    def visiting(self, client: OpenAI, session: Session, deadline: Deadline | None) -> Generator[None]:
        """For as long as this lasts, work for an evaluation: with its client, its session and its deadline."""
        with self.lock:
            self._follow(client)
            before, self._session = self._session, lambda: session
            self.api.deadline = deadline
            try:
                yield
            finally:
                self._session = before
                self.api.deadline = None

    def tell(self, event: SupportsDataclass) -> None:
        """Dispatch an event, where there is somebody to hear it."""
        session = self._session()
        if session is not None:
            session.dispatch(event)

    @property
    def session_id(self) -> str | None:
        """Whose events these are."""
        session = self._session()
        return None if session is None else session.session_id

    def release(self, lodger: Lodger, *, keep: bool = False) -> None:
        """One lodger less. The last one takes the container along, if we made it; unless it is to be kept."""
        with self.lock:
            self._lodgers = [one for one in self._lodgers if one is not lodger]
            self._settled = [one for one in self._settled if one is not lodger]
            if self._lodgers:
                return
            self.is_over = True
            if self._is_ours and not keep:
                self._delete()
            self._container = None
            self._transport.close()

    # ── how that is done ─────────────────────────────────────────────────────────────────────────────────────────────

    def _is_doubtful(self) -> bool:
        lifetime = self._container.lifetime if self._container is not None else None
        return self._clock.monotonic() - self._seen > (lifetime or _USUAL_LIFETIME) / 2

    def _found_gone(self, container_id: str) -> ContainerGone | None:
        found = self._found(container_id)
        return found if isinstance(found, ContainerGone) else None

    def _found(self, container_id: str) -> Container | ContainerGone:
        try:
            found = self.api.retrieve(container_id)
        except ContainerGone as gone:
            return gone
        if found.is_alive:
            self._seen = self._clock.monotonic()
            return found
        why = found.lost or f"its status is {found.status!r}"
        return ContainerGone(container_id, why, is_a_rest=found.status == "running")

    def _let_go(self) -> None:
        """Give up a container that is gone, and remember what was in it until that is told."""
        gone = self._gone
        if gone is None:
            return
        if self.config.container_id is not None:
            raise _not_ours(gone)
        unsaved = tuple(sorted({path for lodger in self._settled for path in lodger.unsaved()}))
        self._lost = self._lost or _Lost(gone, unsaved)
        if self._is_ours:
            self._delete()
        self._container, self._gone, self._settled = None, None, []

    def _fill(self) -> None:
        """Make or find a container, and let everybody settle in it."""
        try:
            for lodger in self._newcomers():
                lodger.prepare()
            container = self._container or self._acquired()
            restored = tuple(path for lodger in self._newcomers() for path in self._settle(lodger, container))
        except (ProviderFault, FilesystemError, WorkspaceError) as error:
            if isinstance(error, ContainerGone) and self._settled:  # it went while somebody moved in
                self._gone = error
                self._let_go()
                self._fill()
                return
            if not self._settled:
                self._discard()
            if self._lost is None:
                raise
            raise self._expired(self._lost.gone, f"another could not be made: {error}") from error
        self._seen = self._clock.monotonic()
        self._tell_recreated(container, restored)

    def _newcomers(self) -> Iterator[Lodger]:
        return (one for one in list(self._lodgers) if all(one is not known for known in self._settled))

    def _settle(self, lodger: Lodger, container: Container) -> tuple[str, ...]:
        paths = lodger.settle(container.id)
        self._settled.append(lodger)
        return paths

    def _acquired(self) -> Container:
        self._container = self._given_container() or self._reused()
        self._is_ours = self._container is None
        if self._container is None:
            self._container = self.api.create(
                name=self._name, memory_limit=self.config.memory_limit, minutes=self.config.expires_after
            )
            _logger.info("container %s was made (%s)", self._container.id, self.config.memory_limit)
        return self._container

    def _given_container(self) -> Container | None:
        if self.config.container_id is None:
            return None
        found = self._found(self.config.container_id)
        if isinstance(found, ContainerGone):
            raise _not_ours(found)
        return found

    def _reused(self) -> Container | None:
        """A container of this session that can be used: of those that its code ran in, the newest that is alive."""
        if self.config.mode != "auto":
            return None
        for container_id in self._candidates():
            try:
                found = self.api.retrieve(container_id)
            except ProviderFault:
                continue
            if found.is_alive and _gigabytes(found.memory_limit) >= _gigabytes(self.config.memory_limit):
                _logger.info("container %s of this session is used again", found.id)
                return found
        return None

    def _candidates(self) -> list[str]:
        session = self._session()
        ids: dict[str, None] = {}
        for event in reversed(session[ToolInvoked].all() if session is not None else ()):
            value = event.result.value
            if event.provider == PROVIDER and isinstance(value, CodeInterpreterResult) and value.container_id:
                ids[value.container_id] = None
        return list(ids)[:_MOST_CANDIDATES]

    def _follow(self, client: OpenAI) -> None:
        """Use an evaluation's client. One of another server knows nothing of our container: there, it is gone."""
        if self._api is not None and self._api.client is client:
            return
        if self._container is not None and self._gone is None and self.api.client.base_url != client.base_url:
            if self._is_ours:
                self._delete()
            self._gone = ContainerGone(self._container.id, f"the evaluation is at {client.base_url}")
        if self._api is None or self._api.client.base_url != client.base_url:
            self._archives = None
        self._api = ContainerApi(client, throttle=self._throttle, clock=self._clock)

    def _discard(self) -> None:
        """A container that could not be filled is of no use."""
        if self._container is not None and self._is_ours:
            self._delete()
        self._container, self._settled = None, []

    def _delete(self) -> None:
        """As far as that is possible: what stays expires by itself."""
        if self._container is None or (self._gone is not None and not self._gone.is_a_rest):
            return
        try:
            self.api.delete(self._container.id)
        except ProviderFault as fault:
            _logger.warning("container %s could not be deleted: %s", self._container.id, fault)
        else:
            _logger.info("container %s was deleted", self._container.id)

    def _tell_recreated(self, container: Container, restored: tuple[str, ...]) -> None:
        lost, self._lost = self._lost, None
        if lost is None:
            return
        old = lost.gone.container_id
        _logger.warning(
            "container %s was gone (%s); %s is in its place, with %d files restored and %d lost",
            *(old, lost.gone, container.id, len(restored), len(lost.unsaved)),
        )
        self.recreated = ContainerRecreated(
            old, container.id, restored, lost.unsaved, reason=str(lost.gone), session_id=self.session_id
        )
        self.tell(self.recreated)

    def _expired(self, gone: ContainerGone, what: str) -> ContainerExpiredError:
        return ContainerExpiredError(
            f"container {gone.container_id} is gone ({gone}), and {what}. The files that we have are safe; try again, "
            "or sync earlier",
            container_id=gone.container_id,
            original_error=gone,
        )


def _not_ours(gone: ContainerGone) -> ContainerExpiredError:
    return ContainerExpiredError(
        f"container {gone.container_id}, which was given to the workspace, is gone ({gone}). Give the id of another, "
        "or none to have a container made",
        container_id=gone.container_id,
        original_error=gone,
    )


_shared: WeakKeyDictionary[Session, ContainerManager] = WeakKeyDictionary()
_sharing = Lock()


def manager_for(session: Session, config: ContainerConfig, client: OpenAI | None = None) -> ContainerManager:
    """A manager of one's own; or in mode "auto", the one that this session's workspaces share."""
    if config.mode != "auto" or config.container_id is not None:
        return ContainerManager(config=config, client=client, session=session)
    with _sharing:
        known = _shared.get(session)
        if known is None or known.is_over or known.config != config:
            known = _shared[session] = ContainerManager(config=config, client=client, session=session)
        return known


def _gigabytes(memory_limit: str | None) -> int:
    digits = (memory_limit or "").removesuffix("g")
    return int(digits) if digits.isdigit() else 0
