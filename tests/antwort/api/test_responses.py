from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import Response as SdkResponse

from antwort.api.requests import CreateResponse, decode
from antwort.api.responses import InputDetails, OutputDetails, Usage, initial_response

ALL_KEYS = {
    "id", "object", "created_at", "status", "background", "completed_at", "error", "incomplete_details",
    "instructions", "max_output_tokens", "max_tool_calls", "model", "output", "parallel_tool_calls",
    "previous_response_id", "conversation", "prompt", "prompt_cache_key", "prompt_cache_retention", "reasoning",
    "safety_identifier", "service_tier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs",
    "top_p", "presence_penalty", "frequency_penalty", "truncation", "usage", "user", "metadata",
}  # fmt: skip


def test_all_keys_are_present_and_the_sdk_parses_them():
    response = initial_response(CreateResponse(model="m", input="hi"), identifier="resp_1", model="m", created_at=1)
    plain = msgspec.to_builtins(response)

    assert plain.keys() == ALL_KEYS
    assert SdkResponse.model_validate(plain).id == "resp_1"


def test_a_response_echoes_the_request():
    body = b"""{"model": "m", "input": "hi", "temperature": 0, "metadata": {"a": "b"}, "store": false,
        "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"},
        "conversation": {"id": "conv_1"}, "background": true}"""
    response = initial_response(decode(body, CreateResponse), identifier="resp_1", model="m", created_at=1)
    plain = msgspec.to_builtins(response)

    assert (plain["temperature"], plain["metadata"], plain["store"]) == (0, {"a": "b"}, False)
    assert plain["tool_choice"] == {"type": "function", "name": "f"}
    assert plain["conversation"] == {"id": "conv_1"}
    assert (plain["status"], response.ended) == ("queued", False)


@pytest.mark.parametrize("requested, expected", [(None, "default"), ("auto", "default"), ("flex", "flex")])
def test_the_service_tier_is_default_unless_requested(requested: Any, expected: str):
    response = initial_response(CreateResponse(service_tier=requested), identifier="resp_1", model="m", created_at=1)

    assert response.service_tier == expected


def test_usage_adds_up():
    one = Usage(10, InputDetails(4, 1), 5, OutputDetails(2), 15)

    assert one + one == Usage(20, InputDetails(8, 2), 10, OutputDetails(4), 30)
