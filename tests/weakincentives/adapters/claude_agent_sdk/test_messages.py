from __future__ import annotations

import pytest
from fake_claude_sdk import (
    AssistantMessage,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

from weakincentives.adapters.claude_agent_sdk.messages import (
    MessageReader,
    Replied,
    RunResult,
    Streamed,
    ToolReturned,
    is_own_tool,
    qualified_name,
    token_usage,
    tool_name,
)
from weakincentives.adapters.turn import ModelReply, ToolCall
from weakincentives.budget import TokenUsage


def event(kind: str, **fields: object) -> StreamEvent:
    return StreamEvent({"type": kind, **fields})


def start(message_id: str, **usage: int) -> StreamEvent:
    return event("message_start", message={"id": message_id, "usage": usage})


def read(*messages: object) -> list[object]:
    reader = MessageReader()
    return [step for message in messages for step in reader.read(message)]


def test_reply_has_the_blocks_of_all_its_messages_and_its_final_usage():
    steps = read(
        SystemMessage("init"),
        start("msg_1", input_tokens=5, output_tokens=1, cache_read_input_tokens=3),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "I lo"}),
        AssistantMessage([TextBlock("I look.")], message_id="msg_1", usage={"output_tokens": 1}),
        AssistantMessage([ToolUseBlock("t1", "mcp__wink__run", {"a": "ü"})], message_id="msg_1"),
        event("message_delta", usage={"output_tokens": 9, "input_tokens": 7, "cache_creation_input_tokens": None}),
        event("message_stop"),
    )

    assert steps == [
        Streamed("text", "msg_1:0", "I lo"),
        Replied(
            ModelReply(text="I look.", calls=(ToolCall("t1", "run", '{"a": "ü"}'),), usage=TokenUsage(10, 9, 3)),
        ),
    ]


def test_reply_without_stream_events_ends_with_the_next_message():
    usage = {"input_tokens": 2, "output_tokens": 3}
    steps = read(
        AssistantMessage([ToolUseBlock("t1", "Read", {})], message_id="msg_1", usage=usage),
        UserMessage([ToolResultBlock("t1", "text", is_error=None)], tool_use_result={"type": "text"}),
        AssistantMessage([TextBlock("Done.")], message_id="msg_2", usage=usage),
        ResultMessage(result="Done."),
    )

    assert steps[0] == Replied(ModelReply(calls=(ToolCall("t1", "Read", "{}"),), usage=TokenUsage(2, 3)))
    assert steps[1] == ToolReturned(ToolCall("t1", "Read", "{}"), "text", is_error=False, value={"type": "text"})
    assert steps[2] == Replied(ModelReply(text="Done.", usage=TokenUsage(2, 3)))
    assert isinstance(steps[3], RunResult)


def test_reply_that_breaks_off_and_the_one_that_replaces_it_are_two():
    steps = read(
        start("msg_1", input_tokens=1),
        AssistantMessage([TextBlock("half")], message_id="msg_1"),
        start("msg_2", input_tokens=1),
        AssistantMessage([TextBlock("whole")], message_id="msg_2"),
        event("message_stop"),
    )

    assert [step.reply.text for step in steps if isinstance(step, Replied)] == ["half", "whole"]


def test_result_that_arrives_within_its_reply_comes_after_it():
    """Such as that of an unknown tool."""
    steps = read(
        start("msg_1", input_tokens=1),
        AssistantMessage([ToolUseBlock("t1", "Nope", {})], message_id="msg_1"),
        UserMessage([ToolResultBlock("t1", "no such tool", is_error=True)], tool_use_result="no such tool"),
        event("message_delta", usage={"output_tokens": 5}),
        event("message_stop"),
    )

    call = ToolCall("t1", "Nope", "{}")
    assert steps == [
        Replied(ModelReply(calls=(call,), usage=TokenUsage(1, 5))),
        ToolReturned(call, "no such tool", is_error=True, value="no such tool"),
    ]


def test_structured_output_is_the_text_and_no_call():
    steps = read(
        AssistantMessage([ToolUseBlock("t1", "StructuredOutput", {"total": 3})], message_id="msg_1"),
        UserMessage([ToolResultBlock("t1", "ok")]),
    )

    assert steps == [Replied(ModelReply(text='{"total": 3}'))]


@pytest.mark.parametrize(
    "message",
    [
        UserMessage("[Request interrupted by user]"),
        UserMessage([TextBlock("Please call StructuredOutput.")]),
        UserMessage([ToolResultBlock("unknown", "text")]),
        AssistantMessage([TextBlock("API Error: 500")], model="<synthetic>", message_id="x", error="server_error"),
        AssistantMessage([TextBlock("of a sub-agent")], message_id="x", parent_tool_use_id="t1"),
        SystemMessage("api_retry", {"attempt": 1}),
        SystemMessage("compact_boundary"),
        event("ping"),
        event("message_delta", usage={}),
        event("message_stop"),
        TextBlock("of no known type"),
    ],
    ids=repr,
)
def test_messages_that_the_cli_writes_itself_are_no_replies(message):
    assert [step for step in read(message) if not isinstance(step, RunResult)] == []


def test_result_sums_the_usage_of_all_models():
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 4, "cacheCreationInputTokens": 8}
    message = ResultMessage("success", result="x", errors=None, model_usage={"a": usage, "b": {"inputTokens": 1}})
    (result,) = read(message)

    assert isinstance(result, RunResult)
    assert (result.usage, result.errors, result.session_id) == (TokenUsage(14, 2, 4), (), "session")


def test_content_of_results_may_be_blocks():
    blocks = [{"type": "text", "text": "a"}, {"type": "image"}]
    steps = read(
        AssistantMessage([ToolUseBlock("t1", "Read", {}), ToolUseBlock("t2", "Read", {})], message_id="m"),
        UserMessage([ToolResultBlock("t1", blocks), ToolResultBlock("t2", None, is_error=True)], tool_use_result="x"),
    )

    assert [(step.text, step.is_error, step.value) for step in steps if isinstance(step, ToolReturned)] == [
        ("a\n[image]", False, None),  # which of the results the value is of, is not known
        ("", True, None),
    ]


def test_names_of_own_tools():
    assert qualified_name("run") == "mcp__wink__run"
    assert tool_name("mcp__wink__run") == "run"
    assert tool_name("Read") == "Read"
    assert is_own_tool("mcp__wink__run")
    assert not is_own_tool("mcp__other__run")


def test_usage_of_unexpected_types_is_zero():
    assert token_usage({"input_tokens": "many", "output_tokens": -1}) == TokenUsage()
