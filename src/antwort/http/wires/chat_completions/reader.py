"""Reads the body of a chat completion request: what the engine is asked, and how to answer. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from antwort.api.errors import ApiError, invalid, malformed
from antwort.api.requests import CreateResponse, Include, ReasoningOptions, Text, decode_plain
from antwort.api.tools import ToolTypes
from antwort.engine.ports import SamplingOptions
from antwort.http.wires.chat_completions.messages import to_items
from antwort.http.wires.chat_completions.params import ParamNames
from antwort.http.wires.chat_completions.request import CreateChatCompletion
from antwort.http.wires.chat_completions.tools import to_choice, to_format, to_tools

_TOOL_TYPES = ("function", "custom")
_HOSTED_OUTPUTS: tuple[Include, ...] = (
    "code_interpreter_call.outputs",
    "file_search_call.results",
    "web_search_call.action.sources",
)
"""What the model needs to read of hosted calls when the client sends their items back."""

_decoder = msgspec.json.Decoder(CreateChatCompletion)


class AnswerForm(NamedTuple):
    """How to answer."""

    is_streamed: bool = False
    has_usage: bool = False
    """Whether the stream ends with a chunk with the usage."""
    is_obfuscated: bool = True
    has_logprobs: bool = False
    has_functions: bool = False
    """Whether the request has `functions`: calls are written in the deprecated form."""
    has_hosted_tools: bool = False
    """Whether the request has `antwort:tools`: the answer has the items of their calls."""


class ChatRequest(NamedTuple):
    """A request, read."""

    asked: CreateResponse
    sampling: SamplingOptions
    form: AnswerForm
    names: ParamNames


def read_chat(body: bytes, tool_types: ToolTypes) -> ChatRequest:
    """Read a request; `ApiError` 400 that names the field."""
    chat = _decode(body)
    _check(chat)
    items, item_places = to_items(chat.messages)
    tools, tool_places = to_tools(chat, tool_types)
    form = AnswerForm(
        is_streamed=bool(chat.stream),
        has_usage=chat.stream_options is not None and bool(chat.stream_options.include_usage),
        is_obfuscated=chat.stream_options is None or chat.stream_options.include_obfuscation is not False,
        has_logprobs=bool(chat.logprobs),
        has_functions=chat.functions is not None,
        has_hosted_tools=bool(chat.hosted_tools),
    )
    include: list[Include] = ["message.output_text.logprobs"] if chat.logprobs else []
    include += _HOSTED_OUTPUTS if chat.hosted_tools else ()
    asked = CreateResponse(
        model=chat.model,
        input=items,
        tools=tools or None,
        tool_choice=to_choice(chat),
        parallel_tool_calls=False if chat.functions is not None else chat.parallel_tool_calls,
        text=Text(format=to_format(chat.response_format), verbosity=chat.verbosity or "medium"),
        reasoning=None if chat.reasoning_effort is None else ReasoningOptions(effort=chat.reasoning_effort),
        max_output_tokens=chat.max_completion_tokens or chat.max_tokens,
        include=include or None,
        store=bool(chat.store),
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_logprobs=chat.top_logprobs,
        metadata=chat.metadata,
        prompt_cache_key=chat.prompt_cache_key,
        prompt_cache_retention=chat.prompt_cache_retention,
        safety_identifier=chat.safety_identifier,
        user=chat.user,
        service_tier=chat.service_tier,
        frequency_penalty=chat.frequency_penalty,
        presence_penalty=chat.presence_penalty,
    )
    return ChatRequest(asked, _sampling(chat), form, ParamNames(item_places, tool_places))


def _decode(body: bytes) -> CreateChatCompletion:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise malformed(error, document=decode_plain(body), tool_types=_TOOL_TYPES) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}", code="invalid_json") from error


def _sampling(chat: CreateChatCompletion) -> SamplingOptions:
    stop = (chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ())
    return SamplingOptions(stop=stop, seed=chat.seed, logit_bias=chat.logit_bias or None)


def _check(chat: CreateChatCompletion) -> None:
    """Parameters that this server lacks, and combinations that have no meaning."""
    if chat.n not in (None, 1):
        raise _unsupported("n", "This server gives one choice for each request: send the request several times.")
    if chat.audio is not None:
        raise _unsupported("audio", "No model of this server speaks.")
    for at, modality in enumerate(chat.modalities or ()):
        if modality != "text":
            raise invalid(
                f"Invalid value: '{modality[:100]}'. Supported values are: 'text'.",
                param=f"modalities[{at}]",
                code="unsupported_value",
            )
    if chat.top_logprobs and not chat.logprobs:
        raise invalid("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    limits = {chat.max_tokens, chat.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise invalid(
            "Mutually exclusive parameters: 'max_tokens' and 'max_completion_tokens'. Give only one of them.",
            param="max_tokens",
            code="mutually_exclusive_parameters",
        )


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"Unsupported parameter: '{param}'. {reason}", param=param, code="unsupported_parameter")
