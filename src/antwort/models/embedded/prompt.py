"""Prompt of the embedded model: plain messages with few-shot examples. Pure.

Tool calls are fenced blocks in assistant messages; their outputs are user messages. The texts here and in examples.yaml
were measured with the model: a change of a word can change what it gets right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from textwrap import indent
from typing import Any, Final, Literal, cast

import msgspec
import yaml
from msgspec import Struct, field

from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelRequest
from antwort.models.chat.messages import ChatDialect, ChatMessage, to_messages

_DIALECT: Final = ChatDialect()
_PYTHON: Final = "python"
_JSON: Final = "json"
_RESERVED_WORDS: Final = {_PYTHON, _JSON}

_CODE_INSTRUCTIONS: Final = (
    "You can run Python. To compute something, read a file or draw, write one block and nothing else:\n"
    "```python\nprint(1 + 1)\n```\n"
    "You then get its output. Print what you want to know. Files are in /mnt/data. Variables are kept between blocks. "
    "Beside the standard library there are numpy, pandas and matplotlib, and nothing else. "
    "If the output is an error, write a corrected block. Never guess a number that code can compute. "
    "Once the output tells the answer, give the answer in plain words without a block."
)
_MAX_CALLS: Final = 8
_MAX_REPAIRS: Final = 3
"""After more consecutive failed blocks the model must answer."""
_TRACEBACK: Final = 'Traceback (most recent call last):\n  File "<'
_ERROR_RE: Final = re.compile(r"[\w.]+(Error|Exception|Warning|Interrupt|Iteration|Exit)\b")
_SYNTAX_ERROR_RE: Final = re.compile(r"(Syntax|Indentation|Tab)Error: ")
_LIBRARY_FRAMES_RE: Final = re.compile(r'^  File "(?!<|/mnt/data/).*\n(?:    .*\n)*', re.MULTILINE)
"""Traceback frames of libraries: many tokens, and the model cannot fix them."""
_FAILED_COMMAND_RE: Final = re.compile(r"^\(exit code [1-9]\d*\)\Z", re.MULTILINE)
_RETRY_PROMPT: Final = "That failed. Do it in another way: write the whole block again, corrected."
_DEFAULT_SYSTEM: Final = "You are a helpful assistant."
_TOOL_INSTRUCTIONS: Final = (
    "You can use these tools. To use one, write one block with its name and JSON arguments, and nothing else. "
    "You then get its output."
)
_CALL_ADVICE: Final = " Never guess what a tool can tell. If an argument is not known, get it with another tool first."
"""Without a code tool; beside one, the model would call only the other tools."""
_ANSWER_REQUEST: Final = "If this tells the answer, give it in plain words without a block."


class ExampleStep(Struct, frozen=True, forbid_unknown_fields=True):
    """Code and its output."""

    code: str
    output: str


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A question, the code steps and the answer."""

    user: str
    steps: list[ExampleStep]
    answer: str
    listing_output: str | None = field(default=None, name="look")
    """The output of the file listing; None for an example without files."""


class CallStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool and its output. Without a name it is the tool that takes the parameter of the example."""

    arguments: dict[str, Any]
    output: str
    name: str = ""


class CallExample(Struct, frozen=True, forbid_unknown_fields=True):
    """A question, the calls and the answer."""

    user: str
    steps: list[CallStep]
    answer: str
    parameter: str = field(default="", name="takes")
    """The example is for a tool with this parameter; empty: for tools that have none of those parameters."""


class FencedTool(Struct, frozen=True):
    """A tool that is called with a fenced block: the word after the fence, and whether code or JSON follows."""

    word: str
    spec: FunctionSpec
    is_code: bool

    @property
    def opening(self) -> str:
        return f"```{self.word}\n"


class Repair(Struct, frozen=True, forbid_unknown_fields=True):
    """The first lines of a corrected block, for errors whose last line matches `pattern`."""

    pattern: str = field(name="error")
    comment: str = field(name="begin")


class FewShots(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of examples.yaml."""

    listing_code: str = field(name="look")
    """Code that lists the files and variables; runs before the model's first block."""
    listing_summary: str = field(name="looked")
    """The shorter code that the model sees in its place."""
    examples: list[Example]
    repairs: list[Repair]
    tool_examples: list[CallExample]


def _load_few_shots() -> FewShots:
    text = resources.files("antwort.models.embedded").joinpath("examples.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), type=FewShots)


FEW_SHOTS: Final = _load_few_shots()


def repair_comment(error: str) -> str:
    """The first lines of a block that corrects an error."""
    return next(repair.comment for repair in FEW_SHOTS.repairs if re.search(repair.pattern, error))


def fenced_tools(tools: Sequence[FunctionSpec]) -> tuple[FencedTool, ...]:
    """The fenced form of each tool. The first one with a `code` parameter is called with a Python block.

    Small models leave out the server's label in the names of its tools: the word is the rest of the name, if only one
    tool has it.
    """
    fenced: list[FencedTool] = []
    rests = Counter(spec.name.rpartition("__")[2] for spec in tools)
    for spec in tools:
        is_code = _takes_code(spec) and not any(tool.is_code for tool in fenced)
        rest = spec.name.rpartition("__")[2]
        word = rest if rest and rests[rest] == 1 else spec.name
        word = f"{word}_tool" if word in _RESERVED_WORDS else word
        fenced.append(FencedTool(_PYTHON if is_code else word, spec, is_code))
    return tuple(fenced)


def code_tool(tools: Sequence[FencedTool]) -> FencedTool | None:
    """The tool that is called with Python blocks; None if there is none."""
    return next((tool for tool in tools if tool.is_code), None)


def to_prompt_messages(request: ModelRequest) -> list[ChatMessage]:
    """The messages of the prompt; the constant part first, because llama.cpp caches a common prefix."""
    tools = fenced_tools(request.tools)
    tools_by_name = {tool.spec.name: tool for tool in tools}
    history = to_messages(request.items, request.instructions, _DIALECT)
    instructions = str(history.pop(0)["content"]) if history and history[0]["role"] == "system" else _DEFAULT_SYSTEM
    system = {"role": "system", "content": _system_prompt(instructions, tools)}
    examples = [message for example in _relevant_examples(tools) for message in _example_messages(example)]
    examples += [] if code_tool(tools) else _tool_example_messages(tools)
    history = _with_notes(history, [tool.spec.current_state for tool in tools if tool.spec.current_state])
    plain = [_to_plain_message(message, tools_by_name) for message in history]
    return [system, *examples, *_merge_same_role(plain + _schema_messages(request))]


def _relevant_examples(tools: Sequence[FencedTool]) -> list[Example]:
    """The examples with code if there is a code tool; those with files only if the container has files."""
    code = code_tool(tools)
    if code is None:
        return []
    return [example for example in FEW_SHOTS.examples if example.listing_output is None or code.spec.current_state]


def consecutive_errors(request: ModelRequest) -> list[str]:
    """The error lines of the most recent consecutive failed code calls, the last one first."""
    errors: list[str] = []
    history = to_messages(request.items, None, _DIALECT)
    code_calls = _code_call_ids(history, request.tools)
    for message in reversed(history):
        if message["role"] == "tool" and message["tool_call_id"] in code_calls and (error := _error_line(message)):
            errors.append(error)
        elif not message.get("tool_calls"):
            break
    return errors


def _code_call_ids(history: Sequence[ChatMessage], tools: Sequence[FunctionSpec]) -> set[str]:
    """The ids of the calls that were Python blocks."""
    names = {"code_interpreter", *(tool.spec.name for tool in fenced_tools(tools) if tool.is_code)}
    calls = [call for message in history for call in message.get("tool_calls", ())]
    return {call["id"] for call in calls if call["function"]["name"] in names}


def _error_line(message: ChatMessage) -> str | None:
    """The last line of a traceback; a syntax error consists of that line only."""
    content = str(message["content"])
    # Without notes, such as [files written: …].
    lines = [line for line in content.strip().splitlines() if not line.startswith("[")]
    if lines and _SYNTAX_ERROR_RE.match(lines[-1]):
        return lines[-1]
    if _TRACEBACK not in content:
        return None
    return lines[-1] if lines and _ERROR_RE.match(lines[-1]) else "an error"


def must_answer(request: ModelRequest) -> bool:
    """Whether the model may make no more calls: the request forbids them, or the model repeats itself or its errors."""
    if request.choice == "auto":
        return is_repeating(request) or len(consecutive_errors(request)) > _MAX_REPAIRS
    return request.choice == "none"


def is_repeating(request: ModelRequest) -> bool:
    """Whether the last call repeats an earlier one of this answer, or there are too many calls."""
    past_calls: list[tuple[str, str]] = []
    for message in reversed(to_messages(request.items, None, _DIALECT)):
        if calls := message.get("tool_calls"):
            past_calls += [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        elif message["role"] != "tool":
            break
    return len(past_calls) >= _MAX_CALLS or (past_calls[:1] != [] and past_calls[0] in past_calls[1:])


def tools_to_force(request: ModelRequest) -> set[str]:
    """The tools of which one must be called before a JSON answer, because the model would invent the values otherwise.

    The code tool, if it is the only tool. With other tools and without files for code to read, those whose names are in
    the user's message; other tools are never forced.
    """
    history = to_messages(request.items, None, _DIALECT)
    tools = fenced_tools(request.tools)
    code = code_tool(tools)
    is_json = isinstance(request.format, JsonSchemaFormat | JsonObjectFormat) and request.choice == "auto"
    if code is None or not is_json or not history or history[-1]["role"] != "user":
        return set()
    if len(tools) == 1:
        return {code.spec.name}
    named = {tool.spec.name for tool in tools if tool.spec.name in str(history[-1]["content"])}
    return set() if code.spec.current_state else named - {code.spec.name}


def answers_user(request: ModelRequest) -> bool:
    """Whether the last message is the user's, not the output of a call."""
    history = to_messages(request.items, None, _DIALECT)
    return bool(history) and history[-1]["role"] == "user"


def file_listing_step(request: ModelRequest) -> Literal["due", "just_done", "none"]:
    """Whether the forced file listing is due: there are files that were not listed; or whether it was the last call."""
    history = to_messages(request.items, None, _DIALECT)
    code = code_tool(fenced_tools(request.tools))
    if code is None or not code.spec.current_state or not history:
        return "none"
    calls = [message.get("tool_calls", ()) for message in history]
    listings = [index for index, called in enumerate(calls) if any(map(_is_file_listing, called))]
    if not listings:
        return "due" if history[-1]["role"] == "user" else "none"
    return "just_done" if listings[-1] == len(history) - 2 else "none"


def _is_file_listing(call: dict[str, Any]) -> bool:
    return _code(str(call["function"]["arguments"])) == FEW_SHOTS.listing_code


def _with_notes(history: Sequence[ChatMessage], notes: Sequence[str]) -> list[ChatMessage]:
    """Append notes on the current state (such as the files) to the last user message."""
    last = max((index for index, message in enumerate(history) if message["role"] == "user"), default=None)
    if last is None or not notes:
        return list(history)
    with_notes = {**history[last], "content": "\n".join([str(history[last]["content"]), *notes])}
    return [*history[:last], with_notes, *history[last + 1 :]]


def _system_prompt(instructions: str, tools: Sequence[FencedTool]) -> str:
    others = [tool for tool in tools if not tool.is_code]
    parts = [instructions]
    if code_tool(tools):
        parts.append(_CODE_INSTRUCTIONS)
    if others:
        advice = "" if code_tool(tools) else _CALL_ADVICE
        described = [_describe_tool(tool, all_arguments=not advice) for tool in others]
        parts.append("\n\n".join([_TOOL_INSTRUCTIONS + advice, *described]))
    return "\n\n".join(parts)


def _schema_messages(request: ModelRequest) -> list[ChatMessage]:
    """The format of a JSON answer, in words: the grammar constrains the output, but the model does not see it.

    Only when an answer may come next: a small model that sees the format fills it in instead of calling tools.
    """
    if not isinstance(request.format, JsonSchemaFormat):
        return []
    if not must_answer(request) and (file_listing_step(request) != "none" or consecutive_errors(request)):
        return []
    schema = request.format.schema
    hint = msgspec.json.encode(schema).decode() if "$defs" in schema else schema_hint(schema)
    return [{"role": "user", "content": f"Give the final answer like this:\n```json\n{hint}\n```"}]


def schema_hint(schema: object) -> str:
    """A short description of a JSON schema: small models repeat a real schema as their answer."""
    fields = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    match fields:
        case {"enum": list()}:
            hint = " or ".join(msgspec.json.encode(value).decode() for value in fields["enum"])
        case {"properties": dict()}:
            properties = ",\n".join(f'"{name}": {schema_hint(part)}' for name, part in fields["properties"].items())
            return f"{{\n{indent(properties, '  ')}\n}}"
        case {"items": dict()}:
            hint = f"list of {schema_hint(fields['items'])}"
        case {"type": str()}:
            hint = fields["type"]
        case _:
            return msgspec.json.encode(schema).decode()
    return f"{hint} ({fields['description']})" if "description" in fields else hint


def _describe_tool(tool: FencedTool, *, all_arguments: bool) -> str:
    parameters = tool.spec.parameters or {}
    shown = dict.fromkeys(properties_of(parameters), "…") if all_arguments else _example_arguments(parameters)
    arguments = msgspec.json.encode(shown).decode()
    schema = msgspec.json.encode(parameters).decode()
    described = "\n".join(filter(None, (tool.spec.description or tool.word, tool.spec.grammar_note)))
    return f"{described}\n{tool.opening}{arguments}\n```\nSchema of its arguments: {schema}"


def _example_arguments(parameters: dict[str, Any]) -> dict[str, Any]:
    """The required arguments, or all if none is: the model fills in every argument of the example."""
    properties, given = properties_of(parameters), parameters.get("required")
    listed = cast("list[object]", given) if isinstance(given, list) else []
    required = {name for name in listed if isinstance(name, str)}
    names = [name for name in properties if name in required] or list(properties)
    return {name: ["…"] if _is_array(properties[name]) else "…" for name in names}


def _is_array(schema: object) -> bool:
    return isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "array"


def _takes_code(spec: FunctionSpec) -> bool:
    return "code" in properties_of(spec.parameters)


def _example_messages(example: Example) -> list[ChatMessage]:
    messages: list[ChatMessage] = [{"role": "user", "content": example.user}]
    listing = [] if example.listing_output is None else [ExampleStep(FEW_SHOTS.listing_summary, example.listing_output)]
    for step in (*listing, *example.steps):
        messages.append({"role": "assistant", "content": f"```python\n{step.code}\n```"})
        messages.append({"role": "user", "content": f"Output:\n{step.output}"})
    return [*messages, {"role": "assistant", "content": example.answer}]


def _tool_example_messages(tools: Sequence[FencedTool]) -> list[ChatMessage]:
    """The examples for tools without a code tool, with the fences of the offered tools."""
    known = {example.parameter for example in FEW_SHOTS.tool_examples}
    words: dict[str, str] = {}
    for tool in tools:
        words.setdefault(
            next((one for one in known if one and one in properties_of(tool.spec.parameters)), ""), tool.word
        )
    messages: list[ChatMessage] = []
    for example in FEW_SHOTS.tool_examples:
        if example.parameter not in words:
            continue
        messages.append({"role": "user", "content": example.user})
        for step in example.steps:
            arguments = msgspec.json.encode(step.arguments).decode()
            word = step.name or words[example.parameter]
            messages.append({"role": "assistant", "content": f"```{word}\n{arguments}\n```"})
            messages.append({"role": "user", "content": f"Output:\n{step.output}\n\n{_ANSWER_REQUEST}"})
        messages.append({"role": "assistant", "content": example.answer})
    return messages


def properties_of(parameters: dict[str, Any] | None) -> dict[str, object]:
    """The properties of a schema. Requests may contain schemas that are not valid: those have none."""
    properties = (parameters or {}).get("properties")
    return cast("dict[str, object]", properties) if isinstance(properties, dict) else {}


def _to_plain_message(message: ChatMessage, tools: dict[str, FencedTool]) -> ChatMessage:
    """A message in which tool calls and outputs are plain text."""
    if message["role"] == "tool":
        content = str(message["content"])
        if _error_line(message):
            content = f"{_LIBRARY_FRAMES_RE.sub('', content)}\n{_RETRY_PROMPT}"
        elif _FAILED_COMMAND_RE.search(content):
            content = f"{content}\n{_RETRY_PROMPT}"
        elif code_tool(tuple(tools.values())) is None and tools:
            content = f"{content}\n\n{_ANSWER_REQUEST}"
        return {"role": "user", "content": f"Output:\n{content}"}
    blocks = [_fenced_block(call["function"], tools) for call in message.get("tool_calls", ())]
    content = "\n".join(filter(None, [str(message.get("content") or ""), *blocks]))
    return {"role": message["role"], "content": content}


def _fenced_block(function: dict[str, Any], tools: dict[str, FencedTool]) -> str:
    name, arguments = str(function["name"]), str(function["arguments"])
    tool = tools.get(name)
    if (tool is not None and tool.is_code) or name == "code_interpreter":
        code = _code(arguments)
        return f"```python\n{FEW_SHOTS.listing_summary if code == FEW_SHOTS.listing_code else code}\n```"
    return f"```{name if tool is None else tool.word}\n{arguments}\n```"


def _code(arguments: str) -> str:
    decoded = msgspec.json.decode(arguments, type=dict[str, Any])
    return str(decoded.get("code", decoded.get("not_json", "")))


def _merge_same_role(history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Merge adjacent messages of one role: chat templates require alternating roles."""
    merged: list[ChatMessage] = []
    for message in history:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged
