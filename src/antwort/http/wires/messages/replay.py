"""Reads hosted calls of the history. Pure.

A web search is an item of its own. Programs are function calls with their output as text, as models read them: their
container is not known here.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, cast

import msgspec
from msgspec import Struct

from antwort.http.wires.messages.request import Raw, ServerToolResult, ServerToolUseBlock

_NO_OUTPUT: Final = "(no output)"
_MAX_OUTPUT: Final = 200_000
_PREFIX: Final = "antwort1."
"""The beginning of results that this server has encoded. Those of other servers cannot be read."""
_SEARCHES: Final = ("web_search", "web_fetch")


class EncodedResult(Struct):
    """What a search result has beside its URL and title: the number that the model cites it by, and its text."""

    index: int | None
    text: str

    def encoded(self) -> str:
        """As a string that is not for the client to read."""
        return _PREFIX + base64.b64encode(msgspec.json.encode(self)).decode()


def _decoded(given: object) -> EncodedResult | None:
    if not isinstance(given, str) or not given.startswith(_PREFIX):
        return None
    try:
        content = base64.b64decode(given.removeprefix(_PREFIX), validate=True)
        return msgspec.json.decode(content, type=EncodedResult)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def is_search(block: ServerToolUseBlock) -> bool:
    """Whether a call is one of the web search, which is an item together with its results."""
    return block.name in _SEARCHES


def search_item(block: ServerToolUseBlock) -> Raw:
    """The item of a call of the web search, without results."""
    given = block.input
    if block.name == "web_search":
        query = str(given.get("query", ""))
        action: Raw = {"type": "search", "query": query, "queries": query.split("\n")}
    else:
        kind = "find_in_page" if "pattern" in given else "open_page"
        action = {"type": kind, **{name: str(given[name]) for name in ("url", "pattern") if name in given}}
    return {"type": "web_search_call", "status": "completed", "action": action, "results": []}


def search_results(block: ServerToolResult) -> list[Raw]:
    """The results of the web search."""
    return [found for entry in _entries(block.content) if (found := _search_result(entry)) is not None]


def _search_result(entry: Raw) -> Raw | None:
    named = {name: str(entry.get(name) or "") for name in ("title", "url")}
    if entry.get("type") == "web_search_result":
        decoded = _decoded(entry.get("encrypted_content")) or EncodedResult(None, "")
        index = {} if decoded.index is None else {"index": decoded.index}
        return {**index, **named, "text": decoded.text}
    if entry.get("type") == "web_fetch_result":
        document = _object(entry.get("content"))
        title, text = document.get("title"), _object(document.get("source")).get("data")
        return {**named, "title": str(title or ""), "text": text if isinstance(text, str) else ""}
    return None


def _object(value: object) -> Raw:
    return cast("Raw", value) if isinstance(value, dict) else {}


def _entries(content: object) -> list[Raw]:
    entries = cast("list[object]", content) if isinstance(content, list) else [content]
    return [cast("Raw", entry) for entry in entries if isinstance(entry, dict)]


def replayed_call(block: ServerToolUseBlock) -> tuple[str, str]:
    """The name and the arguments of a hosted call, as the function that the model is offered here."""
    given = block.input
    match block.name:
        case "code_execution":
            name, arguments = "code_interpreter", {"code": given.get("code", "")}
        case "bash_code_execution":
            name, arguments = "shell", {"commands": [given.get("command", "")]}
        case other:
            name, arguments = other, given
    return name, msgspec.json.encode(arguments).decode()


def replayed_output(block: ServerToolResult) -> str:
    """The output of a hosted call."""
    shown = "\n\n".join(_program(entry) if "stdout" in entry else _plain(entry) for entry in _entries(block.content))
    return shown[:_MAX_OUTPUT] or _NO_OUTPUT


def _program(raw: Raw) -> str:
    code = raw.get("return_code")
    parts = [str(raw.get("stdout") or ""), str(raw.get("stderr") or "")]
    return "\n".join(filter(None, [*(part.rstrip("\n") for part in parts), f"(exit code {code})" if code else ""]))


def _plain(raw: Raw) -> str:
    return msgspec.json.encode(raw).decode()
