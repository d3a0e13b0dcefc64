"""API types of requests, and their validation: an invalid request is an `ApiError` that names the parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, field

from antwort.api import items
from antwort.api.errors import (
    invalid,
    malformed,
    missing_parameter,
    unavailable_item,
    unavailable_tool,
    unsupported_value,
)
from antwort.api.items import AdditionalTools, GivenItem, Item, ToolSearchOutput
from antwort.api.tools import (
    KNOWN_TOOL_TYPES,
    MAX_TOOLS,
    Chosen,
    FunctionTool,
    NamespaceTool,
    ToolDeclaration,
    ToolTypes,
    UncheckedTool,
    convert_with_tools,
    member_paths,
    problem_of,
    tool_name,
    tool_type,
)
from antwort.api.validation.ids import check_each_once, check_id, check_item_ids
from antwort.api.validation.items import given_fields
from antwort.api.validation.schemas import GivenSchema

T = TypeVar("T")

ALL_REFUSED: Final = ToolTypes()
"""No hosted tools."""

Include: TypeAlias = Literal[
    "antwort:code_interpreter_call.live_output",
    "antwort:code_interpreter_call.result",
    "antwort:shell_call_output.file_ids",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]

MAX_MODEL_NAME: Final = 512
ModelName: TypeAlias = Annotated[str, Meta(max_length=MAX_MODEL_NAME)]  # repeated in answers, stored and logged
MetadataKey: TypeAlias = Annotated[str, Meta(max_length=64)]
Metadata: TypeAlias = Annotated[dict[MetadataKey, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]

ServiceTier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Input: TypeAlias = Annotated[list[GivenItem], Meta(max_length=8192)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]

ToolChoice: TypeAlias = Literal["none", "auto", "required"] | Chosen


class TextFormat(Struct, tag_field="type", tag="text"):
    """Plain text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class Text(Struct, forbid_unknown_fields=True):
    """Options of the output text."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = field(default_factory=TextFormat)
    verbosity: Literal["low", "medium", "high"] | None = "medium"


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    """Reasoning options."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The former name of `summary`."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard", "pro"] | None = None

    @property
    def asks_for_summary(self) -> bool:
        return (self.summary or self.generate_summary) is not None


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Streaming options."""

    include_obfuscation: bool | None = None


class ContextManagement(Struct, forbid_unknown_fields=True):
    """Compaction of the history."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


class ConversationRef(Struct, forbid_unknown_fields=True):
    """A conversation, by id."""

    id: str


class InputParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """The parameters that determine the input tokens."""

    model: ModelName | None = None
    input: str | Input | None = None
    instructions: str | None = None
    tools: Annotated[list[ToolDeclaration], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    text: Text | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None


class CreateResponse(InputParameters, kw_only=True):
    """`POST /v1/responses`. All parameters of OpenAI are accepted; those without effect are stored and echoed."""

    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    include: list[Include] | None = None
    store: bool | None = None
    context_management: list[ContextManagement] | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None
    client_metadata: Any = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def is_obfuscated(self) -> bool:
        """Whether the deltas of its stream are padded."""
        return self.stream_options is None or self.stream_options.include_obfuscation is not False

    @property
    def history_param(self) -> str:
        """The parameter that names the history before the request."""
        if self.previous_response_id is not None:
            return "previous_response_id"
        return "input" if self.conversation is None else "conversation"


class CountTokens(InputParameters, kw_only=True):
    """`POST /v1/responses/input_tokens`."""

    personality: str | None = None
    client_metadata: Any = None

    def as_request(self) -> CreateResponse:
        """A request with this input and `store: false`."""
        fields = {name: getattr(self, name) for name in InputParameters.__struct_fields__}
        return CreateResponse(**fields, store=False)


class CompactHistory(InputParameters, kw_only=True):
    """`POST /v1/responses/compact`."""

    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: ServiceTier | None = None
    image: Any = None
    client_metadata: Any = None
    store: Literal[False] | None = None
    """Nothing is stored in any case."""

    def as_request(self) -> CreateResponse:
        """A request with this input and `store: false`."""
        fields = {name: getattr(self, name) for name in InputParameters.__struct_fields__}
        return CreateResponse(**fields, store=False)


GivenItems: TypeAlias = Annotated[list[GivenItem], Meta(max_length=20)]


class CreateConversation(Struct, forbid_unknown_fields=True):
    """`POST /v1/conversations`."""

    items: GivenItems | None = None
    metadata: Metadata | None = None


class UpdateConversation(Struct, forbid_unknown_fields=True):
    """`POST /v1/conversations/{id}`."""

    metadata: Metadata | None


class AddItems(Struct, forbid_unknown_fields=True):
    """`POST /v1/conversations/{id}/items`."""

    items: GivenItems


def decode(body: bytes, into: type[T], *, tool_types: ToolTypes = ALL_REFUSED) -> T:
    """Decode a JSON body into a struct. Declarations of tools that this server lacks need not be valid."""
    try:
        return msgspec.json.decode(body, type=into)
    except msgspec.ValidationError as error:
        return _decode_with_tools(body, into, tool_types, error)
    except msgspec.MsgspecError as error:
        raise malformed(error) from error
    except (UnicodeError, RecursionError) as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}", code="invalid_json") from error


def _decode_with_tools(body: bytes, into: type[T], tool_types: ToolTypes, error: msgspec.ValidationError) -> T:
    """Decode a body that is not valid: only declared tools may be the reason."""
    plain = decode_plain(body)
    if not isinstance(plain, dict):
        raise malformed(error) from error
    document = cast("dict[str, Any]", plain)
    try:
        decoded = convert_with_tools(document, into)
    except msgspec.ValidationError as other:
        raise malformed(other, document=document, tool_types=tool_types.available) from other
    _check_unchecked(getattr(decoded, "tools", None) or (), "tools", tool_types)
    return decoded


class _Declarations(Struct):
    """Tool declarations alone."""

    tools: Annotated[list[ToolDeclaration], Meta(max_length=MAX_TOOLS)]


def read_tools(values: list[dict[str, Any]], tool_types: ToolTypes = ALL_REFUSED) -> list[ToolDeclaration]:
    """Parse tool declarations; an invalid one is an `ApiError` with its path, such as `tools[0].container`."""
    document: dict[str, Any] = {"tools": values}
    try:
        tools = convert_with_tools(document, _Declarations).tools
    except msgspec.ValidationError as error:
        raise malformed(error, document=document, tool_types=tool_types.available) from error
    _check_unchecked(tools, "tools", tool_types)
    return tools


def _check_unchecked(tools: Iterable[ToolDeclaration], param: str, tool_types: ToolTypes) -> None:
    """`ApiError` 400 for a tool that was not understood, unless this server lacks it and ignores such tools."""
    for at, tool in enumerate(tools):
        if not isinstance(tool, UncheckedTool):
            continue
        kind, path = tool_type(tool), f"{param}[{at}]"
        if kind in tool_types.available and (error := problem_of(tool.declaration)) is not None:
            raise malformed(error, root=path, document=tool.declaration, tool_types=tool_types.available)
        if not tool_types.ignores_others:
            refuse = unavailable_tool if kind in KNOWN_TOOL_TYPES else unsupported_value
            raise refuse(kind, tool_types.available, f"{path}.type")


def decode_plain(body: bytes) -> object:
    """The JSON of a body that is not valid, for the error; None if it ends in a syntax error."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def read_input(value: str | list[dict[str, Any]] | None, tool_types: ToolTypes = ALL_REFUSED) -> list[Item]:
    """Parse `input`; a string is a user message."""
    if value is None:
        return []
    if isinstance(value, str):
        return [items.read({"type": "message", "role": "user", "content": value})]
    given = read_items(value, "input", tool_types)
    check_each_once(given, "input")
    return given


def read_items(values: list[dict[str, Any]], param: str, tool_types: ToolTypes = ALL_REFUSED) -> list[Item]:
    """Parse input items; an invalid one, or one of an unknown type, is an `ApiError` with its path."""
    return [_read_item(raw, f"{param}[{at}]", tool_types) for at, raw in enumerate(values)]


def _read_item(raw: dict[str, Any], path: str, tool_types: ToolTypes) -> Item:
    try:
        item = items.parse(raw)
        msgspec.convert(raw, given_fields(item.type))
    except msgspec.ValidationError as error:
        raise malformed(error, root=path, document=raw, tool_types=tool_types.available) from error
    _check_unchecked(brought_tools(item), f"{path}.tools", tool_types)
    if item.known is None:
        refuse = unavailable_item if item.type in items.UNAVAILABLE else unsupported_value
        raise refuse(item.type, items.READERS, f"{path}.type")
    check_item_ids(raw, item.type, path)
    return item


def brought_tools(item: Item) -> Sequence[ToolDeclaration]:
    """The tools that an item brings."""
    return item.known.tools if isinstance(item.known, (AdditionalTools, ToolSearchOutput)) else ()


def check(request: CreateResponse, tool_types: ToolTypes = ALL_REFUSED) -> None:
    """Rules beyond the types. `check_input` is separate, because not every request needs input."""
    if request.previous_response_id is not None and request.conversation is not None:
        raise invalid(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Give only one of them.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    if request.previous_response_id is not None:
        check_id(request.previous_response_id, "previous_response_id", "resp")
    if request.conversation_id is not None:
        check_id(request.conversation_id, _conversation_param(request), "conv")
    if request.background and request.store is False:
        raise invalid("Background mode requires 'store' to be true.", param="background")
    if request.prompt is not None:
        raise invalid(
            "Unsupported parameter: 'prompt'. This server has no stored prompts: send 'instructions' and 'input'.",
            param="prompt",
            code="unsupported_parameter",
        )
    _check_tools(request.tools or [], tool_types)
    _check_choice(request.tool_choice)


def _conversation_param(request: CreateResponse) -> str:
    return "conversation.id" if isinstance(request.conversation, ConversationRef) else "conversation"


def given_schemas(request: CreateResponse) -> Iterator[GivenSchema]:
    """The JSON schemas of a request, for `validation.schemas`. Those of its items are `item_schemas`."""
    yield from _function_schemas(request.tools or (), "tools")
    if request.text is not None and isinstance(form := request.text.format, JsonSchemaFormat):
        name, param = f"response_format '{form.name}'", "text.format.schema"
        yield GivenSchema(form.schema, name, param, "invalid_json_schema", form.strict is True)


def item_schemas(given: Sequence[Item], param: str) -> Iterator[GivenSchema]:
    """The JSON schemas of the functions that items at the path `param` bring."""
    for at, item in enumerate(given):
        yield from _function_schemas(brought_tools(item), f"{param}[{at}].tools")


def _function_schemas(tools: Iterable[ToolDeclaration], param: str) -> Iterator[GivenSchema]:
    for _, tool, path in member_paths(tools, param):
        if isinstance(tool, FunctionTool) and tool.parameters is not None:
            name, place = f"function '{tool.name}'", f"{path}.parameters"
            yield GivenSchema(tool.parameters, name, place, "invalid_function_parameters", tool.strict is True)


def check_input(request: CreateResponse) -> None:
    """Require an input, unless the request continues a history."""
    if request.input or request.previous_response_id is not None or request.conversation is not None:
        return
    if request.input is None:
        raise missing_parameter("input")
    if not isinstance(request.input, str):
        raise invalid("Invalid 'input': empty array. Give at least one item.", param="input", code="empty_array")


def _check_tools(tools: list[ToolDeclaration], tool_types: ToolTypes) -> None:
    """Names are unique. Tools that are left out may be repeated."""
    seen: dict[str, str] = {}
    for declared, tool, path in member_paths(tools, "tools"):
        name = f"{declared.name}.{tool_name(tool)}" if isinstance(declared, NamespaceTool) else tool_name(tool)
        is_ignored = tool_types.ignores_others and tool_type(tool) not in tool_types.available
        if name in seen and tool_type(tool) != "mcp" and not is_ignored:
            message = f"'{seen[name]}' and '{path}' are both called '{name}'; names must be unique."
            raise invalid(message, param=f"{path}.name")
        seen[name] = path


def _check_choice(choice: ToolChoice | None) -> None:
    """Whether a `tool_choice` is complete. Items of the history can bring the tools that it names."""
    if isinstance(choice, Chosen) and choice.several:
        for name in ("mode", "tools"):
            if getattr(choice, name) is None:
                raise missing_parameter(f"tool_choice.{name}")
    for at, chosen in enumerate(chosen_tools(choice)):
        several = isinstance(choice, Chosen) and choice.several
        _check_named(chosen, f"tool_choice.tools[{at}]" if several else "tool_choice")


def _check_named(choice: Chosen, param: str) -> None:
    if choice.type in ("function", "custom", "namespace") and choice.name is None:
        raise missing_parameter(f"{param}.name")
    if choice.type == "mcp" and choice.server_label is None:
        raise missing_parameter(f"{param}.server_label")


def chosen_tools(choice: ToolChoice | None) -> list[Chosen]:
    """The tools that a `tool_choice` names."""
    if not isinstance(choice, Chosen):
        return []
    return (choice.tools or []) if choice.several else [choice]
