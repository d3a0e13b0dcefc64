"""Structs of the body of `POST /v1/chat/completions`.

Unknown parameters are refused. Unknown fields of messages, their parts and tools are ignored: clients send back the
messages of other servers, which have fields of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from antwort.api.requests import Metadata, ModelName, Penalty, ServiceTier, StreamOptions
from antwort.api.tools import LocationText, Name

MAX_MESSAGES = 8192
MAX_CALLS = 1024
MAX_TOOLS = 2048
MAX_STOP = 16
MAX_HOSTED_ITEMS = 1024

# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChatText(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ChatImageUrl(Struct):
    """The URL or data URL of an image."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ChatImage(Struct, tag_field="type", tag="image_url"):
    """An image. Some clients send the URL without an object around it."""

    image_url: ChatImageUrl | str


class ChatAudio(Struct, tag_field="type", tag="input_audio"):
    """Audio, which is refused."""


class ChatFileContent(Struct):
    """An uploaded file, or the content of one."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ChatFile(Struct, tag_field="type", tag="file"):
    """A file."""

    file: ChatFileContent


class ChatRefusal(Struct, tag_field="type", tag="refusal"):
    """An earlier refusal of the model."""

    refusal: str


class ChatInstruction(Struct):
    """Text of instructions, which have no other parts."""

    text: str
    type: Literal["text"] = "text"


Texts: TypeAlias = str | list[ChatInstruction]
UserPart: TypeAlias = ChatText | ChatImage | ChatAudio | ChatFile
OutputPart: TypeAlias = ChatText | ChatImage | ChatFile
AssistantPart: TypeAlias = ChatText | ChatRefusal


class CalledFunction(Struct):
    """A call of a function."""

    name: str
    arguments: str = ""


class CalledTool(Struct):
    """A call of a custom tool."""

    name: str
    input: str


class ChatFunctionCall(Struct, tag_field="type", tag="function"):
    """A tool call with JSON arguments."""

    id: str
    function: CalledFunction


class ChatCustomCall(Struct, tag_field="type", tag="custom"):
    """A tool call with free text."""

    id: str
    custom: CalledTool


class ChatSystemMessage(Struct, tag_field="role", tag="system"):
    """Instructions."""

    content: Texts


class ChatDeveloperMessage(Struct, tag_field="role", tag="developer"):
    """Instructions, in the name of newer models."""

    content: Texts


class ChatUserMessage(Struct, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | list[UserPart]


class ChatAssistantMessage(Struct, tag_field="role", tag="assistant"):
    """An earlier answer of a model, of this server or another one."""

    content: str | list[AssistantPart] | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ChatFunctionCall | ChatCustomCall], Meta(max_length=MAX_CALLS)] | None = None
    function_call: CalledFunction | None = None
    reasoning_content: Any = None
    """Reasoning text, if it is a string…"""
    reasoning: Any = None
    """…or here, as other servers send it."""
    hosted_items: Annotated[list[dict[str, Any]], Meta(max_length=MAX_HOSTED_ITEMS)] | None = field(
        name="antwort:items", default=None
    )


class ChatToolMessage(Struct, tag_field="role", tag="tool"):
    """The output of a tool call."""

    tool_call_id: str
    content: str | list[OutputPart]


class ChatFunctionMessage(Struct, tag_field="role", tag="function"):
    """The output of a call in the deprecated form: it has the name of the function in place of an id."""

    name: str
    content: str | None = None


ChatMessage: TypeAlias = (
    ChatSystemMessage
    | ChatDeveloperMessage
    | ChatUserMessage
    | ChatAssistantMessage
    | ChatToolMessage
    | ChatFunctionMessage
)

# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FunctionDefinition(Struct):
    """A function."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Struct, tag_field="type", tag="function"):
    """A tool with JSON arguments."""

    function: FunctionDefinition


class ChatGrammar(Struct):
    """A grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class ChatTextFormat(Struct, tag_field="type", tag="text"):
    """Any text."""


class ChatGrammarFormat(Struct, tag_field="type", tag="grammar"):
    """Text constrained by a grammar."""

    grammar: ChatGrammar


class CustomDefinition(Struct):
    """A tool with free text."""

    name: Name
    description: str | None = None
    format: ChatTextFormat | ChatGrammarFormat | None = None


class ChatCustomTool(Struct, tag_field="type", tag="custom"):
    """A tool with free text."""

    custom: CustomDefinition


ChatTool: TypeAlias = ChatFunctionTool | ChatCustomTool


class ChosenName(Struct):
    """The name of a chosen function or tool."""

    name: Name


class ChosenFunction(Struct, tag_field="type", tag="function"):
    """The model must call this function."""

    function: ChosenName


class ChosenCustom(Struct, tag_field="type", tag="custom"):
    """The model must call this custom tool."""

    custom: ChosenName


class AllowedTools(Struct):
    """A subset of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction | ChosenCustom], Meta(max_length=MAX_TOOLS)]


class ChosenAllowed(Struct, tag_field="type", tag="allowed_tools"):
    """The model may, or must, call one of these."""

    allowed_tools: AllowedTools


ChatToolChoice: TypeAlias = Literal["none", "auto", "required"] | ChosenFunction | ChosenCustom | ChosenAllowed

# ── other parameters ─────────────────────────────────────────────────────────────────────────────────────────────────


class ChatTextOutput(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Plain text."""


class ChatJsonObject(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class ChatSchema(Struct, forbid_unknown_fields=True):
    """A JSON schema with its name."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ChatJsonSchema(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that matches a schema."""

    json_schema: ChatSchema


class ChatStreamOptions(StreamOptions, forbid_unknown_fields=True):
    """Streaming options."""

    include_usage: bool | None = None


class ChatLocation(Struct):
    """A place."""

    city: LocationText | None = None
    country: Annotated[str, Meta(pattern=r"^[A-Za-z]{2}$")] | None = None
    region: LocationText | None = None
    timezone: LocationText | None = None


class ChatUserLocation(Struct):
    """The approximate location of the user."""

    type: Literal["approximate"]
    approximate: ChatLocation


class WebSearchOptions(Struct, forbid_unknown_fields=True):
    """The web search, in the form of chat completions."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: ChatUserLocation | None = None


StopSequence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]


class CreateChatCompletion(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    tools: Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | ChosenName | None = None
    response_format: ChatTextOutput | ChatJsonObject | ChatJsonSchema | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: StopSequence | Annotated[list[StopSequence], Meta(max_length=MAX_STOP)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: WebSearchOptions | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: ServiceTier | None = None
    hosted_tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = field(
        name="antwort:tools", default=None
    )
    """Declarations of hosted tools, as in the Responses API."""
