"""Reads the tools and the `tool_choice` of a request. Pure.

A tool with `defer_loading` is offered from when the history names it: its client searches for tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, invalid, malformed
from antwort.api.requests import ToolChoice
from antwort.api.tools import (
    MAX_TOOLS,
    AutoContainer,
    AutoEnvironment,
    Chosen,
    CodeInterpreterTool,
    FunctionTool,
    ReferencedEnvironment,
    ShellTool,
    ToolDeclaration,
    WebSearchTool,
    tool_type,
)
from antwort.api.validation.schemas import GivenSchema, check_schemas
from antwort.http.wires.messages.client_tools import client_tool, tool_family
from antwort.http.wires.messages.errors import in_api_words
from antwort.http.wires.messages.request import FunctionParam, Raw, ToolChoiceParam, TypedToolParam, WebSearchParam

T = TypeVar("T", bound=Struct)

_MAX_SHOWN: Final = 64
_UNAVAILABLE: Final = frozenset(
    {"web_fetch", "tool_search_tool_regex", "tool_search_tool_bm25", "computer", "mcp_toolset", "advisor"}
)
"""Families of tool types that this server does not have."""
_TYPES: Final = "'custom', 'code_execution_*', 'web_search_*', 'bash_*', 'text_editor_*', 'memory_*'"
_PYTHON_ONLY: Final = "code_execution_20250522"


class ReadTools:
    """The declared tools, each with its path in the request."""

    def __init__(self) -> None:
        self.tools: list[ToolDeclaration] = []
        self.paths: list[str] = []
        self.max_tool_calls: int | None = None
        """The limit of the only hosted tool."""
        self._hosted: dict[str, str] = {}
        """The types of hosted tools by their names on this wire."""

    def read(self, given: Sequence[Raw], referenced: set[str], container: str | AutoContainer) -> None:
        """Read the declarations. `referenced` are the tools that the history names."""
        if len(given) > MAX_TOOLS:
            raise invalid(f"List should have at most {MAX_TOOLS} items.", param="tools")
        for at, raw in enumerate(given):
            path = f"tools.{at}"
            kind = raw.get("type")
            if kind is None or kind == "custom":
                read: Sequence[ToolDeclaration] = _function(raw, path, referenced)
            elif not isinstance(kind, str):
                raise invalid("Input should be a valid string.", param=f"{path}.type")
            elif tool_family(kind) == "code_execution":
                read = _code_execution(kind, raw, path, container)
            elif tool_family(kind) == "web_search":
                read = [self._web_search(raw, path)]
            else:
                read = [_typed(kind, raw, path)]
            hosted = [tool_type(tool) for tool in read if not isinstance(tool, FunctionTool)]
            if hosted:
                self._hosted[tool_family(str(kind))] = hosted[0]
            self.tools += read
            self.paths += [path] * len(read)
        if len(self._hosted) > 1:
            self.max_tool_calls = None  # the limit is that of one of the tools

    def _web_search(self, raw: Raw, path: str) -> WebSearchTool:
        given = _convert(raw, WebSearchParam, path)
        _check_callers(given.allowed_callers, path)
        if given.blocked_domains:
            message = "Blocked domains are not available on this server: use `allowed_domains`."
            raise invalid(message, param=f"{path}.blocked_domains", code="unsupported_value")
        self.max_tool_calls = given.max_uses
        declared: Raw = {"type": "web_search"}
        if given.allowed_domains:
            declared["filters"] = {"allowed_domains": given.allowed_domains}
        if given.user_location is not None:
            location = {name: value for name, value in msgspec.to_builtins(given.user_location).items() if value}
            declared["user_location"] = {"type": "approximate", **location}
        return _convert(declared, WebSearchTool, path)

    def choice(self, given: ToolChoiceParam | None) -> ToolChoice | None:
        """The `tool_choice` in the engine's terms."""
        match given:
            case None | ToolChoiceParam(type="auto"):
                return None
            case ToolChoiceParam(type="none"):
                return "none"
            case ToolChoiceParam(type="any"):
                return "required"
            case _:
                if given.name is None:
                    raise invalid("Field required", param="tool_choice.name", code="missing_required_parameter")
                hosted = self._hosted.get(given.name)
                return Chosen(type="function", name=given.name) if hosted is None else Chosen(type=hosted)


def _code_execution(kind: str, raw: Raw, path: str, container: str | AutoContainer) -> list[ToolDeclaration]:
    """Python; in versions since 2025-08-25 also a shell. Both use one container."""
    _check_callers(_convert(raw, TypedToolParam, path).allowed_callers, path)
    code = CodeInterpreterTool(container=container)
    if kind == _PYTHON_ONLY:
        return [code]
    if isinstance(container, str):
        return [code, ShellTool(environment=ReferencedEnvironment(container))]
    return [code, ShellTool(environment=AutoEnvironment(file_ids=container.file_ids))]


def _function(raw: Raw, path: str, referenced: set[str]) -> list[ToolDeclaration]:
    given = _convert(raw, FunctionParam, path)
    _check_callers(given.allowed_callers, path)
    if given.defer_loading and given.name not in referenced:
        return []
    schema: dict[str, Any] = {name: value for name, value in given.input_schema.items() if name != "$schema"}
    if schema.setdefault("type", "object") != "object":
        raise invalid("Input should be 'object'.", param=f"{path}.input_schema.type")
    strict = True if given.strict and is_strict(schema) else None
    return [FunctionTool(name=given.name, description=given.description, parameters=schema, strict=strict)]


def _typed(kind: str, raw: Raw, path: str) -> FunctionTool:
    given = _convert(raw, TypedToolParam, path)
    _check_callers(given.allowed_callers, path)
    tool = client_tool(kind, given.name)
    if tool is not None:
        return tool
    if tool_family(kind) in _UNAVAILABLE:
        raise invalid(f"Tools of the type '{kind[:_MAX_SHOWN]}' are not available on this server.", param=path)
    raise invalid(
        f"Input tag '{kind[:_MAX_SHOWN]}' found using 'type' does not match any of the expected tags: {_TYPES}.",
        param=path,
    )


def _check_callers(callers: Sequence[str] | None, path: str) -> None:
    if callers and "direct" not in callers:
        message = "Calls of tools by code are not available on this server: add 'direct'."
        raise invalid(message, param=f"{path}.allowed_callers", code="unsupported_value")


def _convert(raw: Raw, into: type[T], path: str) -> T:
    try:
        return msgspec.convert(raw, into)
    except msgspec.ValidationError as error:
        raise in_api_words(malformed(error, root=path, document=raw)) from error


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether a schema fulfils the rules of strict schemas. Those of Anthropic's API are weaker: it allows options."""
    try:
        for _ in check_schemas([GivenSchema(schema, "schema", "schema", "invalid_json_schema", strict=True)]):
            pass
    except ApiError:
        return False
    return True
