from __future__ import annotations

import pytest
from fixtures_compaction import PIXEL, code_call, function_call, function_output, histories, message
from hypothesis import given

from antwort.api import items
from antwort.engine.compaction.inline_data import InlineBudget, fit, strings, without_attachments, without_figures

IMAGE = {"type": "input_image", "image_url": PIXEL}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"}


def with_parts(*parts: dict[str, str], role: str = "user") -> items.Item:
    return items.read({"type": "message", "role": role, "content": list(parts)})


def text(value: str) -> dict[str, str]:
    return {"type": "input_text", "text": value}


def test_a_budget_takes_what_fits():
    budget = InlineBudget(10)

    assert [budget.takes(size) for size in (6, 6, 4, 0, 1)] == [True, False, True, True, False]


def test_the_last_parts_that_fit_stay():
    budget = InlineBudget(len(PIXEL) + 4)
    fitted = fit(with_parts(text("a"), IMAGE, FILE, IMAGE), budget)

    assert fitted == with_parts(text("a"), text("[image]"), FILE, IMAGE)
    assert budget.left == 0


@pytest.mark.parametrize(
    "part, replaced",
    [
        (IMAGE, "[image]"),
        (FILE, "[file a.pdf]"),
        ({"type": "input_file", "file_data": "data:text/plain,a"}, "[file]"),
        (text(PIXEL), "[image]"),
    ],
)
def test_texts_replace_what_does_not_fit(part, replaced):
    assert fit(with_parts(part), InlineBudget(0)) == with_parts(text(replaced))
    assert fit(function_output("c", [part]), InlineBudget(0)) == function_output("c", [text(replaced)])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "https://x.example/a.png"},
        {"type": "input_image", "file_id": "file-abcdefgh"},
        {"type": "input_file", "file_id": "file-abcdefgh"},
        text("data: of the year"),
    ],
)
def test_parts_without_inline_data_stay(part):
    item = with_parts(part)

    assert fit(item, InlineBudget(0)) is item


def test_an_output_that_is_an_image_is_replaced():
    assert fit(function_output("c", PIXEL), InlineBudget(0)) == function_output("c", "[image]")
    assert without_attachments(function_output("c", PIXEL)) == function_output("c", "[image]")


def test_an_item_with_other_inline_data_fits_or_not():
    screenshot = {"type": "computer_screenshot", "image_url": PIXEL}
    output = items.read({"type": "computer_call_output", "call_id": "c", "output": screenshot})
    nested = items.read({"type": "odd_call", "result": [{"deep": {"url": PIXEL}}], "output": [["x"], PIXEL]})

    assert fit(output, InlineBudget(len(PIXEL))) is output
    assert fit(output, InlineBudget(len(PIXEL) - 1)) is None
    assert without_attachments(output) is None
    assert fit(nested, InlineBudget(2 * len(PIXEL))) is nested
    assert fit(nested, InlineBudget(2 * len(PIXEL) - 1)) is None


def test_all_attachments_are_replaced_for_a_model_that_may_not_read_them():
    by_url = {"type": "input_image", "image_url": "https://x.example/a.png"}
    by_id = {"type": "input_file", "file_id": "file-abcdefgh"}

    assert without_attachments(with_parts(text("a"), by_url, by_id)) == with_parts(
        text("a"), text("[image]"), text("[file file-abcdefgh]")
    )
    answer = with_parts(IMAGE, role="assistant")
    assert without_attachments(answer) == message("[image]", "assistant")
    call = function_call("c")
    assert without_attachments(call) is call


def test_figures_of_code_calls_are_removed():
    plain = code_call("cntr_1")
    figure = items.read({**plain.raw, "outputs": [*plain.raw["outputs"], {"type": "image", "url": PIXEL}]})
    unknown = items.read({**plain.raw, "outputs": None})

    assert without_figures(figure) == plain
    assert without_attachments(figure) == plain
    assert without_figures(plain) is plain
    assert without_figures(unknown) is unknown


def test_strings_are_found_in_their_order_without_data_urls():
    assert list(strings({"a": "one", "b": [PIXEL, {"c": "two"}, 3, None], "d": "three"})) == ["one", "two", "three"]


@given(histories())
def test_no_inline_data_is_left_without_a_budget(history):
    for item in history:
        fitted = fit(without_figures(item), InlineBudget(0))
        assert fitted is None or "data:image/" not in str(fitted.raw)
