"""The format of scripts: YAML with answers, each for the requests that it fits.

    fragment: 8                       # characters per piece of text and arguments; 0 (the default) is whole
    answers:
      - when: {text: weather, turn: 1}      # the last user's text contains this, and nothing was called yet
        reply:
          - reasoning: The user wants the weather.
          - call: {name: get_weather, arguments: {city: Berlin}}
      - when: {output: "21"}                # the newest result of a call contains this
        reply:
          - text: "It is <<output>> in Berlin."
      - when: {text: busy}
        times: 1                            # only the first time; the next answer that fits comes after it
        reply:
          - fault: {code: rate_limit_exceeded, status: 429, retry_after: 1, retryable: true}
      - reply:                              # without `when` it fits everything
          - delay: 0.2                      # seconds
          - text: "You said: <<text>>"
        finish: stop                        # stop | length | content_filter | calls; found out by itself otherwise
        usage: {input_tokens: 12, output_tokens: 7}     # estimated otherwise

The first answer that fits is given. `when` knows:

    text       a string that the user's last text contains, case does not matter; /…/ is a regular expression
    output     the same, for the newest result of a call
    turn       how often the model is asked for this user's message, from 1: it grows by one with each round of calls
    tool       the name of a tool that the model may call

A step of `reply` is one of `text`, `refusal`, `reasoning`, `summary`, `sealed`, `call`,
`delay` and `fault`. In texts, and in the arguments of calls, <<text>> and <<output>> stand
for the user's last text and for the newest result. Unknown keys are errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType, field

from antwort.engine.ports import ModelFault

NotNegative: TypeAlias = Annotated[int, Meta(ge=0)]


class ScriptError(ValueError):
    """A script that cannot be played. Says where."""


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests an answer is for: those that fit all that is said."""

    text: str | None = None
    output: str | None = None
    turn: Annotated[int, Meta(ge=1)] | None = None
    tool: str | None = None


class ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call. Arguments that are a string are written as they are, so that they can be broken JSON."""

    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict[str, Any])
    id: str | None = None


class ScriptedFault(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure, as a `ModelFault` has it."""

    message: str = "The script says that the model fails here."
    code: str = "server_error"
    status: Annotated[int, Meta(ge=400, le=599)] = 502
    retry_after: NotNegative | None = None
    retryable: bool = False

    def raised(self) -> ModelFault:
        return ModelFault(
            self.message,
            code=self.code,
            status=self.status,
            retry_after=self.retry_after,
            retryable=self.retryable,
        )


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that happens: exactly one of these."""

    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET
    sealed: str | UnsetType = UNSET
    call: ScriptedCall | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    fault: ScriptedFault | UnsetType = UNSET


class ScriptedUsage(Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer says that it cost."""

    input_tokens: NotNegative = 0
    output_tokens: NotNegative = 0
    cached_tokens: NotNegative = 0
    reasoning_tokens: NotNegative = 0


class ScriptedAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, and when it is given."""

    reply: list[Step]
    when: When = field(default_factory=When)
    times: Annotated[int, Meta(ge=1)] | None = None
    finish: Literal["stop", "length", "content_filter", "calls"] | None = None
    usage: ScriptedUsage | None = None
    fragment: NotNegative | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """All answers, in the order in which they are tried."""

    answers: list[ScriptedAnswer]
    fragment: NotNegative = 0


def load_script(path: Path) -> Script:
    """Read a script from a file."""
    return parse_script(path.read_text(encoding="utf-8"), name=path.name)


def parse_script(source: str, *, name: str = "script") -> Script:
    """Read a script; `ScriptError` says what is wrong with it, and where."""
    try:
        script = msgspec.convert(yaml.safe_load(source), Script)
    except yaml.YAMLError as error:
        raise ScriptError(f"{name} is no YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ScriptError(f"{name}: {error}") from error
    for at, answer in enumerate(script.answers):
        _check(answer, f"{name}: answers[{at}]")
    return script


def _check(answer: ScriptedAnswer, where: str) -> None:
    for at, step in enumerate(answer.reply):
        given = [key for key in step.__struct_fields__ if getattr(step, key) is not UNSET]
        if len(given) != 1:
            raise ScriptError(f"{where}.reply[{at}] must be exactly one thing, not {given or 'nothing'}")
    for key in ("text", "output"):
        pattern = cast("str | None", getattr(answer.when, key))
        try:
            contains(pattern or "", "")
        except re.error as error:
            raise ScriptError(f"{where}.when.{key} is no regular expression: {error}") from error


def contains(pattern: str, text: str) -> bool:
    """Whether a text contains a string, or something that fits /a regular expression/."""
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        return re.search(pattern[1:-1], text, re.IGNORECASE) is not None
    return pattern.lower() in text.lower()
