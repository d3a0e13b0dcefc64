"""Lifecycle of a container: creation, reuse, expiry, sharing, deletion. The files are tested in `test_files`."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import ref

import pytest
from fake_containers_api import FakeContainersApi, containers_api
from fake_responses_api import error

from weakincentives.adapters.openai import (
    CodeInterpreterResult,
    ContainerConfig,
    ContainerExpiredError,
    ContainerManager,
    EvaluationScope,
)
from weakincentives.adapters.openai.containers.api import ContainerGone
from weakincentives.adapters.openai.containers.manager import manager_for
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault, WorkspaceError
from weakincentives.prompt import ToolResult
from weakincentives.runtime import Session, ToolInvoked


class User:
    """Stands for the files of a filesystem; the manager only counts its users."""


@pytest.fixture
def api():
    with containers_api() as running:
        yield running


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def session():
    return Session(session_id="0123456789abcdef-more")


@pytest.fixture
def manager(api, clock, session):
    return ContainerManager(client=api.client, clock=clock, session=session)


def test_container_is_created_once(api, manager, session):
    first, second = manager.ensure(), manager.ensure()

    assert first.id == second.id == manager.container_id
    assert (first.is_new, second.is_new) == (True, False)
    assert (first.session, first.session_id) == (session, session.session_id)
    assert (api.newest.name, api.newest.memory_limit) == ("workspace-0123456789abcdef", "4g")
    assert len(api.containers) == 1


def test_concurrent_threads_get_the_same_container(api, manager):
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(manager.ensure().id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == len(api.containers) == 1


def test_config_is_sent_to_the_server(api):
    ContainerManager(client=api.client, config=ContainerConfig("16g", expires_after=7)).ensure()

    assert api.requests[0].body == {
        "name": "workspace",
        "memory_limit": "16g",
        "expires_after": {"anchor": "last_active_at", "minutes": 7},
    }


def test_discarded_container_is_deleted_and_another_created(api, manager):
    first = manager.ensure()
    manager.discard()
    assert (api.containers, manager.container_id, manager.current()) == ({}, None, None)

    assert manager.ensure().id == api.newest.id != first.id


def test_failed_archive_probe_deletes_the_new_container(api, manager):
    api.routes = {r"PUT /containers/([^/?]+)/archive": lambda _: error(403, "Not for you."), **api.routes}
    with pytest.raises(ProviderFault, match="Not for you"):
        manager.ensure()

    assert (api.containers, manager.container_id) == ({}, None)


# ── expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_container_is_retrieved_only_after_half_its_lifetime_of_idleness(api, manager, clock):
    manager.ensure()
    api.requests.clear()
    clock.advance(10 * 60)
    manager.ensure()
    assert api.requests == []
    clock.advance(1)
    manager.ensure()
    manager.ensure()

    assert [one.method for one in api.requests] == ["GET"]


def test_current_container_is_returned_without_a_request(api, manager):
    assert manager.current() is None
    container = manager.ensure()
    api.requests.clear()

    assert manager.current().id == container.id
    assert (manager.current().is_new, api.requests) == (False, [])


def test_gone_container_is_replaced_and_the_reason_kept(api, manager):
    old = manager.ensure().id
    del api.containers[old]
    assert manager.check() is False
    assert manager.current() is None
    new = manager.ensure()

    assert (new.id, new.is_new) == (api.newest.id, True)
    assert isinstance(manager.loss, ContainerGone)
    assert manager.loss.container_id == old


def test_report_about_another_container_is_ignored(api, manager):
    container = manager.ensure().id
    manager.report_gone(ContainerGone("cntr_other", "gone"))

    assert manager.ensure().id == container


def test_given_container_is_used_but_never_created_replaced_or_deleted(api):
    given = ContainerManager(client=api.client).ensure().id
    manager, user = ContainerManager(client=api.client, config=ContainerConfig(container_id=given)), User()
    manager.attach(user)
    container = manager.ensure()
    assert (container.id, container.is_new) == (given, False)
    manager.release(user)
    assert list(api.containers) == [given]

    late = ContainerManager(client=api.client, config=ContainerConfig(container_id=given))
    late.ensure()
    del api.containers[given]
    assert late.check() is False
    for expired in (late, ContainerManager(client=api.client, config=ContainerConfig(container_id=given))):
        with pytest.raises(ContainerExpiredError, match="given to the workspace"):
            expired.ensure()
    assert api.containers == {}


# ── sharing and reuse in a session ───────────────────────────────────────────────────────────────────────────────────


def record_code_call(session: Session, container_id: str, provider: str = "openai") -> None:
    result = ToolResult("", CodeInterpreterResult(container_id=container_id))
    session.dispatch(ToolInvoked(prompt_name="p", adapter="a", name="c", params=None, result=result, provider=provider))


def test_auto_mode_reuses_the_newest_living_container_with_enough_memory(api, session):
    def create(memory: str) -> str:
        return ContainerManager(client=api.client, config=ContainerConfig(memory)).ensure().id

    small, dead, suitable, foreign = create("1g"), create("4g"), create("16g"), create("4g")
    for container in (suitable, small, dead):
        record_code_call(session, container)
    record_code_call(session, foreign, provider="another")
    api.containers[dead].status = "expired"
    auto = ContainerManager(client=api.client, config=ContainerConfig(mode="auto"), session=session)

    reused = auto.ensure()
    assert (reused.id, reused.is_new) == (suitable, False)
    user = User()
    auto.attach(user)
    auto.release(user)
    assert suitable in api.containers  # it was not created here
    explicit = ContainerManager(client=api.client, session=session)
    assert explicit.ensure().id not in (small, dead, suitable, foreign)


def test_only_auto_mode_shares_a_manager_in_a_session(session):
    auto, explicit = ContainerConfig(mode="auto"), ContainerConfig()
    shared = manager_for(session, auto)

    assert manager_for(session, auto) is shared
    assert manager_for(session, explicit) is not manager_for(session, explicit)
    assert manager_for(Session(), auto) is not shared
    assert manager_for(session, ContainerConfig("1g", mode="auto")) is not shared
    user = User()
    again = manager_for(session, auto)
    again.attach(user)
    again.release(user)
    assert manager_for(session, auto) is not again  # a closed manager is not shared
    with pytest.raises(WorkspaceError, match="cleaned up"):
        again.ensure()


def test_container_is_deleted_with_its_last_user(api, manager):
    first, second = User(), User()
    manager.attach(first)
    manager.attach(second)
    manager.ensure()
    manager.release(first)
    assert len(api.containers) == 1
    manager.release(second)
    assert (api.containers, manager.is_closed) == ({}, True)


def test_users_are_listed_by_type_in_order_while_they_exist(manager):
    first, second, other = User(), User(), Session()
    for user in (first, other, second, first):
        manager.attach(user)
    assert manager.users(User) == [first, second]
    del first, user
    assert manager.users(User) == [second]


def test_session_is_freed_without_the_garbage_collector(api):
    session = Session()
    manager = manager_for(session, ContainerConfig(mode="auto"), api.client)
    assert manager.ensure().session is session
    reference = ref(session)
    gc.disable()
    try:
        del session
        assert reference() is None
    finally:
        gc.enable()
    assert manager.ensure().session is None


def test_container_is_kept_on_request(api, manager):
    user = User()
    manager.attach(user)
    container = manager.ensure().id
    manager.release(user, keep=True)

    assert (list(api.containers), manager.is_closed) == ([container], True)


def test_failed_deletion_is_only_logged(api, manager, caplog):
    user = User()
    manager.attach(user)
    container = manager.ensure().id
    api.routes[r"DELETE /containers/([^/?]+)"] = lambda _: error(500, "Not now.")
    manager.release(user)

    assert f"container {container} could not be deleted: 500: Not now." in caplog.text
    assert manager.is_closed


# ── evaluation scopes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_scope_supplies_client_session_and_deadline(api, manager, session, clock):
    other = Session()
    client: Any = api.client.with_options(max_retries=0)
    create, api.routes["POST /containers"] = api.routes["POST /containers"], lambda _: error(503, "Later.")
    with pytest.raises(ProviderFault):  # no time is left for a retry
        manager.ensure(EvaluationScope(client, other, Deadline.after(0)))
    assert clock.slept == []
    api.routes["POST /containers"] = create
    deadline = Deadline.after(60)
    container = manager.ensure(EvaluationScope(client, other, deadline))

    assert (container.api.client, container.api.deadline, container.session) == (client, deadline, other)
    later = manager.ensure()  # a call without a scope keeps the client
    assert (later.api.client, later.api.deadline, later.session) == (client, None, session)


def test_scope_with_another_server_gets_another_container(api, manager, session):
    old = manager.ensure().id
    with containers_api() as elsewhere:
        new = manager.ensure(EvaluationScope(elsewhere.client, session)).id
        assert list(elsewhere.containers) == [new]
        assert api.containers == {}
        assert manager.loss.container_id == old
        assert elsewhere.url in str(manager.loss)


def test_client_is_created_from_the_environment_and_closed(api: FakeContainersApi, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderFault, match="OPENAI_API_KEY"):
        ContainerManager().ensure()
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    manager, user = ContainerManager(), User()
    manager.attach(user)
    container = manager.ensure()

    assert container.id == api.newest.id
    manager.release(user)
    assert container.api.client.is_closed()


def test_given_client_is_not_closed(api: FakeContainersApi, manager):
    user = User()
    manager.attach(user)
    manager.ensure()
    manager.release(user)

    assert not api.client.is_closed()
