from __future__ import annotations

import msgspec
import pytest

from antwort.api.errors import ApiError, internal, invalid, malformed, not_found, unavailable
from antwort.api.requests import CreateResponse


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
        (b'{"metadata": {"' + b"k" * 65 + b'": "v"}}', "invalid_value", "metadata"),
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


def test_statuses_of_the_error_constructors():
    assert invalid("no").status == 400
    assert not_found("Response", "resp_1").envelope().error.message == "Response with id 'resp_1' not found."
    assert (internal().status, internal().kind) == (500, "server_error")
    assert unavailable("full").status == 503


def test_retry_headers():
    assert ApiError(429, "later", retry_after=0).headers() == {"retry-after": "1"}
    assert unavailable("full", should_retry=False).headers() == {"x-should-retry": "false"}
    assert invalid("no").headers() == {}
