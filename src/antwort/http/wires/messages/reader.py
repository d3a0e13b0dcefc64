"""Reads a request of this wire as a `CreateResponse`, and errors of the engine about it in terms of this wire. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from antwort.api.errors import ApiError, invalid
from antwort.api.requests import CreateResponse, JsonSchemaFormat, ReasoningOptions, Text, decode
from antwort.api.tools import AutoContainer, FunctionTool, WebSearchTool
from antwort.http.wires.messages.errors import in_api_words
from antwort.http.wires.messages.history import History, Origin
from antwort.http.wires.messages.request import (
    ContainerParam,
    CountMessageTokens,
    CreateMessageParams,
    InputParams,
    JsonSchemaOutput,
    TextBlock,
)
from antwort.http.wires.messages.tools import ReadTools, is_strict

T = TypeVar("T", bound=InputParams)

MAX_UPLOADS: Final = 50
_MIN_OUTPUT_TOKENS: Final = 16
"""The smallest limit that all models accept. A smaller `max_tokens` counts as this one."""
_CHANGING_SYSTEM_BLOCK: Final = "x-anthropic-billing-header:"
"""The beginning of a block that is not for the model: it differs in each request, which defeats prefix caches."""
_PARAM_RE: Final = re.compile(
    r"\binput\[(?P<item>\d+)\](?:\.(?:content|output)\[(?P<part>\d+)\])?(?:\.[a-z_]+)*|\btools\[(?P<tool>\d+)\](?P<container>\.(?:container|environment)\b[.a-z_]*)?"
)
_RENAMED: Final = {
    "max_output_tokens": "max_tokens",
    "text.format.schema": "output_config.format.schema",
    "input": "messages",
}


class Paths(NamedTuple):
    """The paths in the request of the items and tools that were read from it."""

    items: Sequence[Origin] = ()
    tools: Sequence[str] = ()

    def translate(self, error: ApiError) -> ApiError:
        """An error of the engine, with the paths of this wire in place of its own."""
        param = error.param
        if param is not None:
            param = _RENAMED.get(param) or self._replaced(param).replace(".parameters", ".input_schema")
        return ApiError(
            error.status,
            self._replaced(error.message),
            kind=error.kind,
            code=error.code,
            param=param,
            retry_after=error.retry_after,
            should_retry=error.should_retry,
        )

    def _replaced(self, text: str) -> str:
        return _PARAM_RE.sub(self._path, text)

    def _path(self, found: re.Match[str]) -> str:
        try:
            if found["container"]:
                return "container"
            if found["tool"] is not None:
                return self.tools[int(found["tool"])]
            origin = self.items[int(found["item"])]
            return origin.path if found["part"] is None else origin.parts[int(found["part"])]
        except IndexError:
            return found.group()


class ReadRequest(NamedTuple):
    """A request in the engine's terms."""

    request: CreateResponse
    paths: Paths
    stop: tuple[str, ...] = ()
    streams: bool = False
    shows_thinking: bool = False
    container_id: str | None = None
    """The container that the request names…"""
    uploads: Sequence[str] = ()
    """…and the files for it. Those for a new container are part of its declaration."""


def parse_create(body: bytes) -> ReadRequest:
    """Parse `POST /v1/messages`; an `ApiError` names the field that is not valid."""
    given = _decode(body, CreateMessageParams)
    role = next((message.role for message in reversed(given.messages) if message.role != "system"), None)
    if role == "assistant":
        message = "This server does not continue an assistant message: the conversation must end with a user message."
        raise invalid(message, param="messages")
    read = _read(given)
    request = read.request
    request.max_output_tokens = max(_MIN_OUTPUT_TOKENS, given.max_tokens)
    request.temperature, request.top_p = given.temperature, given.top_p
    return read._replace(
        stop=tuple(dict.fromkeys(given.stop_sequences or ())),
        streams=bool(given.stream),
        shows_thinking=given.thinking is not None and given.thinking.is_shown,
    )


def parse_count(body: bytes) -> ReadRequest:
    """Parse `POST /v1/messages/count_tokens`."""
    return _read(_decode(body, CountMessageTokens))


def _decode(body: bytes, into: type[T]) -> T:
    try:
        return decode(body, into)
    except ApiError as error:
        raise in_api_words(error) from error


def _read(given: InputParams) -> ReadRequest:
    history, tools = History(), ReadTools()
    history.read(given.messages)
    if not history.items:
        raise invalid("at least one message is required", param="messages", code="empty_array")
    container_id = _container_id(given)
    if len(history.uploads) > MAX_UPLOADS:
        raise invalid(f"More than {MAX_UPLOADS} files for the container.", param="messages")
    uploads = [*dict.fromkeys(history.uploads)]
    container = container_id or AutoContainer(file_ids=uploads or None)
    tools.read(given.tools or (), history.referenced, container)
    if (
        uploads
        and container_id is None
        and all(isinstance(tool, (FunctionTool, WebSearchTool)) for tool in tools.tools)
    ):
        raise invalid("`container_upload` blocks need a `code_execution` tool.", param=history.upload_path)
    if given.mcp_servers:
        raise invalid("MCP servers are not available on this wire.", param="mcp_servers", code="unsupported_parameter")
    choice = given.tool_choice
    request = CreateResponse(
        model=given.model,
        input=history.items,
        instructions=_system(given.system),
        tools=tools.tools or None,
        tool_choice=tools.choice(choice),
        parallel_tool_calls=None if choice is None or not choice.disable_parallel_tool_use else False,
        text=_text(given),
        reasoning=_reasoning(given),
        max_tool_calls=tools.max_tool_calls,
        store=False,
    )
    paths = Paths(history.origins, tools.paths)
    return ReadRequest(request, paths, container_id=container_id, uploads=uploads if container_id else ())


def _container_id(given: InputParams) -> str | None:
    container = given.container
    if not isinstance(container, ContainerParam):
        return container or None
    if container.skills:
        message = "Skills are not available on this wire."
        raise invalid(message, param="container.skills", code="unsupported_parameter")
    return container.id or None


def _system(given: str | list[TextBlock] | None) -> str | None:
    if isinstance(given, str) or given is None:
        return given or None
    return "\n\n".join(block.text for block in given if not block.text.startswith(_CHANGING_SYSTEM_BLOCK)) or None


def _text(given: InputParams) -> Text | None:
    chosen: JsonSchemaOutput | None = given.output_config.format if given.output_config else None
    chosen = chosen or given.output_format
    if chosen is None:
        return None
    return Text(JsonSchemaFormat("output", chosen.schema, strict=is_strict(chosen.schema) or None))


def _reasoning(given: InputParams) -> ReasoningOptions | None:
    effort = given.output_config.effort if given.output_config else None
    is_summarized = given.thinking is not None and given.thinking.is_shown and given.thinking.display == "summarized"
    if effort is None and not is_summarized:
        return None
    return ReasoningOptions(effort=effort, summary="auto" if is_summarized else None)
