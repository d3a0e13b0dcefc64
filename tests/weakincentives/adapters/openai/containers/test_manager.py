"""The owner of a container, with lodgers that only keep a list; files are the business of others."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fake_containers_api import PlainContainers, plain_containers
from fake_responses_api import error

from weakincentives.adapters.openai import (
    CodeInterpreterResult,
    ContainerConfig,
    ContainerExpiredError,
    ContainerManager,
)
from weakincentives.adapters.openai.containers.api import ContainerGone
from weakincentives.adapters.openai.containers.manager import manager_for
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import FilesystemError, ProviderFault, WorkspaceError
from weakincentives.prompt import ToolResult
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked


class Tenant:
    """Has files called after it, and may be made to fail."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.homes: list[str] = []
        self.trouble: Exception | None = None
        self.passing: Exception | None = None

    def prepare(self) -> None:
        if isinstance(self.trouble, WorkspaceError):
            raise self.trouble

    def settle(self, container_id: str) -> tuple[str, ...]:
        passing, self.passing = self.passing, None
        if passing or self.trouble:
            raise passing or self.trouble or AssertionError
        self.homes.append(container_id)
        return (f"{self.name}.txt",)

    def unsaved(self) -> tuple[str, ...]:
        return (f"{self.name}.out",)


@pytest.fixture
def api():
    with plain_containers() as running:
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


def test_a_container_is_made_once_and_everybody_moves_in(api, manager):
    first, second = Tenant("a"), Tenant("b")
    manager.admit(first)
    manager.admit(first)
    container = manager.ensure()
    manager.admit(second)

    assert manager.ensure() == container == manager.container_id
    assert (first.homes, second.homes) == ([container], [container])
    assert (api.box.name, api.box.memory_limit) == ("workspace-0123456789abcdef", "4g")
    assert len(api.boxes) == 1


def test_threads_that_all_need_one_get_the_same(api, manager):
    manager.admit(Tenant())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(manager.ensure())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == len(api.boxes) == 1


def test_threads_that_all_find_it_gone_make_one_new_container(api, manager, session):
    manager.admit(Tenant())
    old = manager.ensure()
    del api.boxes[old]
    start = threading.Barrier(6)

    def work(container: str) -> str:
        if container == old:
            raise ContainerGone(old, "gone")
        return container

    found: list[str] = []

    def run() -> None:
        start.wait()
        found.append(manager.run(work))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found) == {api.box.id}
    assert len(found) == 6
    assert len(session[ContainerRecreated].all()) == 1


def test_the_wish_goes_to_the_server(api):
    ContainerManager(client=api.client, config=ContainerConfig("16g", expires_after=7)).ensure()

    assert api.asked[0].body == {
        "name": "workspace",
        "memory_limit": "16g",
        "expires_after": {"anchor": "last_active_at", "minutes": 7},
    }


def test_what_is_refused_beforehand_costs_no_container(api, manager):
    tenant = Tenant()
    tenant.trouble = WorkspaceError("too large")
    manager.admit(tenant)
    with pytest.raises(WorkspaceError, match="too large"):
        manager.ensure()

    assert (api.asked, manager.container_id) == ([], None)


@pytest.mark.parametrize("trouble", [ProviderFault("no", status=500), FilesystemError("no", path=".")])
def test_a_container_that_cannot_be_filled_is_not_left(api, manager, trouble):
    tenant = Tenant()
    tenant.trouble = trouble
    manager.admit(tenant)
    with pytest.raises(type(trouble)):
        manager.ensure()
    assert (api.boxes, manager.container_id) == ({}, None)

    tenant.trouble = None
    assert manager.ensure() == api.box.id


def test_one_who_cannot_move_in_does_not_turn_others_out(api, manager):
    first, second = Tenant("a"), Tenant("b")
    manager.admit(first)
    container = manager.ensure()
    second.trouble = FilesystemError("no", path=".")
    manager.admit(second)
    with pytest.raises(FilesystemError):
        manager.ensure()

    assert list(api.boxes) == [container]
    second.trouble = None
    assert manager.ensure() == container


def test_one_that_goes_while_somebody_moves_in_is_replaced_for_all(api, manager, session):
    first, second = Tenant("a"), Tenant("b")
    manager.admit(first)
    old = manager.ensure()
    second.passing = ContainerGone(old, "just now")
    manager.admit(second)
    new = manager.ensure()

    assert new != old
    assert (first.homes, second.homes) == ([old, new], [new])
    (told,) = session[ContainerRecreated].all()
    assert (told.restored, told.lost) == (("a.txt", "b.txt"), ("a.out",))


# ── gone ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_asked_after_only_when_it_was_idle_for_half_its_life(api, manager, clock):
    manager.ensure()
    api.asked.clear()
    clock.advance(10 * 60)
    manager.ensure()
    assert api.asked == []
    clock.advance(1)
    manager.ensure()
    manager.ensure()

    assert [one.method for one in api.asked] == ["GET"]


def test_what_was_lost_is_told_when_there_is_another_and_only_once(api, manager, session):
    manager.admit(Tenant())
    old = manager.ensure()
    del api.boxes[old]
    api.most = 0
    assert manager.check() is False
    for _ in range(2):
        with pytest.raises(ContainerExpiredError, match="No more containers") as caught:
            manager.ensure()
        assert (caught.value.container_id, manager.container_id) == (old, None)
        assert isinstance(caught.value.original_error, ContainerGone)
    assert session[ContainerRecreated].all() == ()

    api.most = 9
    new = manager.ensure()
    manager.ensure()
    (told,) = session[ContainerRecreated].all()
    assert (told.old_id, told.new_id, told.restored, told.lost) == (old, new, ("a.txt",), ("a.out",))
    assert told.session_id == session.session_id
    assert manager.recreated == told


def test_news_of_another_container_is_no_news(api, manager):
    container = manager.ensure()
    manager.report_gone(ContainerGone("cntr_other", "gone"))

    assert manager.ensure() == container


def test_one_that_was_given_is_used_never_made_and_never_deleted(api):
    given = ContainerManager(client=api.client).ensure()
    manager = ContainerManager(client=api.client, config=ContainerConfig(container_id=given))
    tenant = Tenant()
    manager.admit(tenant)
    assert manager.ensure() == given
    assert not manager.is_fresh
    manager.release(tenant)
    assert list(api.boxes) == [given]

    del api.boxes[given]
    late = ContainerManager(client=api.client, config=ContainerConfig(container_id=given))
    with pytest.raises(ContainerExpiredError, match="given to the workspace"):
        late.ensure()
    assert api.boxes == {}


# ── the session's ────────────────────────────────────────────────────────────────────────────────────────────────────


def ran_in(session: Session, container_id: str, provider: str = "openai") -> None:
    result = ToolResult("", CodeInterpreterResult(container_id=container_id))
    session.dispatch(ToolInvoked(prompt_name="p", adapter="a", name="c", params=None, result=result, provider=provider))


def test_the_newest_of_the_session_that_is_alive_and_large_enough_is_used_again(api, session):
    def made(memory: str) -> str:
        return ContainerManager(client=api.client, config=ContainerConfig(memory)).ensure()

    small, dead, right, foreign = made("1g"), made("4g"), made("16g"), made("4g")
    for container in (right, small, dead):
        ran_in(session, container)
    ran_in(session, foreign, provider="another")
    api.boxes[dead].status = "expired"
    auto = ContainerManager(client=api.client, config=ContainerConfig(mode="auto"), session=session)

    assert auto.ensure() == right
    tenant = Tenant()
    auto.admit(tenant)
    auto.release(tenant)
    assert right in api.boxes  # it is not ours
    assert ContainerManager(client=api.client, session=session).ensure() not in (small, dead, right, foreign)


def test_workspaces_of_one_session_share_a_manager_in_auto_mode_alone(session):
    auto, explicit = ContainerConfig(mode="auto"), ContainerConfig()
    shared = manager_for(session, auto)

    assert manager_for(session, auto) is shared
    assert manager_for(session, explicit) is not manager_for(session, explicit)
    assert manager_for(Session(), auto) is not shared
    assert manager_for(session, ContainerConfig("1g", mode="auto")) is not shared
    tenant = Tenant()
    again = manager_for(session, auto)
    again.admit(tenant)
    again.release(tenant)
    assert manager_for(session, auto) is not again  # that one is over
    with pytest.raises(WorkspaceError, match="cleaned up"):
        again.ensure()


def test_the_last_one_out_takes_the_container_along(api, manager):
    first, second = Tenant("a"), Tenant("b")
    manager.admit(first)
    manager.admit(second)
    manager.ensure()
    manager.release(first)
    assert len(api.boxes) == 1
    manager.release(second)
    assert (api.boxes, manager.is_over) == ({}, True)


def test_one_that_cannot_be_deleted_is_left_to_expire(api, manager, caplog):
    tenant = Tenant()
    manager.admit(tenant)
    container = manager.ensure()
    api.routes[r"DELETE /containers/([^/?]+)"] = lambda asked: error(500, "Not now.")
    manager.release(tenant)

    assert f"container {container} could not be deleted: 500: Not now." in caplog.text
    assert manager.is_over


# ── an evaluation's ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_during_a_visit_the_evaluation_s_client_session_and_deadline_count(api, manager, clock):
    visitor, other = Session(), Session()
    manager.admit(Tenant())
    client: Any = api.client.with_options(max_retries=0)
    create, api.routes["POST /containers"] = api.routes["POST /containers"], lambda asked: error(503, "Later.")
    with manager.visiting(client, visitor, Deadline.after(0)):
        assert (manager.api.client, manager.session_id) == (client, visitor.session_id)
        with pytest.raises(ProviderFault):  # no time is left to wait for anything
            manager.ensure()
    assert clock.slept == []
    api.routes["POST /containers"] = create
    with manager.visiting(client, other, None):
        old = manager.ensure()
        del api.boxes[old]
        manager.check()
        manager.ensure()

    assert (len(other[ContainerRecreated].all()), len(visitor[ContainerRecreated].all())) == (1, 0)
    assert manager.session_id != other.session_id


def test_at_another_server_the_container_is_another(api, manager, session):
    manager.admit(Tenant())
    old = manager.ensure()
    with plain_containers() as elsewhere:
        with manager.visiting(elsewhere.client, session, None):
            new = manager.ensure()
        assert list(elsewhere.boxes) == [new]
        assert api.boxes == {}
        (told,) = session[ContainerRecreated].all()
        assert (told.old_id, told.new_id) == (old, new)
        assert elsewhere.url in told.reason


def test_without_a_client_the_environment_names_one(api: PlainContainers, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderFault, match="OPENAI_API_KEY"):
        ContainerManager().ensure()
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    manager, tenant = ContainerManager(), Tenant()
    manager.admit(tenant)

    assert manager.ensure() == api.box.id
    made = manager.api.client
    manager.release(tenant)
    assert made.is_closed()


def test_a_client_of_somebody_else_is_not_closed(api: PlainContainers, manager):
    tenant = Tenant()
    manager.admit(tenant)
    manager.ensure()
    manager.release(tenant)

    assert not api.client.is_closed()
