"""Converts hosted tool calls of the history (`code_interpreter_call`, `web_search_call`, …) to function calls. Pure.

An upstream model supports function calls only. So each hosted call becomes one function call with its output as text;
a call whose output is a separate item is paired with it by `call_id`. The approval of an MCP call becomes a user
message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

from antwort.api.items import Item, Raw
from antwort.engine.declared.names import mcp_function_name
from antwort.engine.truncate import truncate_chars

NO_OUTPUT = "(no output)"
OUTPUT_NOT_STORED = "(the output is not part of this history)"


class ReplayedCall(Struct, frozen=True):
    """A hosted call as a function call. `output` is None if the output is a separate item."""

    call_id: str
    name: str
    arguments: str
    output: str | None = None


def replay_call(item: Item) -> ReplayedCall | None:
    """A hosted call as a function call; None for other items."""
    convert = _CALLS.get(item.type)
    return convert(item.raw) if convert else None


def replay_output(item: Item) -> str | None:
    """The text of an item that is the output of a hosted call; None for other items."""
    convert = _OUTPUTS.get(item.type)
    return convert(item.raw) if convert else None


def replay_message(item: Item) -> str | None:
    """The text of an item that becomes a user message; None for other items."""
    return _approval(item.raw) if item.type == "mcp_approval_response" else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _entries(value: object) -> list[Raw]:
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Raw", entry) for entry in entries if isinstance(entry, dict)]


def _call_id(raw: Raw) -> str:
    return _text(raw.get("call_id") or raw.get("id")) or "call"


def _code(raw: Raw) -> ReplayedCall:
    arguments = _json({"code": _text(raw.get("code"))})
    return ReplayedCall(_call_id(raw), "code_interpreter", arguments, _code_output(raw.get("outputs")))


def _code_output(outputs: object) -> str:
    if outputs is None:
        return OUTPUT_NOT_STORED
    texts = (_text(entry.get("logs")) if entry.get("type") == "logs" else "[figure]" for entry in _entries(outputs))
    return truncate_chars("\n".join(texts)) or NO_OUTPUT


def _file_search(raw: Raw) -> ReplayedCall:
    results = raw.get("results")
    found = (f"{_text(result.get('filename'))}: {_text(result.get('text'))}" for result in _entries(results))
    output = OUTPUT_NOT_STORED if results is None else "\n\n".join(found) or "(nothing found)"
    return ReplayedCall(_call_id(raw), "file_search", _json({"queries": raw.get("queries") or []}), output)


def _web_search(raw: Raw) -> ReplayedCall:
    """A search, or another action of the web search, which is a function of its own."""
    action = cast("Raw", raw.get("action")) if isinstance(raw.get("action"), dict) else {}
    kind = action.get("type")
    name = kind if kind in ("open_page", "find_in_page") else "web_search"
    left_out = {"sources", "type"} | ({"query"} if name == "web_search" and action.get("queries") else set[str]())
    arguments = {key: value for key, value in action.items() if key not in left_out and value is not None}
    sources = "\n".join(_text(source.get("url")) for source in _entries(action.get("sources")))
    results = "\n\n".join(map(_web_result, _entries(raw.get("results"))))
    output = truncate_chars(results) or sources
    if raw.get("status") == "failed":
        output = output or "(the call failed)"
    return ReplayedCall(_call_id(raw), name, _json(arguments), output or OUTPUT_NOT_STORED)


def _web_result(result: Raw) -> str:
    """A result with the number that the model cites it by."""
    index, title = result.get("index"), _text(result.get("title"))
    head = f"[{index}] {title}" if isinstance(index, int) else title
    return "\n".join(filter(None, (head, _text(result.get("url")), _text(result.get("text")))))


def _mcp(raw: Raw) -> ReplayedCall:
    output = truncate_chars(_text(raw.get("output")) or _text(raw.get("error"))) or NO_OUTPUT
    return ReplayedCall(_call_id(raw), _mcp_name(raw), _text(raw.get("arguments")) or "{}", output)


def _approval_request(raw: Raw) -> ReplayedCall:
    arguments = _text(raw.get("arguments")) or "{}"
    return ReplayedCall(_call_id(raw), _mcp_name(raw), arguments, "(not run: the user was asked for approval)")


def _mcp_name(raw: Raw) -> str:
    """The name that the function of the tool has when its server is declared."""
    return mcp_function_name(_text(raw.get("server_label")) or "mcp", _text(raw.get("name")) or "tool")


def _approval(raw: Raw) -> str:
    decision = "approved" if raw.get("approve") is True else "denied"
    reason = f": {_text(raw['reason'])}" if raw.get("reason") else "."
    return f"Call {_text(raw.get('approval_request_id'))} was {decision} by the user{reason}"


def _image(raw: Raw) -> ReplayedCall:
    arguments = _json({"prompt": _text(raw.get("revised_prompt"))})
    return ReplayedCall(_call_id(raw), "image_generation", arguments, "[generated image]")


def _given(value: object) -> Raw:
    """The fields of an object that are set."""
    fields = cast("Raw", value) if isinstance(value, dict) else {}
    return {name: inner for name, inner in fields.items() if inner is not None}


def _shell(raw: Raw) -> ReplayedCall:
    return ReplayedCall(_call_id(raw), "shell", _json(_given(raw.get("action"))))


def _local_shell(raw: Raw) -> ReplayedCall:
    action = {name: value for name, value in _given(raw.get("action")).items() if name != "type" and value != {}}
    return ReplayedCall(_call_id(raw), "local_shell", _json(action))


def _patch(raw: Raw) -> ReplayedCall:
    return ReplayedCall(_call_id(raw), "apply_patch", _json(_given(raw.get("operation"))))


def _computer(raw: Raw) -> ReplayedCall:
    """Several actions, or one in the earlier form of the tool."""
    name = "actions" if isinstance(raw.get("actions"), list) else "action"
    return ReplayedCall(_call_id(raw), "computer", _json({name: raw.get(name)}))


def _shell_output(raw: Raw) -> str:
    return truncate_chars("\n".join(map(_shell_entry, _entries(raw.get("output"))))) or NO_OUTPUT


def _shell_entry(entry: Raw) -> str:
    outcome = cast("Raw", entry.get("outcome")) if isinstance(entry.get("outcome"), dict) else {}
    end = "(timed out)" if outcome.get("type") == "timeout" else f"(exit code {outcome.get('exit_code')})"
    parts = (_text(entry.get("stdout")).rstrip("\n"), _text(entry.get("stderr")).rstrip("\n"), end)
    return "\n".join(filter(None, parts))


def _screenshot(raw: Raw) -> str:
    """The text of an image that the engine has not read."""
    del raw
    return "[screenshot]"


def _plain_output(raw: Raw) -> str:
    return _text(raw.get("output")) or _text(raw.get("status")) or NO_OUTPUT


_CALLS: dict[str, Callable[[Raw], ReplayedCall]] = {
    "code_interpreter_call": _code,
    "file_search_call": _file_search,
    "web_search_call": _web_search,
    "mcp_call": _mcp,
    "mcp_approval_request": _approval_request,
    "image_generation_call": _image,
    "shell_call": _shell,
    "local_shell_call": _local_shell,
    "apply_patch_call": _patch,
    "computer_call": _computer,
}

_OUTPUTS: dict[str, Callable[[Raw], str]] = {
    "shell_call_output": _shell_output,
    "local_shell_call_output": _plain_output,
    "apply_patch_call_output": _plain_output,
    "computer_call_output": _screenshot,
}
