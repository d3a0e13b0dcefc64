from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import read
from antwort.models.chat.messages import ChatDialect, to_messages
from antwort.models.replay_hosted_calls import OUTPUT_NOT_STORED

PIXEL = "data:image/png;base64,AA=="


def messages(*raws, instructions=None, **dialect):
    return to_messages([read(raw) for raw in raws], instructions, ChatDialect(**dialect))


def user(content):
    return {"type": "message", "role": "user", "content": content}


def assistant(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(call_id, name="f", arguments="{}"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id, value: object = "done"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def tool_call(call_id, name="f", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(call_id, content="done"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_a_conversation():
    assert messages(user("Hi"), assistant("Hello!"), user("Bye"), instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]


def test_instructions_at_the_start_are_one_message():
    developer = {"role": "developer", "content": "Be brief."}
    system = {"role": "system", "content": [{"type": "input_text", "text": "Be true."}]}

    assert messages(developer, system, user("Hi"), developer, instructions="Be kind.") == [
        {"role": "system", "content": "Be kind.\n\nBe brief.\n\nBe true."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
    ]
    assert messages(developer, user("Hi"), developer_role="developer")[0]["role"] == "developer"


def test_parallel_calls_are_one_message_followed_by_their_outputs():
    assert messages(user("Go"), assistant("I look."), call("a"), call("b"), output("b", "B"), output("a", "A")) == [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "I look.", "tool_calls": [tool_call("a"), tool_call("b")]},
        tool("a", "A"),
        tool("b", "B"),
    ]


def test_sequential_calls_are_separate_messages():
    assert messages(call("a"), output("a"), call("b"), output("b")) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("a")]},
        tool("a"),
        {"role": "assistant", "content": "", "tool_calls": [tool_call("b")]},
        tool("b"),
    ]


def test_an_output_follows_its_call_wherever_it_is():
    assert [one["role"] for one in messages(call("a"), user("Hurry"), output("a"))] == ["assistant", "tool", "user"]


def test_a_call_without_output_and_an_output_without_call():
    assert messages(call("a"), user("Well?"))[1] == tool("a", OUTPUT_NOT_STORED)
    assert messages(output("gone", "42")) == [{"role": "user", "content": "Result of an earlier tool call:\n42"}]


def test_a_repeated_call_id():
    assert [one["content"] for one in messages(call("a"), output("a", "1"), call("a"), output("a", "2"))] == [
        "",
        "1",
        "",
        "2",
    ]


def test_custom_tools_are_functions_with_one_input():
    raw = {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": 'SELECT "x"'}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]}
    message, tool_output = messages(raw, result)

    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"input": 'SELECT "x"'}
    assert tool_output == tool("a", "1")


def test_hosted_calls_become_function_calls():
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "1+1",
        "outputs": [{"type": "logs", "logs": "2"}],
    }
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "s", "action": {"commands": ["ls"]}}
    entry = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    shell_output = {"type": "shell_call_output", "call_id": "s", "output": [entry]}

    assert messages(code, assistant("Two."), shell, shell_output) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("ci_1", "code_interpreter", '{"code": "1+1"}')]},
        tool("ci_1", "2"),
        {"role": "assistant", "content": "Two.", "tool_calls": [tool_call("s", "shell", '{"commands": ["ls"]}')]},
        tool("s", "a\n(exit code 0)"),
    ]


def test_images_are_sent():
    content = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
    ]

    assert messages(user(content))[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    ]


def test_images_of_a_tool_follow_all_outputs():
    image = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]
    result = messages(call("a"), call("b"), output("a", image), output("b"), user("Nice"))

    assert [one["role"] for one in result] == ["assistant", "tool", "tool", "user", "user"]
    assert result[1]["content"] == "see\n[image]"
    assert result[3]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}


def test_images_of_an_output_without_its_call_are_sent():
    image = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL}]
    [message] = messages(output("lost", image))

    assert message["role"] == "user"
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.mark.parametrize("role", ["assistant", "developer"])
def test_images_of_other_roles_follow_in_a_user_message(role):
    image = [{"type": "input_image", "image_url": PIXEL}]
    raw = {"type": "message", "role": role, "content": image}
    result = messages(raw, call("a"), output("a"))

    assert [one["role"] for one in result][1:] == ["user", "assistant", "tool"]
    assert result[1]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}


def test_the_approval_of_an_mcp_call_is_a_user_message():
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "look", "arguments": "{}"}
    answered = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"}
    request, result, answer = messages(asked, answered)

    assert request["tool_calls"] == [tool_call("mcpr_1", "s__look", "{}")]
    assert result == tool("mcpr_1", "(not run: the user was asked for approval)")
    assert answer == {"role": "user", "content": "Call mcpr_1 was denied by the user: no"}


def test_text_files_are_included_and_others_replaced_by_a_placeholder():
    text = "data:text/plain;base64," + base64.b64encode("grüße".encode()).decode()
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    bad = {"type": "input_file", "filename": "b.txt", "file_data": "data:text/plain;base64,%%%"}

    result = messages(user([{"type": "input_file", "filename": "a.txt", "file_data": text}, pdf, bad]))[0]["content"]

    assert result == "[attached file: a.txt]\ngrüße\n[end of a.txt]\n[attached file: a.pdf]\n[attached file: b.txt]"


def test_binary_files_are_sent_if_the_dialect_allows():
    text = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    sent = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}

    assert messages(user([text, pdf]), files=True)[0]["content"] == [
        {"type": "text", "text": "[attached file: a.txt]\na\n[end of a.txt]"},
        sent,
    ]
    from_tool = messages(call("a"), output("a", [pdf]), files=True)
    assert [one["role"] for one in from_tool] == ["assistant", "tool", "user"]
    assert from_tool[2]["content"][1] == sent


def test_reasoning_is_dropped_or_sent_back():
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }

    assert messages(reasoning, assistant("Hello")) == [{"role": "assistant", "content": "Hello"}]
    assert (
        messages(reasoning, call("a"), output("a"), replay_reasoning="reasoning_content")[0]["reasoning_content"]
        == "Hm."
    )
    assert messages(reasoning, assistant("Hello"), replay_reasoning="reasoning")[0]["reasoning"] == "Hm."
    opened = {**reasoning, "id": "rs_1", "status": None, "encrypted_content": "gAAAA"}
    assert messages(opened, assistant("Hello"), replay_reasoning="reasoning")[0]["reasoning"] == "Hm."


def test_refusals_are_text_and_unknown_items_are_skipped():
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}

    assert messages(
        refusal,
        {"type": "brand_new", "x": 1},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "item_reference", "id": "x"},
    ) == [{"role": "assistant", "content": "No."}]


ITEMS = st.one_of(
    st.sampled_from([user("u"), assistant("s"), {"type": "new"}, {"type": "reasoning", "summary": []}]),
    st.sampled_from("abc").map(call),
    st.sampled_from("abc").map(output),
)


@given(st.lists(ITEMS, max_size=12))
def test_every_call_is_followed_by_exactly_one_output(raws):
    open_calls: list[str] = []
    for message in messages(*raws):
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert not open_calls
        open_calls = [one["id"] for one in message.get("tool_calls", ())]
    assert not open_calls


@pytest.mark.parametrize(
    "arguments", ['{"code": "print(1)', "[]", "7", "null", "print(1)", '{"a": "line\nbreak"}', "\ud800", "[" * 100_000]
)
def test_invalid_json_arguments_are_wrapped(arguments):
    _, message, _ = messages(user("Hi"), call("c1", arguments=arguments), output("c1", "not valid JSON"))
    (tool_call_sent,) = message["tool_calls"]

    assert json.loads(tool_call_sent["function"]["arguments"]) == {"not_json": arguments}


def test_valid_arguments_are_unchanged():
    _, message, _ = messages(user("Hi"), call("c1", arguments='{ "a":1.50 }'), output("c1"))

    assert message["tool_calls"] == [tool_call("c1", arguments='{ "a":1.50 }')]


def test_a_compaction_item_is_not_sent():
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}

    assert messages(user("Hi"), compaction, {"type": "compaction_trigger"}, user("Go")) == messages(
        user("Hi"), user("Go")
    )
    assert messages(call("a"), compaction, output("a")) == messages(call("a"), output("a"))
