"""API type of a response. All keys are always present, including nulls, because clients rely on it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from antwort.api.requests import CreateResponse, ReasoningOptions, Text, ToolChoice
from antwort.api.secrets import plain_tools

ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
TERMINAL: frozenset[ResponseStatus] = frozenset({"completed", "failed", "incomplete", "cancelled"})


class InputDetails(Struct):
    """Details of the input tokens."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: InputDetails) -> InputDetails:
        return InputDetails(
            self.cached_tokens + other.cached_tokens, self.cache_write_tokens + other.cache_write_tokens
        )


class OutputDetails(Struct):
    """Details of the output tokens."""

    reasoning_tokens: int = 0


class Usage(Struct):
    """Token usage, summed over all model calls of a response."""

    input_tokens: int = 0
    input_tokens_details: InputDetails = field(default_factory=InputDetails)
    output_tokens: int = 0
    output_tokens_details: OutputDetails = field(default_factory=OutputDetails)
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.input_tokens_details + other.input_tokens_details,
            self.output_tokens + other.output_tokens,
            OutputDetails(self.output_tokens_details.reasoning_tokens + other.output_tokens_details.reasoning_tokens),
            self.total_tokens + other.total_tokens,
        )


class ImageInputDetails(Struct):
    """Details of the input tokens of image generation."""

    image_tokens: int = 0
    text_tokens: int = 0


class ImageGenerationUsage(Struct):
    """Usage of image generation. This server has no such tool: all counts are 0."""

    input_tokens: int = 0
    input_tokens_details: ImageInputDetails = field(default_factory=ImageInputDetails)
    output_tokens: int = 0
    total_tokens: int = 0


class WebSearchUsage(Struct):
    """Usage of the web search: requests to the search engine."""

    num_requests: int = 0


class ToolUsage(Struct):
    """Usage of hosted tools. As on OpenAI's wire, a tool without usage has zero counts."""

    image_gen: ImageGenerationUsage = field(default_factory=ImageGenerationUsage)
    web_search: WebSearchUsage = field(default_factory=WebSearchUsage)


class ResponseError(Struct):
    """Why a response failed. New ones have a `ResponseErrorCode`; the type is wider for stored ones."""

    code: str
    message: str


class IncompleteDetails(Struct):
    """Why a response is incomplete."""

    reason: str


class Conversation(Struct):
    """The conversation of a response."""

    id: str


class CompactionNote(Struct):
    """How the history was compacted: by a summary of the model, or by an extract because there was none."""

    method: Literal["summary", "extract"]
    reason: str | None
    """Why the extract was needed."""
    tokens_before: int
    """Estimated tokens of the history, without instructions and tools, before the compaction…"""
    tokens_after: int
    """…and after it."""


class IgnoredTool(Struct):
    """A declared tool that this server lacks, and that was left out as the configuration allows."""

    param: str
    """The path of its declaration in the request."""
    type: str


class CompactedResponse(Struct, kw_only=True):
    """The body of `POST /v1/responses/compact`: the user's messages, then one compaction item."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: Usage
    compaction: CompactionNote | UnsetType = field(default=UNSET, name="antwort:compaction")


class Response(Struct, kw_only=True):
    """The body of `POST /v1/responses`. `output` holds raw items of the model and of tools."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: Conversation | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: ReasoningOptions = field(default_factory=ReasoningOptions)
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: Text = field(default_factory=Text)
    tool_choice: ToolChoice = "auto"
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The declared tools. One that this server lacks may have any fields."""
    top_logprobs: int = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: Usage | None = None
    tool_usage: ToolUsage | UnsetType = UNSET
    """Set if hosted tools were used that have usage of their own."""
    user: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    compaction: CompactionNote | UnsetType = field(default=UNSET, name="antwort:compaction")
    """The last compaction of this response, if there was one."""
    ignored_tools: list[IgnoredTool] | UnsetType = field(default=UNSET, name="antwort:ignored_tools")
    """The declared tools that were left out, if there were any."""

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


def initial_response(request: CreateResponse, *, identifier: str, model: str, created_at: int) -> Response:
    """The initial response to a request: echoes its parameters, with defaults and without secrets."""
    conversation = request.conversation_id
    return Response(
        id=identifier,
        created_at=created_at,
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        conversation=Conversation(conversation) if conversation else None,
        prompt=request.prompt,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_retention=request.prompt_cache_retention,
        reasoning=request.reasoning or ReasoningOptions(),
        safety_identifier=request.safety_identifier,
        service_tier="default" if request.service_tier in (None, "auto") else request.service_tier,
        store=request.store is not False,
        temperature=1.0 if request.temperature is None else request.temperature,
        text=request.text or Text(),
        tool_choice=request.tool_choice or "auto",
        tools=plain_tools(request.tools or []),
        top_logprobs=request.top_logprobs or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        truncation=request.truncation or "disabled",
        user=request.user,
        metadata=request.metadata or {},
    )
