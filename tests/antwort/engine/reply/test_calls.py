from __future__ import annotations

import re

from antwort.api import events as wire
from antwort.engine.classify import ClientSide, ServerSide
from antwort.engine.output_builder import OpenCall
from antwort.engine.reply.calls import WrittenCall


def opened(call: WrittenCall, *, is_custom: bool = False) -> OpenCall:
    return OpenCall(0, name=call.name, call_id=call.call_id, is_custom=is_custom)


def test_arguments_are_kept_until_the_item_begins():
    call = WrittenCall("add", "c", ClientSide(is_custom=False, name="f"))

    assert [call.feed('{"n"'), call.feed(": 1")] == [[], []]
    [delta] = call.begin(opened(call))
    assert isinstance(delta, wire.FunctionArgumentsDelta)
    assert delta.delta == '{"n": 1'
    assert len(call.feed("}")) == 1
    assert call.is_complete
    assert call.as_function_call().raw["arguments"] == '{"n": 1}'


def test_a_hosted_call_is_not_complete_before_the_end_of_the_reply():
    call = WrittenCall("file_search", "c", ServerSide(0))
    call.feed("{}")

    assert call.is_hosted
    assert not call.is_complete


def test_a_call_that_is_written_whole_begins_earlier_where_its_arguments_allow_it():
    waits = WrittenCall("patch", "c", ServerSide(0, is_written_whole=True))
    begins = WrittenCall("run", "d", ServerSide(1, is_written_whole=True, begins_at=re.compile(r'\{"a": "')))
    states: list[bool] = []
    for part in ('{"a"', ': "', "x" * 300, '"}'):
        waits.feed(part)
        begins.feed(part)
        states.append(begins.may_begin)
        assert not waits.may_begin

    assert states == [False, True, True, True]
    assert WrittenCall("search", "e", ServerSide(2)).may_begin


def test_a_refused_call_is_complete_at_once_and_has_its_reason_as_output():
    call = WrittenCall("add", "c", ClientSide(is_custom=False, name="f"), refusal="No.")

    assert call.is_complete
    assert not call.is_client_side
    assert call.as_output().raw["output"] == "No."


def test_a_custom_call_is_partial_only_if_its_json_was_cut_off():
    for text, status in (('{"input": "a"}', "completed"), ('{"input": "a', "incomplete"), ("a", "incomplete")):
        call = WrittenCall("shout", "c", ClientSide(is_custom=True, name="f"))
        call.feed(text)
        call.begin(opened(call, is_custom=True))
        _, item = call.close(is_cut=True)

        assert (item["input"], item["status"]) == ("a", status)


def test_a_custom_call_is_complete_only_with_json_that_has_its_text():
    for text, is_complete in (
        ('{"input": "a\n{"}', True),
        ('{"other": "a"}', False),
        ('{"input": 1}', False),
        ("{ foo(); }", False),
        ("{" * 5000 + "}" * 5000, False),
    ):
        call = WrittenCall("shout", "c", ClientSide(is_custom=True, name="f"))
        for character in text:
            call.feed(character)

        assert call.is_complete == is_complete, text


def test_free_text_in_braces_is_kept_if_the_reply_is_cut_off():
    call = WrittenCall("shout", "c", ClientSide(is_custom=True, name="f"))
    call.feed("{ foo(); } ba")
    call.begin(opened(call, is_custom=True))
    _, item = call.close(is_cut=True)

    assert (item["input"], item["status"]) == ("{ foo(); } ba", "incomplete")


def test_a_function_call_without_arguments_has_an_empty_object_unless_it_was_cut_off():
    for text, is_cut, arguments in (("", False, "{}"), (" ", False, " {}"), ("", True, "")):
        call = WrittenCall("add", "c", ClientSide(is_custom=False, name="f"))
        call.feed(text)
        call.begin(opened(call))
        _, item = call.close(is_cut=is_cut)

        assert item["arguments"] == arguments
