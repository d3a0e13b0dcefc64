"""Types of `POST /v1/messages`. Unknown fields are ignored, because clients send new ones with every release.

Content blocks and tools of unknown types are errors: an answer without them would be about something else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from antwort.api.requests import ModelName

MAX_MESSAGES = 100_000
Raw: TypeAlias = dict[str, Any]
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]


# ── sources of images and documents ──────────────────────────────────────────────────────────────────────────────────


class Base64Source(Struct, tag_field="type", tag="base64"):
    """The content of a file."""

    media_type: str
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    """The address of a file."""

    url: str


class FileSource(Struct, tag_field="type", tag="file"):
    """An uploaded file."""

    file_id: str


class TextSource(Struct, tag_field="type", tag="text"):
    """The text of a document."""

    data: str


# ── content blocks ───────────────────────────────────────────────────────────────────────────────────────────────────


class Citations(Struct):
    """Whether the answer is to cite the document."""

    enabled: bool | None = None


class TextBlock(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource | FileSource


class ContentSource(Struct, tag_field="type", tag="content"):
    """The content of a document in blocks."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A document."""

    source: Base64Source | TextSource | ContentSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    """A result of a search that the client made."""

    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ToolReferenceBlock(Struct, tag_field="type", tag="tool_reference"):
    """A tool with `defer_loading` that a search of the client has found: the model is offered it from here on."""

    tool_name: str


ResultPart: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    """The result of a call that the client ran."""

    tool_use_id: NonEmpty
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call of the model that the client runs."""

    id: NonEmpty
    name: NonEmpty
    input: Raw


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning of another server's model, encrypted. It is not read."""


class ContainerUploadBlock(Struct, tag_field="type", tag="container_upload"):
    """An uploaded file for the container of the hosted tools."""

    file_id: NonEmpty


class ServerToolUseBlock(Struct, tag_field="type", tag="server_tool_use"):
    """A call of a hosted tool."""

    id: NonEmpty
    name: NonEmpty
    input: Raw


class ServerToolResult(Struct, tag_field="type"):
    """The result of a hosted call."""

    tool_use_id: NonEmpty
    content: Any


class CodeResultBlock(ServerToolResult, tag="code_execution_tool_result"):
    """The result of code."""


class BashResultBlock(ServerToolResult, tag="bash_code_execution_tool_result"):
    """The result of a command."""


class EditorResultBlock(ServerToolResult, tag="text_editor_code_execution_tool_result"):
    """The result of an edit of a file in a container."""


class SearchToolResultBlock(ServerToolResult, tag="web_search_tool_result"):
    """The results of a web search."""


class FetchResultBlock(ServerToolResult, tag="web_fetch_tool_result"):
    """A web page."""


class ToolSearchResultBlock(ServerToolResult, tag="tool_search_tool_result"):
    """The tools that a search of another server has found."""


ServerResultBlock: TypeAlias = (
    CodeResultBlock
    | BashResultBlock
    | EditorResultBlock
    | SearchToolResultBlock
    | FetchResultBlock
    | ToolSearchResultBlock
)

Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ContainerUploadBlock
    | ServerToolUseBlock
    | ServerResultBlock
)


class MessageParam(Struct):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ToolChoiceParam(Struct):
    """Whether the model may, must or must not call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Struct):
    """Whether the answer shows the reasoning of the model."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: str | None = None

    @property
    def is_shown(self) -> bool:
        return self.type != "disabled"


class JsonSchemaOutput(Struct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    schema: Raw


class OutputConfig(Struct):
    """Options of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonSchemaOutput | None = None


class ContainerParam(Struct):
    """The container of the hosted tools."""

    id: str | None = None
    skills: list[Raw] | None = None


class InputParams(Struct, kw_only=True):
    """The parameters that determine the input tokens."""

    model: ModelName
    messages: Annotated[list[MessageParam], Meta(max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: list[Raw] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: JsonSchemaOutput | None = None
    """The former name of `output_config.format`."""
    container: str | ContainerParam | None = None
    mcp_servers: list[Raw] | None = None


class CreateMessageParams(InputParams, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[NonEmpty], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None


class CountMessageTokens(InputParams, kw_only=True):
    """`POST /v1/messages/count_tokens`."""


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FunctionParam(Struct):
    """A tool with a schema, which the client runs."""

    name: ToolName
    input_schema: Raw
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class TypedToolParam(Struct):
    """A tool that its type defines."""

    name: str | None = None
    max_characters: int | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None


class SearchLocation(Struct):
    """The approximate location of the user."""

    city: str | None = None
    region: str | None = None
    country: str | None = None
    timezone: str | None = None


class WebSearchParam(Struct):
    """The web search."""

    max_uses: Annotated[int, Meta(ge=1)] | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: SearchLocation | None = None
    allowed_callers: list[str] | None = None


class MessageTokens(Struct):
    """The answer of `count_tokens`."""

    input_tokens: int
