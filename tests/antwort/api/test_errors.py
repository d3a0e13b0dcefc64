from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from openai.types.responses import ResponseError, ToolParam

from antwort.api import errors
from antwort.api.errors import (
    ApiError,
    ErrorCode,
    ResponseErrorCode,
    internal,
    invalid,
    malformed,
    not_found,
    out_of_range,
    unavailable,
)
from antwort.api.requests import CreateResponse, decode, read_input
from antwort.api.tools import KNOWN_TOOL_TYPES, ToolDeclaration
from antwort.engine.ports import ModelFault
from antwort.http.errors import from_model_fault

DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
SDK_CODES = set(get_args(ResponseError.model_fields["code"].annotation))


def documented_rows(header: str) -> list[list[str]]:
    """The rows of the table of the documentation whose first column has this header."""
    rows = DOCUMENTATION.partition(f"| `{header}` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def codes_in(cell: str) -> list[str]:
    return re.findall(r"`([a-z_0-9]+)`", cell)


def test_the_codes_of_failed_responses_are_documented_and_marked_where_the_sdk_has_them():
    rows = documented_rows("response.error.code")

    assert sorted(code for row in rows for code in codes_in(row[0])) == sorted(get_args(ResponseErrorCode))
    for code, in_sdk, _ in rows:
        assert (code.strip("`") in SDK_CODES) == (in_sdk == "yes")


def test_every_error_code_is_documented_once():
    rows = [*documented_rows("error.code"), *documented_rows("response.error.code")]

    assert sorted(code for row in rows for code in codes_in(row[0])) == sorted(get_args(ErrorCode))


def test_a_fault_of_a_model_has_the_same_code_in_the_envelope():
    for code in get_args(ResponseErrorCode):
        assert from_model_fault(ModelFault("failed", code=code)).envelope().error.code == code


def test_every_tool_type_of_the_sdk_is_known():
    types = set()
    for kind in get_args(ToolParam):
        hint = str(kind.__annotations__["type"])
        types |= set(re.findall(r"[\"']([a-z_0-9]+)[\"']", hint.replace("typing", "")))

    assert len(types) >= 15
    assert types <= KNOWN_TOOL_TYPES


def test_every_field_of_the_tools_of_the_sdk_that_are_validated_is_known():
    structs = {str(of.__struct_config__.tag): of for of in get_args(ToolDeclaration)}
    compared = 0
    for kind in get_args(ToolParam):
        fields = {*get_type_hints(kind)}
        for name in re.findall(r"[\"']([a-z_0-9]+)[\"']", str(kind.__annotations__["type"]).replace("typing", "")):
            if structs[name].__struct_config__.forbid_unknown_fields:
                compared += 1
                assert fields <= {"type", *structs[name].__struct_encode_fields__}, name
    assert compared == 16


@pytest.mark.parametrize(
    "value, bounds, message",
    [
        (
            9,
            {"maximum": 2.0, "kind": "decimal"},
            "decimal above maximum value. Expected a value <= 2, but got 9 instead.",
        ),
        (0.5, {"minimum": 1}, "integer below minimum value. Expected a value >= 1, but got 0.5 instead."),
        (10**30, {"maximum": 20}, "integer above maximum value. Expected a value <= 20."),
        (None, {"maximum": 20}, "integer above maximum value. Expected a value <= 20."),
        (True, {"maximum": 20}, "integer above maximum value. Expected a value <= 20."),
    ],
)
def test_a_number_out_of_range_is_quoted_with_its_bound(value, bounds, message):
    assert out_of_range("x", value, **bounds).message == f"Invalid 'x': {message}"


def test_a_value_deep_in_the_body_is_quoted():
    body = b'{"context_management": [{"type": "compaction", "compact_threshold": 5}]}'
    with pytest.raises(ApiError, match="Expected a value >= 1000, but got 5 instead") as caught:
        decode(body, CreateResponse)
    assert caught.value.param == "context_management[0].compact_threshold"


def test_a_body_that_is_malformed_behind_the_invalid_value_is_an_error():
    with pytest.raises(ApiError) as caught:
        decode(b'{"temperature": 9, "model": nope}', CreateResponse)
    assert caught.value.code == "decimal_above_max_value"


def error_detail(body: bytes) -> dict[str, object]:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(body, type=CreateResponse)
    return msgspec.to_builtins(malformed(caught.value).envelope().error)


@pytest.mark.parametrize(
    "body, code, param",
    [
        (b'{"model": 3}', "invalid_type", "model"),
        (b'{"unknown": 3}', "unknown_parameter", "unknown"),
        (b'{"tools": [{"type": "function"}]}', "missing_required_parameter", "tools[0].name"),
        (b'{"tools": [{"type": "teleport"}]}', "invalid_value", "tools[0].type"),
        (b'{"tools": [{"type": "code_interpreter", "container": {"type": "auto", "host_mounts": []}}]}',
         "unknown_parameter", "tools[0].container.host_mounts"),
        (b'{"tools": [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "8g"}}]}',
         "invalid_value", "tools[0].container.memory_limit"),
        (b'{"top_logprobs": 21}', "integer_above_max_value", "top_logprobs"),
        (b'{"max_tool_calls": 0}', "integer_below_min_value", "max_tool_calls"),
        (b'{"tool_choice": "must"}', "invalid_value", "tool_choice"),
        (b'{"tools": [{"type": 3}]}', "invalid_type", "tools[0].type"),
        (b'{"metadata": {"' + b"k" * 65 + b'": "v"}}', "string_above_max_length", "metadata"),
        (b'{"metadata": {"k": 3}}', "invalid_type", "metadata"),
        (b'{"input": [{"x": {"y": 1e999}}]}', "invalid_value", "input[0]"),
        (b"[]", "invalid_type", None),
        (b'{"model": ', "invalid_json", None),
        (b"\xff", "invalid_json", None),
    ],
)  # fmt: skip
def test_a_validation_error_has_a_code_and_the_path_of_the_field(body: bytes, code: str, param: str | None):
    error = error_detail(body)

    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"]


def test_the_root_prefixes_the_path():
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"a": "x"}, dict[str, int])

    assert malformed(caught.value, root="input[2]").param == "input[2]"


@pytest.mark.parametrize("body", [b'{"%s": 1}' % (b"x" * 100_000), b'{"tools": [{"type": "%s"}]}' % (b"x" * 100_000)])
def test_long_values_are_truncated_in_messages(body: bytes):
    assert len(str(error_detail(body))) < 1000


def test_a_tool_type_in_an_input_item_that_does_not_exist_is_refused_with_a_list():
    with pytest.raises(ApiError) as caught:
        read_input([{"type": "additional_tools", "role": "developer", "tools": [{"type": "teleport"}]}])

    available = "'function', 'custom', 'namespace', 'tool_search'"
    assert caught.value.message == f"Invalid value: 'teleport'. Supported values are: {available}."
    assert caught.value.param == "input[0].tools[0].type"


class RecordingPattern:
    """A pattern that records how many characters it was given."""

    def __init__(self, pattern: re.Pattern[str], lengths: list[int]) -> None:
        self._pattern, self._lengths = pattern, lengths

    def __getattr__(self, method: str):
        def call(text: str, start: int = 0):
            self._lengths.append(len(text) - start)
            return getattr(self._pattern, method)(text, start)

        return call


LONG = b"x - at `$.a` " * 10_000


@pytest.mark.parametrize(
    "body, param",
    [
        (b'{"tools": [{"type": "%s"}]}' % LONG, "tools[0].type"),
        (b'{"include": ["%s"]}' % LONG, "include[0]"),
        (b'{"truncation": "%s"}' % LONG, "truncation"),
        (b'{"%s": 1}' % LONG, LONG[:200].decode().partition("`")[0]),
        (b'{"reasoning": {"%s": 1}}' % LONG, None),
    ],
)
def test_no_pattern_reads_a_long_value(monkeypatch, body: bytes, param: str | None):
    lengths: list[int] = []
    for name, value in vars(errors).items():
        if isinstance(value, re.Pattern):
            monkeypatch.setattr(errors, name, RecordingPattern(value, lengths))
    error = error_detail(body)

    assert lengths
    assert max(lengths) <= 4000
    assert param is None or error["param"] == param
    assert len(str(error["message"])) < 500


@pytest.mark.parametrize("path", [b'{"tools": [%s]}', b'{"input": [{"type": "additional_tools", "tools": [%s]}]}'])
@pytest.mark.parametrize(
    "kind, message",
    [
        ("namespace", "Tool type 'namespace' is not available in a namespace. Available types: 'function', 'custom'."),
        (
            "web_search",
            "Tool type 'web_search' is not available in a namespace. Available types: 'function', 'custom'.",
        ),
        ("teleport", "Invalid value: 'teleport'. Supported values are: 'function', 'custom'."),
    ],
)
def test_the_types_of_tools_in_a_namespace_are_function_and_custom(path: bytes, kind: str, message: str):
    tool = b'{"type": "namespace", "name": "a", "description": "", "tools": [{"type": "%s"}]}' % kind.encode()
    with pytest.raises(ApiError) as caught:
        read_input(decode(path % tool, CreateResponse).input)

    assert caught.value.message == message
    assert (caught.value.param or "").endswith("tools[0].tools[0].type")


def test_statuses_of_the_error_constructors():
    assert invalid("no").status == 400
    assert not_found("Response", "resp_1").envelope().error.message == "Response with id 'resp_1' not found."
    assert (internal().status, internal().kind) == (500, "server_error")
    assert unavailable("full").status == 503


def test_retry_headers():
    assert ApiError(429, "later", retry_after=0).headers() == {"retry-after": "1"}
    assert unavailable("full", should_retry=False).headers() == {"x-should-retry": "false"}
    assert invalid("no").headers() == {}
