"""Fixtures for compaction: items of a history, random histories, and the check that calls and outputs are paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from antwort.api import items
from antwort.api.items import Item
from antwort.engine.compaction.opening import is_request_message
from antwort.engine.compaction.retention import is_summary

ANSWERED_TYPES = (
    "function_call",
    "custom_tool_call",
    "shell_call",
    "local_shell_call",
    "apply_patch_call",
    "computer_call",
)
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def message(text: str, role: str = "user", **fields: Any) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return items.read({"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields})


def function_call(call_id: str, arguments: str = "{}", name: str = "look") -> Item:
    return items.read({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})


def function_output(call_id: str, output: Any = "found") -> Item:
    return items.read({"type": "function_call_output", "call_id": call_id, "output": output})


def code_call(container_id: str, code: str = "1 + 1", logs: str = "2", identifier: str = "ci_1") -> Item:
    outputs = [{"type": "logs", "logs": logs}]
    raw = {"type": "code_interpreter_call", "id": identifier, "container_id": container_id, "status": "completed"}
    return items.read({**raw, "code": code, "outputs": outputs})


def reasoning(text: str) -> Item:
    content = [{"type": "reasoning_text", "text": text}]
    return items.read({"type": "reasoning", "id": "rs_1", "summary": [], "content": content})


def raws(given: Sequence[Item]) -> list[dict[str, Any]]:
    return [item.raw for item in given]


def unpaired(request: Sequence[Item]) -> list[Item]:
    """Outputs without a call before them, and calls without an output that are not open calls at the end.

    Behind an open call there may be other open calls, and messages that no model has answered.
    """
    calls: dict[str | None, list[int]] = {}
    wrong: list[Item] = []
    for index, item in enumerate(request):
        if item.type in ANSWERED_TYPES:
            calls.setdefault(item.call_id or item.id, []).append(index)
        elif item.type.endswith("_call_output"):
            if calls.get(item.call_id):
                calls[item.call_id].pop(0)
            else:
                wrong.append(item)
    open_indexes = {index for waiting in calls.values() for index in waiting}
    end = len(request)
    while end and (
        end - 1 in open_indexes or (is_request_message(request[end - 1]) and not is_summary(request[end - 1]))
    ):
        end -= 1
    return wrong + [request[index] for index in sorted(open_indexes) if index < end]


# ── random histories ─────────────────────────────────────────────────────────────────────────────────────────────────

_texts = st.one_of(
    st.text(max_size=30),
    st.builds(
        lambda word, times: word * times,
        st.sampled_from(["word ", "長い文章", "файл ", "\x00\n", "cntr_abc "]),
        st.integers(1, 400),
    ),
)
_call_ids = st.sampled_from([f"call_{number}" for number in range(6)])
_roles = st.sampled_from(["user", "user", "assistant", "assistant", "system", "developer"])


def _image_message(text: str) -> Item:
    parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": PIXEL}]
    return items.read({"type": "message", "role": "user", "content": parts})


def _raw_item(kind: str, call_id: str, text: str, as_parts: bool) -> Item:
    shell = {"commands": [text], "timeout_ms": None}
    entry = {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    output: Any = [{"type": "input_text", "text": text}] if as_parts else text
    fields: dict[str, Any] = {
        "function_call": {"name": "look", "arguments": text},
        "function_call_output": {"output": output},
        "custom_tool_call": {"name": "shout", "input": text},
        "custom_tool_call_output": {"output": output},
        "shell_call": {"id": f"sh_{call_id}", "action": shell},
        "shell_call_output": {"output": [entry, entry] if as_parts else [entry]},
        "local_shell_call": {"id": f"lsh_{call_id}", "action": {"type": "exec", "command": [text]}},
        "local_shell_call_output": {"output": text},
        "apply_patch_call": {"id": f"ap_{call_id}", "operation": {"type": "delete_file", "path": text}},
        "apply_patch_call_output": {"status": "completed", "output": text},
        "computer_call": {"id": f"cu_{call_id}", "action": {"type": "type", "text": text}},
        "computer_call_output": {"output": {"type": "computer_screenshot", "image_url": PIXEL}},
    }[kind]
    return items.read({"type": kind, "call_id": call_id, **fields})


def _pair(kind: str, call_id: str, text: str, as_parts: bool) -> list[Item]:
    return [_raw_item(kind, call_id, "{}", as_parts), _raw_item(f"{kind}_output", call_id, text, as_parts)]


def _parallel(kind: str, text: str, numbers: list[int]) -> list[Item]:
    calls = [_raw_item(kind, f"p_{number}", "{}", as_parts=False) for number in numbers]
    return [*calls, *(_raw_item(f"{kind}_output", f"p_{number}", text, as_parts=False) for number in numbers)]


_kinds = st.sampled_from(ANSWERED_TYPES)
_groups = st.one_of(
    st.builds(lambda text, role: [message(text, role)], _texts, _roles),
    st.builds(lambda text: [_image_message(text)], _texts),
    st.builds(lambda text: [reasoning(text)], _texts),
    st.builds(_pair, _kinds, _call_ids, _texts, st.booleans()),
    st.builds(_parallel, _kinds, _texts, st.lists(st.integers(0, 3), min_size=1, max_size=3)),
    st.builds(lambda number, code, logs: [code_call(f"cntr_{number}", code, logs)], st.integers(1, 6), _texts, _texts),
    st.just([items.read({"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}})]),
    st.just([items.read({"type": "image_generation_call", "id": "ig_1", "result": "AAAA" * 500})]),
    st.just([items.read({"type": "of_the_future", "id": "x_1", "content": {"a": [1, None]}})]),
)
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
_odd_types = st.sampled_from(["shell_call", "shell_call_output", "mcp_call", "odd_call", "odd_call_output", "odd"])


def _odd_item(kind: str, fields: dict[str, Any]) -> list[Item]:
    """An item of a type that is not validated, with any values."""
    return [items.read({**fields, "type": kind})]


_odd_groups = st.builds(
    _odd_item,
    _odd_types,
    st.dictionaries(
        st.sampled_from(["call_id", "action", "output", "outputs", "name", "arguments", "content", "status"]), _json
    ),
)
_broken_groups = st.one_of(
    _odd_groups,
    st.builds(lambda kind, call_id, text: [_raw_item(kind, call_id, text, as_parts=False)], _kinds, _call_ids, _texts),
    st.builds(
        lambda kind, call_id, text: [_raw_item(f"{kind}_output", call_id, text, as_parts=False)],
        _kinds,
        _call_ids,
        _texts,
    ),
)


def histories(*, max_groups: int = 12) -> st.SearchStrategy[list[Item]]:
    """Random histories, also with calls that wait for an output and outputs whose call is missing."""
    groups = st.lists(st.one_of(_groups, _groups, _groups, _broken_groups), max_size=max_groups)
    return groups.map(lambda drawn: [item for group in drawn for item in group])
