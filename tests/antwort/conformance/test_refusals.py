from __future__ import annotations

import pytest

from antwort.conformance.tools.refusals import is_refusal


def error(param: str | None, message: str, code: str | None = None) -> dict:
    return {"param": param, "message": message, "code": code, "type": "invalid_request_error"}


@pytest.mark.parametrize(
    "given",
    [
        error("tools[0].type", "Invalid value: 'shell'. Supported values are: 'function'.", "invalid_value"),
        error("tools[0].type", "Not served here."),
        error("tools", "Tool 'shell' is not supported with gpt-4o."),
        error("tools[0].environment.type", "No.", "unsupported_value"),
        error("reasoning.effort", "Unsupported parameter: 'reasoning.effort' is not supported with this model."),
        error(None, "Unknown tool type shell"),
        error("", "This model doesn't support `shell`."),
        error(None, "Hosted tool 'shell' is unavailable."),
    ],
)
def test_refusals(given):
    assert is_refusal(given, {"shell"}, {"reasoning"})


@pytest.mark.parametrize(
    "given",
    [
        error(None, "The shell has crashed."),
        error(None, "Unknown error while the shell was started."),
        error("tools[0].function", "Field required."),
        error("input", "Unknown input for 'shell'."),
        error("model", "The model is not found.", "unsupported_value"),
        error(None, "text cannot be shelled, which is not supported"),
    ],
)
def test_other_errors_are_no_refusals(given):
    assert not is_refusal(given, {"shell"}, {"reasoning", "text"})
