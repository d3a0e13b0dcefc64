"""A model that answers from a script. For tests and offline examples: there is no language model in it.

Everything around it is the real thing: the engine, the tools, the wire. `script` says
how scripts are written.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from antwort.api.ids import new_id
from antwort.api.items import CustomToolCallOutput, FunctionCallOutput, GivenMessage, GivenText, InputText, Item
from antwort.api.responses import InputDetails, OutputDetails, Usage
from antwort.engine.ports import (
    CallPiece,
    EncryptedReasoning,
    Finished,
    ModelFault,
    ModelRequest,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    SummaryPiece,
    TextPiece,
)
from antwort.models.replay_hosted_calls import retell_call, retell_output
from antwort.models.scripted.script import Script, ScriptedAnswer, ScriptedCall, ScriptedUsage, Step, When, contains
from antwort.models.tokens import Meter, estimate, estimate_usage, text_of

_SPEECH: tuple[tuple[str, Callable[[str], Piece]], ...] = (
    ("text", TextPiece),
    ("refusal", RefusalPiece),
    ("reasoning", ReasoningPiece),
    ("summary", SummaryPiece),
)
_REMEMBERED = 100
_CALLS = ("function_call", "custom_tool_call")


class Scripted:
    """A model that answers from a script. `requests` keeps the last of what it was asked, for tests to look at."""

    def __init__(
        self,
        script: Script,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        remembered: int = _REMEMBERED,
    ) -> None:
        self.requests: deque[ModelRequest] = deque(maxlen=remembered)
        self._script = script
        self._sleep = sleep
        self._given: Counter[int] = Counter()

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """The first answer of the script that fits and is not used up."""
        self.requests.append(request)
        scene = look(request)
        answer = self._choose(scene)
        size = self._script.fragment if answer.fragment is None else answer.fragment
        meter, calls = Meter(), 0
        for step in answer.reply:
            if isinstance(step.delay, float | int):
                await self._sleep(step.delay)
            elif not isinstance(step.fault, msgspec.UnsetType):
                raise step.fault.raised()
            else:
                for piece in _pieces(step, scene, size, calls):
                    meter.add(text_of(piece))
                    yield _certain(piece, request.top_logprobs)
                    await asyncio.sleep(0)  # a real model's pieces do not come without others having their turn
                calls += isinstance(step.call, ScriptedCall)
        usage = _usage(answer.usage) if answer.usage else estimate_usage(request, meter.tokens)
        yield Finished(answer.finish or ("calls" if calls else "stop"), usage)

    async def count_tokens(self, request: ModelRequest) -> int:
        """An estimate: a script has no tokens."""
        return estimate(request)

    async def aclose(self) -> None:
        """There is nothing to let go of."""

    def _choose(self, scene: Scene) -> ScriptedAnswer:
        for at, answer in enumerate(self._script.answers):
            if fits(answer.when, scene) and (answer.times is None or self._given[at] < answer.times):
                self._given[at] += 1
                return answer
        raise ModelFault("The script of this scripted model has no answer for this request.", status=500)


class Scene(Struct, frozen=True):
    """What a script can see of a request."""

    text: str
    output: str
    turn: int
    tools: frozenset[str]


def look(request: ModelRequest) -> Scene:
    """The user's last text, the newest result, and the turn."""
    start = max((at for at, item in enumerate(request.items) if _is_users(item)), default=-1)
    text = _text(request.items[start]) if start >= 0 else ""
    output, turn, calling = "", 1, False
    for item in request.items[start + 1 :]:
        result = _result(item)
        hosted = retell_call(item)
        begins = item.type in _CALLS or hosted is not None
        turn += begins and not calling
        calling = begins and (hosted is None or hosted.output is None)
        output = output if result is None else result
    return Scene(text, output, turn, frozenset(tool.name for tool in request.tools))


def fits(when: When, scene: Scene) -> bool:
    """Whether a request is one of those that an answer is for."""
    return (
        (when.text is None or contains(when.text, scene.text))
        and (when.output is None or contains(when.output, scene.output))
        and (when.turn is None or when.turn == scene.turn)
        and (when.tool is None or when.tool in scene.tools)
    )


def _is_users(item: Item) -> bool:
    return isinstance(item.known, GivenMessage) and item.known.role == "user"


def _text(item: Item) -> str:
    content = item.known.content if isinstance(item.known, GivenMessage) else ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, (InputText, GivenText)))


def _result(item: Item) -> str | None:
    if isinstance(item.known, (FunctionCallOutput, CustomToolCallOutput)):
        output = item.known.output
        if isinstance(output, str):
            return output
        return "\n".join(part.text for part in output if isinstance(part, InputText))
    hosted = retell_call(item)
    return hosted.output if hosted is not None else retell_output(item)


def _pieces(step: Step, scene: Scene, size: int, index: int) -> Iterator[Piece]:
    for name, kind in _SPEECH:
        said = getattr(step, name)
        if isinstance(said, str):
            yield from map(kind, _cut(_filled(said, scene), size))
    if isinstance(step.sealed, str):
        yield EncryptedReasoning(step.sealed)
    if isinstance(step.call, ScriptedCall):
        first, *rest = list(_cut(_arguments(step.call, scene), size)) or [""]
        yield CallPiece(index, step.call.name, step.call.id or new_id("call_"), first)
        yield from (CallPiece(index, arguments=part) for part in rest)


def _certain(piece: Piece, likely: int | None) -> Piece:
    """With logprobs, where they are asked for: a script has no doubts, so each fragment is a token that is certain."""
    if likely is None or not isinstance(piece, TextPiece):
        return piece
    token: dict[str, Any] = {"token": piece.text, "bytes": list(piece.text.encode()), "logprob": 0.0}
    return TextPiece(piece.text, ({**token, "top_logprobs": [token][:likely]},))


def _cut(text: str, size: int) -> Iterator[str]:
    size = size or max(1, len(text))
    return (text[at : at + size] for at in range(0, len(text), size))


def _arguments(call: ScriptedCall, scene: Scene) -> str:
    if isinstance(call.arguments, str):
        return _filled(call.arguments, scene)
    return msgspec.json.encode(_filled_in(call.arguments, scene)).decode()


def _filled_in(value: Any, scene: Scene) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return _filled(value, scene)
    if isinstance(value, dict):
        return {name: _filled_in(inner, scene) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType] - any JSON
    if isinstance(value, list):
        return [_filled_in(inner, scene) for inner in value]  # pyright: ignore[reportUnknownVariableType] - any JSON
    return value


def _filled(text: str, scene: Scene) -> str:
    return text.replace("<<text>>", scene.text).replace("<<output>>", scene.output)


def _usage(said: ScriptedUsage) -> Usage:
    return Usage(
        said.input_tokens,
        InputDetails(said.cached_tokens),
        said.output_tokens,
        OutputDetails(said.reasoning_tokens),
        said.input_tokens + said.output_tokens,
    )
