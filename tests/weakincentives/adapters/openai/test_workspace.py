"""The workspace section in an evaluation, against the fake Containers API without the archive extension."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_containers_api import EXPIRED, FakeContainersApi, containers_api
from fake_responses_api import error, function_call, message, response

from weakincentives.adapters.openai import (
    ContainerConfig,
    ContainerSource,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    ShellConfig,
)
from weakincentives.errors import NativeToolError, PromptEvaluationError, WorkspaceError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import ContainerRecreated, Session, TransferProgress, WorkspaceSynced
from weakincentives.tools import HostMount

CODE = OpenAIHostedToolsConfig(code_interpreter=True)


def code_call(container: str) -> dict[str, Any]:
    outputs = [{"type": "logs", "logs": "5"}]
    return {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "x",
        "container_id": container,
        "outputs": outputs,
    }


@pytest.fixture(params=["prefixed"])
def api(request):
    with containers_api(naming=request.param) as running:
        yield running


@pytest.fixture
def project(tmp_path):
    for name in ("src/a.py", "src/b.py"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    return tmp_path / "project"


@pytest.fixture
def workspace(api, project):
    with OpenAIContainerWorkspaceSection(
        session=Session(), mounts=(HostMount(project),), allowed_host_roots=(project.parent,), client=api.client
    ) as section:
        yield section


def ping(params: None, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


def evaluate(
    api: FakeContainersApi, workspace: OpenAIContainerWorkspaceSection, *responses: Any, **options: Any
) -> Any:
    api.responses = api.to_responses(responses)
    ping_tool = Tool[None, None](name="ping", description="Answer.", handler=options.pop("handler", ping))
    task = MarkdownSection(title="Task", key="task", template="Do it.", tools=[ping_tool])
    prompt = Prompt(ns="n", key="k", sections=[task, workspace])
    adapter = api.adapter(client=api.client, hosted_tools=options.pop("hosted", CODE))
    return adapter.evaluate(prompt, session=workspace.session, **options)


def shared_workspace(api: FakeContainersApi, session: Session, root: Path) -> OpenAIContainerWorkspaceSection:
    root.mkdir()
    (root / f"{root.name}.txt").write_text(root.name)
    config = ContainerConfig(mode="auto")
    return OpenAIContainerWorkspaceSection(
        session=session,
        mounts=(HostMount(root),),
        allowed_host_roots=(root.parent,),
        container_config=config,
        client=api.client,
    )


def notes(body: dict[str, Any]) -> list[str]:
    return [item["content"] for item in body["input"] if item.get("role") == "developer"]


# ── container source ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_workspace_is_a_container_source(workspace):
    assert isinstance(workspace, ContainerSource)


def test_container_is_created_filled_and_declared(api, workspace):
    hosted = OpenAIHostedToolsConfig(code_interpreter=True, others=(ShellConfig(container={"type": "auto"}),))
    evaluate(api, workspace, response(message("Done.")), hosted=hosted)

    tools = {tool["type"]: tool for tool in api.bodies[0]["tools"]}
    assert tools["code_interpreter"]["container"] == api.newest.id
    assert tools["shell"]["environment"] == {"type": "container_reference", "container_id": api.newest.id}
    assert sorted(api.contents.values()) == [b"src/a.py", b"src/b.py"]


def test_workspace_without_a_tool_that_runs_code_is_refused(api, workspace):
    with pytest.raises(NativeToolError, match="section 'workspace' supplies a container, but no tool runs code in it"):
        evaluate(api, workspace, response(message("Done.")), hosted=OpenAIHostedToolsConfig())

    assert (api.requests, api.containers) == ([], {})


def test_files_are_listed_only_after_code_code_call(api, workspace):
    workspace.filesystem.ensure_container()
    api.requests.clear()
    listings = r".*/files\?.*"
    evaluate(api, workspace, response(function_call("ping")), response(message("Done.")))
    assert api.count_requests("GET", listings) == 0

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        return ToolResult(", ".join(context.filesystem.glob("**")))

    api.put("made.txt", b"1")
    evaluate(
        api,
        workspace,
        response(code_call(api.newest.id), function_call("ping")),
        response(message("Done.")),
        handler=look,
    )
    assert api.count_requests("GET", listings) == 1
    output = next(item for item in api.bodies[-1]["input"] if item["type"] == "function_call_output")
    assert output["output"] == "made.txt, project/src/a.py, project/src/b.py"


def test_failed_listing_keeps_the_answer(api, workspace, caplog):
    workspace.filesystem.ensure_container()
    api.faults = [error(403, "Not for you.")]
    answer = evaluate(api, workspace, response(code_call(api.newest.id), message("Done.")))

    assert answer.text == "Done."
    assert "could not be listed" in caplog.text
    api.put("made.txt", b"1")
    assert workspace.filesystem.exists("made.txt")  # listed on the next use


def test_refused_container_ends_the_evaluation(api, workspace):
    api.max_containers = 0
    with pytest.raises(PromptEvaluationError, match="No more containers") as caught:
        evaluate(api, workspace, response(message("Done.")))

    assert caught.value.phase == "request"
    assert api.bodies == []


# ── notes for the model ──────────────────────────────────────────────────────────────────────────────────────────────


def test_note_lists_relocated_files(api, workspace):
    evaluate(api, workspace, response(message("Done.")))

    (note,) = notes(api.bodies[0])
    paths = {content.decode(): path for path, content in api.contents.items()}
    assert note == (
        "Some files of the workspace do not lie where their paths say:\n"
        f"- `project/src/a.py` is `/mnt/data/{paths['src/a.py']}`\n"
        f"- `project/src/b.py` is `/mnt/data/{paths['src/b.py']}`"
    )


@pytest.mark.parametrize("api", ["kept"], indirect=True)
def test_no_note_without_relocated_files(api, workspace):
    evaluate(api, workspace, response(message("Done.")))

    assert notes(api.bodies[0]) == []


def test_map_of_many_relocated_files_is_written_to_the_container(api, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(60):
        (tmp_path / f"many/{number}.txt").write_text(str(number))
    with OpenAIContainerWorkspaceSection(
        session=Session(), mounts=(HostMount(tmp_path / "many"),), allowed_host_roots=(tmp_path,), client=api.client
    ) as workspace:
        evaluate(api, workspace, response(message("Done.")))
        (note,) = notes(api.bodies[0])
        path = next(path for path in api.contents if path.endswith("workspace-paths.json"))
        assert f"`/mnt/data/{path}` is a JSON object" in note
        mapping = json.loads(api.contents[path])
        assert len(mapping) == 60
        assert api.contents[mapping["many/7.txt"].removeprefix("/mnt/data/")] == b"7"


def test_expired_container_is_scrubbed_and_loss_is_noted(api, workspace):
    workspace.filesystem.ensure_container()
    first = api.newest
    api.put("made.txt", b"1")

    def expire(params: None, *, context: ToolContext) -> ToolResult[None]:
        first.status = "expired"
        return ToolResult("pong")

    responses = [response(code_call(first.id), function_call("ping")), error(400, EXPIRED), response(message("Done."))]
    evaluate(api, workspace, *responses, handler=expire)

    assert first.id.encode() not in api.requests[-1].raw
    assert api.bodies[-1]["tools"][-1]["container"] == api.newest.id != first.id
    assert "The container was replaced by a new one." in notes(api.bodies[-1])[-1]
    assert "`made.txt`" in notes(api.bodies[-1])[-1]
    (event,) = workspace.session[ContainerRecreated].all()
    assert (event.old_id, event.new_id, event.lost) == (first.id, api.newest.id, ("made.txt",))


def test_loss_note_omits_the_files_of_another_workspace(api, tmp_path):
    session = Session()
    one, two = (shared_workspace(api, session, tmp_path / name) for name in ("one", "two"))
    one.filesystem.ensure_container()
    two.filesystem.ensure_container()
    first = api.newest
    api.put("made.txt", b"1")

    def expire(params: None, *, context: ToolContext) -> ToolResult[None]:
        first.status = "expired"
        return ToolResult("pong")

    responses = [response(code_call(first.id), function_call("ping")), error(400, EXPIRED), response(message("Done."))]
    evaluate(api, one, *responses, handler=expire)

    assert "changes that code made to these files: `made.txt`." in notes(api.bodies[-1])[-1]
    assert sorted(api.contents.values()) == [b"one", b"two"]
    (event,) = session[ContainerRecreated].all()
    assert (event.restored, event.lost) == (("one/one.txt", "two/two.txt"), ("made.txt",))
    one.cleanup()
    assert two.filesystem.read_text("two/two.txt") == "two"
    two.cleanup()


def test_cleanup_of_unused_workspaces_closes_their_manager(api, tmp_path):
    session = Session()
    one, two = (shared_workspace(api, session, tmp_path / name) for name in ("one", "two"))
    one.cleanup()

    assert one.filesystem.manager is two.filesystem.manager
    assert (one.filesystem.manager.is_closed, api.requests) == (True, [])
    two.cleanup()


def test_container_found_gone_by_a_tool_is_scrubbed(api, workspace):
    """A tool finds the container gone before the provider does: the history must not contain its id."""
    workspace.filesystem.ensure_container()
    first = api.newest

    def write(params: None, *, context: ToolContext) -> ToolResult[None]:
        del api.containers[first.id]
        assert context.filesystem is not None
        context.filesystem.write_text("own.txt", "1")
        return ToolResult("pong")

    evaluate(
        api, workspace, response(code_call(first.id), function_call("ping")), response(message("Done.")), handler=write
    )

    assert len(api.bodies) == 2
    assert first.id.encode() not in api.requests[-1].raw
    assert "The container was replaced" in notes(api.bodies[-1])[-1]


# ── section ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_lists_mounts_and_can_be_overridden(workspace):
    template = MarkdownSection(title="T", key="t", template="x")
    prompt = Prompt(ns="n", key="k", sections=[template, workspace])

    assert "`/mnt/data/project`: 2 files, 16 bytes" in prompt.render().text
    assert workspace.with_text("Here: ${mounts}").render(None, 0, "1").startswith("Here: `/mnt/data/project`")


class Inotify:
    """Records the names of regular files that any process opens or creates in some directories."""

    OPEN, CREATE, IS_DIRECTORY = 0x20, 0x100, 0x40000000

    def __init__(self, *directories: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for directory in directories:
            assert libc.inotify_add_watch(self._descriptor, os.fsencode(directory), self.OPEN | self.CREATE) >= 0

    def events(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, 1 << 16)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                name, data = data[16 : 16 + length].rstrip(b"\0").decode(), data[16 + length :]
                if mask & self.CREATE or not mask & self.IS_DIRECTORY:
                    found.append(("create" if mask & self.CREATE else "open", name))
        return found

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is an interface of Linux")
def test_rendering_creates_nothing_and_opens_no_file(api, project, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (project / "link").symlink_to("src/a.py")
    mounts = (HostMount(project, follow_symlinks=True), HostMount(project / "src/a.py", "single.py"))
    workspace = OpenAIContainerWorkspaceSection(
        session=Session(), mounts=mounts, allowed_host_roots=(project,), client=api.client
    )
    watch = Inotify(tmp_path / "tmp", project, project / "src")
    text = Prompt(ns="n", key="k", sections=[workspace]).render().text
    assert "`/mnt/data/project`: 3 files, 24 bytes" in text
    assert "`/mnt/data/single.py`: a file of 8 bytes" in text
    assert (watch.events(), api.requests) == ([], [])

    workspace.filesystem.ensure_container()
    assert ("open", "a.py") in watch.events()
    assert Prompt(ns="n", key="k", sections=[workspace]).render().text == text
    watch.close()
    workspace.cleanup()


def test_text_of_a_workspace_without_files():
    workspace = OpenAIContainerWorkspaceSection(session=Session())

    assert workspace.render(None, 0, "1").endswith("There are no files yet.")
    workspace.cleanup()


def test_clone_keeps_arguments(workspace, tmp_path):
    child = MarkdownSection(title="C", key="c", template="c")
    other = workspace.clone(children=[child], enabled=lambda: True, results_dir=tmp_path, sync_on_cleanup=True)
    again = other.clone(summary="Files.", visibility=SectionVisibility.SUMMARY, container_config=ContainerConfig("1g"))

    assert (again.children, again.results_dir, again.sync_on_cleanup) == ((child,), tmp_path, True)
    assert (again.summary, again.container_config.memory_limit, again.mounts) == ("Files.", "1g", workspace.mounts)
    assert again.session is workspace.session
    assert len({id(one.filesystem) for one in (workspace, other, again)}) == 3
    for one in (other, again):
        one.cleanup()


def test_cleanup_without_use_sends_no_request(api, project):
    workspace = OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project),),
        allowed_host_roots=(project,),
        client=api.client,
        sync_on_cleanup=True,
        results_dir=project / "results",
    )
    workspace.cleanup()

    assert (api.requests, workspace.session[WorkspaceSynced].all()) == ([], ())


def test_failed_sync_keeps_container_and_removes_directory(api, workspace):
    workspace.sync_on_cleanup = True
    workspace.filesystem.ensure_container()
    api.put("made.txt", b"1")
    directory: Path = workspace.temp_dir
    api.faults = [error(403, "Not for you.")]
    with pytest.raises(OSError, match="Not for you"):
        workspace.cleanup()
    workspace.cleanup()

    assert not directory.exists()
    assert list(api.contents.values())[-1] == b"1"
    with pytest.raises(WorkspaceError, match="cleaned up"):
        workspace.sync()


def test_events_go_to_the_session_of_the_evaluation(api, workspace):
    session = Session()
    api.responses = api.to_responses([response(message("Done."))])
    prompt = Prompt(ns="n", key="k", sections=[workspace])
    api.adapter(client=api.client, hosted_tools=CODE).evaluate(prompt, session=session)

    assert session[TransferProgress].all()[-1].session_id == session.session_id
    assert workspace.session[TransferProgress].all() == ()
