"""`OpenAIContainerWorkspaceSection` with antwort: mounts, changes by code, sync, cleanup, sharing."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fixtures_code_interpreter import sandbox_pid
from fixtures_workspace import adapter_for, call, scenario_prompt, scripted_server, write_files

from weakincentives.adapters.openai import CodeInterpreterResult, ContainerConfig, OpenAIContainerWorkspaceSection
from weakincentives.errors import WorkspaceError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked, TransferProgress, WorkspaceSynced
from weakincentives.tools import HostMount, VfsToolsSection

SCENARIOS = {
    "sum": ["print(sum(len(open(p).read()) for p in ('project/a.py', 'project/src/b.py')))"],
    "work": [
        "import os; os.makedirs('/mnt/data/out', exist_ok=True); open('/mnt/data/out/new.txt', 'w').write('made')",
        "open('/mnt/data/project/a.py', 'a').write('# seen'); os.remove('/mnt/data/project/src/b.py'); print('ok')",
    ],
    "swap": ["open('/mnt/data/project/a.py', 'w').write('print(2)\\n'); print('swapped')"],
    "remember": ["x = 41; print('noted')"],
    "recall": ["print(x + 1)"],
    "names": ["import os; print(sorted(os.listdir('/mnt/data/odd')))"],
    "mixed": [
        "open('/mnt/data/made.txt', 'w').write('by code')",
        call("answer", path="made.txt"),
        "print(open('/mnt/data/reply.txt').read())",
    ],
    "vfs": [
        call("write_file", path="notes/a.txt", content="by the model"),
        "print(open('/mnt/data/notes/a.txt').read())",
    ],
    "failure": [
        "open('/mnt/data/made.txt', 'w').write('by code')",
        call("spoil"),
        "import os; print(sorted(os.listdir('/mnt/data')), open('/mnt/data/made.txt').read())",
    ],
}


@dataclass(frozen=True)
class Named:
    path: str


FILES = {"a.py": "print(1)\n", "src/b.py": "import a\n", ".git/config": "secret", "src/__pycache__/b.pyc": b"\0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with scripted_server(tmp_path_factory.mktemp("antwort"), SCENARIOS) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["archive", "plain"])
def config(request):
    return ContainerConfig(memory_limit="1g", archives=request.param)


@pytest.fixture
def project(tmp_path):
    return write_files(tmp_path / "host/project", FILES)


@pytest.fixture
def client(server):
    with server.client() as sdk:
        yield sdk


@pytest.fixture
def workspace(client, project, config):
    with OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project, "project", exclude_glob=(".git/*", "__pycache__/")),),
        allowed_host_roots=(project.parent,),
        container_config=config,
    ) as section:
        yield section
    assert list(client.containers.list()) == []


def evaluate(server, workspace, name, **options) -> Any:
    return adapter_for(server).evaluate(scenario_prompt(name, workspace), session=workspace.session, **options)


def files_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_code_finds_files_at_the_described_paths(server, workspace):
    text = scenario_prompt("sum", workspace).render().text
    assert "`/mnt/data/project`: 2 files, 18 bytes\n```\nsrc/\n  b.py\na.py\n```" in text

    assert evaluate(server, workspace, "sum").text == "18\n"
    (ran,) = workspace.session[ToolInvoked].all()
    assert isinstance(ran.result.value, CodeInterpreterResult)
    assert ran.result.value.container_id == workspace.container_id


def test_nothing_is_copied_or_created_before_first_use(client, project, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    mounts = (HostMount(project),)
    workspace = OpenAIContainerWorkspaceSection(
        session=Session(), mounts=mounts, allowed_host_roots=(project.parent,), client=client
    )
    assert (workspace.filesystem, workspace.container_id) == (workspace.resources().get(Filesystem), None)
    assert not any((tmp_path / "tmp").iterdir())

    assert workspace.mount_previews[0].entries == (".git/config", "a.py", "src/__pycache__/b.pyc", "src/b.py")
    assert (workspace.temp_dir / "project/a.py").read_text() == "print(1)\n"
    assert workspace.container_id is None

    assert workspace.filesystem.read_text("project/a.py") == "print(1)\n"
    assert workspace.container_id is not None
    workspace.cleanup()
    assert not any((tmp_path / "tmp").iterdir())


def test_changes_by_code_are_listed_and_synced(server, workspace, project):
    evaluate(server, workspace, "work")
    files = workspace.filesystem

    assert files.list_dir() == ["out", "project"]
    assert (files.read_text("out/new.txt"), files.read_text("project/a.py")) == ("made", "print(1)\n# seen")
    assert not files.exists("project/src/b.py")
    assert files.dirty_paths() == ("out/new.txt", "project/a.py")

    synced = workspace.sync()

    assert (synced.added, synced.changed, synced.removed) == (
        ("out/new.txt",),
        ("project/a.py",),
        ("project/src/b.py",),
    )
    assert (synced.refused, synced.lost, synced.unchanged) == ((), (), 0)
    assert (synced.directory, synced.container_id) == (workspace.temp_dir, workspace.container_id)
    assert synced.render() == "1 added, 1 changed, 1 removed"
    assert workspace.session[WorkspaceSynced].all() == (synced,)
    assert files_in(workspace.temp_dir) == {"out/new.txt", "project/a.py"}
    assert (project / "src/b.py").exists()  # files of the host are never changed
    assert (project / "a.py").read_text() == "print(1)\n"
    assert workspace.sync().render() == "2 unchanged"
    assert "Also there by now, below `/mnt/data`:\n- `out/new.txt`" in scenario_prompt("sum", workspace).render().text


def test_change_of_equal_size_is_detected(server, workspace):
    assert workspace.mount_previews[0].bytes_copied == 18
    evaluate(server, workspace, "swap")

    assert workspace.filesystem.read_text("project/a.py") == "print(2)\n"
    assert workspace.filesystem.dirty_paths() == ("project/a.py",)
    evaluate(server, workspace, "remember")
    assert workspace.sync().changed == ("project/a.py",)
    assert (workspace.temp_dir / "project/a.py").read_text() == "print(2)\n"


def test_files_lost_with_a_sandbox_are_restored(server, workspace):
    """The listing after a turn shows the loss, before the container is old enough to be retrieved."""
    evaluate(server, workspace, "sum")
    first = workspace.container_id
    os.kill(sandbox_pid(server), signal.SIGKILL)
    evaluate(server, workspace, "remember")  # runs in an empty sandbox

    assert evaluate(server, workspace, "sum").text == "18\n"
    (event,) = workspace.session[ContainerRecreated].all()
    assert (event.old_id, event.new_id, event.lost) == (first, workspace.container_id, ())
    assert event.restored == ("project/a.py", "project/src/b.py")


def test_variables_survive_between_evaluations(server, workspace):
    evaluate(server, workspace, "remember")
    container = workspace.container_id

    assert evaluate(server, workspace, "recall").text == "42\n"
    assert workspace.container_id == container


def test_function_tools_share_the_files_with_code(server, workspace):
    def answer(params: Named, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        context.filesystem.write_text("reply.txt", context.filesystem.read_text(params.path).upper())
        return ToolResult("written")

    tool = Tool[Named, None](name="answer", description="Answer.", handler=answer)
    response = adapter_for(server).evaluate(
        scenario_prompt("mixed", workspace, tools=[tool]), session=workspace.session
    )

    assert response.text == "BY CODE\n"


def test_file_tools_work_on_the_container(server, workspace):
    prompt = scenario_prompt("vfs", workspace, VfsToolsSection())

    assert adapter_for(server).evaluate(prompt, session=workspace.session).text == "by the model\n"


def test_changes_of_a_failed_tool_are_rolled_back(server, workspace):
    def spoil(params: None, *, context: ToolContext) -> ToolResult[None]:
        files = context.filesystem
        assert files is not None
        files.write_text("made.txt", "spoilt")
        files.delete("project", recursive=True)
        files.write_text("new/file", "x")
        raise RuntimeError("on purpose")

    tool = Tool[None, None](name="spoil", description="Spoil it.", handler=spoil)
    response = adapter_for(server).evaluate(
        scenario_prompt("failure", workspace, tools=[tool]), session=workspace.session
    )

    failed = workspace.session[ToolInvoked].all()[1]
    assert (failed.success, "on purpose" in failed.result.message) == (False, True)
    assert "'made.txt', " in response.text
    assert response.text.endswith(" by code\n")
    assert workspace.filesystem.read_text("project/src/b.py") == "import a\n"
    assert workspace.filesystem.list_dir() == ["made.txt", "project"]


def test_results_are_copied_to_results_dir(server, project, config, tmp_path):
    workspace = OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project, exclude_glob=(".git/*",)),),
        allowed_host_roots=(project.parent,),
        container_config=config,
        sync_on_cleanup=True,
        results_dir=tmp_path / "results",
    )
    evaluate(server, workspace, "work")
    seen = []
    workspace.session.dispatcher.subscribe(WorkspaceSynced, lambda event: seen.append(event.directory.exists()))
    temp_dir = workspace.temp_dir
    workspace.cleanup()

    assert (seen, temp_dir.exists()) == ([True], False)
    found = {
        str(path.relative_to(tmp_path / "results")) for path in (tmp_path / "results").rglob("*") if path.is_file()
    }
    assert found == {"out/new.txt", "project/a.py"}


def test_cleanup_is_idempotent(server, workspace):
    evaluate(server, workspace, "remember")
    temp_dir = workspace.temp_dir
    workspace.cleanup()
    workspace.cleanup()

    assert not temp_dir.exists()
    assert (workspace.temp_dir, workspace.container_id) == (temp_dir, None)
    for use in (workspace.sync, workspace.filesystem.list_dir, lambda: evaluate(server, workspace, "sum")):
        with pytest.raises(WorkspaceError, match="cleaned up"):
            use()


@pytest.fixture
def unlucky(client, config, tmp_path):
    """A workspace whose results_dir cannot be created."""
    (tmp_path / "file").touch()
    yield OpenAIContainerWorkspaceSection(
        session=Session(),
        container_config=config,
        sync_on_cleanup=True,
        client=client,
        results_dir=tmp_path / "file/results",
    )
    for container in client.containers.list():
        client.containers.delete(container.id)


def test_unwritable_results_dir_keeps_the_container(client, unlucky):
    unlucky.filesystem.write_text("a", "1")
    container, temp_dir = unlucky.container_id, unlucky.temp_dir
    with pytest.raises(WorkspaceError, match=f"still in container {container}"):
        unlucky.cleanup()
    unlucky.cleanup()

    assert not temp_dir.exists()
    assert [one.id for one in client.containers.list()] == [container]


def test_cleanup_error_does_not_hide_the_original_error(unlucky, caplog):
    def work() -> None:
        with unlucky:
            unlucky.filesystem.write_text("a", "1")
            raise RuntimeError("the point")

    with pytest.raises(RuntimeError, match="the point"):
        work()

    assert not unlucky.temp_dir.exists()
    assert "the cleanup of the workspace failed after an error" in caplog.text


def test_progress_events(server, workspace, tmp_path):
    evaluate(server, workspace, "work")
    workspace.filesystem.download_all(tmp_path / "all")
    events = workspace.session[TransferProgress].all()

    up = [event for event in events if event.direction == "upload"][-1]
    assert (up.files, up.total_files, up.bytes, up.total_bytes, up.done) == (2, 2, 18, 18, True)
    down = [event for event in events if event.direction == "download"][-1]
    assert (down.files, down.bytes, down.container_id) == (2, 19, workspace.container_id)


def test_concurrent_threads_create_one_container(client, workspace):
    shared = workspace.clone(client=client)
    begin = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            begin.wait()
            shared.filesystem.write_text(f"thread/{number}", str(number))
        except BaseException as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert shared.filesystem.list_dir("thread") == [str(number) for number in range(8)]
    assert [one.id for one in client.containers.list()] == [shared.container_id]
    shared.cleanup()


# ── sharing and reuse ────────────────────────────────────────────────────────────────────────────────────────────────


def auto(client, session, **options) -> OpenAIContainerWorkspaceSection:
    config = ContainerConfig(memory_limit="1g", mode="auto")
    return OpenAIContainerWorkspaceSection(session=session, container_config=config, client=client, **options)


def test_workspaces_of_one_session_share_a_container(client, project):
    session = Session()
    one = auto(client, session, mounts=(HostMount(project, "one"),), allowed_host_roots=(project,))
    two = auto(client, session, mounts=(HostMount(project, "two"),), allowed_host_roots=(project,))
    other = auto(client, Session())
    other.filesystem.write_text("other", "3")

    assert one.filesystem.list_dir() == ["one"]
    assert two.filesystem.list_dir() == ["one", "two"]
    assert one.container_id == two.container_id != other.container_id
    one.filesystem.refresh()
    assert one.filesystem.read_text("two/a.py") == "print(1)\n"

    one.cleanup()
    assert two.filesystem.read_text("two/a.py") == "print(1)\n"
    two.cleanup()
    other.cleanup()
    assert list(client.containers.list()) == []


def test_replacement_of_a_shared_container_has_the_files_of_all_workspaces(client, project):
    session = Session()
    one = auto(client, session, mounts=(HostMount(project, "one"),), allowed_host_roots=(project,))
    two = auto(client, session, mounts=(HostMount(project, "two"),), allowed_host_roots=(project,))
    one.filesystem.ensure_container()
    two.filesystem.ensure_container()
    one.filesystem.refresh()
    client.containers.delete(one.container_id)
    one.filesystem.refresh()

    assert one.filesystem.list_dir() == ["one", "two"]
    (event,) = session[ContainerRecreated].all()
    assert {"one/a.py", "two/a.py"} <= set(event.restored)
    assert event.lost == ()
    one.cleanup()
    two.cleanup()
    assert list(client.containers.list()) == []


def remembered(server, session) -> str:
    """Run code in a container without a workspace; return its id."""
    adapter_for(server).evaluate(scenario_prompt("remember"), session=session)
    (ran,) = session[ToolInvoked].all()
    assert isinstance(ran.result.value, CodeInterpreterResult)
    assert ran.result.value.container_id is not None
    return ran.result.value.container_id


def test_earlier_container_is_reused_and_not_deleted(server, client):
    session = Session()
    container = remembered(server, session)  # created by the server
    with auto(client, session) as workspace:
        assert evaluate(server, workspace, "recall").text == "42\n"
        assert workspace.container_id == container

    (left,) = client.containers.list()
    assert left.id == container
    client.containers.delete(left.id)


def test_container_with_less_memory_is_not_reused(server, client):
    session = Session()
    container = remembered(server, session)
    config = ContainerConfig(memory_limit="4g", mode="auto")
    with OpenAIContainerWorkspaceSection(session=session, container_config=config, client=client) as workspace:
        workspace.filesystem.ensure_container()
        assert workspace.container_id != container
    client.containers.delete(container)


def test_given_container_is_used_and_not_deleted(client, project, config):
    given = client.containers.create(name="mine")
    client.containers.files.create(given.id, file=("before.txt", b"mine"))
    with OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project),),
        allowed_host_roots=(project,),
        container_config=replace(config, container_id=given.id),
        client=client,
    ) as workspace:
        assert workspace.filesystem.list_dir() == ["before.txt", "project"]
        assert workspace.filesystem.read_text("before.txt") == "mine"
        assert workspace.container_id == given.id

    assert client.containers.retrieve(given.id).status == "running"
    client.containers.delete(given.id)


def test_clone_is_a_separate_workspace(server, client, workspace):
    other = workspace.clone(session=Session(), client=client, title="Files", key="files")
    other.filesystem.write_text("project/a.py", "changed")

    assert (other.title, other.key, other.mounts) == ("Files", "files", workspace.mounts)
    assert other.temp_dir != workspace.temp_dir
    other.cleanup()
    assert evaluate(server, workspace, "sum").text == "18\n"


def test_evaluation_at_another_server_recreates_the_container(server, client, workspace, tmp_path):
    evaluate(server, workspace, "work")
    first = workspace.container_id
    with scripted_server(tmp_path / "other", SCENARIOS) as other:
        assert evaluate(other, workspace, "sum").text == "18\n"
        (moved,) = workspace.session[ContainerRecreated].all()
        assert (moved.old_id, moved.new_id) == (first, workspace.container_id)
        assert moved.restored == ("project/a.py", "project/src/b.py")
        assert moved.lost == ("out/new.txt", "project/a.py")
        assert list(client.containers.list()) == []
        workspace.cleanup()
