from __future__ import annotations

from dataclasses import dataclass

import pytest

from weakincentives.adapters import ModelReply, ModelRequest, ToolCall
from weakincentives.budget import TokenUsage
from weakincentives.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, Prompt, ToolResult
from weakincentives.runtime import Session
from weakincentives.testing import ScriptedAdapter, call, calls, native, say


@dataclass
class Answer:
    value: int


PROMPT = Prompt[str](ns="n", key="k", sections=[MarkdownSection(title="T", key="t", template="Say.")])


def test_reply_helpers():
    used = TokenUsage(1, 2)

    assert say("hi", usage=used) == ModelReply(text="hi", usage=used)
    assert say(Answer(3)).text == '{"value":3}'
    assert say([Answer(3)]).text == '{"items":[{"value":3}]}'
    assert call("ls", path="/").calls == (ToolCall("call_0_ls", "ls", '{"path":"/"}'),)
    assert [one.call_id for one in calls(("a", {}), ("a", Answer(1))).calls] == ["call_0_a", "call_1_a"]
    assert (
        native("web_search", result=ToolResult("x"), provider="p", text="t").native_calls[0].capability == "web_search"
    )


def test_function_receives_the_request():
    def echo_prompt(request: ModelRequest) -> ModelReply:
        return say(request.rendered.text)

    assert ScriptedAdapter([echo_prompt]).evaluate(PROMPT, session=Session()).text == "## 1. T (t)\n\nSay."


def test_exception_is_raised():
    with pytest.raises(ZeroDivisionError):
        ScriptedAdapter([ZeroDivisionError()]).evaluate(PROMPT, session=Session())


def test_exhausted_script_is_an_error():
    adapter = ScriptedAdapter([say("one")])
    adapter.evaluate(PROMPT, session=Session())
    with pytest.raises(PromptEvaluationError, match="no reply for request 2") as caught:
        adapter.evaluate(PROMPT, session=Session())
    assert caught.value.phase == "request"


def test_provider_name_is_configurable():
    session = Session()
    response = ScriptedAdapter([say("hi")], provider="openai").evaluate(PROMPT, session=session)

    assert response.text == "hi"
    assert [entry.adapter for entry in session.transcript()] == ["openai"] * 3
