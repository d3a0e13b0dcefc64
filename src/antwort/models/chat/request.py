"""Builds the request body for a chat completions API. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.engine.ports import FREE_TEXT, FunctionSpec, ModelRequest, MustCall
from antwort.models.chat.messages import ChatDialect, to_messages

Body: TypeAlias = dict[str, Any]

_MAX_STOP = 4  # OpenAI refuses more; `stop_sequences` cuts at the others
_NO_PARAMETERS: Body = {"type": "object", "properties": {}}


def to_body(request: ModelRequest, *, model: str, dialect: ChatDialect, include_usage: bool = True) -> Body:
    """The body with the fields that the request sets and no others: servers reject fields they do not support."""
    messages = to_messages(request.items, request.instructions, dialect)
    body: Body = {**dialect.extra, "model": model, "messages": messages, "stream": True}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    return body | _tools(request) | _sampling(request, dialect) | _format(request)


def to_tools(request: ModelRequest) -> list[Body]:
    """The tools as function definitions."""
    return [_function(spec) for spec in request.tools]


def _function(spec: FunctionSpec) -> Body:
    parameters = spec.parameters or (FREE_TEXT if spec.free_text else _NO_PARAMETERS)
    function: Body = {"name": spec.name, "parameters": parameters}
    # Chat completions have no tool grammars, so the description states it.
    if description := "\n\n".join(filter(None, (spec.full_description, spec.grammar_note))):
        function["description"] = description
    if spec.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tools(request: ModelRequest) -> Body:
    if not request.tools:
        return {}
    body: Body = {"tools": to_tools(request)}
    if isinstance(request.choice, MustCall):
        body["tool_choice"] = {"type": "function", "function": {"name": request.choice.name}}
    elif request.choice != "auto":
        body["tool_choice"] = request.choice
    if not request.parallel:
        body["parallel_tool_calls"] = False
    return body


def _sampling(request: ModelRequest, dialect: ChatDialect) -> Body:
    given: Body = {
        dialect.max_tokens_field: request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "stop": list(request.sampling.stop[:_MAX_STOP]) or None,
        "seed": request.sampling.seed,
        "logit_bias": request.sampling.logit_bias,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "verbosity": None if request.verbosity == "medium" else request.verbosity,
        "user": request.user,
    }
    if request.top_logprobs is not None:
        given |= {"logprobs": True, "top_logprobs": request.top_logprobs or None}
    return {name: value for name, value in given.items() if value is not None}


def _format(request: ModelRequest) -> Body:
    output_format = request.format
    if isinstance(output_format, JsonObjectFormat):
        return {"response_format": {"type": "json_object"}}
    if not isinstance(output_format, JsonSchemaFormat):
        return {}
    schema: Body = {"name": output_format.name, "schema": output_format.schema}
    if output_format.description is not None:
        schema["description"] = output_format.description
    if output_format.strict is not None:
        schema["strict"] = output_format.strict
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
