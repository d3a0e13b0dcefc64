"""The section's part in an evaluation, on a plain server as OpenAI's is: what the model is told, and what is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_containers_api import EXPIRED, PlainContainers, plain_containers
from fake_responses_api import error, function_call, message, response

from weakincentives.adapters.openai import (
    ContainerConfig,
    ContainerGuide,
    ContainerSource,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    ShellConfig,
)
from weakincentives.errors import PromptEvaluationError, WorkspaceError
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


def ran(container: str) -> dict[str, Any]:
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
    with plain_containers(naming=request.param) as running:
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


def evaluate(api: PlainContainers, workspace: OpenAIContainerWorkspaceSection, *answers: Any, **options: Any) -> Any:
    api.answers = api.answers_of(answers)
    ping_tool = Tool[None, None](name="ping", description="Answer.", handler=options.pop("handler", ping))
    task = MarkdownSection(title="Task", key="task", template="Do it.", tools=[ping_tool])
    prompt = Prompt(ns="n", key="k", sections=[task, workspace])
    adapter = api.adapter(client=api.client, hosted_tools=options.pop("hosted", CODE))
    return adapter.evaluate(prompt, session=workspace.session, **options)


def notes(body: dict[str, Any]) -> list[str]:
    return [item["content"] for item in body["input"] if item.get("role") == "developer"]


# ── taking part ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_what_the_seam_asks_for(workspace):
    assert isinstance(workspace, ContainerSource)
    assert isinstance(workspace, ContainerGuide)


def test_the_container_is_made_filled_and_named_in_the_declaration(api, workspace):
    hosted = OpenAIHostedToolsConfig(code_interpreter=True, others=(ShellConfig(container={"type": "auto"}),))
    evaluate(api, workspace, response(message("Done.")), hosted=hosted)

    tools = {tool["type"]: tool for tool in api.bodies[0]["tools"]}
    assert tools["code_interpreter"]["container"] == api.box.id
    assert tools["shell"]["environment"] == {"type": "container_reference", "container_id": api.box.id}
    assert sorted(api.told.values()) == [b"src/a.py", b"src/b.py"]


def test_without_a_tool_that_would_use_it_no_container_is_made(api, workspace):
    evaluate(api, workspace, response(message("Done.")), hosted=OpenAIHostedToolsConfig())

    assert api.boxes == {}


def test_what_code_did_is_listed_after_the_turn_and_only_then(api, workspace):
    workspace.filesystem.ensure_container()
    api.asked.clear()
    listings = r".*/files\?.*"
    evaluate(api, workspace, response(function_call("ping")), response(message("Done.")))
    assert api.asked_for("GET", listings) == 0

    def look(params: None, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        return ToolResult(", ".join(context.filesystem.glob("**")))

    api.put("made.txt", b"1")
    evaluate(api, workspace, response(ran(api.box.id), function_call("ping")), response(message("Done.")), handler=look)
    assert api.asked_for("GET", listings) == 1
    output = next(item for item in api.bodies[-1]["input"] if item["type"] == "function_call_output")
    assert output["output"] == "made.txt, project/src/a.py, project/src/b.py"


def test_an_answer_is_not_lost_because_the_container_cannot_be_looked_at(api, workspace, caplog):
    workspace.filesystem.ensure_container()
    api.faults = [error(403, "Not for you.")]
    answer = evaluate(api, workspace, response(ran(api.box.id), message("Done.")))

    assert answer.text == "Done."
    assert "could not be looked at" in caplog.text
    api.put("made.txt", b"1")
    assert workspace.filesystem.exists("made.txt")  # it is looked at when it is needed


def test_a_server_that_makes_no_container_ends_the_evaluation(api, workspace):
    api.most = 0
    with pytest.raises(PromptEvaluationError, match="No more containers") as caught:
        evaluate(api, workspace, response(message("Done.")))

    assert caught.value.phase == "request"
    assert api.bodies == []


# ── what the model is told ───────────────────────────────────────────────────────────────────────────────────────────


def test_where_files_really_are_is_said(api, workspace):
    evaluate(api, workspace, response(message("Done.")))

    (note,) = notes(api.bodies[0])
    places = {content.decode(): place for place, content in api.told.items()}
    assert note == (
        "Some files of the workspace do not lie where their paths say:\n"
        f"- `project/src/a.py` is `/mnt/data/{places['src/a.py']}`\n"
        f"- `project/src/b.py` is `/mnt/data/{places['src/b.py']}`"
    )


@pytest.mark.parametrize("api", ["kept"], indirect=True)
def test_where_they_are_as_they_should_nothing_is_said(api, workspace):
    evaluate(api, workspace, response(message("Done.")))

    assert notes(api.bodies[0]) == []


def test_of_many_files_a_map_is_put_into_the_container(api, tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(60):
        (tmp_path / f"many/{number}.txt").write_text(str(number))
    with OpenAIContainerWorkspaceSection(
        session=Session(), mounts=(HostMount(tmp_path / "many"),), allowed_host_roots=(tmp_path,), client=api.client
    ) as workspace:
        evaluate(api, workspace, response(message("Done.")))
        (note,) = notes(api.bodies[0])
        place = next(place for place in api.told if place.endswith("workspace-places.json"))
        assert f"`/mnt/data/{place}` is a JSON object" in note
        told = json.loads(api.told[place])
        assert len(told) == 60
        assert api.told[told["many/7.txt"].removeprefix("/mnt/data/")] == b"7"


def test_a_container_that_went_is_retold_and_what_was_lost_is_said(api, workspace):
    workspace.filesystem.ensure_container()
    first = api.box
    api.put("made.txt", b"1")

    def expire(params: None, *, context: ToolContext) -> ToolResult[None]:
        first.status = "expired"
        return ToolResult("pong")

    answers = [response(ran(first.id), function_call("ping")), error(400, EXPIRED), response(message("Done."))]
    evaluate(api, workspace, *answers, handler=expire)

    assert first.id.encode() not in api.asked[-1].raw
    assert api.bodies[-1]["tools"][-1]["container"] == api.box.id != first.id
    assert "The container was replaced by a new one." in notes(api.bodies[-1])[-1]
    assert "`made.txt`" in notes(api.bodies[-1])[-1]
    (told,) = workspace.session[ContainerRecreated].all()
    assert (told.old_id, told.new_id, told.lost) == (first.id, api.box.id, ("made.txt",))


def test_one_that_is_found_gone_before_a_request_is_retold_as_well(api, workspace):
    """By us, and not by the answer: then the history must not name it either."""
    workspace.filesystem.ensure_container()
    first = api.box

    def write(params: None, *, context: ToolContext) -> ToolResult[None]:
        del api.boxes[first.id]
        assert context.filesystem is not None
        context.filesystem.write_text("ours.txt", "1")
        return ToolResult("pong")

    evaluate(api, workspace, response(ran(first.id), function_call("ping")), response(message("Done.")), handler=write)

    assert len(api.bodies) == 2
    assert first.id.encode() not in api.asked[-1].raw
    assert "The container was replaced" in notes(api.bodies[-1])[-1]


# ── the section itself ───────────────────────────────────────────────────────────────────────────────────────────────


def test_its_text_can_be_overridden_and_names_the_mounts(workspace):
    template = MarkdownSection(title="T", key="t", template="x")
    prompt = Prompt(ns="n", key="k", sections=[template, workspace])

    assert "`/mnt/data/project`: 2 files, 16 bytes" in prompt.render().text
    assert workspace.with_text("Here: ${mounts}").render(None, 0, "1").startswith("Here: `/mnt/data/project`")


def test_a_workspace_without_files_says_so():
    workspace = OpenAIContainerWorkspaceSection(session=Session())

    assert workspace.render(None, 0, "1").endswith("There are no files yet.")
    workspace.cleanup()


def test_a_clone_keeps_what_a_section_has(workspace, tmp_path):
    child = MarkdownSection(title="C", key="c", template="c")
    other = workspace.clone(children=[child], enabled=lambda: True, results_dir=tmp_path, sync_on_cleanup=True)
    again = other.clone(summary="Files.", visibility=SectionVisibility.SUMMARY, container_config=ContainerConfig("1g"))

    assert (again.children, again.results_dir, again.sync_on_cleanup) == ((child,), tmp_path, True)
    assert (again.summary, again.container_config.memory_limit, again.mounts) == ("Files.", "1g", workspace.mounts)
    assert again.session is workspace.session
    assert len({id(one.filesystem) for one in (workspace, other, again)}) == 3
    for one in (other, again):
        one.cleanup()


def test_cleanup_without_any_use_asks_nobody(api, project):
    workspace = OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project),),
        allowed_host_roots=(project,),
        client=api.client,
        sync_on_cleanup=True,
    )
    workspace.cleanup()

    assert (api.asked, workspace.session[WorkspaceSynced].all()) == ([], ())


def test_a_sync_that_fails_keeps_the_container_and_still_removes_the_directory(api, workspace):
    workspace.sync_on_cleanup = True
    workspace.filesystem.ensure_container()
    api.put("made.txt", b"1")
    directory: Path = workspace.temp_dir
    api.faults = [error(403, "Not for you.")]
    with pytest.raises(OSError, match="Not for you"):
        workspace.cleanup()
    workspace.cleanup()

    assert not directory.exists()
    assert list(api.told.values())[-1] == b"1"
    with pytest.raises(WorkspaceError, match="cleaned up"):
        workspace.sync()


def test_events_go_to_the_session_of_the_evaluation(api, workspace):
    visitor = Session()
    api.answers = api.answers_of([response(message("Done."))])
    prompt = Prompt(ns="n", key="k", sections=[workspace])
    api.adapter(client=api.client, hosted_tools=CODE).evaluate(prompt, session=visitor)

    assert visitor[TransferProgress].all()[-1].session_id == visitor.session_id
    assert workspace.session[TransferProgress].all() == ()
