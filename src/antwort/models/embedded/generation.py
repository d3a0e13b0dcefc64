"""Generates one answer of the embedded model from completions: constrained decoding, fenced tool calls. Pure.

The model writes text until it stops or opens a fence; the content of the fence becomes a tool call. JSON is constrained
to its schema by a grammar; a forced call starts inside its fence. So an answer is well-formed, however small the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.api.responses import InputDetails, Usage
from antwort.engine.ports import CallPiece, Finished, ModelRequest, MustCall, Piece, TextPiece
from antwort.models.embedded.prompt import (
    FEW_SHOTS,
    FencedTool,
    answers_user,
    code_tool,
    consecutive_errors,
    fenced_tools,
    file_listing_step,
    must_answer,
    properties_of,
    repair_comment,
    tools_to_force,
)
from antwort.models.logprobs import Logprob

_JSON_OPENING: Final = "```json\n"
_FENCE_CLOSINGS: Final = ("\n```", "```")
_UNCLOSED_STRINGS: Final = ('"}```', '"]}```', '"}}```')
"""Within a string of the arguments: the model takes an escaped quotation mark for the end of the string."""
_MAX_TOKENS: Final = 2048
_FORCED_ANSWER_START: Final = "The answer is"
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_MAX_COMMANDS: Final = 4
_MAX_INTEGER: Final = 2**53 - 1
_OPEN_KEYWORDS = frozenset({"additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties", "$ref"})
_VALUE_KEYWORDS: Final = {"const", "default", "enum", "examples"}

_Phase: TypeAlias = Literal["choose", "text", "json", "code", "arguments", "done"]


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """One llama.cpp completion: prompt, stop words, and a schema or grammar that constrains the text."""

    prompt: str
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    grammar: str | None = None
    max_tokens: int = _MAX_TOKENS
    avoids_loops: bool = False
    """Whether repeated text is unlikely. A small model repeats a part of a command without end."""


class CompletionEnd(Struct, frozen=True):
    """The reason for the end of a completion, and its token counts."""

    stop_word: str = ""
    is_truncated: bool = False
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


def bound_schema(schema: dict[str, Any], *, close: bool = True) -> dict[str, Any]:
    """Bound integers and close objects: otherwise the grammar allows endless digits and endless invented keys."""
    limits: dict[str, Any] = {}
    if schema.get("type") == "integer":
        limits |= {} if "exclusiveMinimum" in schema else {"minimum": -_MAX_INTEGER}
        limits |= {} if "exclusiveMaximum" in schema else {"maximum": _MAX_INTEGER}
    if close and schema.get("type") == "object" and schema.get("properties") and not _OPEN_KEYWORDS & schema.keys():
        limits["additionalProperties"] = False
    parts = {
        # The members of `allOf` share their keys: closing one would forbid the keys of the others.
        name: part if name in _VALUE_KEYWORDS else _bound_part(part, close=close and name != "allOf")
        for name, part in schema.items()
    }
    return {**limits, **parts}


def _argument_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the arguments of a call, without what a small model writes without end.

    That is keys of a function that has no parameters, and the same command in ever new forms.
    """
    properties = properties_of(schema)
    if not properties and "properties" in schema:
        return {"additionalProperties": False, **schema}
    commands = properties.get("commands")
    if not isinstance(commands, dict) or "items" not in commands:
        return schema
    return {**schema, "properties": {**properties, "commands": {"maxItems": _MAX_COMMANDS, **commands}}}


def _bound_part(part: object, *, close: bool) -> object:
    match part:
        case dict():
            return bound_schema(cast("dict[str, Any]", part), close=close)
        case list():
            return [_bound_part(item, close=close) for item in cast("list[object]", part)]
        case _:
            return part


def _string_end(text: str) -> str:
    """What makes a backslash at the end of a JSON string a character of it."""
    return "\\" * ((len(text) - len(text.rstrip("\\"))) % 2)


class Generation:
    """State of one answer. Repeat: send `next_request`, `read` the text of the completion, then `end` it."""

    def __init__(
        self, request: ModelRequest, prompt: str, new_call_id: Callable[[], str] = lambda: new_id("call_")
    ) -> None:
        self._request = request
        self._new_call_id = new_call_id
        self._is_answer_forced = request.choice == "auto" and must_answer(request)
        self._tools = () if must_answer(request) else fenced_tools(request.tools)
        self._prompt = prompt
        self._fragments: list[str] = []
        self._call: FencedTool | None = None
        self._prefix = ""
        self._tokens_left = request.max_output_tokens
        self._usage = Usage()
        self._reason: Literal["stop", "length", "calls"] = "stop"
        self._stop_sequence: str | None = None
        names = {tool.spec.name for tool in self._tools} if request.choice == "required" else tools_to_force(request)
        self._forced_tools = tuple(tool for tool in self._tools if tool.spec.name in names)
        self._phase: _Phase = self._first_phase()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _first_phase(self) -> _Phase:
        choice = self._request.choice
        if isinstance(choice, MustCall):
            return self._start_block(next(tool for tool in self._tools if tool.spec.name == choice.name))
        code = code_tool(self._tools)
        if code is not None and (phase := self._forced_code_phase(code)) is not None:
            return phase
        if len(self._forced_tools) == 1:
            return self._start_block(self._forced_tools[0])
        if self._tools and (self._forced_tools or self._schema() is not None):
            return "choose"
        return self._start_text() if self._schema() is None else self._start_json()

    def _forced_code_phase(self, tool: FencedTool) -> _Phase | None:
        """Forces file listing, computation and repair of failed code: the model would invent an answer instead."""
        listing = file_listing_step(self._request) if self._request.choice == "auto" else "none"
        if listing == "due":
            self._call, self._prefix, self._reason = tool, FEW_SHOTS.listing_code, "calls"
            return "done"
        if errors := consecutive_errors(self._request):
            self._prefix = f"{repair_comment(errors[0])}\n"
        return self._start_block(tool) if listing == "just_done" or errors else None

    def _start_text(self) -> _Phase:
        if self._is_answer_forced:  # otherwise the model writes the same block again
            self._prefix = _FORCED_ANSWER_START
            self._prompt += _FORCED_ANSWER_START
        return "text"

    def _start_block(self, tool: FencedTool) -> _Phase:
        self._call = tool
        self._prompt += tool.opening + self._prefix
        return "code" if tool.is_code else "arguments"

    def _start_json(self) -> _Phase:
        self._prompt += _JSON_OPENING
        return "json"

    def _schema(self) -> dict[str, Any] | None:
        output_format = self._request.format
        if isinstance(output_format, JsonSchemaFormat):
            return output_format.schema
        return _ANY_OBJECT if isinstance(output_format, JsonObjectFormat) else None

    def initial_pieces(self) -> Iterator[Piece]:
        """The pieces before the first completion: the start of a forced call or of a forced answer."""
        if self._call is not None:
            yield from self._start_call()
            if self._phase == "done":
                yield CallPiece(0, arguments='"}')
        elif self._prefix:
            yield TextPiece(self._prefix)

    def next_request(self) -> CompletionRequest | None:
        """The next completion to request; None after the last."""
        if self._phase == "done":
            return None
        stop, schema, grammar = (), None, None
        match self._phase:
            case "choose":
                grammar = self._choice_grammar()
            case "text":
                stop = (*(tool.opening for tool in self._tools), *self._unnamed_openings())
                stop += self._request.sampling.stop
            case "json":
                schema = bound_schema(self._schema() or _ANY_OBJECT)
            case "code":
                stop = _FENCE_CLOSINGS
            case "arguments":
                stop = _UNCLOSED_STRINGS
                parameters = self._call.spec.parameters if self._call is not None else None
                schema = bound_schema(_argument_schema(parameters or _ANY_OBJECT))
        limit = _MAX_TOKENS if self._tokens_left is None else max(1, min(_MAX_TOKENS, self._tokens_left))
        return CompletionRequest(
            prompt=self._prompt,
            stop=stop,
            schema=schema,
            grammar=grammar,
            max_tokens=limit,
            avoids_loops=self._phase == "arguments",
        )

    def _unnamed_openings(self) -> tuple[str, ...]:
        """A JSON block right after the user's message is a call of which the model left out the name.

        With a code tool it is an answer: such a request has examples of named blocks.
        """
        is_call = self._tools and code_tool(self._tools) is None and answers_user(self._request)
        return (_JSON_OPENING,) if is_call else ()

    def _choice_grammar(self) -> str:
        openings = [tool.opening for tool in self._forced_tools or self._tools]
        if not self._forced_tools and self._schema() is not None:
            openings.append(_JSON_OPENING)
        return "root ::= " + " | ".join(json.dumps(opening) for opening in openings)

    # ── completions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> Iterator[Piece]:
        """The pieces of a fragment of the completion."""
        if self._phase == "code" and not self._fragments:
            text = text.lstrip(" ")  # a space after the fence would indent the code
        if not text:
            return
        self._fragments.append(text)
        if self._phase in ("text", "json"):
            yield TextPiece(text, logprobs)
        elif self._phase == "code":
            yield CallPiece(0, arguments=json.dumps(text, ensure_ascii=False)[1:-1])
        elif self._phase == "arguments":
            yield CallPiece(0, arguments=text)

    def end(self, end: CompletionEnd) -> Iterator[Piece]:
        """The pieces at the end of a completion; advances the phase."""
        self._count_tokens(end)
        text, self._fragments = "".join(self._fragments), []
        self._prompt += text
        if end.is_truncated and self._phase != "choose":
            self._reason, self._phase = "length", "done"
        elif self._phase == "choose":
            yield from self._start_chosen(text)
        elif self._phase == "text" and (tool := self._tool_opened_by(end.stop_word)) is not None:
            self._phase = self._start_block(tool)
            yield from self._start_call()
        elif self._phase == "text" and end.stop_word == _JSON_OPENING and not text.strip():
            yield from self._start_unnamed()
        else:
            if self._phase == "code":
                yield CallPiece(0, arguments='"}')
            elif self._phase == "arguments" and end.stop_word:
                yield CallPiece(0, arguments=_string_end(text) + end.stop_word.removesuffix("```"))
            elif self._phase == "text" and end.stop_word in self._request.sampling.stop:
                self._stop_sequence = end.stop_word
            self._reason = "calls" if self._call is not None else "stop"
            self._phase = "done"

    def finished(self) -> Finished:
        """The last piece."""
        return Finished(self._reason, self._usage, self._stop_sequence)

    def _start_chosen(self, opening: str) -> Iterator[Piece]:
        self._prompt = self._prompt.removesuffix(opening)
        tool = self._tool_opened_by(opening)
        if tool is None:
            self._phase = self._start_json()
        else:
            self._phase = self._start_block(tool)
            yield from self._start_call()

    def _start_unnamed(self) -> Iterator[Piece]:
        match self._tools:
            case (tool,):
                self._phase = self._start_block(tool)
                yield from self._start_call()
            case _:
                self._phase = "choose"

    def _tool_opened_by(self, opening: str) -> FencedTool | None:
        return next((tool for tool in self._tools if tool.opening == opening), None)

    def _start_call(self) -> Iterator[Piece]:
        assert self._call is not None  # noqa: S101 - for the type checker: callers have just set it
        arguments = '{"code": "' + json.dumps(self._prefix, ensure_ascii=False)[1:-1] if self._call.is_code else ""
        yield CallPiece(0, self._call.spec.name, self._new_call_id(), arguments)

    def _count_tokens(self, end: CompletionEnd) -> None:
        if not self._usage.input_tokens:
            self._usage.input_tokens = end.input_tokens
            self._usage.input_tokens_details = InputDetails(cached_tokens=min(end.cached_tokens, end.input_tokens))
        self._usage.output_tokens += end.output_tokens
        self._usage.total_tokens = self._usage.input_tokens + self._usage.output_tokens
        if self._tokens_left is not None:
            self._tokens_left -= end.output_tokens
