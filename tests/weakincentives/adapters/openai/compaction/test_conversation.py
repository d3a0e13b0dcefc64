from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fake_compaction_api import FakeCompactionApi, compaction_api
from fake_responses_api import FakeResponse, FakeResponsesApi, error, function_call, message, response, responses_api
from openai import OpenAI

from weakincentives.adapters.openai import (
    CompactionConfig,
    CompactionError,
    CompactionState,
    OpenAICodeInterpreterSection,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
    TranscriptItem,
)
from weakincentives.budget import Budget
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import BudgetExceededError, DeadlineExceededError, NativeToolError, PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, Section, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    CompactionRebuilt,
    CompactionUnavailable,
    ContextCompacted,
    Session,
)

CLIENT = CompactionConfig(threshold_tokens=1000, mode="client")
SERVER = CompactionConfig(threshold_tokens=1000, mode="server")
AUTO = CompactionConfig(threshold_tokens=1000)
LONG = "x" * 3000


@dataclass(frozen=True)
class Step:
    number: int


def work(params: Step, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult.ok(f"result {params.number} {LONG}")


WORK = Tool[Step, str](name="work", description="Work.", handler=work)


def prompt(text: str = "Work.", *sections: Section[Any], tool: Tool[Any, Any] = WORK) -> Prompt[Any]:
    task = MarkdownSection(title="Task", key="task", template=text, tools=[tool])
    return Prompt(ns="n", key="k", sections=[task, *sections])


def steps(last: int) -> Any:
    """A model that calls `work` with the next number until `last`, and then answers with what it sees."""

    def model(text: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        number = next(at for at in range(last + 1) if f"result {at} " not in text)
        if number < last:
            return [function_call("work", f"call_{number}", number=number)]
        return [message(f"saw {sum(f'result {at} ' in text for at in range(last))}")]

    return model


@pytest.fixture
def api() -> Iterator[FakeCompactionApi]:
    with compaction_api(steps(3)) as running:
        yield running


def evaluate(
    api: FakeResponsesApi, session: Session, config: CompactionConfig, *, text: str = "Work.", **more: Any
) -> Any:
    limits = {name: more.pop(name) for name in ("budget", "deadline") if name in more}
    adapter = api.adapter(**{"compaction": config, "clock": ManualClock(), **more})
    return adapter.evaluate(prompt(text), session=session, **limits)


def kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in items]


def state_of(session: Session) -> CompactionState:
    state = session[CompactionState].latest()
    assert state is not None
    return state


# ── mode client ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_compacted_between_turns_when_all_calls_are_answered(api):
    session = Session()

    answer = evaluate(api, session, CLIENT)

    assert answer.text == "saw 3"
    # request: 3 has two results and is over the threshold; it is compacted before request 4, and the end is below again
    assert api.order == ["responses", "responses", "responses", "compact", "responses"]
    assert api.unpaired == []
    assert kinds(api.compactions[0]["input"]) == ["message", *["function_call", "function_call_output"] * 3]
    assert kinds(api.bodies[3]["input"]) == ["message", "compaction"]
    assert not any("context_management" in body or "store" in body for body in api.bodies)
    state = state_of(session)
    assert (state.compaction_count, kinds(list(state.window))) == (1, ["message", "compaction", "message"])
    (event,) = session[ContextCompacted].all()
    assert event.tokens_before == state.last_compaction_tokens > 1000


def test_usage_of_compactions_is_part_of_the_answers_usage(api):
    session = Session()

    answer = evaluate(api, session, CLIENT)

    (event,) = session[ContextCompacted].all()
    assert event.usage.input_tokens > 1000
    inputs = [len(json.dumps(body["input"])) // 4 for body in api.bodies]
    assert answer.usage.input_tokens == sum(inputs) + event.usage.input_tokens


def test_below_the_threshold_nothing_differs(api):
    config = CompactionConfig(threshold_tokens=100_000, mode="client")

    evaluate(api, Session(), config)

    assert api.order == ["responses"] * 4


def test_disabled_compaction_does_nothing(api):
    session = Session()
    config = CompactionConfig(enabled=False, threshold_tokens=1000)

    for _ in range(2):
        evaluate(api, session, config)

    assert api.order == ["responses"] * 8
    assert session[CompactionState].all() == ()
    assert not any("context_management" in body for body in api.bodies)


def test_response_without_usage_is_measured_by_an_estimate():
    with responses_api(response(message(LONG * 2), usage=None)) as api:
        api.routes["POST /responses/compact"] = lambda request: FakeResponse(
            {"output": [{"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}]}
        )
        session = Session()
        evaluate(api, session, CLIENT, text="Read this: " + LONG * 2)

    assert state_of(session).compaction_count == 1


# ── later evaluations ────────────────────────────────────────────────────────────────────────────────────────────────


def test_later_evaluation_continues_the_conversation(api):
    session = Session()
    evaluate(api, session, CompactionConfig(threshold_tokens=100_000, mode="client"))
    window = state_of(session).window
    assert (state_of(session).compaction_count, len(window)) == (0, 8)

    assert evaluate(api, session, CLIENT, text="Again.").text == "saw 3"

    assert api.order[4:] == ["compact", "responses"], "the last request was over the new threshold"
    assert api.compactions[0]["input"] == list(window)
    assert kinds(api.bodies[-1]["input"]) == ["message", "compaction", "message"]
    assert "Again." in api.bodies[-1]["input"][-1]["content"]


def test_last_response_over_the_threshold_is_compacted_at_once(api):
    api.model = lambda text, items: [message("ok")]
    session = Session()
    adapter = api.adapter(compaction=CLIENT)

    adapter.evaluate(prompt("First. " + LONG * 2), session=session)
    assert api.order == ["responses", "compact"]
    adapter.evaluate(prompt("Second."), session=session)

    first, second = api.bodies
    assert kinds(second["input"]) == ["message", "compaction", "message"]
    assert second["input"][0] == first["input"][0]
    assert '"ok"' in "\n".join(api.read(second["input"]))


def test_failed_compaction_after_the_answer_is_tried_again_later(api, caplog):
    api.model = lambda text, items: [message("ok")]
    api.compact_failures = [error(400, "Not now.")]
    session = Session()

    with caplog.at_level(logging.WARNING):
        assert evaluate(api, session, CLIENT, text="First. " + LONG * 2).text == "ok"
    assert "the next evaluation with this session tries again" in caplog.text
    evaluate(api, session, CLIENT, text="Second.")

    assert api.order == ["responses", "compact", "compact", "responses"]


def test_prompt_of_a_failed_request_is_not_kept_after_a_compaction(api):
    api.model = lambda text, items: [message("ok")]
    api.compact_failures = [error(400, "Not now.")]
    session = Session()
    evaluate(api, session, CLIENT, text="First. " + LONG * 2)
    create = api.routes["POST /responses"]
    api.routes["POST /responses"] = lambda _: error(400, "Not now.")

    with pytest.raises(PromptEvaluationError):
        evaluate(api, session, CLIENT, text="Second.")
    api.routes["POST /responses"] = create
    evaluate(api, session, CLIENT, text="Third.")

    assert api.order == ["responses", "compact", "compact", "responses", "responses"]
    assert "Second." not in api.requests[-1].raw.decode()
    assert kinds(api.bodies[-1]["input"]) == ["message", "compaction", "message"]


def test_another_session_is_another_conversation(api):
    evaluate(api, Session(), CLIENT)
    evaluate(api, Session(), CLIENT)

    assert api.bodies[4]["input"] == api.bodies[0]["input"]


def test_restored_session_continues_from_the_snapshot(api):
    session = Session()
    evaluate(api, session, CLIENT)
    before, window = session.snapshot(), state_of(session).window
    evaluate(api, session, CLIENT, text="Forget this.")

    session.restore(before)
    evaluate(api, session, CLIENT, text="Something else.")

    assert api.bodies[-1]["input"][:-1] == list(window)
    assert "Forget this." not in api.requests[-1].raw.decode()


def test_failed_evaluation_keeps_no_unanswered_call(api):
    session = Session()
    with pytest.raises(PromptEvaluationError, match="still calls tools"):
        evaluate(api, session, CompactionConfig(mode="client"), max_turns=2)

    assert kinds(list(state_of(session).window)) == ["message", "function_call", "function_call_output"]
    assert evaluate(api, session, CLIENT).text == "saw 3"
    assert api.unpaired == []


def test_evaluation_inside_a_tool_is_a_separate_conversation(api):
    session = Session()
    adapter = api.adapter(compaction=CLIENT)

    def delegate(params: Step, *, context: ToolContext) -> ToolResult[str]:
        if params.number == 0:
            adapter.evaluate(prompt("Inner."), session=context.session)
        return work(params, context=context)

    tool = Tool[Step, str](name="work", description="Work.", handler=delegate)
    assert adapter.evaluate(prompt("Outer.", tool=tool), session=session).text == "saw 3"

    inner = [body["input"] for body in api.bodies if "Inner." in json.dumps(body)]
    assert len(inner) == 4
    assert not any("Outer." in json.dumps(items) for items in inner)
    assert "Inner." not in json.dumps(state_of(session).window)
    assert api.unpaired == []


# ── mode server ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_compacts_and_the_history_before_is_dropped(api):
    session = Session()

    assert evaluate(api, session, CompactionConfig(threshold_tokens=1400, mode="server")).text == "saw 3"

    assert api.order == ["responses"] * 4
    management = [{"type": "compaction", "compact_threshold": 1400}]
    assert [body["context_management"] for body in api.bodies] == [management] * 4
    assert kinds(api.bodies[3]["input"]) == ["compaction", "function_call", "function_call_output"]
    assert api.unpaired == []
    (event,) = session[ContextCompacted].all()
    assert (event.mode, event.usage.total_tokens) == ("server", 0)
    assert event.tokens_before > 1400 > event.tokens_after
    state = state_of(session)
    assert (state.compaction_count, state.covered, state.window[0]["type"]) == (1, 1, "compaction")
    assert kinds([one.item for one in session[TranscriptItem].all()]) == [
        "message",
        *["function_call", "function_call_output"] * 2,
    ]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_compaction_item_at_any_place_keeps_calls_with_their_outputs(where):
    sealed = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
    output: list[dict[str, Any]] = [
        function_call("work", "call_0", number=0),
        function_call("work", "call_1", number=1),
    ]
    output.insert(where, sealed)
    with responses_api(response(*output), response(message("Done."))) as api:
        evaluate(api, Session(), SERVER)

    sent = api.bodies[1]["input"]
    assert kinds(sent)[0] == "compaction"
    assert [item.get("call_id") for item in sent[1:]] == ["call_0", "call_1", "call_0", "call_1"]


def test_compaction_after_the_final_message_leaves_only_itself():
    sealed = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
    with responses_api(response(message("One."), sealed), response(message("Two."))) as api:
        session = Session()
        evaluate(api, session, SERVER)
        evaluate(api, session, SERVER, text="Next.")

    assert kinds(api.bodies[1]["input"]) == ["compaction", "message"]


def test_refusal_in_server_mode_is_an_error(api):
    api.context_management = "refused"
    with pytest.raises(CompactionError, match="the server refuses context_management: use mode='auto' or 'client'"):
        evaluate(api, Session(), SERVER)


def test_streamed_compaction_item_is_the_one_of_the_done_event():
    def sealed(content: str) -> dict[str, Any]:
        return {"id": "cmp_1", "type": "compaction", "encrypted_content": content}

    call = function_call("work", "call_0", number=0)
    events = [
        {"type": "response.output_item.added", "item": sealed("added")},
        {"type": "response.output_item.done", "item": sealed("done")},
        {"type": "response.completed", "response": response(sealed("final"), call)},
    ]
    last = [{"type": "response.completed", "response": response(message("Done."))}]
    with responses_api(*(streamed(*one) for one in (events, last))) as api:
        evaluate(api, Session(), SERVER, model_config=OpenAIModelConfig(stream=True))

    assert api.bodies[1]["input"][0] == sealed("done")
    assert api.bodies[1]["stream"] is True


def streamed(*events: dict[str, Any]) -> FakeResponse:
    body = b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)
    return FakeResponse(body, headers={"content-type": "text/event-stream"})


# ── mode auto ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_auto_prefers_the_server(api):
    evaluate(api, Session(), AUTO)

    assert api.order == ["responses"] * 4
    assert all("context_management" in body for body in api.bodies)


def test_auto_falls_back_to_the_endpoint_once_per_adapter(api):
    api.context_management = "refused"
    adapter = api.adapter(compaction=AUTO)

    for _ in range(2):
        adapter.evaluate(prompt(), session=Session())

    assert ["context_management" in body for body in api.bodies] == [True, *[False] * 8]
    assert api.bodies[1] == {key: value for key, value in api.bodies[0].items() if key != "context_management"}
    assert len(api.compactions) == 2


def test_support_is_remembered_for_each_base_url(api):
    api.context_management = "refused"
    with compaction_api(steps(1)) as other, OpenAI(base_url=api.url, api_key="none") as client:
        adapter = api.adapter(client=client, compaction=AUTO)
        adapter.evaluate(prompt(), session=Session())
        adapter.client.base_url = other.url
        adapter.evaluate(prompt(), session=Session())

    assert ["context_management" in body for body in other.bodies] == [True, True]


@pytest.mark.parametrize(
    "refusal",
    [
        error(422, "1 validation error: context_management: extra fields not permitted"),
        FakeResponse({"detail": [{"loc": ["body", "context_management"], "msg": "extra forbidden"}]}, 422),
        error(400, "Unknown parameter.", param="context_management[0].type", code="unknown_parameter"),
    ],
)
def test_auto_recognises_forms_of_refusal(refusal):
    with responses_api(refusal, response(message("Done."))) as api:
        assert evaluate(api, Session(), AUTO).text == "Done."


def test_other_errors_are_no_refusal_of_context_management():
    with responses_api(error(400, "Bad.", param="input")) as api, pytest.raises(PromptEvaluationError, match="Bad"):
        evaluate(api, Session(), AUTO)
    assert len(api.requests) == 1


def test_auto_recognises_a_server_that_ignores_the_parameter(api):
    api.context_management = "ignored"

    assert evaluate(api, Session(), AUTO).text == "saw 3"

    assert api.order == ["responses", "responses", "responses", "compact", "responses"]
    assert ["context_management" in body for body in api.bodies] == [True, True, True, False]


def test_auto_without_any_compaction_goes_on_with_one_event(api):
    api.context_management, api.endpoint_status = "refused", 404
    session = Session()
    adapter = api.adapter(compaction=AUTO)

    assert adapter.evaluate(prompt(), session=session).text == "saw 3"
    assert adapter.evaluate(prompt(), session=session).text == "saw 3"

    assert len(api.compactions) == 1
    assert len(session[CompactionUnavailable].all()) == 1


# ── multi-step responses ─────────────────────────────────────────────────────────────────────────────────────────────

HOSTED = {"id": "ci_1", "type": "code_interpreter_call", "status": "completed", "code": "1", "container_id": "c_1"}
SUM = {"input_tokens": 5000, "output_tokens": 1, "total_tokens": 5001}


@pytest.mark.parametrize("counted, expected", [(900, 0), (1100, 1)])
def test_usage_sum_of_hosted_calls_is_counted_again(counted, expected):
    call = function_call("work", "call_0", number=0)
    with responses_api(response(HOSTED, call, usage=SUM), response(message("Done."))) as api:
        api.routes["POST /responses/input_tokens"] = lambda _: FakeResponse({"input_tokens": counted})
        api.routes["POST /responses/compact"] = lambda _: FakeResponse(
            {"output": [{"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}]}
        )
        session = Session()
        api.adapter(compaction=CLIENT).evaluate(prompt("Work.", OpenAICodeInterpreterSection()), session=session)

    paths = [one.path.rpartition("/")[2] for one in api.requests]
    assert paths.count("input_tokens") == 1
    assert paths.count("compact") == expected
    counting = next(one.body for one in api.requests if one.path.endswith("input_tokens"))
    assert [tool["type"] for tool in counting["tools"]] == ["function", "code_interpreter"]
    assert counting["input"][-1]["type"] == "function_call_output"


# ── dead items ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [CLIENT, SERVER])
def test_dead_item_is_rebuilt_from_the_transcript(api, config):
    session = Session()
    evaluate(api, session, config)
    api.key = "key-2"

    assert evaluate(api, session, config, text="Again.").text == "saw 3"

    (event,) = session[CompactionRebuilt].all()
    assert "could not be verified" in event.reason
    assert api.unpaired == []
    assert not event.truncated


def test_second_refusal_of_the_same_request_is_an_error():
    dead = error(400, "The encrypted content could not be verified.", code="invalid_encrypted_content")
    with responses_api(dead, dead) as api:
        session = Session()
        with pytest.raises(CompactionError, match="still refused after it was rebuilt; start a new session") as caught:
            evaluate(api, session, CLIENT)

    assert caught.value.token_count > 0
    assert len(api.requests) == 2
    assert len(session[CompactionRebuilt].all()) == 1


def test_prompt_of_a_failed_request_is_not_kept_after_a_rebuilding(api):
    session = Session()
    evaluate(api, session, CLIENT)
    api.key = "key-2"
    create, refusals = api.routes["POST /responses"], iter([None, error(400, "Not now.")])
    api.routes["POST /responses"] = lambda request: next(refusals, None) or create(request)

    with pytest.raises(PromptEvaluationError):
        evaluate(api, session, CLIENT, text="Second.")
    assert len(session[CompactionRebuilt].all()) == 1
    evaluate(api, session, CLIENT, text="Third.")

    assert "Second." not in api.requests[-1].raw.decode()
    assert "Work." in api.requests[-1].raw.decode()


def test_rebuilding_counts_in_the_budget(api):
    session = Session()
    evaluate(api, session, CLIENT)
    api.key = "key-2"
    asked = len(api.requests)

    with pytest.raises(BudgetExceededError, match="max_total_tokens"):
        evaluate(api, session, CLIENT, text="Again.", budget=Budget(max_total_tokens=100))

    assert api.order[asked:] == ["responses", *["compact"] * (len(api.order) - asked - 1)]
    assert api.order[-1] == "compact"


def test_dead_reasoning_is_dropped():
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "old"}
    dead = error(400, "The encrypted content could not be verified.", code="invalid_encrypted_content")
    call = function_call("work", "call_0", number=0)
    with responses_api(response(reasoning, call), dead, response(message("Done."))) as api:
        evaluate(api, Session(), CompactionConfig(zdr_mode=True, mode="client"))

    assert kinds(api.bodies[1]["input"]) == ["message", "reasoning", "function_call", "function_call_output"]
    assert kinds(api.bodies[2]["input"]) == ["message", "function_call", "function_call_output"]
    assert "id" not in api.bodies[2]["input"][1]


def test_dead_item_in_a_failed_response_is_rebuilt_too():
    failed = response(status="failed", error={"code": "invalid_encrypted_content", "message": "No key."})
    with responses_api(failed, response(message("Done."))) as api:
        assert evaluate(api, Session(), CLIENT).text == "Done."


def test_dead_item_in_a_stream_is_rebuilt_too():
    failure = {"type": "error", "error": {"code": "invalid_encrypted_content", "message": "No key."}}
    done = {"type": "response.completed", "response": response(message("Done."))}
    with responses_api(streamed(failure), streamed(done)) as api:
        session = Session()
        assert evaluate(api, session, CLIENT, model_config=OpenAIModelConfig(stream=True)).text == "Done."

    assert len(session[CompactionRebuilt].all()) == 1


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_compaction_counts_in_the_budget(api):
    with pytest.raises(BudgetExceededError, match="max_total_tokens"):
        evaluate(api, Session(), CLIENT, budget=Budget(max_total_tokens=4000))

    assert api.order[-1] == "compact", "no request follows the one that exceeds the budget"


def test_deadline_during_a_compaction(api):
    clock = ManualClock()
    deadline = Deadline.after(30, clock=clock)

    def slow(request: Any) -> FakeResponse:
        clock.advance(60)
        return error(503, "Busy.")

    api.routes["POST /responses/compact"] = slow
    with pytest.raises(DeadlineExceededError):
        evaluate(api, Session(), CLIENT, clock=clock, deadline=deadline)


def test_input_that_is_too_long_is_shortened_once(api):
    api.model_window = 2000
    config = CompactionConfig(threshold_tokens=1700, mode="client")

    assert evaluate(api, Session(), config).text == "saw 3"

    assert api.order == ["responses", "responses", "responses", "responses", "compact", "responses"]
    assert kinds(api.bodies[-1]["input"]) == ["message", "compaction", "function_call", "function_call_output"]


def test_compaction_that_is_too_long_is_done_in_parts(api):
    api.model_window = 2000
    config = CompactionConfig(threshold_tokens=1500, mode="client")

    assert evaluate(api, Session(), config).text == "saw 3"

    assert api.order == ["responses", "responses", "responses", *["compact"] * 4, "responses"]
    assert kinds(api.bodies[-1]["input"]) == ["message", "compaction", "function_call", "function_call_output"]
    assert api.unpaired == []


def test_input_that_cannot_be_shortened_is_an_error(api):
    api.model_window = 100
    with pytest.raises(PromptEvaluationError, match="context window"):
        evaluate(api, Session(), CLIENT, text=LONG)
    assert api.order == ["responses"]


# ── zero data retention ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["client", "server", "auto"])
def test_zdr_stores_nothing_and_replays_encrypted_reasoning(api, mode):
    plain_model, reasoning = api.model, {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "key-1"}
    api.model = lambda text, items: [reasoning, *plain_model(text, items)]
    session = Session()
    config = CompactionConfig(threshold_tokens=1000, zdr_mode=True, mode=mode)
    for text in ("Work.", "Again."):
        evaluate(api, session, config, text=text)

    bodies = [one.body for one in api.requests]
    assert all(body["store"] is False for body in bodies)
    assert not any("previous_response_id" in body or "conversation" in body for body in bodies)
    assert all("reasoning.encrypted_content" in body["include"] for body in api.bodies)
    assert reasoning in api.bodies[1]["input"]
    assert state_of(session).compaction_count >= 1


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "Containers are not available for organizations with Zero Data Retention.", param="tools[1]"),
        error(403, "Code interpreter containers are not supported with ZDR."),
    ],
)
def test_refusal_of_containers_under_zdr_is_explained(refusal):
    with responses_api(refusal) as api:
        adapter = api.adapter(compaction=CompactionConfig(zdr_mode=True))
        with pytest.raises(NativeToolError, match="containers are not available with zero data retention"):
            adapter.evaluate(prompt("Work.", OpenAICodeInterpreterSection()), session=Session())


# ── containers of earlier evaluations ────────────────────────────────────────────────────────────────────────────────


def test_expired_container_of_an_earlier_evaluation_is_rewritten_as_text():
    gone = error(400, "Container is expired.", param="tools")
    with responses_api(response(HOSTED, message("One.")), gone, response(message("Two."))) as api:
        session = Session()
        adapter = api.adapter(compaction=CLIENT)
        for text in ("First.", "Second."):
            answer = adapter.evaluate(prompt(text, OpenAICodeInterpreterSection()), session=session)

    assert answer.text == "Two."
    assert "c_1" in json.dumps(api.bodies[1]["input"])
    assert "c_1" not in json.dumps(api.bodies[2]["input"])


def test_refusal_to_create_the_container_of_a_workspace_under_zdr_is_explained():
    with responses_api() as api:
        api.routes["POST /containers"] = lambda _: error(403, "Containers are not available with Zero Data Retention.")
        session = Session()
        workspace = OpenAIContainerWorkspaceSection(session=session)
        adapter = api.adapter(
            compaction=CompactionConfig(zdr_mode=True), hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True)
        )
        with pytest.raises(NativeToolError, match="containers are not available with zero data retention"):
            adapter.evaluate(prompt("Work.", workspace), session=session)
        workspace.cleanup()
