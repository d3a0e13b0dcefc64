"""Workspaces whose container expires, is deleted, or loses its sandbox."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from fixtures_code_interpreter import sandbox_pid
from fixtures_server import Server
from fixtures_workspace import adapter_for, call, scenario_prompt, scripted_server, write_files

from weakincentives.adapters.openai import (
    ContainerConfig,
    ContainerExpiredError,
    ContainerFilesystem,
    ContainerManager,
    OpenAIContainerWorkspaceSection,
)
from weakincentives.clock import ManualClock
from weakincentives.errors import ProviderFault, WorkspaceError
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked, WorkspaceSynced
from weakincentives.tools import HostMount

SCENARIOS = {
    "make": [
        "open('/mnt/data/made.txt', 'w').write('by code')",
        "open('/mnt/data/project/a.txt', 'w').write('changed'); x = 1; print('done')",
    ],
    "look": ["import os; print(sorted(os.listdir('/mnt/data')), open('/mnt/data/project/a.txt').read())"],
    "between": [
        "y = 2; open('/mnt/data/made.txt', 'w').write('by code')",
        call("vanish"),
        "import os; print(sorted(os.listdir('/mnt/data')), 'y' in dir())",
    ],
}
IDLE = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Containers expire after seconds, and there may be two at a time."""
    settings = {"expires_after": IDLE / 60, "max_containers": 2}
    with scripted_server(tmp_path_factory.mktemp("antwort"), SCENARIOS, containers=settings) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.long)], ids=["archive", "plain"])
def config(request):
    return ContainerConfig(memory_limit="1g", archives=request.param)


@pytest.fixture
def workspace(client, config, tmp_path):
    project = write_files(tmp_path / "project", {"a.txt": "first", "b/c.txt": "second"})
    with OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project),),
        allowed_host_roots=(tmp_path,),
        container_config=config,
        client=client,
    ) as section:
        yield section


def wait_until_expired(client: Any, container_id: str | None) -> None:
    """Wait until the container has expired; a listing does not count as use."""
    for _ in range(600):
        (found,) = [one for one in client.containers.list(limit=100) if one.id == container_id]
        if found.status == "expired":
            return
        time.sleep(0.05)
    raise TimeoutError(f"{container_id} has not expired")


def evaluate(server: Server, workspace: OpenAIContainerWorkspaceSection, name: str, **options: Any) -> Any:
    return adapter_for(server).evaluate(scenario_prompt(name, workspace, **options), session=workspace.session)


def recreated(workspace: OpenAIContainerWorkspaceSection) -> tuple[ContainerRecreated, ...]:
    return workspace.session[ContainerRecreated].all()


def test_container_expires_between_evaluations(server, client, workspace, caplog):
    evaluate(server, workspace, "make")
    first = workspace.container_id
    workspace.filesystem.write_text("own.txt", "by the client")
    wait_until_expired(client, first)

    assert evaluate(server, workspace, "look").text == "['own.txt', 'project'] first\n"
    event = recreated(workspace)[0]
    assert (event.old_id, event.restored) == (first, ("own.txt", "project/a.txt", "project/b/c.txt"))
    assert event.lost == ("made.txt", "project/a.txt")
    assert f"container {first} was gone" in caplog.text
    assert workspace.filesystem.list_dir() == ["own.txt", "project"]


def test_container_expires_between_filesystem_calls(client, workspace):
    files = workspace.filesystem
    files.write_text("one.txt", "1")
    files.mkdir("empty")
    first = files.container_id
    wait_until_expired(client, first)

    files.write_text("two.txt", "2")

    assert recreated(workspace)[0].old_id == first
    assert recreated(workspace)[0].lost == ()
    assert files.list_dir() == ["empty", "one.txt", "project", "two.txt"]
    assert files.read_text("one.txt") == "1"
    assert client.containers.retrieve(files.container_id).status == "running"


def test_synced_files_are_restored(server, client, workspace):
    evaluate(server, workspace, "make")
    workspace.sync()
    client.containers.delete(workspace.container_id)

    assert evaluate(server, workspace, "look").text == "['made.txt', 'project'] changed\n"
    (event,) = recreated(workspace)
    assert (event.restored, event.lost) == (("made.txt", "project/a.txt", "project/b/c.txt"), ())


OPERATIONS = {
    "read": lambda files: files.read_bytes("made.txt"),
    "write": lambda files: files.write_text("new.txt", "2"),
    "replace": lambda files: files.write_text("one.txt", "2"),
    "delete": lambda files: files.delete("one.txt"),
    "mkdir": lambda files: files.mkdir("folder"),
    "refresh": lambda files: files.refresh(),
    "sync": lambda files: files.sync(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_deleted_container_is_replaced_by_every_operation(client, workspace, operation):
    files = workspace.filesystem
    files.write_text("one.txt", "1")
    client.containers.files.create(files.container_id, file=("made.txt", b"by another"))
    files.refresh()
    first = files.container_id
    client.containers.delete(first)
    if operation == "read":  # content that was only in the container is lost
        with pytest.raises(FileNotFoundError):
            OPERATIONS[operation](files)
    else:
        OPERATIONS[operation](files)
    if operation == "mkdir" and not recreated(workspace):
        files.write_text("another.txt", "3")  # without archives, mkdir sends no request

    (event,) = recreated(workspace)
    assert (event.old_id, event.new_id, event.lost) == (first, files.container_id, ("made.txt",))
    expected = {"read": "1", "write": "1", "replace": "2", "delete": None}.get(operation, "1")
    assert (files.read_text("one.txt") if files.exists("one.txt") else None) == expected
    assert files.read_text("project/b/c.txt") == "second"
    assert len(recreated(workspace)) == 1


def test_container_is_deleted_during_an_evaluation(server, client, workspace):
    """The container of the first turn is gone before the last turn: its calls are scrubbed from the history."""

    def vanish(params: None, *, context: ToolContext) -> ToolResult[None]:
        if not recreated(workspace):  # the scripted model counts turns, and one was rewritten as text
            client.containers.delete(workspace.container_id)
        return ToolResult("gone")

    tool = Tool[None, None](name="vanish", description="Delete the container.", handler=vanish)
    answer = evaluate(server, workspace, "between", tools=[tool])

    assert answer.text == "['project'] False\n"
    (event,) = recreated(workspace)
    assert event.lost == ("made.txt",)
    ran = [event.result.value.container_id for event in workspace.session[ToolInvoked].all() if event.name != "vanish"]
    assert ran == [event.old_id, event.new_id]


def test_sandbox_dies_while_the_container_exists(server, client, workspace):
    """The server reports the loss of the sandbox; the files are lost."""
    files = workspace.filesystem
    files.write_text("one.txt", "1")
    first = files.container_id
    os.kill(sandbox_pid(server), signal.SIGKILL)
    answer = evaluate(server, workspace, "look")  # runs in an empty sandbox

    assert "No such file" in answer.text
    assert evaluate(server, workspace, "look").text == "['one.txt', 'project'] first\n"
    assert recreated(workspace)[0].old_id == first
    assert "sandbox" in recreated(workspace)[0].reason


def test_refused_replacement_is_an_error_without_loss(server, client, workspace):
    files = workspace.filesystem
    files.write_text("one.txt", "1")
    first = files.container_id
    client.containers.delete(first)
    taken = [client.containers.create(name="other").id for _ in range(2)]

    with pytest.raises(ContainerExpiredError, match="quota of containers") as caught:
        files.write_text("two.txt", "2")
    assert caught.value.container_id == first
    assert isinstance(caught.value.original_error, ProviderFault)
    assert isinstance(caught.value.__cause__, ProviderFault)
    with pytest.raises(ContainerExpiredError):
        evaluate(server, workspace, "look")
    assert (files.container_id, recreated(workspace)) == (None, ())
    assert (workspace.temp_dir / "one.txt").read_text() == "1"  # the mirror keeps its files

    for container in taken:
        client.containers.delete(container)
    files.write_text("two.txt", "2")
    assert files.list_dir() == ["one.txt", "project", "two.txt"]
    (event,) = recreated(workspace)
    assert (event.old_id, event.new_id) == (first, files.container_id)


def test_given_container_is_not_replaced(server, client, config):
    given = client.containers.create(name="mine").id
    session = Session()
    with OpenAIContainerWorkspaceSection(
        session=session, container_config=replace(config, container_id=given), client=client
    ) as workspace:
        workspace.filesystem.write_text("a.txt", "1")
        client.containers.delete(given)
        for use in (workspace.filesystem.refresh, lambda: evaluate(server, workspace, "look")):
            with pytest.raises(ContainerExpiredError, match="given to the workspace") as caught:
                use()
            assert caught.value.container_id == given
        assert session[ContainerRecreated].all() == ()
        assert list(client.containers.list()) == []


def test_cleanup_does_not_recreate_a_container(client, workspace, tmp_path, caplog):
    workspace.sync_on_cleanup, workspace.results_dir = True, tmp_path / "results"
    workspace.filesystem.write_text("own.txt", "1")
    client.containers.files.create(workspace.container_id, file=("other.txt", b"2"))
    workspace.filesystem.refresh()
    client.containers.delete(workspace.container_id)
    workspace.cleanup()

    (synced,) = workspace.session[WorkspaceSynced].all()
    assert (synced.container_id, synced.lost) == (None, ("other.txt",))
    assert "lost: ['other.txt']" in caplog.text
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["own.txt"]
    assert list(client.containers.list()) == []
    assert recreated(workspace) == ()


def test_idle_container_is_retrieved_before_use(client, config):
    """Also for a listing, which an expired container still answers."""
    clock = ManualClock()
    files = ContainerFilesystem(manager=ContainerManager(config=config, client=client, clock=clock))
    files.write_text("a.txt", "1")
    first = files.container_id
    wait_until_expired(client, first)
    clock.advance(IDLE / 2 + 0.1)

    files.refresh()

    assert files.container_id != first
    assert files.list_dir() == ["a.txt"]
    files.cleanup()
    with pytest.raises(WorkspaceError):
        files.refresh()
