"""Checks the keys of responses, items and parts against the rules. Pure.

By default a server may send more keys than the rules name, as OpenAI's API grows; `strict` refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from antwort.conformance.grammar import rules
from antwort.conformance.grammar.violation import Violation, require, require_keys

_NONE: frozenset[str] = frozenset()


def check_response_keys(response: Any, *, strict: bool = False) -> None:
    """A response object has its keys, and a status that agrees with `error` and `incomplete_details`."""
    keys = rules.RESPONSE_KEYS if strict else rules.REQUIRED_RESPONSE_KEYS
    require_keys(response, keys, "a response", allowed=rules.OPTIONAL_RESPONSE_KEYS if strict else None)
    require(response["object"] == "response", '"object": "response"', response["object"])
    require(isinstance(response["output"], list), "`output` is a list", response["output"])
    status = response["status"]
    require((response["error"] is not None) == (status == "failed"), "`error` is set if the status is failed", response)
    has_details = response["incomplete_details"] is not None
    require(has_details == (status == "incomplete"), "`incomplete_details` is set if incomplete", response)
    if status == "completed":
        require_keys(response["usage"], rules.USAGE_KEYS, "`usage` of a completed response")


def check_item_keys(item: Any, *, is_done: bool = True, strict: bool = False) -> None:
    """An item has the keys of its type, and so have its parts."""
    kind = _type_of(item)
    require(kind, "an item has a `type`", item)
    rule = rules.ITEMS.get(kind)
    if rule is None:
        if strict:
            raise Violation("a known item type", kind)
        return
    keys = rule.keys | rule.late_keys if is_done else rule.keys
    name = f"the item {kind}"
    require_keys(item, keys, name, allowed=rule.optional_keys if strict else None)
    require(item["id"].startswith(rule.prefix), f"the id of {name} begins with {rule.prefix}", item["id"])
    for field in ("content", "summary", "outputs"):
        for part in item.get(field) or ():
            check_part_keys(part, strict=strict)
    if is_done:
        _check_nested(item, strict=strict)


def _check_nested(item: Mapping[str, Any], *, strict: bool) -> None:
    """The objects inside an ended item."""
    match item:
        case {"type": "shell_call", "action": action}:
            require_keys(action, rules.SHELL_ACTION_KEYS, "`action` of a shell_call", allowed=_NONE if strict else None)
        case {"type": "shell_call_output", "output": output}:
            for entry in output:
                _check_shell_output(entry, strict=strict)
        case {"type": "apply_patch_call", "operation": operation}:
            _check_variant(operation, rules.OPERATION_KEYS, {}, "operation", strict=strict)
        case {"type": "mcp_list_tools", "tools": tools}:
            allowed = rules.OPTIONAL_LISTED_TOOL_KEYS if strict else None
            for tool in tools:
                require_keys(tool, rules.LISTED_TOOL_KEYS, "a tool of mcp_list_tools", allowed=allowed)
        case {"type": "web_search_call" | "local_shell_call", "action": action}:
            unsure = _NONE if strict else rules.UNSURE_ACTION_KEYS
            variants = {kind: keys - unsure for kind, keys in rules.ACTION_KEYS.items()}
            _check_variant(action, variants, rules.OPTIONAL_ACTION_KEYS, "action", strict=strict)
            for source in action.get("sources") or ():
                require_keys(source, frozenset(("type", "url")), "a source", allowed=_NONE if strict else None)
        case _:
            pass


def _check_shell_output(entry: Any, *, strict: bool) -> None:
    require_keys(entry, rules.SHELL_OUTPUT_KEYS, "an output of a shell", allowed=_NONE if strict else None)
    _check_variant(entry["outcome"], rules.OUTCOME_KEYS, {}, "outcome", strict=strict)


def _check_variant(
    value: Any,
    variants: Mapping[str, frozenset[str]],
    optional: Mapping[str, frozenset[str]],
    what: str,
    *,
    strict: bool,
) -> None:
    """An object whose keys depend on its `type`."""
    kind = _type_of(value)
    require(kind in variants, f"`{what}` has a type of {', '.join(variants)}", value)
    allowed = optional.get(kind, _NONE) if strict else None
    require_keys(value, variants[kind], f"`{what}` of the type {kind}", allowed=allowed)


def check_part_keys(part: Any, *, strict: bool = False) -> None:
    """A content part, annotation or output has the keys of its type."""
    kind = _type_of(part)
    require(kind, "a part has a `type`", part)
    keys = rules.PART_KEYS.get(kind)
    if keys is None:
        if strict:
            raise Violation("a known part type", kind)
        return
    keys = keys if strict else keys - rules.UNSURE_PART_KEYS
    require_keys(part, keys, f"the part {kind}", allowed=_NONE if strict else None)
    annotations: Iterable[Any] = part.get("annotations") or ()
    for annotation in annotations:
        check_part_keys(annotation, strict=strict)


def _type_of(value: Any) -> str:
    """The `type` of an object, or an empty string."""
    kind = cast("dict[str, Any]", value).get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""
