"""What a small model is told: plain messages. Calls are fenced blocks, results are what the user says next. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from textwrap import indent
from typing import Any, Final, Literal, cast

import msgspec
import yaml
from msgspec import Struct

from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelRequest
from antwort.models.chat.messages import ChatDialect, ChatMessage, to_messages

_DIALECT: Final = ChatDialect(images=False)
_PYTHON: Final = "python"
_JSON: Final = "json"
_TAKEN: Final = {_PYTHON, _JSON}

_ABOUT_CODE: Final = (
    "You can run Python. To compute something, read a file or draw, write one block and nothing else:\n"
    "```python\nprint(1 + 1)\n```\n"
    "You then get its output. Print what you want to know. Files are in /mnt/data. Variables are kept between blocks. "
    "Beside the standard library there are numpy, pandas and matplotlib, and nothing else. "
    "If the output is an error, write a corrected block. Never guess a number that code can compute. "
    "Once the output tells the answer, give the answer in plain words without a block."
)
_MOST_CALLS: Final = 8
_REPAIRS: Final = 3
"""So many times in a row a block that failed is written anew; then the model has to answer."""
_TRACEBACK: Final = 'Traceback (most recent call last):\n  File "<'
_ERROR: Final = re.compile(r"[\w.]+(Error|Exception|Warning|Interrupt|Iteration|Exit)\b")
_NOT_PYTHON: Final = re.compile(r"(Syntax|Indentation|Tab)Error: ")
_FRAMES_OF_OTHERS: Final = re.compile(r'^  File "(?!<|/mnt/data/).*\n(?:    .*\n)*', re.MULTILINE)
"""A library's part of a traceback: long to read, and nothing in it can be mended."""
_MEND: Final = "That failed. Do it in another way: write the whole block again, corrected."
_NOBODY_SAID: Final = "You are a helpful assistant."
_ABOUT_TOOLS: Final = (
    "You can use these tools. To use one, write one block with its name and JSON arguments, and nothing else. "
    "You then get its output."
)


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """Some code, and what it printed."""

    code: str
    output: str


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A question, the steps to its answer, the answer."""

    user: str
    steps: list[Step]
    answer: str
    look: str | None = None
    """What looking at the files has printed, where there are any."""


class Fence(Struct, frozen=True):
    """How a tool is called: the word behind the fence, and whether plain code follows or JSON."""

    word: str
    spec: FunctionSpec
    code: bool

    @property
    def opening(self) -> str:
        return f"```{self.word}\n"


class Repair(Struct, frozen=True, forbid_unknown_fields=True):
    """How a block begins that mostly helps where an error's last line fits a pattern."""

    error: str
    begin: str


class Shown(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept beside this file, as data."""

    look: str
    looked: str
    examples: list[Example]
    repairs: list[Repair]


def _shown_to_all() -> Shown:
    text = resources.files("antwort.models.embedded").joinpath("examples.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), type=Shown)


SHOWN: Final = _shown_to_all()


def repair_of(error: str) -> str:
    """How a block begins that does something about an error."""
    return next(repair.begin for repair in SHOWN.repairs if re.search(repair.error, error))


def fences(tools: Sequence[FunctionSpec]) -> tuple[Fence, ...]:
    """How each tool is called. The first that takes `code` is called by Python itself."""
    found: list[Fence] = []
    for spec in tools:
        code = _takes_code(spec) and not any(fence.code for fence in found)
        named = f"{spec.name}_tool" if spec.name in _TAKEN else spec.name
        found.append(Fence(_PYTHON if code else named, spec, code))
    return tuple(found)


def of_code(calls: Sequence[Fence]) -> Fence | None:
    """The one that is called by Python, where there is one."""
    return next((fence for fence in calls if fence.code), None)


def messages(request: ModelRequest) -> list[ChatMessage]:
    """The whole dialogue: what stays the same first, because what was read once is not read again."""
    calls = fences(request.tools)
    words = {fence.spec.name: fence for fence in calls}
    told = to_messages(request.items, request.instructions, _DIALECT)
    instructed = str(told.pop(0)["content"]) if told and told[0]["role"] == "system" else _NOBODY_SAID
    shown = [message for example in _fitting(calls) for message in _shown(example)]
    system = {"role": "system", "content": _instructions(instructed, calls)}
    noted = _noted(told, [fence.spec.current_state for fence in calls if fence.spec.current_state])
    return [system, *shown, *_merged([_flat(message, words) for message in noted] + _wanted(request))]


def _fitting(calls: Sequence[Fence]) -> list[Example]:
    """The examples that are of use: of code where it can run, and of files only where there are some."""
    code = of_code(calls)
    if code is None:
        return []
    return [example for example in SHOWN.examples if example.look is None or code.spec.current_state]


def failures(request: ModelRequest) -> list[str]:
    """What the calls failed with that have just failed in a row, the last one first."""
    said: list[str] = []
    told = to_messages(request.items, None, _DIALECT)
    code = _ran_code(told, request.tools)
    for message in reversed(told):
        if message["role"] == "tool" and message["tool_call_id"] in code and (error := _error(message)):
            said.append(error)
        elif not message.get("tool_calls"):
            break
    return said


def _ran_code(told: Sequence[ChatMessage], tools: Sequence[FunctionSpec]) -> set[str]:
    """The ids of the calls that were blocks of Python."""
    names = {"code_interpreter", *(fence.spec.name for fence in fences(tools) if fence.code)}
    calls = [call for message in told for call in message.get("tool_calls", ())]
    return {call["id"] for call in calls if call["function"]["name"] in names}


def _error(message: ChatMessage) -> str | None:
    """The last line of a traceback of a block; one that cannot be compiled has no more than that line."""
    content = str(message["content"])
    lines = [line for line in content.strip().splitlines() if not line.startswith("[")]  # notes, as of files written
    if lines and _NOT_PYTHON.match(lines[-1]):
        return lines[-1]
    if _TRACEBACK not in content:
        return None
    return lines[-1] if lines and _ERROR.match(lines[-1]) else "an error"


def must_answer(request: ModelRequest) -> bool:
    """Whether no more calls are made: nobody may, or it would lead to nothing."""
    if request.choice == "auto":
        return is_stuck(request) or len(failures(request)) > _REPAIRS
    return request.choice == "none"


def is_stuck(request: ModelRequest) -> bool:
    """Whether the model only goes round: it has just made a call for the second time, or has made very many."""
    made: list[tuple[str, str]] = []
    for message in reversed(to_messages(request.items, None, _DIALECT)):
        if calls := message.get("tool_calls"):
            made += [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        elif message["role"] != "tool":
            break
    return len(made) >= _MOST_CALLS or (made[:1] != [] and made[0] in made[1:])


def unfounded(request: ModelRequest) -> set[str]:
    """The tools of which one must be called, because a typed answer would now be made up: nothing was asked yet.

    That is code, where there is nothing else. Where there are other tools, and no files for code to read, those whose
    names the user has said; a tool that nobody named is never called by force.
    """
    told = to_messages(request.items, None, _DIALECT)
    calls = fences(request.tools)
    code = of_code(calls)
    typed = isinstance(request.format, JsonSchemaFormat | JsonObjectFormat) and request.choice == "auto"
    if code is None or not typed or not told or told[-1]["role"] != "user":
        return set()
    if len(calls) == 1:
        return {code.spec.name}
    named = {fence.spec.name for fence in calls if fence.spec.name in str(told[-1]["content"])}
    return set() if code.spec.current_state else named - {code.spec.name}


def looking(request: ModelRequest) -> Literal["now", "just", "no"]:
    """Whether to look at the files now: there are some, and nobody has; or whether that is what has just happened."""
    told = to_messages(request.items, None, _DIALECT)
    code = of_code(fences(request.tools))
    if code is None or not code.spec.current_state or not told:
        return "no"
    looks = [at for at, message in enumerate(told) if any(map(_is_look, message.get("tool_calls", ())))]
    if not looks:
        return "now" if told[-1]["role"] == "user" else "no"
    return "just" if looks[-1] == len(told) - 2 else "no"


def _is_look(call: dict[str, Any]) -> bool:
    return _code(str(call["function"]["arguments"])) == SHOWN.look


def _noted(told: Sequence[ChatMessage], notes: Sequence[str]) -> list[ChatMessage]:
    """With what holds just now behind the last thing that the user has said."""
    last = max((at for at, message in enumerate(told) if message["role"] == "user"), default=None)
    if last is None or not notes:
        return list(told)
    noted = {**told[last], "content": "\n".join([str(told[last]["content"]), *notes])}
    return [*told[:last], noted, *told[last + 1 :]]


def _instructions(instructed: str, calls: Sequence[Fence]) -> str:
    others = [fence for fence in calls if not fence.code]
    parts = [instructed]
    if of_code(calls):
        parts.append(_ABOUT_CODE)
    if others:
        parts.append("\n\n".join([_ABOUT_TOOLS, *map(_described, others)]))
    return "\n\n".join(parts)


def _wanted(request: ModelRequest) -> list[ChatMessage]:
    """The shape of the answer, where one may come: a grammar only forbids, so it has to be told too.

    Not earlier, because a small model that knows the shape would rather fill it in than do what it was asked to.
    """
    if not isinstance(request.format, JsonSchemaFormat):
        return []
    if not must_answer(request) and (looking(request) != "no" or failures(request)):
        return []
    schema = request.format.schema
    said = msgspec.json.encode(schema).decode() if "$defs" in schema else shape(schema)
    return [{"role": "user", "content": f"Give the final answer like this:\n```json\n{said}\n```"}]


def shape(schema: object) -> str:
    """A schema in few words, as one would write it down for a person: small models take a real one for the answer."""
    known = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    match known:
        case {"enum": list()}:
            said = " or ".join(msgspec.json.encode(value).decode() for value in known["enum"])
        case {"properties": dict()}:
            fields = ",\n".join(f'"{name}": {shape(of)}' for name, of in known["properties"].items())
            return f"{{\n{indent(fields, '  ')}\n}}"
        case {"items": dict()}:
            said = f"list of {shape(known['items'])}"
        case {"type": str()}:
            said = known["type"]
        case _:
            return msgspec.json.encode(schema).decode()
    return f"{said} ({known['description']})" if "description" in known else said


def _described(fence: Fence) -> str:
    parameters = fence.spec.parameters or {}
    shape = msgspec.json.encode(dict.fromkeys(parameters.get("properties", {}), "…")).decode()
    schema = msgspec.json.encode(parameters).decode()
    return f"{fence.spec.description or fence.word}\n{fence.opening}{shape}\n```\nSchema of its arguments: {schema}"


def _takes_code(spec: FunctionSpec) -> bool:
    properties = (spec.parameters or {}).get("properties", {})
    return isinstance(properties, dict) and "code" in cast("dict[str, object]", properties)


def _shown(example: Example) -> list[ChatMessage]:
    shown: list[ChatMessage] = [{"role": "user", "content": example.user}]
    looked = [] if example.look is None else [Step(SHOWN.looked, example.look)]
    for step in (*looked, *example.steps):
        shown.append({"role": "assistant", "content": f"```python\n{step.code}\n```"})
        shown.append({"role": "user", "content": f"Output:\n{step.output}"})
    return [*shown, {"role": "assistant", "content": example.answer}]


def _flat(message: ChatMessage, words: dict[str, Fence]) -> ChatMessage:
    """A message without tools in it."""
    if message["role"] == "tool":
        content = str(message["content"])
        if _error(message):
            content = f"{_FRAMES_OF_OTHERS.sub('', content)}\n{_MEND}"
        return {"role": "user", "content": f"Output:\n{content}"}
    blocks = [_block(call["function"], words) for call in message.get("tool_calls", ())]
    content = "\n".join(filter(None, [str(message.get("content") or ""), *blocks]))
    return {"role": message["role"], "content": content}


def _block(function: dict[str, Any], words: dict[str, Fence]) -> str:
    name, arguments = str(function["name"]), str(function["arguments"])
    fence = words.get(name)
    if (fence is not None and fence.code) or name == "code_interpreter":
        code = _code(arguments)
        return f"```python\n{SHOWN.looked if code == SHOWN.look else code}\n```"
    return f"```{name}\n{arguments}\n```"


def _code(arguments: str) -> str:
    given = msgspec.json.decode(arguments, type=dict[str, Any])
    return str(given.get("code", given.get("not_json", "")))


def _merged(told: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Neighbours of one role are one message: templates want turns."""
    merged: list[ChatMessage] = []
    for message in told:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged
