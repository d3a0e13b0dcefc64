from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.engine.ports import CallPiece, Finished, FunctionSpec, ModelFault, ModelRequest, MustCall, TextPiece
from antwort.models import Scripted, parse_script
from antwort.models.scripted.model import _pieces, matches, summarize
from antwort.testing.model import collect, fold, make_request

pytestmark = pytest.mark.anyio

CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "21"}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci",
    "container_id": "k",
    "code": "1",
    "outputs": [{"type": "logs", "logs": "one"}],
}


def scripted(source):
    return Scripted(parse_script(source))


def request(*raws, tools=()):
    return ModelRequest(model="m", items=[read(raw) for raw in raws], tools=tools)


def user(text):
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


async def answer_text(model, request):
    return fold(await collect(model, request)).text


async def test_the_first_matching_answer_is_given():
    model = scripted(
        """
        answers:
          - {when: {text: weather, turn: 1}, reply: [{text: which city}]}
          - {when: {text: weather, turn: 2}, reply: [{text: it is <<output>>}]}
          - {when: {tool: search}, reply: [{text: I could search}]}
          - {when: {output: one}, reply: [{text: code}]}
          - {reply: [{text: "you said: <<text>>"}]}
        """
    )

    assert await answer_text(model, request(user("The WEATHER?"))) == "which city"
    assert await answer_text(model, request(user("weather"), CALL, OUTPUT)) == "it is 21"
    assert (
        await answer_text(model, request(user("news"), tools=[FunctionSpec("search", None, None)])) == "I could search"
    )
    assert await answer_text(model, request(user("news"), CODE)) == "code"
    assert await answer_text(model, request(user("news"))) == "you said: news"
    assert len(model.requests) == 5


@pytest.mark.parametrize("choice, expected", [("auto", "free"), ("none", "no tool"), (MustCall("search"), "search")])
async def test_an_answer_for_a_tool_choice(choice, expected):
    model = scripted(
        """
        answers:
          - {when: {choice: none}, reply: [{text: no tool}]}
          - {when: {choice: search}, reply: [{text: search}]}
          - {reply: [{text: free}]}
        """
    )

    assert await answer_text(model, ModelRequest(model="m", items=[read(user("news"))], choice=choice)) == expected


@pytest.mark.parametrize(
    "raws, turn",
    [
        ([], 1),
        ([user("a")], 1),
        ([user("a"), CALL, OUTPUT], 2),
        ([user("a"), CALL, CALL, OUTPUT, OUTPUT], 2),
        ([user("a"), CALL, OUTPUT, CALL, OUTPUT], 3),
        ([user("a"), CODE, CODE], 3),
        ([user("a"), CALL, OUTPUT, user("b")], 1),
    ],
)
def test_turns_are_rounds_of_calls(raws, turn):
    assert summarize(request(*raws)).turn == turn


HISTORY = [
    {"role": "system", "content": "fact-system"},
    {"role": "developer", "content": [{"type": "input_text", "text": "fact-developer"}]},
    user("FACT-user"),
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "fact-summary"}],
        "encrypted_content": "fact-no",
    },
    {
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "fact-refusal"}, {"type": "output_text", "text": "fact-assistant"}],
    },
    {"type": "function_call", "call_id": "a", "name": "fact-no", "arguments": '{"q":"fact-arguments"}'},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "fact-output"}]},
    {"type": "custom_tool_call", "call_id": "b", "name": "t", "input": "fact-input"},
    {"type": "custom_tool_call_output", "call_id": "b", "output": "fact-custom"},
    {**CODE, "code": "fact-code", "outputs": [{"type": "logs", "logs": "fact-logs"}]},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["fact-command"]}},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "fact-stdout", "outcome": {"exit_code": 0}}]},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "fact-no"},
    user("Which facts? fact-system"),
]
FACTS = "instructions system developer user summary refusal assistant arguments output input custom code logs"


async def test_find_collects_all_matches_of_what_the_model_sees():
    model = scripted("answers: [{reply: [{text: '<<find /fact-([a-z]+)/>>; <<find /nothing/>>'}]}]")
    items = [read(raw) for raw in HISTORY]
    text = await answer_text(model, ModelRequest(model="m", items=items, instructions="fact-instructions"))

    assert text.lower() == "\n".join(f"fact-{name}" for name in [*FACTS.split(), "command", "stdout"]) + "; "
    assert "FACT-user" in text


async def test_find_in_call_arguments():
    arguments = """{q: ["<<find /a[0-9]/>>", 1], r: "<<text>>"}"""
    model = scripted(f"answers: [{{reply: [{{call: {{name: f, arguments: {arguments}}}}}]}}]")
    answer = fold(await collect(model, request(user("a1 A2"), user("a1, b"))))

    assert answer.calls[0].arguments == '{"q":["a1\\nA2",1],"r":"a1, b"}'


async def test_inserted_text_is_not_searched_for_markers():
    model = scripted("answers: [{reply: [{text: '<<text>> <<find /<<output>>/>>'}]}]")

    assert await answer_text(model, request(user("<<output>>"), CALL, OUTPUT)) == "<<output>> <<output>>"


async def test_any_matches_everything_that_the_model_sees():
    model = scripted(
        """
        answers:
          - {when: {any: CODE WORD, turn: 2}, reply: [{text: both}]}
          - {when: {any: "/code (word|name)/"}, reply: [{text: seen}]}
          - {reply: [{text: unseen}]}
        """
    )
    secret = {"role": "developer", "content": "The code word is blue."}

    assert await answer_text(model, request(secret, user("hi"), CALL, OUTPUT)) == "both"
    assert await answer_text(model, request(secret, user("hi"))) == "seen"
    assert await answer_text(model, request(user("hi"))) == "unseen"
    named = ModelRequest(model="m", items=[read(user("hi"))], instructions="Code name: red")
    assert await answer_text(model, named) == "seen"


async def test_what_the_model_sees_is_collected_only_if_the_script_needs_it():
    summary = summarize(request(user("a"), user("b")))
    plain, finding = (
        parse_script(f"answers: [{{reply: [{{text: '{text}'}}]}}]") for text in ("<<text>>", "<<find /a/>>")
    )

    assert matches(plain.answers[0].when, summary)
    assert [*_pieces(plain.answers[0].reply[0], summary, 0, 0)] == [TextPiece("b")]
    assert "visible" not in vars(summary)
    assert [*_pieces(finding.answers[0].reply[0], summary, 0, 0)] == [TextPiece("a")]
    assert vars(summary)["visible"] == "a\nb"


async def test_all_kinds_of_steps():
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    source = """
        answers:
          - reply:
              - reasoning: hm
              - summary: in short
              - sealed: gAAAA
              - delay: 0.5
              - text: hello
              - refusal: "no"
              - call: {name: f, arguments: {q: ["<<text>>", 1]}, id: call_7}
              - call: {name: g, arguments: '{"broken'}
              - call: {name: h}
    """
    answer = fold(await collect(Scripted(parse_script(source), sleep=sleep), make_request("Hi")))

    assert (answer.reasoning, answer.summary, answer.sealed) == ("hm", "in short", ("gAAAA",))
    assert (answer.text, answer.refusal, answer.reason, slept) == ("hello", "no", "calls", [0.5])
    assert [(call.name, call.arguments) for call in answer.calls] == [
        ("f", '{"q":["Hi",1]}'),
        ("g", '{"broken'),
        ("h", "{}"),
    ]
    assert answer.calls[0].call_id == "call_7"
    assert answer.usage.total_tokens > 0


async def test_fragments():
    model = scripted("{fragment: 2, answers: [{reply: [{text: hello}, {call: {name: f, arguments: abc, id: x}}]}]}")

    assert (await collect(model, make_request()))[:-1] == [
        TextPiece("he"),
        TextPiece("ll"),
        TextPiece("o"),
        CallPiece(0, "f", "x", "ab"),
        CallPiece(0, arguments="c"),
    ]
    unsplit = scripted("{fragment: 2, answers: [{fragment: 0, reply: [{text: hello}]}]}")
    assert (await collect(unsplit, make_request()))[0] == TextPiece("hello")


async def test_logprobs_have_probability_1():
    model = scripted("{fragment: 3, answers: [{reply: [{text: hello}]}]}")
    token = {"token": "hel", "bytes": [104, 101, 108], "logprob": 0.0}
    with_logprobs = ModelRequest(model="m", items=[read(user("hi"))], top_logprobs=1)

    assert (await collect(model, with_logprobs))[0] == TextPiece("hel", ({**token, "top_logprobs": [token]},))
    assert (await collect(model, request(user("hi"))))[0] == TextPiece("hel")


async def test_faults_and_times():
    model = scripted(
        """
        answers:
          - {times: 1, reply: [{fault: {code: rate_limit_exceeded, status: 429, retry_after: 3, retryable: true}}]}
          - {times: 1, reply: [{text: ok}], finish: length, usage: {input_tokens: 5, output_tokens: 2}}
        """
    )
    with pytest.raises(ModelFault) as caught:
        await collect(model, make_request())
    assert (caught.value.status, caught.value.retry_after, caught.value.retryable) == (429, 3, True)

    end = (await collect(model, make_request()))[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.total_tokens) == ("length", 7)

    with pytest.raises(ModelFault, match="no answer"):
        await collect(model, make_request())


async def test_max_requests_0_keeps_no_requests():
    model = Scripted(parse_script("answers: [{reply: [{text: x}]}]"), max_requests=0)
    await collect(model, make_request("Hi"))

    assert not model.requests
