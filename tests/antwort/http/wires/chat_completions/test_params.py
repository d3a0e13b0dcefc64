from __future__ import annotations

import pytest

from antwort.api.errors import ApiError, invalid
from antwort.http.wires.chat_completions.params import ParamNames, Place

NAMES = ParamNames(
    items=[
        Place("messages[0]", "message"),
        Place("messages[1].tool_calls[0]", "call"),
        Place("messages[1].tool_calls[1]", "custom_call"),
        Place("messages[2]", "output"),
        Place("messages[3].antwort:items[0]"),
    ],
    tools=[
        Place("tools[0]", "function"),
        Place("tools[1]", "custom"),
        Place("functions[0]"),
        Place("antwort:tools[0]"),
    ],
)


@pytest.mark.parametrize(
    "old, new",
    [
        ("input", "messages"),
        ("model", "model"),
        ("input[0]", "messages[0]"),
        ("input[0].content[2].image_url", "messages[0].content[2].image_url.url"),
        ("input[0].content[2].file_data", "messages[0].content[2].file.file_data"),
        ("input[0].content[2]", "messages[0].content[2]"),
        ("input[1].call_id", "messages[1].tool_calls[0].id"),
        ("input[1].name", "messages[1].tool_calls[0].function.name"),
        ("input[2].input", "messages[1].tool_calls[1].custom.input"),
        ("input[3].call_id", "messages[2].tool_call_id"),
        ("input[3].output[0].image_url", "messages[2].content[0].image_url.url"),
        ("input[3].output", "messages[2].content"),
        ("input[4].outputs[0].type", "messages[3].antwort:items[0].outputs[0].type"),
        ("input[99].content", "input[99].content"),
        ("tools[0]", "tools[0]"),
        ("tools[0].type", "tools[0].type"),
        ("tools[0].parameters", "tools[0].function.parameters"),
        ("tools[1].format.syntax", "tools[1].custom.format.syntax"),
        ("tools[2].parameters", "functions[0].parameters"),
        ("tools[3].container.file_ids[1]", "antwort:tools[0].container.file_ids[1]"),
        ("text.format.schema", "response_format.json_schema.schema"),
    ],
)
def test_a_parameter_has_the_name_of_the_request(old, new):
    error = NAMES.translate(invalid(f"Invalid '{old}': it is wrong.", param=old))

    assert (error.param, error.message) == (new, f"Invalid '{new}': it is wrong.")


def test_the_rest_of_an_error_is_unchanged():
    given = ApiError(503, "tools[3] is away.", kind="server_error", code="unavailable", param="tools[3]", retry_after=2)
    error = NAMES.translate(given)

    assert (error.status, error.kind, error.code, error.retry_after) == (503, "server_error", "unavailable", 2)
    assert error.message == "antwort:tools[0] is away."
    assert NAMES.translate(without := ApiError(500, "No.")) is without
