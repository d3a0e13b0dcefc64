from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat, ReasoningOptions
from antwort.api.tools import GrammarFormat
from antwort.engine.ports import FunctionSpec, ModelRequest, MustCall, SamplingOptions
from antwort.models.chat.messages import ChatDialect
from antwort.models.chat.request import to_body

HELLO = [read({"role": "user", "content": "Hi"})]
PLAIN = FunctionSpec("look", None, None)
STRICT = FunctionSpec("get", "Gets.", {"type": "object", "properties": {"a": {"type": "string"}}}, strict=True)


def body(dialect=None, *, include_usage=True, **request):
    model_request = ModelRequest(model="client-name", items=HELLO, **request)
    return to_body(model_request, model="upstream-name", dialect=dialect or ChatDialect(), include_usage=include_usage)


def test_fields_that_are_not_set_are_not_sent():
    assert body() == {
        "model": "upstream-name",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream_options" not in body(include_usage=False)


def test_tools_are_functions():
    free = FunctionSpec("sql", "Asks.", None, free_text=True)
    tools = [tool["function"] for tool in body(tools=[PLAIN, STRICT, free])["tools"]]

    assert tools[0] == {"name": "look", "parameters": {"type": "object", "properties": {}}}
    assert tools[1] == {"name": "get", "description": "Gets.", "parameters": STRICT.parameters, "strict": True}
    assert tools[2]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize(
    "choice, sent",
    [
        ("auto", None),
        ("none", "none"),
        ("required", "required"),
        (MustCall("look"), {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tool_choice(choice, sent):
    assert body(tools=[PLAIN], choice=choice).get("tool_choice") == sent
    assert "tool_choice" not in body(choice=choice)


def test_parallel_tool_calls():
    assert body(tools=[PLAIN], parallel=False)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(parallel=False)


def test_response_format():
    schema = JsonSchemaFormat(name="answer", schema={"type": "object"}, description="What.", strict=True)
    assert body(format=JsonObjectFormat())["response_format"] == {"type": "json_object"}
    assert body(format=schema)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "description": "What.", "strict": True},
    }
    assert body(format=JsonSchemaFormat(name="a", schema={}))["response_format"]["json_schema"] == {
        "name": "a",
        "schema": {},
    }


def test_sampling():
    sent = body(
        max_output_tokens=99,
        temperature=0.0,
        top_p=0.5,
        top_logprobs=3,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        reasoning=ReasoningOptions(effort="low"),
        verbosity="high",
        user="me",
    )

    expected = {"max_tokens": 99, "temperature": 0.0, "top_p": 0.5, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    expected |= {"reasoning_effort": "low", "verbosity": "high", "user": "me", "logprobs": True, "top_logprobs": 3}
    assert {name: sent[name] for name in expected} == expected
    assert "verbosity" not in body(verbosity="medium")


def test_logprobs_with_and_without_alternatives():
    fields = [
        {name: body(top_logprobs=number).get(name) for name in ("logprobs", "top_logprobs")} for number in (None, 0, 2)
    ]

    assert fields == [
        {"logprobs": None, "top_logprobs": None},
        {"logprobs": True, "top_logprobs": None},
        {"logprobs": True, "top_logprobs": 2},
    ]


def test_a_grammar_is_in_the_description():
    spec = FunctionSpec("sql", "Runs.", None, free_text=True, grammar=GrammarFormat("lark", "start: /a/"))
    [tool] = body(tools=[spec])["tools"]

    assert tool["function"]["description"] == "Runs.\n\nThe input must be allowed by this lark grammar:\nstart: /a/"


def test_dialect():
    dialect = ChatDialect(
        max_tokens_field="max_completion_tokens", extra={"top_k": 20, "temperature": 0.7, "stream": False}
    )
    sent = body(dialect, max_output_tokens=5)

    assert (sent["max_completion_tokens"], sent["top_k"], sent["temperature"], sent["stream"]) == (5, 20, 0.7, True)
    assert body(dialect, temperature=0.1)["temperature"] == 0.1


def test_sampling_options_of_other_wires():
    sampling = SamplingOptions(stop=("a", "b", "c", "d", "e"), seed=0, logit_bias={"50256": -100})

    sent = body(sampling=sampling)

    assert (sent["stop"], sent["seed"], sent["logit_bias"]) == (["a", "b", "c", "d"], 0, {"50256": -100})
