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


def said(text):
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
    assert messages(user("Hi"), said("Hello!"), user("Bye"), instructions="Be kind.") == [
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


def test_parallel_calls_are_one_message_and_their_results_follow():
    assert messages(user("Go"), said("I look."), call("a"), call("b"), output("b", "B"), output("a", "A")) == [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "I look.", "tool_calls": [tool_call("a"), tool_call("b")]},
        tool("a", "A"),
        tool("b", "B"),
    ]


def test_calls_one_after_the_other_are_not():
    assert messages(call("a"), output("a"), call("b"), output("b")) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("a")]},
        tool("a"),
        {"role": "assistant", "content": "", "tool_calls": [tool_call("b")]},
        tool("b"),
    ]


def test_a_result_follows_its_call_wherever_it_stands():
    assert [one["role"] for one in messages(call("a"), user("Hurry"), output("a"))] == ["assistant", "tool", "user"]


def test_a_call_without_a_result_and_a_result_without_a_call():
    assert messages(call("a"), user("Well?"))[1] == tool("a", OUTPUT_NOT_STORED)
    assert messages(output("gone", "42")) == [{"role": "user", "content": "Result of an earlier tool call:\n42"}]


def test_an_id_that_comes_twice():
    assert [one["content"] for one in messages(call("a"), output("a", "1"), call("a"), output("a", "2"))] == [
        "",
        "1",
        "",
        "2",
    ]


def test_custom_tools_are_functions_with_one_input():
    raw = {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": 'SELECT "x"'}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]}
    made, answer = messages(raw, result)

    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"input": 'SELECT "x"'}
    assert answer == tool("a", "1")


def test_hosted_calls_are_retold():
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "container_id": "cntr_1",
        "code": "1+1",
        "outputs": [{"type": "logs", "logs": "2"}],
    }
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "s", "action": {"commands": ["ls"]}}
    listed = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    shown = {"type": "shell_call_output", "call_id": "s", "output": [listed]}

    assert messages(code, said("Two."), shell, shown) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("ci_1", "code_interpreter", '{"code": "1+1"}')]},
        tool("ci_1", "2"),
        {"role": "assistant", "content": "Two.", "tool_calls": [tool_call("s", "shell", '{"commands": ["ls"]}')]},
        tool("s", "a\n(exit code 0)"),
    ]


def test_pictures_are_sent_or_mentioned():
    content = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
    ]

    assert messages(user(content))[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    ]
    assert messages(user(content), images=False)[0]["content"] == "What is it?\n[image]"
    unknown = [{"type": "input_image", "file_id": "file-1"}]
    assert messages(user(unknown))[0]["content"] == "[image]"


def test_pictures_of_a_tool_are_shown_after_all_results():
    picture = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]
    shown = messages(call("a"), call("b"), output("a", picture), output("b"), user("Nice"))

    assert [one["role"] for one in shown] == ["assistant", "tool", "tool", "user", "user"]
    assert shown[1]["content"] == "see\n[image]"
    assert shown[3]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}
    assert len(messages(call("a"), output("a", picture), images=False)) == 2


def test_files_with_text_are_shown_and_others_mentioned():
    text = "data:text/plain;base64," + base64.b64encode("grüße".encode()).decode()
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    bad = {"type": "input_file", "filename": "b.txt", "file_data": "data:text/plain;base64,%%%"}

    shown = messages(user([{"type": "input_file", "filename": "a.txt", "file_data": text}, pdf, bad]))[0]["content"]

    assert shown == "[attached file: a.txt]\ngrüße\n[end of a.txt]\n[attached file: a.pdf]\n[attached file: b.txt]"


def test_files_without_text_are_sent_where_the_server_takes_them():
    text = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}
    pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    sent = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}

    assert messages(user([text, pdf]), files=True)[0]["content"] == [
        {"type": "text", "text": "[attached file: a.txt]\na\n[end of a.txt]"},
        sent,
    ]
    of_a_tool = messages(call("a"), output("a", [pdf]), files=True)
    assert [one["role"] for one in of_a_tool] == ["assistant", "tool", "user"]
    assert of_a_tool[2]["content"][1] == sent


def test_reasoning_is_dropped_or_sent_back():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}

    assert messages(thought, said("Hello")) == [{"role": "assistant", "content": "Hello"}]
    assert (
        messages(thought, call("a"), output("a"), replay_reasoning="reasoning_content")[0]["reasoning_content"] == "Hm."
    )
    assert messages(thought, said("Hello"), replay_reasoning="reasoning")[0]["reasoning"] == "Hm."


def test_a_refusal_is_said_and_what_nobody_knows_is_skipped():
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}

    assert messages(
        refused, {"type": "brand_new", "x": 1}, {"type": "compaction"}, {"type": "item_reference", "id": "x"}
    ) == [{"role": "assistant", "content": "No."}]


ITEMS = st.one_of(
    st.sampled_from([user("u"), said("s"), {"type": "new"}, {"type": "reasoning", "summary": []}]),
    st.sampled_from("abc").map(call),
    st.sampled_from("abc").map(output),
)


@given(st.lists(ITEMS, max_size=12))
def test_every_result_stands_behind_its_call_and_every_call_has_one(raws):
    open_calls: list[str] = []
    for message in messages(*raws):
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert not open_calls
        open_calls = [one["id"] for one in message.get("tool_calls", ())]
    assert not open_calls


@pytest.mark.parametrize(
    "written", ['{"code": "print(1)', "[]", "7", "null", "print(1)", '{"a": "line\nbreak"}', "\ud800", "[" * 100_000]
)
def test_arguments_that_no_server_can_read_are_retold_as_some_that_all_can(written):
    _, made, _ = messages(user("Hi"), call("c1", arguments=written), output("c1", "not valid JSON"))
    (told,) = made["tool_calls"]

    assert json.loads(told["function"]["arguments"]) == {"not_json": written}


def test_arguments_that_can_be_read_stay_as_they_were_written():
    _, made, _ = messages(user("Hi"), call("c1", arguments='{ "a":1.50 }'), output("c1"))

    assert made["tool_calls"] == [tool_call("c1", arguments='{ "a":1.50 }')]
