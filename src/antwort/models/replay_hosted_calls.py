"""Hosted calls of the history, retold as calls of functions. Pure.

A model behind this server knows no `code_interpreter_call` and no `web_search_call`:
it knows functions and what they returned. So each such item becomes one call with its
result as text; those whose result is an item of its own are paired with it by `call_id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from msgspec import Struct

from antwort.api.items import Item, Raw
from antwort.engine.truncate import truncate_chars

NO_OUTPUT = "(no output)"
NOT_KEPT = "(the output is not part of this history)"


class Retold(Struct, frozen=True):
    """A call of a function, and what it returned; None where an item of its own says so."""

    call_id: str
    name: str
    arguments: str
    output: str | None = None


Teller: TypeAlias = Callable[[Raw], Retold]


def retell_call(item: Item) -> Retold | None:
    """A hosted call as a call of a function; None for everything else."""
    teller = _CALLS.get(item.type)
    return teller(item.raw) if teller else None


def retell_output(item: Item) -> str | None:
    """The result of a call as text, where it is an item of its own; None for everything else."""
    teller = _OUTPUTS.get(item.type)
    return teller(item.raw) if teller else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _entries(value: object) -> list[Raw]:
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Raw", entry) for entry in entries if isinstance(entry, dict)]


def _name_of(raw: Raw) -> str:
    return _text(raw.get("call_id") or raw.get("id")) or "call"


def _code(raw: Raw) -> Retold:
    arguments = _json({"code": _text(raw.get("code"))})
    return Retold(_name_of(raw), "code_interpreter", arguments, _code_output(raw.get("outputs")))


def _code_output(outputs: object) -> str:
    if outputs is None:
        return NOT_KEPT
    shown = (_text(entry.get("logs")) if entry.get("type") == "logs" else "[figure]" for entry in _entries(outputs))
    return truncate_chars("\n".join(shown)) or NO_OUTPUT


def _file_search(raw: Raw) -> Retold:
    results = raw.get("results")
    found = (f"{_text(one.get('filename'))}: {_text(one.get('text'))}" for one in _entries(results))
    output = NOT_KEPT if results is None else "\n\n".join(found) or "(nothing found)"
    return Retold(_name_of(raw), "file_search", _json({"queries": raw.get("queries") or []}), output)


def _web_search(raw: Raw) -> Retold:
    action = cast("Raw", raw.get("action")) if isinstance(raw.get("action"), dict) else {}
    sources = "\n".join(_text(one.get("url")) for one in _entries(action.get("sources")))
    arguments = {key: value for key, value in action.items() if key not in ("sources", "type") and value is not None}
    return Retold(_name_of(raw), "web_search", _json(arguments), sources or NOT_KEPT)


def _mcp(raw: Raw) -> Retold:
    output = _text(raw.get("output")) or _text(raw.get("error")) or NO_OUTPUT
    return Retold(_name_of(raw), _text(raw.get("name")) or "mcp", _text(raw.get("arguments")) or "{}", output)


def _image(raw: Raw) -> Retold:
    return Retold(
        _name_of(raw), "image_generation", _json({"prompt": _text(raw.get("revised_prompt"))}), "[generated image]"
    )


def _shell(raw: Raw) -> Retold:
    return Retold(_name_of(raw), "shell", _json(raw.get("action") or {}))


def _local_shell(raw: Raw) -> Retold:
    return Retold(_name_of(raw), "local_shell", _json(raw.get("action") or {}))


def _patch(raw: Raw) -> Retold:
    return Retold(_name_of(raw), "apply_patch", _json(raw.get("operation") or {}))


def _shell_output(raw: Raw) -> str:
    return "\n".join(map(_shell_entry, _entries(raw.get("output")))) or NO_OUTPUT


def _shell_entry(entry: Raw) -> str:
    outcome = cast("Raw", entry.get("outcome")) if isinstance(entry.get("outcome"), dict) else {}
    end = "(timed out)" if outcome.get("type") == "timeout" else f"(exit code {outcome.get('exit_code')})"
    said = (_text(entry.get("stdout")).rstrip("\n"), _text(entry.get("stderr")).rstrip("\n"), end)
    return "\n".join(filter(None, said))


def _plain_output(raw: Raw) -> str:
    return _text(raw.get("output")) or _text(raw.get("status")) or NO_OUTPUT


_CALLS: dict[str, Teller] = {
    "code_interpreter_call": _code,
    "file_search_call": _file_search,
    "web_search_call": _web_search,
    "mcp_call": _mcp,
    "image_generation_call": _image,
    "shell_call": _shell,
    "local_shell_call": _local_shell,
    "apply_patch_call": _patch,
}

_OUTPUTS: dict[str, Callable[[Raw], str]] = {
    "shell_call_output": _shell_output,
    "local_shell_call_output": _plain_output,
    "apply_patch_call_output": _plain_output,
}
