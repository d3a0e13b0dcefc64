from __future__ import annotations

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

from antwort.api import items
from antwort.api.token_estimate import estimate_item
from antwort.engine.compaction.retention import (
    Budgets,
    cut,
    has_role,
    is_instruction,
    is_summary,
    retain,
    without_open_calls,
)

BUDGETS = Budgets(summary=100, users=100, calls=100)
LARGE = Budgets(summary=2000, users=20_000, calls=4000)
ANSWER = message("answer", "assistant")


def data_url(size: int) -> str:
    return "data:image/png;base64,".ljust(size, "A")


def test_budgets_within_a_threshold_leave_space_for_new_items():
    budgets = Budgets(2000, 20_000, 4000)

    assert budgets.within(1_000_000) == budgets
    small = budgets.within(1000)
    assert small == Budgets(250, 250, 125)


def test_the_order_of_the_window():
    rule, asked, new = message("rule", "developer"), message("asked"), message("new")
    call, output = function_call("c"), function_output("c")
    retained = retain([asked, rule, call, output, ANSWER, new], BUDGETS)
    summary = message("summary", id="cmp_1")

    assert raws(retained.window(summary)) == raws([rule, asked, summary, call, output, new])
    assert raws(retained.user_messages) == raws([asked, new])
    assert is_summary(summary)
    assert not has_role(summary, "user")


def test_the_tools_of_items_stay_in_one_item_before_everything_else():
    tools = [{"type": "function", "name": name} for name in ("a", "b")]
    added = items.read({"type": "additional_tools", "role": "developer", "tools": tools[:1]})
    search = items.read({"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}})
    found = items.read({"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": tools[1:]})
    asked, summary = message("asked"), message("summary", id="cmp_1")
    small = Budgets(summary=100, users=100, calls=0)

    kept, *rest = retain([added, asked, search, found, ANSWER], small).window(summary)
    assert (kept.type, [tool["name"] for tool in kept.raw["tools"]]) == ("additional_tools", ["a", "b"])
    assert raws(rest) == raws([asked, summary])
    _, *rest = retain([added, asked, search, found, ANSWER], BUDGETS).window(summary)
    assert raws(rest) == raws([asked, summary, search, found])


def test_a_tool_search_of_a_server_waits_for_no_output():
    search = items.read({"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}})
    assert retain([message("asked"), search, ANSWER], BUDGETS).open_calls == []


def test_all_instructions_stay_once():
    rules = [message("one", "system"), message("two", "developer"), message("one", "system")]
    history = [*rules, message("x" * 4000), ANSWER, message("three", "developer"), ANSWER]

    assert raws(retain(history, BUDGETS).instructions) == raws([rules[0], rules[1], history[-2]])
    assert [is_instruction(item) for item in (*rules, ANSWER)] == [True, True, True, False]


def test_the_newest_user_messages_stay_within_their_budget():
    users = [message(f"{number} " + "word " * 30) for number in range(10)]
    history = [item for user in users for item in (user, ANSWER)]
    retained = retain(history, BUDGETS)

    assert raws(retained.users) == raws(users[-2:])
    assert sum(map(estimate_item, retained.users)) <= 100


def test_the_last_user_message_stays_whatever_its_length():
    long = message("long " * 1000)

    assert retain([message("old " * 500), long, ANSWER], BUDGETS).users == [long]
    assert retain([long, ANSWER, message("new")], BUDGETS).users == []
    assert retain([long, ANSWER, message("rule", "system")], BUDGETS).users == [long]


def test_the_first_user_message_stays_unless_it_is_long():
    task, middle, last = message("the task"), message("middle " * 150), message("last")
    budgets = Budgets(100, 200, 100)

    assert retain([task, middle, last, ANSWER], budgets).users == [task, last]
    assert retain([middle, message("other " * 150), last, ANSWER], budgets).users == [last]


def test_unanswered_messages_at_the_end_stay_as_they_are():
    tail = [message("a " * 50), message("rule", "developer"), message("b")]
    retained = retain([message("old"), ANSWER, *tail], BUDGETS)

    assert retained.tail == tail
    assert retained.instructions == []


def test_unanswered_messages_share_the_budget_of_the_users_messages():
    task, rule, last = message("task"), message("rule", "developer"), message("last " * 1000)
    long = [message(f"{number} " + "word " * 30) for number in range(10)]

    retained = retain([task, ANSWER, *long, rule], BUDGETS)
    assert (retained.users, retained.tail) == ([task], [*long[-2:], rule])
    assert retained.dropped_tokens == sum(map(estimate_item, [ANSWER, *long[:-2]]))
    only_tail = retain([task, *long, rule, last], BUDGETS)
    assert (only_tail.users, only_tail.tail) == ([], [task, rule, last])


def test_a_summary_is_neither_kept_nor_counted_as_dropped():
    summary = message("long summary " * 300, id="cmp_1")
    retained = retain([summary, message("a"), ANSWER], BUDGETS)

    assert summary not in [*retained.users, *retained.tail, *retained.instructions]
    assert retained.dropped_tokens == estimate_item(ANSWER)
    assert retain([summary], BUDGETS).tail == []


# ── inline data ──────────────────────────────────────────────────────────────────────────────────────────────────────


def picture(size: int, *texts: str) -> items.Item:
    parts = [{"type": "input_text", "text": text} for text in texts]
    image = {"type": "input_image", "image_url": data_url(size)}
    return items.read({"type": "message", "role": "user", "content": [*parts, image]})


def placeholders(given: list[items.Item]) -> int:
    return sum("[image]" in str(item.raw) for item in given)


def test_inline_images_of_the_newest_items_stay_within_two_megabytes():
    images = [picture(600_000, f"look {number}") for number in range(10)]
    history = [item for image in images for item in (image, ANSWER)]
    retained = retain([*history, message("last"), ANSWER], LARGE)

    assert retained.users[7:] == [*images[7:], message("last")]
    assert placeholders(retained.users[:7]) == 7
    assert [part["text"] for part in retained.users[0].raw["content"]] == ["look 0", "[image]"]
    assert retained.user_messages == retained.users
    assert retained.dropped_tokens == sum(map(estimate_item, [*history, ANSWER])) - sum(
        map(estimate_item, retained.users[:-1])
    )


@pytest.mark.parametrize("after", [[], [ANSWER]])
def test_the_last_user_message_keeps_more_inline_data_and_the_others_then_less(after):
    older, last = [picture(600_000) for _ in range(3)], picture(5_000_000)
    retained = retain([*older, ANSWER, last, *after], LARGE)

    assert retained.user_messages[-1] is last
    assert placeholders(retained.user_messages) == 3
    too_large = retain([ANSWER, picture(9_000_000, "see"), *after], LARGE)
    assert [part["text"] for part in too_large.user_messages[0].raw["content"]] == ["see", "[image]"]


def test_inline_data_of_outputs_and_instructions_counts_too():
    image = {"type": "input_image", "image_url": data_url(1_500_000)}
    pair = [function_call("c"), function_output("c", [{"type": "input_text", "text": "seen"}, image])]
    rule = items.read({"type": "message", "role": "developer", "content": [image]})
    retained = retain([rule, message("a"), *pair, ANSWER], LARGE)

    assert retained.calls == pair
    assert retained.instructions[0].raw["content"] == [{"type": "input_text", "text": "[image]"}]
    newer = retain([message("a"), *pair, *[function_call("d"), function_output("d", [image])], ANSWER], LARGE)
    assert newer.calls[1].raw["output"] == [
        {"type": "input_text", "text": "seen"},
        {"type": "input_text", "text": "[image]"},
    ]
    assert newer.calls[3].raw["output"] == [image]


def test_a_screenshot_beyond_the_limit_is_dropped_with_its_call():
    def pair(call_id: str, size: int) -> list[items.Item]:
        screenshot = {"type": "computer_screenshot", "image_url": data_url(size)}
        return [
            items.read({"type": "computer_call", "call_id": call_id, "id": f"cu_{call_id}"}),
            items.read({"type": "computer_call_output", "call_id": call_id, "output": screenshot}),
        ]

    old, new = pair("a", 1_500_000), pair("b", 1_500_000)

    assert retain([message("a"), *old, *new, ANSWER], LARGE).calls == new


def test_code_interpreter_calls_keep_no_images():
    outputs = [{"type": "image", "url": PIXEL}, {"type": "logs", "logs": PIXEL}, {"type": "logs", "logs": "a"}]
    call = items.read({**code_call("cntr_1").raw, "outputs": outputs})
    kept = [{"type": "logs", "logs": "[image]"}, {"type": "logs", "logs": "a"}]

    assert [item.raw["outputs"] for item in retain([call], LARGE).calls] == [kept]
    [short] = retain([call, function_call("c"), function_output("c", "word " * 70)], BUDGETS).calls[:1]
    assert "data:" not in str(short.raw)


def test_retaining_a_window_again_changes_nothing():
    images = [picture(600_000, f"look {number}") for number in range(10)]
    history = [item for image in images for item in (image, ANSWER)]
    summary = message("s", id="cmp_1")
    window = retain(history, LARGE).window(summary)

    assert raws(retain(window, LARGE).window(summary)) == raws(window)


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_calls_stay_with_their_outputs():
    pairs = [[function_call(f"c{n}"), function_output(f"c{n}", "word " * 20)] for n in range(6)]
    retained = retain([item for pair in pairs for item in pair], BUDGETS)

    assert raws(retained.calls) == raws([*pairs[-2], *pairs[-1]])
    assert retained.open_calls == []


def test_parallel_calls_keep_their_order():
    parallel = [function_call("a"), function_call("b"), function_output("b"), function_output("a")]

    assert raws(retain(parallel, BUDGETS).calls) == raws(parallel)


def test_open_calls_come_last_whatever_they_cost():
    waiting = function_call("open", "x" * 4000)
    pair = [function_call("c"), function_output("c")]
    retained = retain([waiting, *pair, message("and?")], BUDGETS)

    assert raws(retained.calls) == raws([*pair, waiting])
    assert raws(retained.open_calls) == [waiting.raw]
    assert unpaired(retained.window(message("summary", id="cmp_1"))) == []


def test_an_output_belongs_to_the_first_call_of_its_id_without_one():
    first, second = function_call("same", '{"n": 1}'), function_call("same", '{"n": 2}')
    output = function_output("same", "one")
    retained = retain([first, output, second], BUDGETS)

    assert raws(retained.calls) == raws([first, output, second])
    assert raws(retained.open_calls) == [second.raw]


def test_an_output_without_a_call_is_dropped():
    assert retain([function_output("lost"), ANSWER], BUDGETS).calls == []


def test_a_local_shell_call_is_paired_by_its_id():
    call = items.read({"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {"command": ["ls"]}})
    output = items.read({"type": "local_shell_call_output", "id": "c", "output": "a.txt"})

    assert raws(retain([call, output], BUDGETS).calls) == raws([call, output])


@pytest.mark.parametrize("text", ["word " * 2000, "長い文章です" * 500, "0123456789" * 50 + "長い" * 2000])
@pytest.mark.parametrize("kind", ["text", "parts", "custom", "shell"])
def test_the_newest_output_is_cut_if_it_is_too_long(kind, text):
    marked = f"BEGIN{text}END"
    parts = [{"type": "input_text", "text": marked}, {"type": "input_image", "image_url": PIXEL}]
    shell = {"stdout": marked, "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
    pairs = {
        "text": [function_call("c"), function_output("c", marked)],
        "parts": [function_call("c"), function_output("c", parts)],
        "custom": [
            items.read({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}),
            items.read({"type": "custom_tool_call_output", "call_id": "c", "output": parts}),
        ],
        "shell": [
            items.read({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}),
            items.read({"type": "shell_call_output", "call_id": "c", "output": [shell]}),
        ],
    }
    retained = retain([function_call("o"), function_output("o", "word " * 40), *pairs[kind]], BUDGETS)

    call, output = retained.calls
    assert call.raw == pairs[kind][0].raw
    assert output.call_id == "c"
    assert "BEGIN" in str(output.raw)
    assert "END" in str(output.raw)
    assert "characters cut" in str(output.raw)
    assert estimate_item(call) + estimate_item(output) <= BUDGETS.calls


def test_a_call_with_arguments_beyond_the_budget_is_dropped_with_its_output():
    assert retain([function_call("c", "x" * 4000), function_output("c")], BUDGETS).calls == []


def test_a_generated_image_is_not_kept():
    image = items.read({"type": "image_generation_call", "id": "ig_1", "result": "AAAA"})

    assert retain([image, ANSWER], BUDGETS).calls == []


def test_the_last_call_in_each_container_stays_in_short():
    long = [code_call(f"cntr_{n}", "print(1)\n" * 500, "1\n" * 2000, f"ci_{n}") for n in (1, 2, 3, 4, 5)]
    first = code_call("cntr_5", identifier="ci_0")
    retained = retain([first, *long, *[function_call("c"), function_output("c", "word " * 60)]], BUDGETS)

    kept = [item for item in retained.calls if item.type == "code_interpreter_call"]
    assert [item.id for item in kept] == ["ci_2", "ci_3", "ci_4", "ci_5"]
    assert {item.raw["container_id"] for item in kept} == {"cntr_2", "cntr_3", "cntr_4", "cntr_5"}
    assert all(estimate_item(item) < 70 for item in kept)


def test_cutting_a_code_call_leaves_out_figures_and_keeps_unknown_outputs():
    figure = {"type": "image", "url": PIXEL}
    call = items.read({**code_call("cntr_1").raw, "outputs": [{"type": "logs", "logs": "a"}, figure]})
    unknown = items.read({**code_call("cntr_1").raw, "outputs": None})

    assert cut(call, 50).raw["outputs"] == [{"type": "logs", "logs": "a"}]
    assert cut(unknown, 50).raw == unknown.raw


def test_dropped_tokens_are_those_that_the_window_saves():
    call, output = function_call("c"), function_output("c", "word " * 2000)
    history = [call, output, ANSWER, message("new")]
    retained = retain(history, BUDGETS)

    before, after = sum(map(estimate_item, history)), sum(map(estimate_item, [*retained.calls, *retained.tail]))
    assert retained.dropped_tokens == before - after
    assert retain(retained.window(message("s", id="cmp_1")), BUDGETS).dropped_tokens == 0


def test_without_open_calls_leaves_pairs_and_everything_else():
    pair = [function_call("c"), function_output("c")]
    hosted = code_call("cntr_1")
    history = [function_output("lost"), message("a"), *pair, hosted, function_call("open"), reasoning("r")]

    assert raws(without_open_calls(history)) == raws([message("a"), *pair, hosted, reasoning("r")])


@given(histories())
def test_no_call_is_separated_from_its_output(history):
    retained = retain(history, BUDGETS)

    assert unpaired(retained.window(message("summary", id="cmp_1"))) == []
    assert [item for item in unpaired(without_open_calls(history)) if item.type != "message"] == []
    again = retain(retained.window(message("summary", id="cmp_1")), BUDGETS)
    assert again.dropped_tokens <= BUDGETS.users  # only messages that were the newest


# ── identifiers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_identifiers_of_containers_and_files_are_found_the_newest_last():
    uploaded = {"type": "input_file", "file_id": "file-abcdefgh"}
    history = [
        items.read({"role": "user", "content": [uploaded]}),
        code_call("cntr_1", logs="wrote cfile_9"),
        code_call("cntr_2"),
        code_call("cntr_1"),
        message("profile-12345678 is none", "assistant"),
    ]

    assert retain(history, BUDGETS).identifiers == ["file-abcdefgh", "cfile_9", "cntr_2", "cntr_1"]


def test_cited_files_keep_their_names_also_through_a_summary():
    citation = {
        "type": "container_file_citation",
        "file_id": "cfile_1",
        "container_id": "cntr_1",
        "filename": "chart.png",
        "start_index": 0,
        "end_index": 5,
    }
    part = {"type": "output_text", "text": "chart", "annotations": [citation]}
    named = "cfile_1 (chart.png in cntr_1)"
    identifiers = retain([items.read({"role": "assistant", "content": [part]})], BUDGETS).identifiers
    summary = message("Summary\n" + "\n".join(identifiers), id="cmp_1")

    assert named in identifiers
    again = retain([summary, message("cfile_1 again")], BUDGETS).identifiers
    assert sorted(again) == sorted(identifiers)


def test_identifiers_are_limited_and_encrypted_content_is_not_searched():
    many = [code_call(f"cntr_{number}") for number in range(100)]
    hidden = items.read({"type": "reasoning", "summary": [], "encrypted_content": "cntr_hidden"})

    identifiers = retain([*many, hidden], BUDGETS).identifiers
    assert len(identifiers) == 40
    assert identifiers[-1] == "cntr_99"


def test_data_urls_are_not_searched_and_long_texts_only_at_both_ends():
    image = {"type": "input_image", "image_url": "data:image/png;base64,cntr_hidden"}
    gap = "word " * 30_000
    text = f"cntr_first {gap} cntr_middle {gap} cntr_last"
    shown = items.read({"role": "user", "content": [image, {"type": "input_text", "text": text}]})

    assert retain([shown], BUDGETS).identifiers == ["cntr_first", "cntr_last"]
    cut_id = "x" * 99_990 + " cntr_" + "a" * 30 + " " + "word " * 30_000
    assert retain([message(cut_id)], BUDGETS).identifiers == []


def test_identifiers_behind_a_line_break_are_found_also_in_json():
    found = retain([message("see\ncntr_1"), function_call("c", '{"text": "see\\ncntr_2"}')], BUDGETS).identifiers

    assert found == ["cntr_1", "cntr_2"]


def test_an_approval_request_waits_for_its_response():
    fields = {"server_label": "s", "name": "pay", "arguments": "{}"}
    old, new = (items.read({"type": "mcp_approval_request", "id": f"mcpr_{n}", **fields}) for n in (1, 2))
    response = items.read({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True})
    history = [message("asked"), old, response, ANSWER, new]
    retained = retain(history, BUDGETS)

    assert raws(retained.open_calls) == [new.raw]
    assert raws(retained.window(message("summary", id="cmp_1")))[-3:] == [old.raw, response.raw, new.raw]
    assert raws(without_open_calls(history)) == raws([message("asked"), old, response, ANSWER])
