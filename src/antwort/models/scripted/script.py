"""Script format of the scripted model: YAML with answers, each for the requests that it matches.

    fragment: 8                       # characters per piece of text and arguments; 0 (the default): one piece
    answers:
      - when: {text: weather, turn: 1}      # the last user text contains this, and there was no call yet
        reply:
          - reasoning: The user wants the weather.
          - call: {name: get_weather, arguments: {city: Berlin}}
      - when: {output: "21"}                # the last output of a call contains this
        reply:
          - text: "It is <<output>> in Berlin."
      - when: {text: busy}
        times: 1                            # only once; afterwards the next answer that matches
        reply:
          - fault: {code: rate_limit_exceeded, status: 429, retry_after: 1, retryable: true}
      - reply:                              # without `when` it matches every request
          - delay: 0.2                      # seconds
          - text: "You said: <<text>>"
        finish: stop                        # stop | length | content_filter | calls; inferred by default
        usage: {input_tokens: 12, output_tokens: 7}     # estimated by default

The first answer that matches is given. Keys of `when`:

    text       a string that the last user text contains, ignoring case; /…/ is a regular expression
    output     the same, for the last output of a call
    turn       the number of the request for this user message, from 1; it grows by one with each round of calls
    tool       the name of a tool that the model may call
    choice     the tool choice: auto, none, required, or the name of the function that the model must call
    any        a string or /…/, for everything that the model sees: instructions, messages of all roles, reasoning,
               call arguments and outputs

A step of `reply` is one of `text`, `refusal`, `reasoning`, `summary`, `sealed`, `call`, `delay` and `fault`. Unknown
keys are errors. In texts and call arguments these are replaced:

    <<text>>, <<output>>    the last user text and the last call output
    <<find /…/>>            all matches of a regular expression in everything that the model sees, ignoring case, one
                            per line, without duplicates, in order of their first occurrence
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType, field

from antwort.api.errors import ResponseErrorCode
from antwort.engine.ports import ModelFault

MARKER_RE = re.compile(r"<<(?:(?P<name>text|output)|find /(?P<pattern>(?:(?!<<find).)*?)/)>>", re.DOTALL)
"""The parts of a text that are replaced by parts of the request."""

NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]


class ScriptError(ValueError):
    """An invalid script. The message contains the position."""


class Condition(Struct, frozen=True, forbid_unknown_fields=True):
    """The condition of an answer: every key that is set must match."""

    text: str | None = None
    output: str | None = None
    turn: Annotated[int, Meta(ge=1)] | None = None
    tool: str | None = None
    choice: str | None = None
    any: str | None = None


class ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call. String arguments are sent verbatim, so that they can be invalid JSON."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None


class ScriptedFault(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a `ModelFault` to raise."""

    message: str = "The script contains a fault here."
    code: ResponseErrorCode = "server_error"
    status: Annotated[int, Meta(ge=400, le=599)] = 502
    retry_after: NonNegativeInt | None = None
    retryable: bool = False

    def to_model_fault(self) -> ModelFault:
        return ModelFault(
            self.message, code=self.code, status=self.status, retry_after=self.retry_after, retryable=self.retryable
        )


class ReplyStep(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a reply: exactly one field is set."""

    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET
    sealed: str | UnsetType = UNSET
    call: ScriptedCall | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    fault: ScriptedFault | UnsetType = UNSET


class ScriptedUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """The usage of an answer."""

    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    cached_tokens: NonNegativeInt = 0
    reasoning_tokens: NonNegativeInt = 0


class ScriptedAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer and its condition."""

    reply: list[ReplyStep]
    when: Condition = field(default_factory=Condition)
    times: Annotated[int, Meta(ge=1)] | None = None
    finish: Literal["stop", "length", "content_filter", "calls"] | None = None
    usage: ScriptedUsage | None = None
    fragment: NonNegativeInt | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """All answers, in the order in which they are matched."""

    answers: list[ScriptedAnswer]
    fragment: NonNegativeInt = 0


def load_script(path: Path) -> Script:
    """Read a script from a file."""
    return parse_script(path.read_text(encoding="utf-8"), name=path.name)


def parse_script(source: str, *, name: str = "script") -> Script:
    """Parse a script; `ScriptError` if it is invalid."""
    try:
        script = msgspec.convert(yaml.safe_load(source), Script)
    except yaml.YAMLError as error:
        raise ScriptError(f"{name} is not valid YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ScriptError(f"{name}: {error}") from error
    for index, answer in enumerate(script.answers):
        _check(answer, f"{name}: answers[{index}]")
    return script


def _check(answer: ScriptedAnswer, where: str) -> None:
    for index, step in enumerate(answer.reply):
        given = [key for key in step.__struct_fields__ if getattr(step, key) is not UNSET]
        if len(given) != 1:
            raise ScriptError(f"{where}.reply[{index}] must have exactly one key, not {given or 'none'}")
        for key, text in _texts(step):
            _check_markers(text, f"{where}.reply[{index}].{key}")
    for key in ("text", "output", "any"):
        pattern = cast("str | None", getattr(answer.when, key))
        try:
            pattern_matches(pattern or "", "")
        except re.error as error:
            raise ScriptError(f"{where}.when.{key} is not a valid regular expression: {error}") from error


def _texts(step: ReplyStep) -> Iterator[tuple[str, str]]:
    """The texts of a step in which markers are replaced, each with its key."""
    for key in ("text", "refusal", "reasoning", "summary"):
        text = cast("str | UnsetType", getattr(step, key))
        if isinstance(text, str):
            yield key, text
    if isinstance(step.call, ScriptedCall):
        yield from (("call.arguments", text) for text in _strings(step.call.arguments))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in cast("dict[str, object]", value).values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from _strings(inner)


def _check_markers(text: str, where: str) -> None:
    if "<<find" in MARKER_RE.sub("", text):
        raise ScriptError(f"{where}: <<find needs a regular expression, as in <<find /fact-[0-9]+/>>")
    for marker in MARKER_RE.finditer(text):
        try:
            re.compile(marker["pattern"] or "")
        except re.error as error:
            raise ScriptError(f"{where}: {marker.group()} is not a valid regular expression: {error}") from error


def pattern_matches(pattern: str, text: str) -> bool:
    """Whether a text contains a string or a match of a /regular expression/, ignoring case."""
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        return re.search(pattern[1:-1], text, re.IGNORECASE) is not None
    return pattern.lower() in text.lower()


def find_all(pattern: str, text: str) -> str:
    """The distinct matches of a regular expression in a text, ignoring case, one per line."""
    found = (match.group() for match in re.finditer(pattern, text, re.IGNORECASE))
    return "\n".join(dict.fromkeys(filter(None, found)))
