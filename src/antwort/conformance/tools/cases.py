"""The tools: how each is declared, a prompt that makes a model call it, and what its items look like.

Prompts are instructions that any competent model follows, and the checks look at the shape of the answer, not at its
words. Where the API allows it, `tool_choice` forces the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from antwort.conformance.checks import Skipped
from antwort.conformance.client import Json
from antwort.conformance.grammar import Violation, require
from antwort.conformance.target import Target

MCP_LABEL: Final = "conformance"
NO_TOOL: Final = "Do not use any tool for it: reply with one word, hello."
"""What a model follows unless `tool_choice` decides otherwise."""
FOLLOW_UP: Final = "Thank you. Use no tool now. Reply with one word: done."


@dataclass(frozen=True, slots=True, kw_only=True)
class Inclusion:
    """A value of `include`, and the field of an item that it adds."""

    value: str
    field: Callable[[Json], Any]
    is_hidden: bool = True
    """Whether the field is empty without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    """A tool, or a feature of the text of a response."""

    name: str
    item: str
    """The type of the item that shows that the model did it."""
    prompt: str
    declare: Callable[[Target], list[Json]] = lambda _: []
    choice: Json | str | None = None
    fields: Json | None = None
    """Further parameters of the request."""
    is_hosted: bool = False
    is_echoed: bool = True
    """Whether the response shows the declared tools."""
    include: Inclusion | None = None
    output: Callable[[Json], Json] | None = None
    """The item with which the client answers the call."""
    verify: Callable[[Json], None] | None = None
    """A further check of the response."""
    verify_next: Callable[[Json, Json], None] | None = None
    """A check of a call, and of the response after the client has answered it."""
    failing_prompt: str | None = None
    """A prompt whose call fails."""
    verify_failure: Callable[[Json], None] | None = None
    """A check that the items of that response show it."""
    twice_prompt: str | None = None
    """A prompt for two calls."""


def _declared(*tools: Json) -> Callable[[Target], list[Json]]:
    return lambda _: list(tools)


# ── outputs of calls that the client runs ────────────────────────────────────────────────────────────────────────────


def _function_output(call: Json) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees, sunny"}


def _custom_output(call: Json) -> Json:
    return {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "The note is saved."}


def _shell_output(call: Json) -> Json:
    output: list[Json] = [{"stdout": "notes.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    answer: Json = {"type": "shell_call_output", "call_id": call["call_id"], "output": output}
    limit = call["action"].get("max_output_length")
    return answer if limit is None else {**answer, "max_output_length": limit}


def _local_shell_output(call: Json) -> Json:
    output = json.dumps({"stdout": "notes.txt\n", "stderr": "", "exit_code": 0})
    return {"type": "local_shell_call_output", "id": call["call_id"], "call_id": call["call_id"], "output": output}


def _patch_output(call: Json) -> Json:
    return {"type": "apply_patch_call_output", "call_id": call["call_id"], "status": "completed", "output": "Done."}


def _approval(request: Json) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}


# ── declarations and further checks ──────────────────────────────────────────────────────────────────────────────────


def _file_search(target: Target) -> list[Json]:
    return [{"type": "file_search", "vector_store_ids": [target.vector_store]}]


def _mcp(approval: str) -> Callable[[Target], list[Json]]:
    def declare(target: Target) -> list[Json]:
        if target.mcp_url is None:
            raise Skipped("name an MCP server with --mcp-url")
        tool = {"type": "mcp", "server_label": MCP_LABEL, "server_url": target.mcp_url, "require_approval": approval}
        return [tool]

    return declare


def texts(response: Json) -> list[str]:
    """The texts of the messages."""
    messages = (item for item in response["output"] if item["type"] == "message")
    return [part.get("text", "") for item in messages for part in item["content"]]


def _has_the_schema(response: Json) -> None:
    text = "".join(texts(response))
    try:
        value = json.loads(text)
    except ValueError:
        raise Violation("a text that is JSON", text) from None
    is_answer = isinstance(value, dict) and set(value) == {"city", "country"}  # pyright: ignore[reportUnknownArgumentType] - any JSON
    require(is_answer, 'an object with "city" and "country", as the schema demands', text)


def _has_a_text(response: Json) -> None:
    require("".join(texts(response)).strip(), "a text", response["output"])


def _container_of(response: Json) -> None:
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    ids = {item["container_id"] for item in calls}
    require(len(ids) == 1, "one container for all calls of a response", ids)


def _shell_container_of(response: Json) -> None:
    items = response["output"]
    calls = {item["call_id"] for item in items if item["type"] == "shell_call"}
    outputs = {item["call_id"] for item in items if item["type"] == "shell_call_output"}
    require(calls == outputs, "a shell_call_output for each shell_call", items)
    for item in items:
        if item["type"] == "shell_call":
            environment: Json | None = item.get("environment")
            is_named = environment is not None and environment.get("type") == "container_reference"
            require(is_named, "the container in `environment`", item)


def _shows_the_exception(response: Json) -> None:
    """The call has failed, or the message of the exception is in its logs."""
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    logs = "".join(part.get("logs", "") for call in calls for part in call["outputs"] or ())
    is_shown = "on purpose" in logs or any(call["status"] == "failed" for call in calls)
    require(is_shown, "the exception in `outputs`, or the status failed", calls)


def _shows_the_exit_code(response: Json) -> None:
    outputs = [item for item in response["output"] if item["type"] == "shell_call_output"]
    outcomes = [entry["outcome"] for item in outputs for entry in item["output"]]
    require({"type": "exit", "exit_code": 3} in outcomes, "an outcome with the exit code 3", outcomes)


def _shows_that_no_page_was_opened(response: Json) -> None:
    """The call has failed, or names no page."""
    calls = [item for item in response["output"] if item["type"] == "web_search_call"]
    opened = [call for call in calls if call["action"]["type"] == "open_page"]
    is_shown = any(call["status"] == "failed" for call in calls) or any(
        not call["action"].get("url") for call in opened
    )
    require(is_shown or not opened, "the status failed of a call that opens no page", calls)


def _approved_call(request: Json, response: Json) -> None:
    approved = [item for item in response["output"] if item.get("approval_request_id") == request["id"]]
    kinds = [item["type"] for item in approved]
    require(kinds == ["mcp_call"], f"one mcp_call with the approval_request_id {request['id']}", response["output"])


def _cites_its_text(response: Json) -> None:
    """The indexes of citations lie in the text. Servers that count UTF-16 units are tolerated."""
    for item in response["output"]:
        for part in item["content"] if item["type"] == "message" else ():
            length = len(part["text"].encode("utf-16-le", "surrogatepass")) // 2 if "text" in part else 0
            for one in part.get("annotations") or ():
                if one["type"] == "url_citation":
                    is_inside = 0 <= one["start_index"] < one["end_index"] <= length
                    require(is_inside, f"a citation inside the text of {length} characters", one)


def _logprobs(item: Json) -> Any:
    return item["content"][0].get("logprobs")


_WEATHER: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
_PLACE: Final = {
    "type": "json_schema",
    "name": "place",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": False,
    },
}
_CODE: Final = {"type": "code_interpreter", "container": {"type": "auto"}}

CASES: Final[tuple[ToolCase, ...]] = (
    ToolCase(
        name="text",
        item="message",
        prompt="Reply with one word: hello.",
        verify=_has_a_text,
        include=Inclusion(value="message.output_text.logprobs", field=_logprobs),
    ),
    ToolCase(
        name="structured-output",
        item="message",
        prompt="Name the capital of France, and its country.",
        fields={"text": {"format": _PLACE}},
        verify=_has_the_schema,
    ),
    ToolCase(
        name="reasoning",
        item="reasoning",
        prompt="Think step by step: how many prime numbers lie between 100 and 140? Answer with a number.",
        fields={"reasoning": {"effort": "low", "summary": "auto"}},
        include=Inclusion(
            value="reasoning.encrypted_content", field=lambda item: item.get("encrypted_content"), is_hidden=False
        ),
    ),
    ToolCase(
        name="function",
        item="function_call",
        prompt="What is the weather in Berlin? Call get_weather.",
        declare=_declared(_WEATHER),
        choice={"type": "function", "name": "get_weather"},
        output=_function_output,
    ),
    ToolCase(
        name="custom",
        item="custom_tool_call",
        prompt="Save the note 'buy milk' with the tool save_note.",
        declare=_declared({"type": "custom", "name": "save_note", "description": "Saves a note, which is plain text."}),
        choice={"type": "custom", "name": "save_note"},
        output=_custom_output,
    ),
    ToolCase(
        name="code_interpreter",
        item="code_interpreter_call",
        prompt="Use the python tool to compute 12345 * 6789. Print the product.",
        declare=_declared(_CODE),
        choice={"type": "code_interpreter"},
        is_hosted=True,
        include=Inclusion(value="code_interpreter_call.outputs", field=lambda item: item["outputs"]),
        verify=_container_of,
        verify_failure=_shows_the_exception,
        failing_prompt="Run this with the python tool once, and do not repair it: raise ValueError('on purpose')",
        twice_prompt="Use the python tool twice, in two separate calls: first print(1), then print(2).",
    ),
    ToolCase(
        name="shell",
        item="shell_call",
        prompt="Use the shell tool to run: echo conformance",
        declare=_declared({"type": "shell", "environment": {"type": "container_auto"}}),
        choice={"type": "shell"},
        is_hosted=True,
        verify=_shell_container_of,
        verify_failure=_shows_the_exit_code,
        failing_prompt="Use the shell tool to run exactly this, once, and do not repair it: exit 3",
        twice_prompt="Use the shell tool twice, in two separate calls: first echo 1, then echo 2.",
    ),
    ToolCase(
        name="shell-local",
        item="shell_call",
        prompt="Use the shell tool to list the files of the current directory.",
        declare=_declared({"type": "shell"}),
        choice={"type": "shell"},
        output=_shell_output,
    ),
    ToolCase(
        name="local_shell",
        item="local_shell_call",
        prompt="Use the local shell to list the files here.",
        declare=_declared({"type": "local_shell"}),
        choice="required",
        is_echoed=False,  # OpenAI sends an empty list
        output=_local_shell_output,
    ),
    ToolCase(
        name="apply_patch",
        item="apply_patch_call",
        prompt="Create the file notes.txt with the line 'buy milk', with apply_patch.",
        declare=_declared({"type": "apply_patch"}),
        choice={"type": "apply_patch"},
        output=_patch_output,
    ),
    ToolCase(
        name="web_search",
        item="web_search_call",
        prompt="Search the web for 'oolong tea', and answer in one sentence with a source.",
        declare=_declared({"type": "web_search"}),
        choice={"type": "web_search"},
        is_hosted=True,
        verify=_cites_its_text,
        include=Inclusion(value="web_search_call.action.sources", field=lambda item: item["action"].get("sources")),
        verify_failure=_shows_that_no_page_was_opened,
        failing_prompt="Open the page https://conformance.invalid/ once, and say what happened.",
        twice_prompt="Use the web search tool twice: search for 'oolong tea', then for 'green tea'.",
    ),
    ToolCase(
        name="file_search",
        item="file_search_call",
        prompt="Search the files: what is the password of the blue box?",
        declare=_file_search,
        choice={"type": "file_search"},
        is_hosted=True,
        include=Inclusion(value="file_search_call.results", field=lambda item: item["results"]),
        twice_prompt="Use file search twice: for the blue box, then for the red box.",
    ),
    ToolCase(
        name="mcp",
        item="mcp_call",
        prompt="Call one of the tools of the MCP server once, with any valid arguments.",
        declare=_mcp("never"),
        choice={"type": "mcp", "server_label": MCP_LABEL},
        is_hosted=True,
        twice_prompt="Call one of the tools of the MCP server twice, with any valid arguments.",
    ),
    ToolCase(
        name="mcp-approval",
        item="mcp_approval_request",
        prompt="Call one of the tools of the MCP server once, with any valid arguments; I shall approve it.",
        declare=_mcp("always"),
        choice={"type": "mcp", "server_label": MCP_LABEL},
        output=_approval,
        verify_next=_approved_call,
    ),
)
