"""Streams of the Messages wire: reader, grammar, and a fold that is independent of the server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]

STOP_REASONS = {"end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "model_context_window_exceeded"}
DELTAS = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
    "mcp_tool_use": {"input_json_delta"},
}
ONLY_USAGE = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}


def read_events(text: str) -> list[Event]:
    """The events of a stream. Each has the line of its name, which some clients read instead of its data."""
    assert text.endswith("\n\n")
    events: list[Event] = []
    for frame in text[:-2].split("\n\n"):
        first, second = frame.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        events.append(event)
    return events


def check_stream(events: Sequence[Event], *, is_broken: bool = False) -> None:
    """Check a whole stream; one `is_broken` ends with an error in place of the rest."""
    first, *rest = [event for event in events if event["type"] != "ping"]
    assert first["type"] == "message_start"
    message = first["message"]
    assert message["id"].startswith("msg_")
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    if is_broken:
        *blocks, error = rest
        assert error["type"] == "error"
        assert set(error["error"]) == {"type", "message"}
        _check_blocks(blocks, is_broken=True)
        return
    *blocks, delta, stop = rest
    _check_blocks(blocks)
    assert stop == {"type": "message_stop"}
    assert delta["type"] == "message_delta"
    assert delta["delta"]["stop_reason"] in STOP_REASONS
    assert set(delta["usage"]) >= ONLY_USAGE
    assert all(isinstance(delta["usage"][name], int) and delta["usage"][name] >= 0 for name in ONLY_USAGE)


def _check_blocks(events: Sequence[Event], *, is_broken: bool = False) -> None:
    current: str | None = None
    index = -1
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert current is None, "a block ends before the next one begins"
                index += 1
                current = event["content_block"]["type"]
                _check_start(event["content_block"])
            case "content_block_delta":
                assert event["delta"]["type"] in DELTAS[str(current)]
            case "content_block_stop":
                assert current is not None
                current = None
            case other:
                raise AssertionError(f"unexpected event {other}")
        assert event["index"] == index
    assert current is None or is_broken


def _check_start(block: dict[str, Any]) -> None:
    match block["type"]:
        case "text":
            assert block == {"type": "text", "text": ""}
        case "thinking":
            assert block == {"type": "thinking", "thinking": "", "signature": ""}
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            assert block["input"] == {}
            assert block["id"].startswith({"t": "toolu_", "s": "srvtoolu_", "m": "mcptoolu_"}[block["type"][0]])
        case kind:
            assert kind.endswith("_tool_result")
            assert block["tool_use_id"]


def fold_events(events: Sequence[Event]) -> dict[str, Any]:
    """The message that the events add up to."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "message_start"}:
                message = event["message"]
            case {"type": "content_block_start", "content_block": block}:
                message["content"].append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                if delta["type"] == "input_json_delta":
                    inputs[index] = inputs.get(index, "") + delta["partial_json"]
                else:
                    _add_delta(message["content"][index], delta)
            case {"type": "message_delta"}:
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, written in inputs.items():
        message["content"][index]["input"] = _parsed(written)
    return message


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block.setdefault("citations", []).append(delta["citation"])


def _parsed(written: str) -> dict[str, Any]:
    try:
        value = json.loads(written)
    except ValueError:
        return {"not_json": written}
    return value if isinstance(value, dict) else {"not_json": written}
