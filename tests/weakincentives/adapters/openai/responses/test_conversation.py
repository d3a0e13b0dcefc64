from __future__ import annotations

import logging
from contextlib import nullcontext
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

from weakincentives.adapters.openai import (
    CodeInterpreterConfig,
    FileSearchConfig,
    McpConfig,
    OpenAIClientConfig,
    OpenAICodeInterpreterSection,
    OpenAICodeInterpreterTool,
    OpenAIFileSearchSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
    OpenAIWebSearchSection,
)
from weakincentives.adapters.openai.sdk import SdkClient
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.clock import ManualClock
from weakincentives.errors import NativeToolError, PromptEvaluationError
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ProviderTool,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import Session, ToolInvoked


@dataclass(frozen=True)
class Topic:
    topic: str


@dataclass(frozen=True)
class Verdict:
    summary: str
    score: int = 0


def look_up(params: Topic, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(f"{params.topic} is a drink")


LOOK_UP = Tool[Topic, str](name="look_up", description="Look it up.", handler=look_up)
CODE_INCLUDES = ["code_interpreter_call.outputs", "antwort:code_interpreter_call.result"]
TASK = MarkdownSection(title="Task", key="task", template="Judge tea.", tools=[LOOK_UP])
DONE = response(message('{"summary": "done", "score": 3}'))


def prompt(*sections: Section[Any]) -> Prompt[Verdict]:
    return Prompt(PromptTemplate[Verdict](ns="n", key="judge", sections=[TASK, *sections]))


def evaluate(api: FakeResponsesApi, *sections: Section[Any], session: Session | None = None, **options: Any) -> Any:
    return api.adapter(clock=ManualClock(), **options).evaluate(prompt(*sections), session=session or Session())


def test_request_has_prompt_tools_schema_and_parameters():
    config = OpenAIModelConfig(temperature=0.5, verbosity="low", max_output_tokens=99)
    with responses_api(DONE) as api:
        answer = evaluate(api, OpenAIWebSearchSection(), model_config=config)

    assert answer.output == Verdict("done", 3)
    (body,) = api.bodies
    assert body["model"] == "a-model"
    assert body["input"] == [{"type": "message", "role": "user", "content": "## 1. Task (task)\n\nJudge tea."}]
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["tools"][0]["strict"] is True
    assert body["tool_choice"] == "auto"
    assert body["include"] == ["web_search_call.action.sources"]
    assert body["text"]["verbosity"] == "low"
    assert body["text"]["format"]["name"] == "Verdict"
    assert body["text"]["format"]["schema"]["required"] == ["summary", "score"]
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 99)
    assert "store" not in body


def test_minimal_prompt_makes_minimal_request():
    section = MarkdownSection(title="Task", key="task", template="Say hello.")
    with responses_api(response(message("Hello."))) as api:
        api.adapter(model_config=OpenAIModelConfig(prompt_role="developer")).evaluate(
            Prompt(ns="n", key="k", sections=[section]), session=Session()
        )

    content = "## 1. Task (task)\n\nSay hello."
    assert api.bodies == [{"model": "a-model", "input": [{"type": "message", "role": "developer", "content": content}]}]


def test_store_false_includes_encrypted_reasoning():
    with responses_api(DONE) as api:
        evaluate(api, OpenAICodeInterpreterSection(), model_config=OpenAIModelConfig(store=False))

    assert api.bodies[0]["store"] is False
    assert api.bodies[0]["include"] == [*CODE_INCLUDES, "reasoning.encrypted_content"]


@pytest.mark.parametrize(
    "refused",
    [
        error(400, "Invalid value: 'antwort:code_interpreter_call.result'.", param="include[1]"),
        error(400, "Invalid value: 'antwort:code_interpreter_call.result'. Supported values are: 'a' and 'b'."),
        FakeResponse({"detail": [{"loc": ["body", "x"], "msg": "unexpected value"}]}, 422),
        FakeResponse({"error": "bad request"}, 400),
    ],
)
def test_an_extension_that_the_server_refuses_is_not_sent_again(refused):
    with responses_api(refused, DONE, DONE) as api:
        adapter = api.adapter(clock=ManualClock())
        for _ in range(2):
            adapter.evaluate(prompt(OpenAICodeInterpreterSection()), session=Session())

    assert [body["include"] for body in api.bodies] == [CODE_INCLUDES, CODE_INCLUDES[:1], CODE_INCLUDES[:1]]


def test_another_refusal_does_not_switch_extensions_off():
    refused = error(400, "The input must include a message.", param="input")
    with responses_api(refused, DONE, refused) as api:
        adapter = api.adapter(clock=ManualClock())
        for expected in (pytest.raises(PromptEvaluationError), nullcontext(), pytest.raises(PromptEvaluationError)):
            with expected:
                adapter.evaluate(prompt(OpenAICodeInterpreterSection()), session=Session())

    includes = [body["include"] for body in api.bodies]
    assert includes == [CODE_INCLUDES, CODE_INCLUDES, CODE_INCLUDES]


def test_extensions_are_not_sent_to_openai():
    for url in (
        "https://api.openai.com/v1",
        "https://eu.api.openai.com/v1",
        "https://mine.cognitiveservices.azure.com/v1",
    ):
        assert SdkClient(None, OpenAIClientConfig(api_key="k", base_url=url)).takes_extensions is False
    for url in ("http://127.0.0.1:8080/v1", "https://notopenai.com/v1"):
        assert SdkClient(None, OpenAIClientConfig(api_key="k", base_url=url)).takes_extensions is None


def test_streams_and_exit_code_are_in_the_result_and_not_in_the_history():
    item = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "code": "print(1)",
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "1\nwarning\n"}],
    }
    extended = {**item, "antwort:result": {"stdout": "1\n", "stderr": "warning\n", "exit_code": 3}}
    session = Session()
    with responses_api(response(extended, function_call("look_up", topic="tea")), DONE) as api:
        evaluate(api, OpenAICodeInterpreterSection(), session=session)

    ran, _ = session[ToolInvoked].all()
    value: Any = ran.result.value
    assert (value.stdout, value.stderr, value.exit_code) == ("1\n", "warning\n", 3)
    assert not ran.result.success
    assert api.bodies[1]["input"][1] == item


def test_history_repeats_items_unchanged_with_tool_outputs():
    first, second = load("unknown_items")
    with responses_api(first, second) as api:
        evaluate(api)

    before, after = (body["input"] for body in api.bodies)
    assert after == [
        *before,
        *first["output"],
        {"type": "function_call_output", "call_id": "call_1", "output": "tea is a drink"},
    ]


def test_tools_of_an_opened_section_are_declared():
    hidden = OpenAICodeInterpreterSection().clone(summary="Python.", visibility=SectionVisibility.SUMMARY)
    opening = response(function_call("open_section", path="openai_code_interpreter"))
    with responses_api(opening, DONE) as api:
        evaluate(api, hidden, hosted_tools=OpenAIHostedToolsConfig(web_search=True))

    assert [[tool.get("name", tool["type"]) for tool in body["tools"]] for body in api.bodies] == [
        ["look_up", "open_section", "web_search"],
        ["look_up", "code_interpreter", "web_search"],
    ]
    assert api.bodies[1]["input"][0] == api.bodies[0]["input"][0]  # unchanged, for prompt caches


def test_rejected_tool_is_named_with_its_origin():
    refused = error(400, "Tool type 'web_search' is not available on this server.", param="tools[1].type")
    with responses_api(refused) as api, pytest.raises(NativeToolError) as caught:
        evaluate(api, OpenAIWebSearchSection())

    assert caught.value.message == (
        "tool 'web_search' (section 'openai_web_search'): the server refuses it: 400: Tool type 'web_search' is not "
        "available on this server.. Remove it, or use a model or a server that has it"
    )


@pytest.mark.parametrize("param", ["tools[0].name", "tools[7]", "input"])
def test_other_rejections_are_reported_unchanged(param):
    with responses_api(error(400, "No.", param=param)) as api, pytest.raises(PromptEvaluationError) as caught:
        evaluate(api, OpenAIWebSearchSection())

    assert caught.value.message == "request to openai failed: 400: No."
    assert caught.value.provider_payload == {
        "message": "No.",
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


def test_expired_given_container_is_named():
    section = OpenAICodeInterpreterSection(default_params=CodeInterpreterConfig("cntr_9"))
    with responses_api(error(400, "Container is expired.")) as api:
        with pytest.raises(NativeToolError, match="container 'cntr_9' is gone: 400: Container is expired") as caught:
            evaluate(api, section)
        assert "Give the id of another" in caught.value.message
        assert len(api.bodies) == 1


def test_failed_response_without_output_is_retried():
    session = Session()
    with responses_api(*load("failed")) as api:
        answer = evaluate(api, session=session)

    assert answer.output == Verdict("done", 3)
    assert len(api.bodies) == 3


def test_failed_response_with_output_is_not_retried():
    ran = load("code_interpreter")[0]["output"][1]
    failed = response(ran, status="failed", error={"code": "server_error", "message": "Broke."})
    with (
        responses_api(failed) as api,
        pytest.raises(PromptEvaluationError, match=r"failed \(server_error\): Broke") as caught,
    ):
        evaluate(api)

    assert (caught.value.phase, len(api.bodies)) == ("response", 1)
    assert caught.value.provider_payload == failed


@pytest.mark.parametrize(
    "fields, expected",
    [
        (
            {"status": "failed", "error": {"code": "invalid_prompt", "message": "No."}},
            r"failed \(invalid_prompt\): No.",
        ),
        ({"status": "failed", "error": None}, r"failed \(no code\): no reason given"),
        ({"status": "cancelled"}, "ended as 'cancelled'"),
        ({"status": "in_progress"}, "ended as 'in_progress'"),
        ({"output": "text"}, "not of the Responses API: output is not a list"),
        ({"usage": [1]}, "not of the Responses API: usage is not an object"),
        ({"status": "failed", "error": "No."}, "not of the Responses API: error is not an object"),
    ],
)
def test_malformed_response_raises_with_phase_response(fields, expected):
    with responses_api(response(**fields)) as api, pytest.raises(PromptEvaluationError, match=expected) as caught:
        evaluate(api)

    assert (caught.value.phase, len(api.bodies)) == ("response", 1)


def test_html_instead_of_json_raises_with_phase_response():
    with responses_api(FakeResponse(b"<html>Welcome</html>")) as api:
        with pytest.raises(PromptEvaluationError, match="not of the Responses API: it is not JSON") as caught:
            evaluate(api)
        assert caught.value.phase == "response"


def test_transient_faults_are_retried_and_permanent_ones_raised():
    clock = ManualClock()
    policy = ThrottlePolicy(max_attempts=3)
    busy = error(429, "slow down", retry_after="7")
    with responses_api(busy, FakeResponse(disconnect=True), DONE) as api:
        answer = api.adapter(clock=clock, throttle=policy).evaluate(prompt(), session=Session())
    assert answer.output == Verdict("done", 3)
    assert clock.slept[0] == 7

    with responses_api(busy, busy, busy, DONE) as api:
        with pytest.raises(PromptEvaluationError, match="request to openai failed: 429: slow down") as caught:
            api.adapter(clock=clock, throttle=policy).evaluate(prompt(), session=Session())
        assert (caught.value.phase, len(api.bodies)) == ("request", 3)


def test_provider_output_hook_replaces_the_result():
    def hook(result: dict[str, object], context: ToolContext) -> ToolResult[dict[str, object]]:
        return ToolResult(str(result["output_text"]).strip(), {"seen": result["code"]}, success=False)

    tool = OpenAICodeInterpreterTool(name="python", handle_provider_output=hook)
    section = MarkdownSection(title="More", key="more", template="Compute.", tools=[tool])
    session = Session()
    with responses_api(*load("code_interpreter")) as api:
        evaluate(api, section, session=session)

    first = session[ToolInvoked].all()[0]
    assert (first.name, first.result.message, first.result.value) == ("python", "42", {"seen": "print(6 * 7)"})
    assert (first.success, first.capability) == (False, "code_interpreter")


def test_provider_output_hook_is_not_called_without_output():
    def hook(result: dict[str, object], context: ToolContext) -> ToolResult[dict[str, object]]:
        raise AssertionError("there is nothing to handle")

    tool = ProviderTool[None, dict[str, object], FileSearchConfig](
        name="files",
        description="Search.",
        provider="openai",
        capability="file_search",
        config=FileSearchConfig(("vs_1",)),
        handle_provider_output=hook,
    )
    session = Session()
    with responses_api(*load("file_search_failure")) as api:
        evaluate(api, MarkdownSection(title="More", key="more", template="Find.", tools=[tool]), session=session)

    (event,) = session[ToolInvoked].all()
    assert (event.name, event.success) == ("files", False)
    assert "vector_store_timeout" in event.rendered_output


def test_secrets_of_a_declaration_are_not_logged(caplog):
    secret = McpConfig(server_label="docs", server_url="https://x/", authorization="s3cret")
    hosted = OpenAIHostedToolsConfig(code_interpreter=True, file_search=FileSearchConfig(("vs_1",)), others=(secret,))
    with responses_api(DONE) as api, caplog.at_level(logging.DEBUG, "weakincentives"):
        evaluate(api, hosted_tools=hosted)

    assert "code_interpreter in 1g" in caplog.text
    assert "request id req_1" in caplog.text
    assert "s3cret" not in caplog.text


def test_file_search_without_store_is_left_out(caplog):
    with responses_api(DONE) as api:
        evaluate(api, OpenAIFileSearchSection())

    assert caplog.text.count("has nothing to work on") == 1
    assert [tool["type"] for tool in api.bodies[0]["tools"]] == ["function"]
    assert "include" not in api.bodies[0]
