"""What the specifications promise of the client: tool choice, request ids, file types, workspaces, native tools.

Each promise is tested through `OpenAIAdapter`, against antwort, or against prepared responses where a request must not
be sent or where antwort has no such tool.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_responses_api import FakeResponsesApi, error, message, response, responses_api
from fake_upstream import FakeUpstream, running_upstream
from fixtures_code_interpreter import code_server
from fixtures_server import Server
from fixtures_workspace import CODE, adapter_for, call, script, write_files
from openai import OpenAI

from antwort.testing.model import AnswerCall, ModelAnswer
from weakincentives import FrozenDataclass
from weakincentives.adapters import NamedTool, ProviderAdapter
from weakincentives.adapters.openai import (
    OPENAI_FILE_TYPES,
    CodeInterpreterConfig,
    ContainerConfig,
    FileSearchConfig,
    FileTypes,
    OpenAIAdapter,
    OpenAIClientConfig,
    OpenAICodeInterpreterTool,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.errors import (
    FilesystemError,
    IncompleteAnswerError,
    NativeToolError,
    PromptEvaluationError,
    PromptValidationError,
    WorkspaceError,
)
from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.runtime import ModelResponded, PromptRendered, Session, ToolInvoked
from weakincentives.tools import HostMount

LIST = "import os; print(sorted(os.listdir('/mnt/data')))"
WRITE = "open('/mnt/data/made.txt', 'w').write('by code')"


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[Server]:
    models = {
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "upstream": {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1},
    }
    written = script({"list": [LIST], "write": [WRITE], "look": [call("weather", city="Rome")]})
    answers = [{"when": {"text": "/Repeat this/"}, "reply": [{"text": "<<text>>"}]}, *written["answers"]]
    directory = tmp_path_factory.mktemp("server")
    with code_server("local", directory, script={**written, "answers": answers}, models=models) as running:
        yield running


@pytest.fixture
def api() -> Iterator[FakeResponsesApi]:
    with responses_api(response(message("Done."))) as fake:
        yield fake


@dataclass(frozen=True)
class City:
    city: str


def weather(params: City, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(f"Sunny in {params.city}.")


WEATHER = Tool[City, str](name="weather", description="The weather in a city.", handler=weather)


def prompt_of(text: str, *sections: Section[Any], tools: Any = (), **template: Any) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=text, tools=tools)
    return Prompt(ns="n", key="k", sections=[task, *sections], **template)


def openai_client() -> OpenAI:
    """A client of OpenAI's API, with a proxy that nothing listens to: a request would fail."""
    http = httpx2.Client(proxy="http://127.0.0.1:1")
    return OpenAI(base_url="https://api.openai.com/v1", api_key="none", http_client=http)


# ── tool choice ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "of_prompt, of_adapter, sent",
    [
        ("required", "auto", "required"),
        (NamedTool("weather"), "none", {"type": "function", "function": {"name": "weather"}}),
        ("none", {"type": "function", "name": "weather"}, "none"),
        (None, "required", "required"),
    ],
)
def test_tool_choice_may_be_said_by_a_prompt(server, upstream, of_prompt, of_adapter, sent):
    upstream.reset()
    called = ModelAnswer(
        calls=(AnswerCall(name="weather", arguments='{"city": "Rome"}', call_id="c1"),), reason="calls"
    )
    upstream.set_replies(
        *([] if sent == "none" else [FakeUpstream.chat(called)]), FakeUpstream.chat(ModelAnswer(text="Ok."))
    )
    adapter = adapter_for(server, model="upstream", hosted_tools=None, tool_choice=of_adapter)
    adapter.evaluate(prompt_of("Go.", tools=[WEATHER], tool_choice=of_prompt), session=Session())

    first, *later = [request.body.get("tool_choice", "auto") for request in upstream.requests]
    assert first == sent
    assert all(choice == "auto" for choice in later)  # relaxed once it is satisfied


def test_prompt_chooses_a_provider_run_tool(api):
    tools = [OpenAICodeInterpreterTool(name="python")]
    api.adapter().evaluate(prompt_of("Go.", tools=tools, tool_choice=NamedTool("python")), session=Session())

    assert api.bodies[0]["tool_choice"] == {"type": "code_interpreter"}


def test_tool_choice_of_a_prompt_is_checked_against_its_tools(api):
    with pytest.raises(PromptEvaluationError, match=r"tool_choice names 'wether'.*Tools: weather"):
        api.adapter().evaluate(prompt_of("Go.", tools=[WEATHER], tool_choice=NamedTool("wether")), session=Session())
    with pytest.raises(PromptEvaluationError, match="'required', but no tool is offered"):
        api.adapter().evaluate(prompt_of("Go.", tool_choice="required"), session=Session())
    with pytest.raises(PromptValidationError, match=r"tool_choice must be 'auto', .* and is 'always'"):
        PromptTemplate(ns="n", key="k", tool_choice="always")  # pyright: ignore[reportArgumentType] - the point of the test

    assert api.requests == []


# ── request ids ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True])
def test_request_id_is_in_model_responded(server, stream):
    session = Session()
    adapter = adapter_for(server, model_config=OpenAIModelConfig(stream=stream))
    adapter.evaluate(prompt_of("Repeat this."), session=session)

    (event,) = session[ModelResponded].all()
    assert event.request_id is not None
    assert event.request_id.startswith("req_")


def test_request_id_is_in_errors(server, api):
    with pytest.raises(PromptEvaluationError, match="no-such-model") as refused:
        adapter_for(server, model="no-such-model", hosted_tools=None).evaluate(prompt_of("Hi."), session=Session())
    api.responses = api.to_responses(
        [
            response(message("Half"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            response(status="failed", error={"code": "invalid_prompt", "message": "no"}),
            error(400, "no such tool", param="tools[0]"),
        ]
    )
    kinds = (IncompleteAnswerError, PromptEvaluationError, NativeToolError)
    raised = [refused.value]
    for kind in kinds:
        with pytest.raises(kind) as caught:
            api.adapter(hosted_tools=CODE).evaluate(prompt_of("Hi."), session=Session())
        raised.append(caught.value)

    assert [one.request_id for one in raised[1:]] == ["req_1"] * 3
    assert raised[0].request_id is not None


# ── file types ───────────────────────────────────────────────────────────────────────────────────────────────────────


def mounting(root: Path, **options: Any) -> Prompt[Any]:
    container = {"type": "auto", "host_mounts": [HostMount(root)]}
    tool = OpenAICodeInterpreterTool(container=container, allowed_host_roots=[root.parent], **options)
    return prompt_of("Run scenario list.", tools=[tool])


def test_unsupported_file_types_are_refused_before_an_upload(tmp_path, caplog):
    write_files(tmp_path / "data", {"a.csv": "1", "model.ONNX": "2", "LICENSE": "3", "n.ipynb": "{}"})
    with openai_client() as client, pytest.raises(NativeToolError) as caught:
        OpenAIAdapter(model="m", client=client).evaluate(mounting(tmp_path / "data"), session=Session())

    text = str(caught.value)
    assert "'/data/LICENSE' (no suffix), '/data/model.ONNX' (.onnx)" in text
    assert f"Supported are {', '.join(sorted(OPENAI_FILE_TYPES))}" in text
    assert "give file_types=FileTypes(allowed=…), or file_types=None" in text
    assert "a.csv" not in text
    assert "n.ipynb" not in text  # not documented by OpenAI, but in use: logged
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "uploading files of types that may be unsupported: '/data/n.ipynb' (.ipynb)"
    ]


def test_list_of_file_types_is_configurable_on_every_server(server, tmp_path):
    write_files(tmp_path / "data", {"a.csv": "1", "model.onnx": "2"})
    adapter = adapter_for(server, hosted_tools=None)
    with pytest.raises(NativeToolError, match=r"'/data/model.onnx' \(.onnx\). Supported are .csv, .py\."):
        adapter.evaluate(mounting(tmp_path / "data", file_types=FileTypes(allowed=[".CSV", ".py"])), session=Session())
    with server.client() as client:
        assert list(client.files.list()) == []

    for types in (FileTypes(), FileTypes(allowed=[".csv", ".onnx"]), FileTypes(allowed=(), unsupported="warn"), None):
        answer = adapter.evaluate(mounting(tmp_path / "data", file_types=types), session=Session())
        assert answer.text == "['a.csv', 'model.onnx']\n"


def test_file_types_of_workspaces(server, tmp_path):
    write_files(tmp_path / "data", {"a.csv": "1", "Makefile": "2"})
    allowed = FileTypes(allowed=[".csv"])

    def workspace(types: FileTypes | None, **options: Any) -> OpenAIContainerWorkspaceSection:
        config = ContainerConfig(file_types=types)
        mounts = (HostMount(tmp_path / "data", mount_path=".", **options),)
        roots = (tmp_path,)
        return OpenAIContainerWorkspaceSection(
            session=Session(), mounts=mounts, allowed_host_roots=roots, container_config=config
        )

    with (
        workspace(allowed) as refused,
        pytest.raises(WorkspaceError, match=r"'Makefile' \(no suffix\).*ContainerConfig"),
    ):
        adapter_for(server).evaluate(prompt_of("Run scenario list.", refused), session=refused.session)
    assert refused.container_id is None
    with workspace(allowed, exclude_glob="Makefile") as section:
        adapter_for(server).evaluate(prompt_of("Run scenario list.", section), session=section.session)
        with pytest.raises(FilesystemError, match=r"'notes.txt' \(.txt\)"):
            section.filesystem.write_text("notes.txt", "1")
        section.filesystem.write_text("b.CSV", "1")
        assert section.filesystem.list_dir() == ["a.csv", "b.CSV"]
    for types in (ContainerConfig().file_types, None):
        with workspace(types) as section:
            answer = adapter_for(server).evaluate(prompt_of("Run scenario list.", section), session=section.session)
            assert answer.text == "['Makefile', 'a.csv']\n"


def test_workspace_at_openai_warns_of_unsupported_types(tmp_path, caplog):
    write_files(tmp_path / "data", {"a.csv": "1", "Makefile": "2"})
    with openai_client() as client:
        section = OpenAIContainerWorkspaceSection(
            session=Session(), mounts=(HostMount(tmp_path / "data"),), allowed_host_roots=(tmp_path,), client=client
        )
        refusal = section.filesystem.manager.file_type_refusal(lambda: ("data/a.csv", "data/Makefile"), None)
        section.cleanup()

    assert refusal is None
    assert "types that may be unsupported: 'data/Makefile' (no suffix)" in caplog.text


# ── workspaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hosted", [None, OpenAIHostedToolsConfig(web_search=True)])
def test_workspace_without_code_interpreter_is_refused_before_a_request(api, tmp_path, hosted):
    write_files(tmp_path / "data", {"a.csv": "1"})
    session = Session()
    workspace = OpenAIContainerWorkspaceSection(
        session=session, mounts=(HostMount(tmp_path / "data"),), allowed_host_roots=(tmp_path,)
    )
    adapter = api.adapter(hosted_tools=hosted)
    with workspace, pytest.raises(NativeToolError, match=r"section 'workspace' .*enable code_interpreter"):
        adapter.evaluate(prompt_of("Go.", workspace, tools=[WEATHER]), session=session)

    assert (api.requests, session[PromptRendered].all()) == ([], ())


def test_workspace_beside_a_summarized_section_without_code_is_refused_before_a_request(api):
    hidden = MarkdownSection(
        title="Web",
        key="web",
        template="Search.",
        tools=[NativeTool[Query, Found](name="web_search", description="Search the web.")],
        summary="The web can be searched.",
        visibility=SectionVisibility.SUMMARY,
    )
    with (
        OpenAIContainerWorkspaceSection(session=Session()) as workspace,
        pytest.raises(NativeToolError, match=r"section 'workspace' .*enable code_interpreter"),
    ):
        api.adapter().evaluate(prompt_of("Go.", hidden, workspace), session=workspace.session)

    assert api.requests == []


def test_workspace_with_code_interpreter_in_a_summarized_section_is_accepted(server):
    """The model may open that section later."""
    hidden = MarkdownSection(
        title="Code",
        key="code",
        template="Run code.",
        tools=[OpenAICodeInterpreterTool()],
        summary="Code can be run.",
        visibility=SectionVisibility.SUMMARY,
    )
    with OpenAIContainerWorkspaceSection(session=Session()) as workspace:
        answer = adapter_for(server, hosted_tools=None).evaluate(
            prompt_of("Repeat this.", hidden, workspace), session=workspace.session
        )

    assert "Code can be run." in answer.text


def test_sync_on_cleanup_without_results_dir_warns_where_the_files_go(server, tmp_path):
    with pytest.warns(UserWarning, match=r"to temp_dir, and then removes temp_dir\. .* give results_dir") as caught:
        workspace = OpenAIContainerWorkspaceSection(session=Session(), sync_on_cleanup=True)
    assert caught[0].filename == __file__
    adapter_for(server).evaluate(prompt_of("Run scenario write.", workspace), session=workspace.session)
    directory = workspace.temp_dir
    workspace.cleanup()
    assert not directory.exists()

    with OpenAIContainerWorkspaceSection(session=Session(), sync_on_cleanup=True, results_dir=tmp_path) as workspace:
        adapter_for(server).evaluate(prompt_of("Run scenario write.", workspace), session=workspace.session)
    assert (tmp_path / "made.txt").read_text(encoding="utf-8") == "by code"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_deletion_of_the_container_on_cleanup_is_an_option(server, is_deleted):
    config = ContainerConfig() if is_deleted else ContainerConfig(delete_on_cleanup=False)
    with OpenAIContainerWorkspaceSection(session=Session(), container_config=config) as workspace:
        adapter_for(server).evaluate(prompt_of("Run scenario write.", workspace), session=workspace.session)
        container_id = workspace.container_id or ""

    with server.client() as client:
        left = container_id in [one.id for one in client.containers.list()]
        assert left is not is_deleted
        assert workspace.container_id == (None if is_deleted else container_id)
        if left:
            given = ContainerConfig(container_id=workspace.container_id)
            with OpenAIContainerWorkspaceSection(session=Session(), container_config=given) as again:
                answer = adapter_for(server).evaluate(prompt_of("Run scenario list.", again), session=again.session)
            assert answer.text == "['made.txt']\n"
            client.containers.delete(container_id)


def test_provider_adapter_is_subscriptable(server):
    class RecordingAdapter(OpenAIAdapter, ProviderAdapter[Any]):
        pass

    assert issubclass(RecordingAdapter, ProviderAdapter)
    client_config = OpenAIClientConfig(base_url=f"{server.url}/v1", api_key="none")
    with RecordingAdapter(model="scripted", client_config=client_config) as adapter:
        answer = adapter.evaluate(prompt_of("Repeat this."), session=Session())
    assert "Repeat this." in answer.text


@FrozenDataclass()
class Report:
    total: int
    names: tuple[str, ...] = ()


def test_frozen_dataclass_is_importable_and_an_output_type(api):
    api.responses = api.to_responses([response(message(json.dumps({"total": 3, "names": ["a"]})))])
    task = MarkdownSection(title="Task", key="task", template="Count.")
    prompt = Prompt(PromptTemplate[Report](ns="n", key="k", sections=[task]))

    output = api.adapter().evaluate(prompt, session=Session()).output
    assert output == Report(3, ("a",))
    with pytest.raises(AttributeError):
        output.total = 4


# ── native tools ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Query:
    queries: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    payload: dict[str, object]


FILES = NativeTool[Query, Found](name="file_search", description="Search the handbook.")
SEARCHED = {"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["tea"], "results": []}


def test_native_file_search_carries_its_stores(api):
    api.responses = api.to_responses([response(SEARCHED, message("Tea."))])
    tool = FILES.with_config(FileSearchConfig(("vs_1", "vs_2"), max_results=5, filters={"type": "eq"}))
    session = Session()
    api.adapter().evaluate(prompt_of("Search.", tools=[tool]), session=session)

    assert api.bodies[0]["tools"] == [
        {
            "type": "file_search",
            "vector_store_ids": ["vs_1", "vs_2"],
            "max_num_results": 5,
            "filters": {"type": "eq"},
        }
    ]
    (event,) = session[ToolInvoked].all()
    assert (event.params, event.result.value) == (Query(("tea",)), Found(SEARCHED))


def test_native_file_search_without_stores_is_refused_before_a_request(api):
    with pytest.raises(NativeToolError, match=r"give it vector stores, such as tool.with_config\(FileSearchConfig"):
        api.adapter().evaluate(prompt_of("Search.", tools=[FILES]), session=Session())
    wrong = FILES.with_config(FileSearchConfig("vs_1"))  # pyright: ignore[reportArgumentType] - the point of the test
    with pytest.raises(NativeToolError, match="vector_store_ids must be a tuple of str, not str"):
        api.adapter().evaluate(prompt_of("Search.", tools=[wrong]), session=Session())

    assert api.requests == []


@dataclass(frozen=True)
class Code:
    code: str


@dataclass(frozen=True)
class Logs:
    logs: str


PYTHON = NativeTool[Code, Logs](
    name="code_interpreter",
    description="Use pandas for tables.",
    examples=(ToolExample("Add two numbers.", Code("1 + 2"), Logs("3")),),
)


def test_description_and_examples_of_a_native_tool_reach_the_model(server):
    tools = [PYTHON, WEATHER]
    answers = {
        adapter_for(server, hosted_tools=None).evaluate(prompt_of("Repeat this.", tools=tools), session=Session()).text
        for _ in range(2)
    }

    (text,) = answers  # the same each time
    assert text == (
        "## 1. Task (task)\n\nRepeat this.\n\nTool `code_interpreter`: Use pandas for tables.\n\n"
        'Example: Add two numbers.\n{"code":"1 + 2"} → {"logs":"3"}'
    )


@pytest.mark.parametrize("tools", [[], [WEATHER], [OpenAICodeInterpreterTool(name="python")]])
def test_nothing_is_added_to_the_prompt_without_a_description_to_tell(server, tools):
    adapter = adapter_for(server, hosted_tools=None)
    answer = adapter.evaluate(prompt_of("Repeat this.", tools=tools), session=Session())

    assert answer.text == "## 1. Task (task)\n\nRepeat this."


def test_native_tools_can_be_read_like_mappings(server):
    seen: list[dict[str, object]] = []

    def look(params: City, *, context: ToolContext) -> ToolResult[str]:
        seen.extend(dict(declared) for declared in context.rendered_prompt.native_tools)
        first = context.rendered_prompt.native_tools[0]
        assert (first["type"], first.get("nothing"), "name" in first) == ("code_interpreter", None, True)
        with pytest.raises(KeyError):
            first["nothing"]
        with pytest.raises(TypeError):
            first["type"] = "shell"  # pyright: ignore[reportIndexIssue] - the point of the test
        return ToolResult.ok("seen")

    tool = Tool[City, str](name="weather", description="Look.", handler=look)
    stores = FILES.with_config(FileSearchConfig(("vs_1",)))
    prompt = prompt_of("Run scenario look.", tools=[PYTHON, tool])
    adapter_for(server, hosted_tools=None).evaluate(prompt, session=Session())

    assert seen == [{"type": "code_interpreter", "name": "code_interpreter"}]
    (declared,) = prompt_of("Go.", tools=[stores]).render().native_tools
    assert declared["vector_store_ids"] == ("vs_1",)
    assert declared.capability == "file_search"


def test_settings_that_contradict_or_have_a_wrong_type_are_refused():
    wrong: Any = [".csv"]
    with pytest.raises(TypeError, match="file_types must be FileTypes"):
        ContainerConfig(file_types=wrong)
    with pytest.raises(PromptValidationError, match="not both"):
        OpenAICodeInterpreterTool(config=CodeInterpreterConfig(), file_types=None)


def test_clone_of_a_workspace_does_not_warn_again():
    with pytest.warns(UserWarning, match="results_dir"):
        workspace = OpenAIContainerWorkspaceSection(session=Session(), sync_on_cleanup=True)
    with workspace, workspace.clone():
        pass
