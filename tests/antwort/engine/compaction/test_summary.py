from __future__ import annotations

from typing import Any

import pytest
from fixtures_compaction import (
    PIXEL,
    code_call,
    function_call,
    function_output,
    histories,
    message,
    raws,
    reasoning,
    unpaired,
)
from hypothesis import given
from hypothesis import strategies as st

from antwort.api import items
from antwort.api.requests import JsonObjectFormat, ReasoningOptions, TextFormat
from antwort.api.token_estimate import estimate_text
from antwort.engine.compaction.retention import Budgets, has_role, is_instruction, is_summary, retain
from antwort.engine.compaction.summary import (
    HEADER,
    extract,
    problem_of,
    shorter_request,
    summary_item,
    summary_request,
)
from antwort.engine.ports import FunctionSpec, ModelRequest

BUDGETS = Budgets(summary=100, users=100, calls=100)
TOOLS = (FunctionSpec("look", "Look.", None),)


def request_for(*history: items.Item, effort: Any = None, is_other_model: bool = False) -> ModelRequest:
    base = ModelRequest(
        model="m",
        items=list(history),
        instructions="Be exact.",
        tools=TOOLS,
        choice="required",
        format=JsonObjectFormat(),
        max_output_tokens=16,
        temperature=0.5,
        top_logprobs=3,
        verbosity="low",
        reasoning=ReasoningOptions(effort=effort),
    )
    return summary_request(base, retain(history, BUDGETS), 100, model="writer", is_other_model=is_other_model)


def prompt_of(request: ModelRequest) -> str:
    return request.items[-1].raw["content"]


def test_the_request_has_the_history_instructions_and_tools_and_asks_for_text():
    history = [message("rule", "system"), message("a"), function_call("c"), function_output("c")]
    request = request_for(*history)

    assert raws(request.items[:-1]) == raws(history)
    assert (request.model, request.instructions, request.tools) == ("writer", "Be exact.", TOOLS)
    assert (request.choice, request.format, request.temperature) == ("none", TextFormat(), 0.5)
    assert (request.max_output_tokens, request.top_logprobs, request.verbosity) == (200, None, None)
    assert "At most 60 words" in prompt_of(request)
    assert "no result yet" not in prompt_of(request)


def test_open_calls_are_named_in_the_prompt_only():
    request = request_for(message("a"), function_call("c", '{"path": "a.txt"}'))

    assert raws(request.items[:-1]) == raws([message("a")])
    assert prompt_of(request).endswith('These calls have no result yet:\ncalled look: {"path": "a.txt"}')


def test_a_model_that_reasons_gets_tokens_for_it():
    plain, reasons = request_for(message("a")), request_for(message("a"), reasoning("hm"))

    assert plain.max_output_tokens == 200
    assert reasons.max_output_tokens == 200 + 2048
    assert request_for(message("a"), effort="low").max_output_tokens == 200 + 2048
    assert request_for(message("a"), effort="none").max_output_tokens == 200


def test_another_model_gets_texts_for_images_and_files_and_no_reasoning():
    image = {"type": "input_image", "image_url": PIXEL}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"}
    shown = items.read({"type": "message", "role": "user", "content": [image, file]})
    thought = items.read({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of the upstream"})
    screenshot = [
        items.read({"type": "computer_call", "call_id": "s"}),
        items.read({"type": "computer_call_output", "call_id": "s", "output": {"image_url": PIXEL}}),
    ]
    history = [shown, thought, function_call("c"), function_output("c", [image]), *screenshot]
    texts = [{"type": "input_text", "text": text} for text in ("[image]", "[file a.pdf]")]
    replaced = items.read({"type": "message", "role": "user", "content": texts})

    assert raws(request_for(*history).items[:-1]) == raws(history)
    request = request_for(*history, is_other_model=True)
    assert raws(request.items[:-1]) == raws([replaced, function_call("c"), function_output("c", texts[:1])])
    assert request.max_output_tokens == 200 + 2048


def test_the_shorter_request_drops_the_older_half_and_keeps_what_must_stay():
    rule, task, summary = message("rule", "developer"), message("the task"), message("so far", id="cmp_1")
    steps = [item for n in range(20) for item in (function_call(f"c{n}"), function_output(f"c{n}", f"{n} " * 500))]
    request = request_for(rule, task, summary, *steps)
    shorter = shorter_request(request)

    assert raws(shorter.items[:3]) == raws([rule, task, summary])
    assert shorter.items[-1] == request.items[-1]
    assert unpaired(shorter.items) == []
    assert 20 < len(shorter.items) < 27
    assert all(len(str(item.raw)) < 600 for item in shorter.items[3:-1])
    assert "characters cut" in str(shorter.items[-2].raw)


def test_the_shorter_request_has_no_output_whose_call_was_dropped():
    parallel = [function_call(f"c{n}") for n in range(4)] + [function_output(f"c{n}") for n in range(4)]
    shorter = shorter_request(request_for(*parallel))

    assert [item.type for item in shorter.items] == ["message"]


@given(histories())
def test_requests_for_summaries_keep_instructions_and_the_last_user_message(history):
    request = request_for(*history)
    last = next((item.raw for item in reversed(history) if has_role(item, "user")), None)
    for sent in (request, shorter_request(request), shorter_request(shorter_request(request))):
        assert unpaired(sent.items) == []
        assert raws([item for item in sent.items if is_instruction(item)]) == raws(
            [item for item in history if is_instruction(item)]
        )
        assert last is None or last in raws(sent.items)


@pytest.mark.parametrize(
    "text, is_refusal, is_cut, problem",
    [
        ("fine", False, False, None),
        ("word " * 140, False, False, None),
        ("word " * 200, False, False, "too long"),
        ("長" * 201, False, False, "too long"),
        ("half", False, True, "too long"),
        ("half", True, False, "refused"),
        ("", False, False, "empty"),
        (" \n\t", False, False, "empty"),
    ],
)
def test_problems_of_a_summary(text, is_refusal, is_cut, problem):
    found = problem_of(text, is_refusal=is_refusal, is_cut=is_cut, budget=100)

    assert found == problem or (problem is not None and found is not None and problem in found)


def test_the_summary_is_a_message_with_the_id_of_the_compaction():
    item = summary_item("cmp_1", " Fact: blue.\n", ["cntr_1", "cfile_1 (a.png in cntr_1)"])

    assert is_summary(item)
    assert item.raw["content"][0]["text"] == (
        f"{HEADER}\n\nFact: blue.\n\nIdentifiers of containers and files:\ncntr_1\ncfile_1 (a.png in cntr_1)"
    )
    assert "Identifiers" not in summary_item("cmp_1", "x", []).raw["content"][0]["text"]


# ── extract ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_extract_has_one_line_for_each_item():
    shell = items.read({"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}})
    refusal = items.read({"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]})
    history = [
        message("do it\nnow"),
        reasoning("hidden"),
        function_call("c", '{"a": 1}'),
        function_output("c", "one\ntwo"),
        code_call("cntr_1", "1 + 1", "2"),
        shell,
        refusal,
        message("done", "assistant"),
    ]

    assert extract(history, 1000).splitlines() == [
        "user: do it now",
        'called look: {"a": 1}',
        "result: one two",
        "called code_interpreter: 1 + 1 [{'type': 'logs', 'logs': '2'}]",
        "called shell: {'commands': ['ls']}",
        "assistant: I will not.",
        "assistant: done",
    ]


def test_the_extract_has_no_data_urls():
    image = {"type": "input_image", "image_url": PIXEL}
    text = extract([function_call("c"), function_output("c", [image]), function_output("d", PIXEL)], 1000)

    assert "[image]" in text
    assert "data:" not in text


def test_the_extract_has_the_newest_items_within_its_budget():
    text = extract([message(f"number {n} " + "word " * 10, "assistant") for n in range(100)], 100)

    assert estimate_text(text) <= 100
    assert text.splitlines()[-1].startswith("assistant: number 99")
    assert "number 1 " not in text


def test_the_extract_carries_earlier_summaries_without_their_frame():
    earlier = summary_item("cmp_1", "Fact: blue.", ["cntr_1"])
    text = extract([earlier, message("next", "assistant")], 100)

    assert text == "Fact: blue.\nassistant: next"


def test_repeated_extracts_stay_within_the_budget():
    text = ""
    for number in range(30):
        history = [summary_item(f"cmp_{number}", text, []), message(f"{number} " + "word " * 60, "assistant")]
        text = extract(history, 100)
        assert estimate_text(text) <= 100
    assert "29 word" in text


@given(histories(), st.integers(40, 400))
def test_the_extract_is_never_longer_than_its_budget(history, budget):
    earlier = summary_item("cmp_1", "長い要約。" * 300, [])

    assert estimate_text(extract([earlier, *history], budget)) <= budget
    assert estimate_text(extract(history, budget)) <= budget
