"""`ContainerManager`: lifecycle of one container: create, reuse, detect expiry, replace, delete. It has no files.

Every operation on a container, also those of the filesystems that use it, holds the manager's lock. So two threads that
find the container expired create one replacement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, ref

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.api import Container, ContainerApi, ContainerGone
from weakincentives.adapters.openai.containers.source import EvaluationScope
from weakincentives.adapters.openai.native_tools.capability import PROVIDER
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import CodeInterpreterResult
from weakincentives.adapters.openai.sdk import SdkClient
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.clock import SYSTEM_CLOCK, Clock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ContainerExpiredError, ProviderFault, WorkspaceError
from weakincentives.prompt import SupportsDataclass
from weakincentives.runtime import Session, ToolInvoked

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_DEFAULT_LIFETIME_SECONDS = 20 * 60.0
_MAX_REUSE_CANDIDATES = 3


@dataclass(frozen=True, slots=True)
class OpenContainer:
    """A running container with the API client, deadline and session of the caller that opened it."""

    id: str
    api: ContainerApi
    session: Session | None
    takes_archives: bool
    is_new: bool
    """Created by this call of `ensure`, and therefore empty."""

    @property
    def session_id(self) -> str | None:
        return None if self.session is None else self.session.session_id

    def dispatch(self, event: SupportsDataclass) -> None:
        """Dispatch an event to the session, if there is one."""
        if self.session is not None:
            self.session.dispatch(event)


class ContainerManager:
    """Creates, finds, replaces and deletes the container of one or several filesystems.

    Without a `client`, one is created from the environment on first use; an evaluation's scope replaces it. Events go
    to `session`, which also lists the containers that `mode="auto"` may reuse; it may hold the manager, so the manager
    has a weak reference. A call with an `EvaluationScope` uses the client, session and deadline of that scope instead.
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
        self.is_closed = False
        self.loss: ContainerGone | None = None
        """Why the last container was replaced."""
        self._sdk = SdkClient(client, None)
        self._session: Callable[[], Session | None] = (lambda: None) if session is None else ref(session)
        self._throttle = throttle or ThrottlePolicy()
        self._clock = clock
        self._name = "workspace" if session is None else f"workspace-{session.session_id[:16]}"
        self._users: WeakKeyDictionary[object, None] = WeakKeyDictionary()
        self._client: OpenAI | None = None
        self._container: Container | None = None
        self._is_owned = False
        self._gone: ContainerGone | None = None
        self._takes_archives: bool | None = None
        self._last_used = 0.0

    @property
    def container_id(self) -> str | None:
        """The id of the container; None before one exists, and after it expired."""
        return self._container.id if self._container is not None and self._gone is None else None

    def attach(self, user: object) -> None:
        """Register a user on its first use. The container lives until the last attached user is released."""
        self._users[user] = None

    def users(self, kind: type[T]) -> list[T]:
        """The attached users of a type, in the order in which they were attached."""
        return [user for user in list(self._users) if isinstance(user, kind)]

    def check_not_closed(self) -> None:
        if self.is_closed:
            raise WorkspaceError("this workspace was cleaned up; make a new one")

    def ensure(self, scope: EvaluationScope | None = None) -> OpenContainer:
        """Open the container; create it, or replace one that is gone. The caller fills a container that is new to it.

        A container that was idle for half of its lifetime is retrieved first, which also restarts its idle time.
        """
        with self.lock:
            self.check_not_closed()
            api = self._connect(scope)
            if self.container_id is not None and self._was_idle():
                self._retrieve(api)
            self._drop_gone(api)
            is_new = False
            if self._container is None:
                found = self._given(api) or self._reusable(api, scope)
                is_new = self._is_owned = found is None
                self._container = found or self._create(api)
                self.report_used()
            if self._takes_archives is None:
                self._probe_archives(api, self._container)
            return self._opened(self._container, api, scope, is_new=is_new)

    def current(self, scope: EvaluationScope | None = None) -> OpenContainer | None:
        """The container as last known, without a request; None if there is none."""
        with self.lock:
            if self._container is None or self._gone is not None:
                return None
            return self._opened(self._container, self._connect(scope), scope, is_new=False)

    def check(self) -> bool:
        """Retrieve the container now. False if there is none or it is gone; `ensure` then replaces it."""
        with self.lock:
            if self.container_id is not None:
                self._retrieve(self._connect(None))
            return self.container_id is not None

    def report_gone(self, gone: ContainerGone) -> None:
        """Record that a request found the container gone; `ensure` then replaces it."""
        with self.lock:
            if self.container_id == gone.container_id:
                self._gone = gone

    def report_used(self) -> None:
        """Record that a request used the container, which restarts its idle time."""
        self._last_used = self._clock.monotonic()

    def discard(self) -> None:
        """Give up a container that could not be filled; it is deleted if it was created here."""
        with self.lock:
            if self._client is not None:
                self._delete(self._api(self._client))
            self._container = None

    def release(self, user: object, *, keep: bool = False) -> None:
        """Remove a user. With the last one, a container that was created here is deleted, unless it is to be kept.

        `container_id` is still the id of a container that was kept.
        """
        with self.lock:
            self._users.pop(user, None)
            if self._users:
                return
            self.is_closed = True
            if self.config.delete_on_cleanup and not keep:
                self.discard()
            self._sdk.close()

    def file_type_refusal(self, paths: Callable[[], Iterable[str]], scope: EvaluationScope | None) -> str | None:
        """Why files with these paths cannot be uploaded; None if they can. Sends no request."""
        types = self.config.file_types
        if types is None:
            return None
        base_url = self._client_for(scope).base_url
        return types.refusal(paths, base_url=base_url, setting="ContainerConfig(file_types={})")

    # ── client and server ────────────────────────────────────────────────────────────────────────────────────────────

    def _client_for(self, scope: EvaluationScope | None) -> OpenAI:
        return scope.client if scope is not None else self._client or self._sdk.open()

    def _connect(self, scope: EvaluationScope | None) -> ContainerApi:
        """The API through the scope's client, which stays in use. Another server does not have the container."""
        before, client = self._client, self._client_for(scope)
        if before is not None and before.base_url != client.base_url:
            if self._container is not None and self._gone is None:
                self._delete(self._api(before))
                self._gone = ContainerGone(self._container.id, f"the evaluation uses the server {client.base_url}")
            self._takes_archives = None
        self._client = client
        return self._api(client, None if scope is None else scope.deadline)

    def _api(self, client: OpenAI, deadline: Deadline | None = None) -> ContainerApi:
        return ContainerApi(client, deadline=deadline, throttle=self._throttle, clock=self._clock)

    def _opened(
        self, container: Container, api: ContainerApi, scope: EvaluationScope | None, *, is_new: bool
    ) -> OpenContainer:
        session = self._session() if scope is None else scope.session
        return OpenContainer(container.id, api, session, bool(self._takes_archives), is_new)

    def _probe_archives(self, api: ContainerApi, container: Container) -> None:
        try:
            self._takes_archives = self.config.archives and api.takes_archives(container.id)
        except ProviderFault:
            self.discard()
            raise
        _logger.debug("files are transferred %s", "as archives" if self._takes_archives else "one by one")

    # ── expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _was_idle(self) -> bool:
        lifetime = self._container.lifetime if self._container is not None else None
        return self._clock.monotonic() - self._last_used > (lifetime or _DEFAULT_LIFETIME_SECONDS) / 2

    def _retrieve(self, api: ContainerApi) -> None:
        if self._container is None:
            return
        try:
            api.require_alive(self._container.id)
        except ContainerGone as gone:
            self._gone = gone
        else:
            self.report_used()

    def _drop_gone(self, api: ContainerApi) -> None:
        gone = self._gone
        if gone is None:
            return
        if self.config.container_id is not None:
            raise _given_container_gone(gone)
        self._delete(api)
        self.loss, self._gone, self._container = gone, None, None

    def _delete(self, api: ContainerApi) -> None:
        """Delete a container that was created here. A failure is only logged: the container then expires."""
        if self._container is None or not self._is_owned or (self._gone is not None and not self._gone.still_billable):
            return
        try:
            api.delete(self._container.id)
        except ProviderFault as fault:
            _logger.warning("container %s could not be deleted: %s", self._container.id, fault)
        else:
            _logger.info("container %s was deleted", self._container.id)

    # ── creation and reuse ───────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, api: ContainerApi) -> Container:
        config = self.config
        created = api.create(name=self._name, memory_limit=config.memory_limit, minutes=config.expires_after)
        _logger.info("container %s was created (%s)", created.id, config.memory_limit)
        return created

    def _given(self, api: ContainerApi) -> Container | None:
        if self.config.container_id is None:
            return None
        try:
            return api.require_alive(self.config.container_id)
        except ContainerGone as gone:
            raise _given_container_gone(gone) from gone

    def _reusable(self, api: ContainerApi, scope: EvaluationScope | None) -> Container | None:
        """The newest living container with enough memory of those in which the session's code ran."""
        session = self._session() if scope is None else scope.session
        if self.config.mode != "auto" or session is None:
            return None
        for container_id in _used_containers(session):
            try:
                found = api.retrieve(container_id)
            except ProviderFault:
                continue
            if found.is_alive and _gigabytes(found.memory_limit) >= _gigabytes(self.config.memory_limit):
                _logger.info("container %s of this session is reused", found.id)
                return found
        return None


def manager_for(session: Session, config: ContainerConfig, client: OpenAI | None = None) -> ContainerManager:
    """Create a manager; with `mode="auto"`, return the one that the workspaces of this session share."""

    def create() -> ContainerManager:
        return ContainerManager(config=config, client=client, session=session)

    if config.mode != "auto" or config.container_id is not None:
        return create()
    return session.shared(ContainerManager, create, reuse=lambda one: not one.is_closed and one.config == config)


def _used_containers(session: Session) -> list[str]:
    ids: dict[str, None] = {}
    for event in reversed(session[ToolInvoked].all()):
        value = event.result.value
        if event.provider == PROVIDER and isinstance(value, CodeInterpreterResult) and value.container_id:
            ids[value.container_id] = None
    return list(ids)[:_MAX_REUSE_CANDIDATES]


def _given_container_gone(gone: ContainerGone) -> ContainerExpiredError:
    return ContainerExpiredError(
        f"container {gone.container_id}, which was given to the workspace, is gone ({gone}). Give the id of another, "
        "or no id to have a container created",
        container_id=gone.container_id,
        original_error=gone,
    )


def _gigabytes(memory_limit: str | None) -> int:
    digits = (memory_limit or "").removesuffix("g")
    return int(digits) if digits.isdigit() else 0
