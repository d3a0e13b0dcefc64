from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from weakincentives.adapters.openai.native_tools import WebSearchCall, WebSearchResult
from weakincentives.adapters.openai.native_tools.web_search_section import CAPABILITY
from weakincentives.adapters.openai.responses.declared_types import convert_params, convert_result, type_mismatch
from weakincentives.errors import SerdeError
from weakincentives.prompt import NativeTool, ToolResult

CALL = WebSearchCall("search", "tea", ("tea", "green tea"))
RESULT = ToolResult("", WebSearchResult(("https://tea.example/",)))
ITEM: dict[str, object] = {"id": "ws_1", "type": "web_search_call", "status": "completed"}


@dataclass
class Query:
    query: str


@dataclass
class Verbatim:
    payload: dict[str, object]


@dataclass
class Sources:
    sources: list[str]
    output_text: str = ""


@dataclass
class Other:
    corpus: str


@dataclass
class Picky:
    queries: list[int] = field(default_factory=list)


def tool(params: Any, result: Any) -> NativeTool[Any, Any]:
    return NativeTool[params, result](name="web_search", description="Search.")


def test_params_are_converted_by_field_name():
    assert convert_params(Query, CALL, ITEM) == Query("tea")
    assert convert_params(WebSearchCall, CALL, ITEM) is CALL
    assert convert_params(type(None), CALL, ITEM) is None
    assert convert_params(Any, CALL, ITEM) is CALL
    assert convert_params(Verbatim, CALL, ITEM) == Verbatim(ITEM)
    plain = convert_params(dict[str, object], CALL, ITEM)
    assert isinstance(plain, dict)
    assert (plain["query"], plain["id"], "payload" in plain) == ("tea", "ws_1", False)


def test_result_is_converted_to_dataclass_dict_or_text():
    assert convert_result(WebSearchResult, RESULT, ITEM) == RESULT
    assert convert_result(Verbatim, RESULT, ITEM).value == Verbatim(ITEM)
    assert convert_result(Sources, RESULT, ITEM).value == Sources(["https://tea.example/"], "https://tea.example/")
    assert convert_result(str, RESULT, ITEM).value == "https://tea.example/"
    assert convert_result(dict, RESULT, ITEM).value == {
        **ITEM,
        "sources": ("https://tea.example/",),
        "output_text": "https://tea.example/",
        "message": "https://tea.example/",
    }


def test_failure_without_a_value_is_unchanged():
    failed = ToolResult.error("no")

    assert convert_result(Sources, failed, ITEM) is failed


@pytest.mark.parametrize("params, result", [(Query, Verbatim), (type(None), dict), (WebSearchCall, Sources)])
def test_compatible_types_have_no_mismatch(params, result):
    assert type_mismatch(tool(params, result), CAPABILITY.example) is None


@pytest.mark.parametrize(
    "params, result, expected",
    [
        (Other, Verbatim, "params Other does not fit what the provider sends: .*`corpus`.* There are: action, query"),
        (Picky, Verbatim, r"params Picky does not fit.*at \$\.queries\[0\]"),
        (Query, Other, "result Other does not fit.*There are: sources, payload, output_text"),
    ],
)
def test_mismatch_message_lists_the_fields(params, result, expected):
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(type_mismatch(tool(params, result), CAPABILITY.example))


def test_conversion_error():
    with pytest.raises(SerdeError):
        convert_params(Other, CALL, ITEM)
