"""Writes items of hosted tools as content blocks: `server_tool_use`, and the block of its result. Pure.

Ids of container files name the container too: this wire has one name space for all files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from antwort.http.wires.messages.replay import EncodedResult

Raw: TypeAlias = dict[str, Any]

_FILE_ID_RE: Final = re.compile(r"file_([0-9a-f]{32})_([0-9a-f]{32})")
_ERROR: Final = "unavailable"
_TIMEOUT: Final = "execution_time_exceeded"
_MAX_CITED: Final = 150


def file_id(container_id: str, container_file_id: str) -> str:
    """The id of a file of a container on this wire."""
    return f"file_{container_id.removeprefix('cntr_')}_{container_file_id.removeprefix('cfile_')}"


def container_file(identifier: str) -> tuple[str, str] | None:
    """The container and the file that such an id names; None for uploaded files."""
    found = _FILE_ID_RE.fullmatch(identifier)
    return None if found is None else (f"cntr_{found[1]}", f"cfile_{found[2]}")


def use_id(item: Raw) -> str:
    """The id of a hosted call."""
    return "srvtoolu_" + str(item["id"]).partition("_")[2]


def server_tool_use(item: Raw, name: str) -> Raw:
    """The block of a hosted call, without its input."""
    return {"type": "server_tool_use", "id": use_id(item), "name": name, "input": {}}


# ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def code_result(item: Raw) -> Raw:
    """The result of code. What it printed, and the value of its last expression, are its output."""
    result: Raw | None = item.get("antwort:result")
    if result is None:
        return _failed("code_execution_tool_result", use_id(item), _ERROR)
    stdout, note = result["stdout"], result.get("note", "")
    if note:
        stdout += note if not stdout or stdout.endswith("\n") else f"\n{note}"
    files = [file_id(item["container_id"], one) for one in result.get("file_ids", ())]
    content = _program("code_execution", stdout, result["stderr"], result["exit_code"], files)
    return {"type": "code_execution_tool_result", "tool_use_id": use_id(item), "content": content}


def command_input(item: Raw) -> Raw:
    """The input of a shell call. Its commands run one after the other, as lines of a script do."""
    return {"command": "\n".join(item["action"]["commands"])}


def command_result(call: Raw, output: Raw) -> Raw:
    """The result of a shell call: the output of all its commands, and the exit code of the last one."""
    kind, entries = "bash_code_execution_tool_result", output["output"]
    if not entries:
        return _failed(kind, use_id(call), _ERROR)
    last = entries[-1]["outcome"]
    if last["type"] == "timeout":
        return _failed(kind, use_id(call), _TIMEOUT)
    stdout, stderr = ("".join(entry[name] for entry in entries) for name in ("stdout", "stderr"))
    container_id = container_of(call) or ""
    files = [file_id(container_id, one) for one in output.get("antwort:file_ids", ())]
    content = _program("bash_code_execution", stdout, stderr, last["exit_code"], files)
    return {"type": kind, "tool_use_id": use_id(call), "content": content}


def _program(kind: str, stdout: str, stderr: str, return_code: int, files: Sequence[str]) -> Raw:
    return {
        "type": f"{kind}_result",
        "stdout": stdout,
        "stderr": stderr,
        "return_code": return_code,
        "content": [{"type": f"{kind}_output", "file_id": one} for one in files],
    }


def _failed(kind: str, tool_use_id: str, code: str) -> Raw:
    content = {"type": f"{kind}_error", "error_code": code}
    return {"type": kind, "tool_use_id": tool_use_id, "content": content}


def container_of(item: Raw) -> str | None:
    """The container that a call ran in."""
    if item["type"] == "code_interpreter_call":
        return item["container_id"] or None
    environment: Raw | None = item.get("environment")
    return None if environment is None else environment.get("container_id")


# ── the web ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def search_name(item: Raw) -> str:
    """The name of the tool for an action of the web search: pages are opened by another one."""
    return "web_search" if _action(item).get("type", "search") == "search" else "web_fetch"


def search_input(item: Raw) -> Raw:
    """The input of a web search."""
    action = _action(item)
    if action.get("type", "search") == "search":
        return {"query": "\n".join(action.get("queries") or [action.get("query") or ""])}
    return {name: action[name] for name in ("url", "pattern") if name in action}


def search_result(item: Raw) -> Raw:
    """The results of a web search, or the page that it opened."""
    kind = f"{search_name(item)}_tool_result"
    if item["status"] != "completed":
        return _failed(kind, use_id(item), _ERROR)
    results: Sequence[Raw] = item.get("results") or ()
    content = [_found(one) for one in results] if search_name(item) == "web_search" else _page(item, results)
    return {"type": kind, "tool_use_id": use_id(item), "content": content}


def _found(result: Raw) -> Raw:
    return {
        "type": "web_search_result",
        "url": result["url"],
        "title": result["title"],
        "encrypted_content": EncodedResult(result.get("index"), result["text"]).encoded(),
        "page_age": None,
    }


def _page(item: Raw, results: Sequence[Raw]) -> Raw:
    first = results[0] if results else {"url": _action(item).get("url", ""), "title": "", "text": ""}
    source = {"type": "text", "media_type": "text/plain", "data": first["text"]}
    document = {"type": "document", "source": source, "title": first["title"] or None}
    return {"type": "web_fetch_result", "url": first["url"], "retrieved_at": None, "content": document}


def _action(item: Raw) -> Raw:
    return item.get("action") or {}


def citation(url: str, title: str, texts: Mapping[str, str]) -> Raw:
    """A citation of a search result, by the texts of the results."""
    return {
        "type": "web_search_result_location",
        "url": url,
        "title": title,
        "cited_text": texts.get(url, "")[:_MAX_CITED],
        "encrypted_index": EncodedResult(None, url).encoded(),
    }
