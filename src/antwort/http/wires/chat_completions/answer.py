"""Structs of a chat completion, and of the chunks of a streamed one."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from antwort.api.responses import IgnoredTool

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class PromptTokensDetails(Struct):
    """Details of the prompt tokens."""

    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(Struct):
    """Details of the completion tokens."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class ChatUsage(Struct):
    """Token usage, summed over all model calls of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class WrittenFunction(Struct, omit_defaults=True):
    """A called function, or a part of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class WrittenCustom(Struct, omit_defaults=True):
    """A called custom tool, or a part of its input."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ChatToolCall(Struct, omit_defaults=True):
    """A tool call. In chunks it has an `index`, and after its first chunk neither an `id` nor a `type`."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: WrittenFunction | UnsetType = UNSET
    custom: WrittenCustom | UnsetType = UNSET


class ChatLogprobs(Struct):
    """The log probabilities of the tokens."""

    content: list[dict[str, Any]]
    refusal: None = None


class ChatAnswerMessage(Struct, kw_only=True):
    """The message of the model."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    """Citations: each has its `type`, and the citation under the name of that."""
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    function_call: WrittenFunction | UnsetType = UNSET
    """In place of `tool_calls`, for a request with `functions`."""
    reasoning_content: str | UnsetType = UNSET
    hosted_items: list[dict[str, Any]] | UnsetType = field(name="antwort:items", default=UNSET)
    """The items of hosted calls, for a request with `antwort:tools`."""


class ChatChoice(Struct):
    """The only choice."""

    index: Literal[0]
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, kw_only=True):
    """The body of the answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    service_tier: str
    system_fingerprint: None = None
    ignored_tools: list[IgnoredTool] | UnsetType = field(name="antwort:ignored_tools", default=UNSET)
    """The tools of `antwort:tools` that were left out, if there were any."""


class ChunkDelta(Struct, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    annotations: list[dict[str, Any]] | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    function_call: WrittenFunction | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    hosted_items: list[dict[str, Any]] | UnsetType = field(name="antwort:items", default=UNSET)
    """Each with its `index`."""


class ChunkChoice(Struct):
    """The only choice."""

    index: Literal[0]
    delta: ChunkDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Struct, kw_only=True):
    """The data of a frame of the stream. The frame with the usage has no choice."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    service_tier: str
    system_fingerprint: None = None
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET
    obfuscation: str | UnsetType = UNSET
    """Padding, so that the lengths of frames do not reveal their text."""
    ignored_tools: list[IgnoredTool] | UnsetType = field(name="antwort:ignored_tools", default=UNSET)
    """In the chunk with the finish reason."""
