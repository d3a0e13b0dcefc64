"""`RemoteFiles`: filling new containers, replacing gone ones, and sharing one container."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_containers_api import containers_api
from fake_responses_api import error

from weakincentives.adapters.openai import (
    CodeInterpreterResult,
    ContainerConfig,
    ContainerExpiredError,
    ContainerManager,
)
from weakincentives.adapters.openai.containers.api import ContainerGone
from weakincentives.adapters.openai.containers.files import RemoteFiles
from weakincentives.adapters.openai.containers.manager import OpenContainer
from weakincentives.adapters.openai.containers.mirror import Mirror
from weakincentives.clock import ManualClock
from weakincentives.errors import FilesystemError, ProviderFault, WorkspaceError
from weakincentives.prompt import ToolResult
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked

UPLOADS = r"POST /containers/([^/?]+)/files"


@pytest.fixture
def api():
    with containers_api(naming="kept") as running:
        yield running


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def manager(api, session):
    return ContainerManager(client=api.client, clock=ManualClock(), session=session)


@pytest.fixture
def make(manager, tmp_path):
    def files(name: str, content: Mapping[str, str] | None = None) -> RemoteFiles:
        root: Path = tmp_path / name
        root.mkdir()
        for path, text in (content or {f"{name}.txt": name}).items():
            (root / path).write_text(text)
        return RemoteFiles(manager, Mirror(root, None))

    return files


def test_each_user_fills_the_shared_container_once(api, make):
    first, second = make("a"), make("b")
    container = first.open()
    first.open()

    assert second.open().id == container.id
    assert api.contents == {"a.txt": b"a", "b.txt": b"b"}
    assert (len(api.containers), api.count_requests("POST", ".*/files")) == (1, 2)


def test_refused_mirror_costs_no_container(api, manager):
    def refuse() -> Path:
        raise WorkspaceError("too large")

    files = RemoteFiles(manager, Mirror(refuse, None))
    with pytest.raises(WorkspaceError, match="too large"):
        files.open()

    assert (api.requests, manager.container_id) == ([], None)


def test_container_that_cannot_be_filled_is_deleted(api, make, manager):
    files = make("a")
    upload, api.routes[UPLOADS] = api.routes[UPLOADS], lambda _: error(403, "Not for you.")
    with pytest.raises(ProviderFault, match="Not for you"):
        files.open()
    assert (api.containers, manager.container_id) == ({}, None)

    api.routes[UPLOADS] = upload
    assert files.open().id == api.newest.id


def test_upload_with_a_wrong_size_is_an_error(api, make):
    files = make("a")
    upload = api.routes[UPLOADS]

    def truncated(request):
        response = upload(request)
        response.body["bytes"] = 0
        return response

    api.routes[UPLOADS] = truncated
    with pytest.raises(FilesystemError, match="has 0 bytes in the container, not 1"):
        files.open()
    assert api.containers == {}


def test_user_that_cannot_fill_the_container_leaves_it_to_others(api, make):
    first, second = make("a"), make("b")
    container = first.open().id
    upload, api.routes[UPLOADS] = api.routes[UPLOADS], lambda _: error(403, "Not for you.")
    with pytest.raises(ProviderFault):
        second.open()

    assert list(api.containers) == [container]
    api.routes[UPLOADS] = upload
    assert second.open().id == container


def test_replacement_has_the_files_of_all_users_and_is_reported_once(api, make, session):
    first, second = make("a"), make("b")
    old = first.open().id
    second.open()
    api.put("a.out", b"1")
    first.run(first.refresh)
    api.containers.clear()
    first.run(first.refresh)
    new = api.newest.id

    assert api.contents == {"a.txt": b"a", "b.txt": b"b"}
    (event,) = session[ContainerRecreated].all()
    assert (event.old_id, event.new_id, event.restored, event.lost) == (old, new, ("a.txt", "b.txt"), ("a.out",))
    assert event.session_id == session.session_id
    assert (first.recreated.new_id, first.recreated.restored, first.recreated.lost) == (new, ("a.txt",), ("a.out",))
    assert (second.recreated.new_id, second.recreated.restored, second.recreated.lost) == (new, ("b.txt",), ())

    api.requests.clear()
    assert second.open().id == new
    assert (api.requests, len(session[ContainerRecreated].all())) == ([], 1)
    assert first.names(".", first.open()) == second.names(".", second.open()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("naming", ["kept", "prefixed"])
def test_lost_change_is_attributed_to_the_user_that_uploaded_the_file(api, make, session, naming):
    api.naming = naming
    first, second = make("a"), make("b")
    first.open()
    second.open()
    (changed,) = (file for file in api.newest.files.values() if file.content == b"b")
    changed.content = b"changed by code"
    first.run(first.refresh)  # the second user does not know of the change
    api.containers.clear()
    first.run(first.refresh)

    (event,) = session[ContainerRecreated].all()
    assert (event.restored, event.lost) == (("a.txt", "b.txt"), ("b.txt",))
    assert (first.recreated.lost, second.recreated.lost) == ((), ("b.txt",))


def test_container_that_vanishes_while_it_is_filled_is_replaced_for_all_users(api, make, session):
    first, second = make("a"), make("b")
    old = first.open().id
    api.put("a.out", b"1")
    first.run(first.refresh)
    upload = api.routes[UPLOADS]

    def vanish(request):
        api.containers.pop(old, None)
        return upload(request)

    api.routes[UPLOADS] = vanish
    new = second.run(lambda container: container.id)

    assert new == api.newest.id != old
    assert sorted(api.contents) == ["a.txt", "b.txt"]
    assert first.open().id == new
    (event,) = session[ContainerRecreated].all()
    assert (event.restored, event.lost) == (("a.txt", "b.txt"), ("a.out",))


def test_replacement_that_one_user_cannot_fill_is_deleted_and_created_again(api, make, session):
    first, second = make("a"), make("b")
    old = first.open().id
    second.open()
    api.put("a.out", b"1")
    first.run(first.refresh)
    api.containers.clear()
    upload, newcomer = api.routes[UPLOADS], make("c")
    api.routes[UPLOADS] = lambda request: error(403, "Not b.") if b"b.txt" in request.raw else upload(request)
    for user in (first, second, newcomer):
        with pytest.raises(ContainerExpiredError, match="Not b") as caught:
            user.run(user.refresh)
        assert (caught.value.container_id, api.containers) == (old, {})
    assert session[ContainerRecreated].all() == ()

    api.routes[UPLOADS] = upload
    second.open()
    assert api.contents == {"a.txt": b"a", "b.txt": b"b"}
    (event,) = session[ContainerRecreated].all()
    assert (event.old_id, event.restored, event.lost) == (old, ("a.txt", "b.txt"), ("a.out",))


def test_reused_container_that_vanishes_while_it_is_filled_is_given_up(api, session, tmp_path):
    manager = ContainerManager(client=api.client, config=ContainerConfig(mode="auto"), session=session)
    (tmp_path / "a.txt").write_text("a")
    files = RemoteFiles(manager, Mirror(tmp_path, None))
    old = files.open().id
    reused = ContainerManager(client=api.client).ensure().id
    result = ToolResult("", CodeInterpreterResult(container_id=reused))
    event = ToolInvoked(prompt_name="p", adapter="a", name="c", params=None, result=result, provider="openai")
    session.dispatch(event)
    del api.containers[old]
    upload = api.routes[UPLOADS]

    def vanish(request):
        api.containers.pop(reused, None)
        return upload(request)

    api.routes[UPLOADS] = vanish
    with pytest.raises(ContainerExpiredError, match="not found"):
        files.run(files.refresh)
    assert manager.container_id is None
    assert files.open().id == api.newest.id not in (old, reused)
    assert api.contents == {"a.txt": b"a"}


def test_released_user_is_not_restored(api, make, session):
    first, second = make("a"), make("b")
    first.open()
    second.open()
    first.close()
    api.containers.clear()
    second.run(second.refresh)

    assert api.contents == {"b.txt": b"b"}
    (event,) = session[ContainerRecreated].all()
    assert (event.restored, event.lost) == (("b.txt",), ())


def test_unused_user_keeps_no_container_alive(api, make, manager):
    first, second, unused = make("a"), make("b"), make("c")
    first.open()
    second.open()
    first.close()
    assert second.run(second.refresh) is None  # the release of one user leaves the container to the other
    second.close()
    assert (api.containers, manager.is_closed) == ({}, True)
    with pytest.raises(WorkspaceError, match="cleaned up"):
        unused.open()


def test_concurrent_threads_create_one_replacement(api, make, manager, session):
    files = make("a")
    old = files.open().id
    del api.containers[old]
    start = threading.Barrier(6)

    def work(container: OpenContainer) -> str:
        if container.id == old:
            raise ContainerGone(old, "gone")
        return container.id

    found: list[str] = []

    def run() -> None:
        start.wait()
        with manager.lock:
            found.append(files.run(work))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found) == {api.newest.id}
    assert len(found) == 6
    assert len(session[ContainerRecreated].all()) == 1


def test_loss_is_reported_once_and_only_after_the_replacement(api, make, manager, session):
    files = make("a")
    old = files.open().id
    api.put("a.out", b"1")
    files.run(files.refresh)
    del api.containers[old]
    api.max_containers = 0
    assert manager.check() is False
    for _ in range(2):
        with pytest.raises(ContainerExpiredError, match="No more containers") as caught:
            files.open()
        assert (caught.value.container_id, manager.container_id) == (old, None)
        assert isinstance(caught.value.original_error, ContainerGone)
    assert session[ContainerRecreated].all() == ()

    api.max_containers = 9
    upload, api.routes[UPLOADS] = api.routes[UPLOADS], lambda _: error(403, "Not for you.")
    with pytest.raises(ContainerExpiredError, match="Not for you"):
        files.open()
    api.routes[UPLOADS] = upload
    new = files.open().id
    files.open()
    (event,) = session[ContainerRecreated].all()
    assert (event.old_id, event.new_id, event.restored, event.lost) == (old, new, ("a.txt",), ("a.out",))


def test_listing_is_repeated_only_after_a_possible_change(api, make):
    files = make("a")
    listings = r".*/files\?.*"
    container = files.open()
    files.names(".", container)
    assert api.count_requests("GET", listings) == 0
    files.expect_changes()
    files.retract_change()
    files.names(".", container)
    assert api.count_requests("GET", listings) == 0

    files.expect_changes()  # the outcome of this request stays unknown
    files.expect_changes()
    files.retract_change()
    files.names(".", container)
    files.names(".", container)
    assert api.count_requests("GET", listings) == 1
