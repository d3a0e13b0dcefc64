from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fake_responses_api import (
    FakeResponse,
    FakeResponsesApi,
    error,
    function_call,
    load,
    message,
    response,
    responses_api,
)
from openai import AsyncOpenAI, OpenAI

from weakincentives.adapters import NamedTool
from weakincentives.adapters.openai import (
    AutoContainerConfig,
    CodeInterpreterConfig,
    CompactionConfig,
    ContainerFileCitation,
    ExistingContainerRef,
    FileSearchConfig,
    OpenAIAdapter,
    OpenAIClientConfig,
    OpenAICodeInterpreterSection,
    OpenAICodeInterpreterTool,
    OpenAIFileSearchSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
    OpenAIWebSearchSection,
)
from weakincentives.budget import Budget
from weakincentives.deadlines import Deadline
from weakincentives.errors import (
    BudgetExceededError,
    ContentFilteredError,
    DeadlineExceededError,
    IncompleteAnswerError,
    NativeToolError,
    PromptEvaluationError,
    RefusalError,
)
from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    Prompt,
    ProviderTool,
    Section,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import ModelResponded, PromptExecuted, Session, ToolInvoked


@dataclass(frozen=True)
class Topic:
    topic: str


@dataclass(frozen=True)
class Note:
    text: str


def look_up(params: Topic, *, context: ToolContext) -> ToolResult[str]:
    if params.topic == "coffee":
        context.session[Note].append(Note("half done"))
        return ToolResult.error("We have no coffee.")
    context.session[Note].append(Note(params.topic))
    return ToolResult.ok(f"{params.topic} is a drink")


LOOK_UP = Tool[Topic, str](name="look_up", description="Look it up.", handler=look_up)
TASK = MarkdownSection(title="Task", key="task", template="Judge tea.", tools=[LOOK_UP])
DONE = response(message("Done."))


def prompt(*sections: Section[Any]) -> Prompt[Any]:
    return Prompt(ns="n", key="judge", sections=[TASK, *sections])


def test_constructor_accepts_client_or_client_config():
    with OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none") as client:
        given = OpenAIAdapter(model="m", client=client)
        assert (given.client.base_url, given.client.max_retries) == (client.base_url, 0)
        with pytest.raises(ValueError, match="client or client_config, not both"):
            OpenAIAdapter(model="m", client=client, client_config=OpenAIClientConfig())
    created = OpenAIAdapter(model="m", client_config=OpenAIClientConfig(base_url="http://127.0.0.1:2/v1", api_key="k"))
    assert str(created.client.base_url) == "http://127.0.0.1:2/v1/"
    assert created.client is created.client
    with pytest.raises(ValueError, match="model is empty"):
        OpenAIAdapter(model="")
    with pytest.raises(ValueError, match="client is asynchronous"):
        OpenAIAdapter(model="m", client=AsyncOpenAI(api_key="none"))  # pyright: ignore[reportArgumentType] - the point


def test_with_block_closes_created_client():
    with responses_api(response(message("Hi."))) as api:
        config = OpenAIClientConfig(base_url=api.url, api_key="none")
        with OpenAIAdapter(model="m", client_config=config) as adapter:
            adapter.evaluate(prompt(), session=Session())
            client = adapter.client

    assert client.is_closed()


def test_missing_api_key_is_reported_before_any_request(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PromptEvaluationError, match=r"no client could be created: .*OPENAI_API_KEY") as caught:
        OpenAIAdapter(model="m").evaluate(prompt(), session=Session())

    assert caught.value.phase == "request"


def test_hosted_tool_unknown_to_the_model_fails_at_construction():
    allowed = OpenAIModelConfig(native_tools={"small": {"file_search"}})
    tools = OpenAIHostedToolsConfig(code_interpreter=True)
    with pytest.raises(NativeToolError, match=r"hosted_tools.code_interpreter.*It has: file_search") as caught:
        OpenAIAdapter(model="small", model_config=allowed, hosted_tools=tools)

    assert isinstance(caught.value, ValueError)
    assert (caught.value.phase, caught.value.prompt_name) == ("request", "")
    assert OpenAIAdapter(model="unknown", model_config=allowed, hosted_tools=tools).native_tools


def test_section_tool_unknown_to_the_model_is_refused():
    allowed = OpenAIModelConfig(native_tools={"a-model": {"file_search"}})
    with responses_api() as api, pytest.raises(NativeToolError, match="this model does not have 'web_search'"):
        api.adapter(model_config=allowed).evaluate(prompt(OpenAIWebSearchSection()), session=Session())
    assert api.requests == []


# ── refused before any request ───────────────────────────────────────────────────────────────────────────────────────

GOOGLE = ProviderTool[None, dict, None](name="search", description="Search.", provider="google", config=None)


def with_tool(tool: Tool[Any, Any]) -> Section[Any]:
    return MarkdownSection(title="More", key="more", template="Also.", tools=[tool])


@pytest.mark.parametrize(
    "sections, options, expected",
    [
        (
            [with_tool(OpenAICodeInterpreterTool(container={"type": "auto", "memory_limit": "8g"}))],
            {},
            "1g, 4g, 16g, 64g",
        ),
        ([with_tool(OpenAICodeInterpreterTool(container=ExistingContainerRef("")))], {}, "container.id must be the id"),
        ([with_tool(OpenAICodeInterpreterTool(container={}))], {}, "needs type 'auto' or the id"),
        ([with_tool(NativeTool[None, dict](name="telepathy", description="Think."))], {}, "no tool that OpenAI runs"),
        ([with_tool(NativeTool[None, dict](name="apply_patch", description="Patch."))], {}, "there are no files"),
        ([with_tool(GOOGLE)], {}, "is for provider 'google', but this adapter is 'openai'"),
        ([], {"hosted_tools": OpenAIHostedToolsConfig(file_search=FileSearchConfig(("vs_1",), 99))}, "1 to 50, not 99"),
        (
            [],
            {"hosted_tools": OpenAIHostedToolsConfig(CodeInterpreterConfig(AutoContainerConfig(memory_limit="2g")))},
            "hosted_tools.code_interpreter.: container.memory_limit must be one of",
        ),
        ([], {"tool_choice": NamedTool("shell")}, "names 'shell', which is not offered. Tools: look_up"),
        ([], {"tool_choice": {"type": "built_in", "name": "telepathy"}}, "names built_in 'telepathy'"),
        ([OpenAIFileSearchSection()], {"tool_choice": {"type": "file_search"}}, "'file_search', which is not offered"),
        ([], {"tool_choice": "sometimes"}, "must be 'auto', 'none', 'required'"),
        (
            [OpenAIWebSearchSection()],
            {"hosted_tools": OpenAIHostedToolsConfig(web_search=True)},
            "'web_search' is declared by section 'openai_web_search' and by hosted_tools.web_search",
        ),
        (
            [with_tool(Tool[Topic, str](name="web_search", description="Mine.", handler=look_up))],
            {"hosted_tools": OpenAIHostedToolsConfig(web_search=True)},
            "'web_search' is declared by section 'more' and by hosted_tools.web_search",
        ),
        (
            [with_tool(OpenAICodeInterpreterTool(name="python"))],
            {"hosted_tools": OpenAIHostedToolsConfig(code_interpreter=True)},
            "'code_interpreter' is declared by section 'more' and by hosted_tools.code_interpreter",
        ),
    ],
)
def test_invalid_input_is_refused_before_any_request(sections, options, expected):
    session = Session()
    with responses_api(DONE) as api, pytest.raises(PromptEvaluationError, match=expected) as caught:
        api.adapter(**options).evaluate(prompt(*sections), session=session)

    assert (caught.value.phase, caught.value.prompt_name) == ("request", "judge")
    assert (api.requests, list(session.transcript())) == ([], [])


def test_required_tool_choice_without_tools_is_refused():
    silent = MarkdownSection(title="Task", key="task", template="Say it.")
    text = Prompt(ns="n", key="text", sections=[silent, OpenAIFileSearchSection()])  # without a vector store
    with responses_api(DONE) as api, pytest.raises(PromptEvaluationError, match="'required', but no tool is offered"):
        api.adapter(tool_choice="required").evaluate(text, session=Session())

    assert api.requests == []
    with responses_api(DONE) as api:
        tools = OpenAIHostedToolsConfig(web_search=True)
        api.adapter(tool_choice="required", hosted_tools=tools).evaluate(text, session=Session())
    assert api.bodies[0]["tool_choice"] == "required"


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tool_events_are_in_order_and_before_the_next_turn():
    session = Session()
    with responses_api(*load("code_interpreter")) as api:
        answer = api.adapter().evaluate(prompt(OpenAICodeInterpreterSection()), session=session)

    entries = [(entry.kind, entry.call_id, entry.origin) for entry in session.transcript()]
    assert entries == [
        ("prompt", None, None),
        ("tool", "ci_1", "provider"),
        ("model", None, None),
        ("tool", "call_1", "client"),
        ("tool", "ci_2", "provider"),
        ("model", None, None),
        ("answer", None, None),
    ]
    assert answer.citations == (ContainerFileCitation("cntr_1", "cfile_1", "answer.txt", 13, 17),)
    assert (answer.turns, answer.usage.total_tokens) == (2, 240)


def test_citations_of_earlier_turns_are_kept():
    cited = {"type": "url_citation", "url": "https://a/", "title": "A", "start_index": 0, "end_index": 1}
    with responses_api(response(message("See.", cited), function_call("look_up", topic="tea")), DONE) as api:
        answer = api.adapter().evaluate(prompt(), session=Session())

    assert [one.url for one in answer.citations] == ["https://a/"]


def test_failed_tool_is_rolled_back_and_reported_to_the_model():
    session = Session()
    with responses_api(load("function_tool")[0], DONE) as api:
        api.adapter().evaluate(prompt(), session=session)

    assert session[Note].all() == (Note("tea"),)
    outputs = [item for item in api.bodies[1]["input"] if item["type"] == "function_call_output"]
    assert [item["output"] for item in outputs] == ["tea is a drink", "We have no coffee."]
    assert [event.success for event in session[ToolInvoked].all()] == [True, False]


@pytest.mark.parametrize(
    "choice, first",
    [
        ("required", "required"),
        (NamedTool("look_up"), {"type": "function", "name": "look_up"}),
        ({"type": "function", "name": "look_up"}, {"type": "function", "name": "look_up"}),
    ],
)
def test_tool_choice_relaxes_to_auto_after_the_call(choice, first):
    with responses_api(response(function_call("look_up", topic="tea")), DONE) as api:
        api.adapter(tool_choice=choice).evaluate(prompt(), session=Session())

    assert [body["tool_choice"] for body in api.bodies] == [first, "auto"]


def test_native_tool_choice_is_satisfied_by_a_native_call():
    first = load("code_interpreter")[0]
    with responses_api(first, DONE) as api:
        api.adapter(tool_choice={"type": "built_in", "name": "code_interpreter"}).evaluate(
            prompt(OpenAICodeInterpreterSection()), session=Session()
        )

    assert [body["tool_choice"] for body in api.bodies] == [{"type": "code_interpreter"}, "auto"]


def test_unsatisfied_tool_choice_is_repeated():
    with responses_api(response(function_call("look_up", topic="tea")), DONE) as api:
        api.adapter(tool_choice=NamedTool("web_search")).evaluate(prompt(OpenAIWebSearchSection()), session=Session())

    assert [body["tool_choice"] for body in api.bodies] == [{"type": "web_search"}] * 2


@pytest.mark.parametrize(
    "name, kind",
    [("refusal", RefusalError), ("content_filter", ContentFilteredError), ("cut_off", IncompleteAnswerError)],
)
def test_refusal_and_truncation_raise_after_tool_events(name, kind):
    session = Session()
    with responses_api(*load(name)) as api, pytest.raises(kind) as caught:
        api.adapter().evaluate(prompt(), session=session)

    assert (caught.value.phase, caught.value.prompt_name) == ("response", "judge")
    assert len(session[ToolInvoked].all()) == (1 if name == "content_filter" else 0)
    assert len(session[ModelResponded].all()) == 1
    assert session[PromptExecuted].all() == ()


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deadline_sets_the_request_timeout():
    with responses_api(FakeResponse(DONE, delay=10)) as api, pytest.raises(DeadlineExceededError) as caught:
        api.adapter().evaluate(prompt(), session=Session(), deadline=Deadline.after(0.3))

    assert caught.value.phase == "budget"
    assert float(api.requests[0].headers["x-stainless-read-timeout"]) <= 0.3


def test_budget_covers_all_requests():
    again = response(function_call("look_up", topic="tea"))
    with responses_api(again, again, DONE) as api, pytest.raises(BudgetExceededError, match="used 240"):
        api.adapter().evaluate(prompt(), session=Session(), budget=Budget(max_total_tokens=200))

    assert len(api.bodies) == 2


def test_budget_counts_a_truncated_answer():
    budget = Budget(max_total_tokens=1000)
    from weakincentives.budget import BudgetTracker  # noqa: PLC0415 - beside its use

    tracker = BudgetTracker(budget)
    with responses_api(*load("cut_off")) as api, pytest.raises(IncompleteAnswerError):
        api.adapter().evaluate(prompt(), session=Session(), budget_tracker=tracker)

    assert tracker.usage.total_tokens == 120


def test_sdk_retries_are_off():
    refused = error(500, "broken", x_should_retry="false")
    with responses_api(refused, DONE) as api, pytest.raises(PromptEvaluationError, match="500: broken"):
        api.adapter().evaluate(prompt(), session=Session())

    assert len(api.requests) == 1


def test_adapter_is_reusable_and_thread_safe():
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - beside its use

    def one(api: FakeResponsesApi) -> str:
        return adapter.evaluate(prompt(), session=Session()).text

    with responses_api(*[DONE] * 8) as api, ThreadPoolExecutor(4) as pool:
        adapter = api.adapter()
        assert list(pool.map(one, [api] * 8)) == ["Done."] * 8


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["context_management", "previous_response_id", "conversation"])
def test_extra_parameters_that_contradict_compaction_are_refused(name):
    config = OpenAIModelConfig(extra={name: "x"})
    with pytest.raises(ValueError, match=f"extra cannot hold '{name}' together with compaction"):
        OpenAIAdapter(model="m", model_config=config, compaction=CompactionConfig())
    assert OpenAIAdapter(model="m", model_config=config).compaction is None


def test_zdr_mode_sets_store_and_refuses_store_true():
    zdr = CompactionConfig(zdr_mode=True, enabled=False)

    assert OpenAIAdapter(model="m", compaction=zdr).model_config.store is False
    assert OpenAIAdapter(model="m", compaction=CompactionConfig()).model_config.store is None
    with pytest.raises(ValueError, match=r"store=True\) contradicts zdr_mode=True"):
        OpenAIAdapter(model="m", model_config=OpenAIModelConfig(store=True), compaction=zdr)
    with pytest.raises(TypeError, match="compaction must be a CompactionConfig or None, not True"):
        OpenAIAdapter(model="m", compaction=True)  # pyright: ignore[reportArgumentType] - the point


def test_compaction_without_an_api_key_is_reported_before_any_request(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PromptEvaluationError, match="no client could be created"):
        OpenAIAdapter(model="m", compaction=CompactionConfig()).evaluate(prompt(), session=Session())


def test_parameters_of_the_model_are_sent_to_the_compaction_endpoint():
    config = OpenAIModelConfig(
        prompt_cache_key="k", service_tier="flex", temperature=0.1, extra={"instructions": "Be kind."}
    )
    usage = {"input_tokens": 5000, "output_tokens": 1, "total_tokens": 5001}
    with responses_api(response(message("Hi."), usage=usage)) as api:
        sealed = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
        api.routes["POST /responses/compact"] = lambda _: FakeResponse({"output": [sealed]})
        compaction = CompactionConfig(threshold_tokens=1000, mode="client")
        api.adapter(model_config=config, compaction=compaction).evaluate(prompt(), session=Session())

    body = api.requests[-1].body
    assert body.pop("input")[-1]["content"][0]["text"] == "Hi."
    assert body == {"model": "a-model", "prompt_cache_key": "k", "service_tier": "flex", "instructions": "Be kind."}
