"""API types of items: output items as structs, input items as raw JSON with a parsed view.

`read` parses the fields of an item that the engine needs. The raw form is what is stored, listed and replayed, with all
its fields, known or unknown. `READERS` are the item types that a request may contain; `validation.items` has further
rules for their fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from antwort.api.tools import ToolDeclaration, convert_with_tools

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Raw: TypeAlias = dict[str, Any]
Namespace: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,128}$")]
"""The namespace of a call, which becomes a part of the function's name. Empty is none."""
GivenItem: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/GivenItem"})]
"""An item in a request. `requests.read_items` validates it; the OpenAPI document has the same rules."""


# ── annotations ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ContainerFileCitation(Struct, tag_field="type", tag="container_file_citation"):
    """Citation of a file that the model created; the indexes delimit the text."""

    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class FileCitation(Struct, tag_field="type", tag="file_citation"):
    """Citation of a searched file."""

    file_id: str
    filename: str
    index: int


class UrlCitation(Struct, tag_field="type", tag="url_citation"):
    """Citation of a web page."""

    url: str
    title: str
    start_index: int
    end_index: int


class FilePath(Struct, tag_field="type", tag="file_path"):
    """Reference to a file."""

    file_id: str
    index: int


Annotation: TypeAlias = ContainerFileCitation | FileCitation | UrlCitation | FilePath


# ── messages and reasoning ───────────────────────────────────────────────────────────────────────────────────────────


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str = ""
    annotations: list[Annotation] = field(default_factory=list[Annotation])
    logprobs: list[Raw] = field(default_factory=list[Raw])


class Refusal(Struct, tag_field="type", tag="refusal"):
    """Refusal of the model."""

    refusal: str = ""


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning text."""

    text: str = ""


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    """Summary of reasoning."""

    text: str = ""


class Message(Struct, tag_field="type", tag="message"):
    """Message of the model."""

    id: str
    content: list[OutputText | Refusal] = field(default_factory=list[OutputText | Refusal])
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    phase: str | UnsetType = UNSET


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    """Reasoning of the model."""

    id: str
    summary: list[SummaryText] = field(default_factory=list[SummaryText])
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: Status | UnsetType = UNSET


# ── client-side tool calls ───────────────────────────────────────────────────────────────────────────────────────────


class FunctionCall(Struct, tag_field="type", tag="function_call"):
    """Call of a client-side function."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"
    namespace: str | UnsetType = UNSET


class CustomToolCall(Struct, tag_field="type", tag="custom_tool_call"):
    """Call of a client-side tool with free-text input."""

    id: str
    call_id: str
    name: str
    input: str = ""
    status: Status | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class ToolSearchCall(Struct, tag_field="type", tag="tool_search_call"):
    """Call of a tool search that the client runs."""

    id: str
    call_id: str
    arguments: Raw
    status: Status = "in_progress"
    execution: Literal["client"] = "client"


# ── hosted tool calls ────────────────────────────────────────────────────────────────────────────────────────────────


class Logs(Struct, tag_field="type", tag="logs"):
    """Printed output, and the value of the last expression."""

    logs: str


class Image(Struct, tag_field="type", tag="image"):
    """A figure, as a data URL."""

    url: str


class CodeResult(Struct, frozen=True, omit_defaults=True):
    """What the code printed to each stream, and its exit code. An extension: OpenAI has only the joined logs."""

    stdout: str
    stderr: str
    exit_code: int
    note: str = ""
    """What follows the streams in the logs: the value of the last expression; why the code did not end by itself."""
    file_ids: tuple[str, ...] = ()
    """The files of the container that the code wrote."""


class CodeInterpreterCall(Struct, tag_field="type", tag="code_interpreter_call"):
    """Python code of the model. `outputs` is null, and `result` is absent, unless `include` requests it."""

    id: str
    container_id: str
    code: str | None = ""
    outputs: list[Logs | Image] | None = field(default_factory=list[Logs | Image])
    status: Literal["in_progress", "interpreting", "completed", "incomplete", "failed"] = "in_progress"
    result: CodeResult | UnsetType = field(name="antwort:result", default=UNSET)
    """Absent where the code did not run, or its end is not known."""


OutputItem: TypeAlias = Message | Reasoning | FunctionCall | CustomToolCall | ToolSearchCall | CodeInterpreterCall
"""An item that this server creates. Tool providers may create others, as raw items."""


# ── input items ──────────────────────────────────────────────────────────────────────────────────────────────────────


class InputText(Struct, tag_field="type", tag="input_text"):
    """Input text."""

    text: str


SOURCE_URL: Final = "antwort:source_url"


class InputImage(Struct, tag_field="type", tag="input_image"):
    """An image, by URL, data URL or uploaded file."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None
    source_url: str | None = field(name=SOURCE_URL, default=None)
    """Where this server fetched `image_url` from."""


class InputFile(Struct, tag_field="type", tag="input_file"):
    """A file, by id, URL or content."""

    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    source_url: str | None = field(name=SOURCE_URL, default=None)
    """Where this server fetched `file_data` from."""


class GivenText(Struct, tag_field="type", tag="output_text"):
    """Earlier text of a model. Annotations of any kind are accepted."""

    text: str


Part: TypeAlias = InputText | InputImage | InputFile | GivenText | Refusal


class GivenMessage(Struct):
    """An input message of any role, with a string or parts."""

    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[Part]


class FunctionCallOutput(Struct):
    """Result of a client-side function."""

    call_id: str
    output: str | list[InputText | InputImage | InputFile]
    namespace: Namespace | None = None


class GivenFunctionCall(Struct):
    """Function call in the history."""

    call_id: str
    name: str
    arguments: str
    namespace: Namespace | None = None


class CustomToolCallOutput(Struct):
    """Result of a client-side custom tool."""

    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class GivenCustomToolCall(Struct):
    """Custom tool call in the history."""

    call_id: str
    name: str
    input: str
    namespace: Namespace | None = None


class GivenToolSearchCall(Struct):
    """Tool search in the history. A search that a server ran has no `call_id`."""

    arguments: Any
    call_id: str | None = None


class ToolSearchOutput(Struct):
    """Result of a tool search: tools that the model is offered from this item on."""

    tools: list[ToolDeclaration]
    call_id: str | None = None


class AdditionalTools(Struct):
    """Tools that the model is offered from this item on."""

    role: Literal["developer"]
    tools: list[ToolDeclaration]


class GivenReasoning(Struct):
    """Reasoning in the history."""

    summary: list[SummaryText] = field(default_factory=list[SummaryText])
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """The reasoning. The summary of an item with content repeats it, or says less."""
        return "\n".join(part.text for part in self.content or self.summary)


class GivenCodeCall(Struct):
    """Code interpreter call in the history; its container may still exist."""

    container_id: str
    id: str | None = None
    code: str | None = None
    outputs: list[Logs | Image] | None = None


class GivenToolItem(Struct):
    """Call, output or approval of another hosted or client-side tool. `models.replay_hosted_calls` reads its fields."""


class Screenshot(Struct, tag_field="type", tag="computer_screenshot"):
    """The display of a computer after an action, by URL, data URL or uploaded file."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class ComputerCallOutput(Struct):
    """Result of actions on a computer that the client controls."""

    call_id: str
    output: Screenshot


class McpListTools(Struct):
    """The tools of an MCP server, as another server listed them. A model is not shown them: it cannot call them."""


class GivenCompaction(Struct):
    """A compaction item in the history: the encrypted replacement of what came before it."""

    encrypted_content: str
    id: str | None = None


class CompactionTrigger(Struct):
    """The last input item of a request that compacts its history instead of answering."""


class ItemReference(Struct):
    """Reference to a stored item, by id."""

    id: str


READERS: dict[str, type[Struct]] = {
    "message": GivenMessage,
    "function_call": GivenFunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": GivenCustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "tool_search_call": GivenToolSearchCall,
    "tool_search_output": ToolSearchOutput,
    "additional_tools": AdditionalTools,
    "reasoning": GivenReasoning,
    "code_interpreter_call": GivenCodeCall,
    "file_search_call": GivenToolItem,
    "web_search_call": GivenToolItem,
    "image_generation_call": GivenToolItem,
    "shell_call": GivenToolItem,
    "shell_call_output": GivenToolItem,
    "local_shell_call": GivenToolItem,
    "local_shell_call_output": GivenToolItem,
    "apply_patch_call": GivenToolItem,
    "apply_patch_call_output": GivenToolItem,
    "computer_call": GivenToolItem,
    "computer_call_output": ComputerCallOutput,
    "mcp_call": GivenToolItem,
    "mcp_approval_request": GivenToolItem,
    "mcp_approval_response": GivenToolItem,
    "mcp_list_tools": McpListTools,
    "compaction": GivenCompaction,
    "compaction_trigger": CompactionTrigger,
    "item_reference": ItemReference,
}
"""The item types that a request may contain. Stored items of other types are kept, and models are not shown them."""

UNAVAILABLE = frozenset(
    {
        "configuration_update",
        "program",
        "program_output",
    }
)
"""Item types of OpenAI's API that this server does not implement."""


class Identified(Struct):
    """The fields of items of any type: the id, and what pairs a call with its output."""

    id: str | None = None
    call_id: str | None = None


UNTYPED = ("message", "item_reference")
"""Types whose `type` may be omitted; other fields identify them."""


_WITHOUT_STATUS = frozenset(
    {
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "item_reference",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "reasoning",
    }
)


class Item(Struct, frozen=True):
    """An item of the history: its raw form, and its parsed form.

    A stored item of an unknown type, or with invalid fields, has no parsed form: models are not shown it.
    """

    raw: Raw
    known: Struct | None

    @property
    def id(self) -> str | None:
        return self.raw.get("id")

    @property
    def type(self) -> str:
        return kind_of(self.raw)

    @property
    def is_output(self) -> bool:
        """Whether the item is the output of a call."""
        return self.type.endswith("_call_output") or self.type == "tool_search_output"

    @property
    def call_id(self) -> str | None:
        """The id that pairs a call with its output. Stored items were not validated, so the value may have any type."""
        call_id = self.raw.get("call_id")
        if call_id is None and self.type == "local_shell_call_output":  # this type uses `id` for it
            call_id = self.id
        return call_id if isinstance(call_id, str) else None


def kind_of(raw: Raw) -> str:
    """The type of an item, also if it is omitted."""
    if isinstance(raw.get("type"), str):
        return raw["type"]
    return "message" if "role" in raw else "item_reference"


def with_status(raw: Raw) -> Raw:
    """The item with a `status`, if its type has one: an item that was given without one is complete."""
    kind = kind_of(raw)
    if raw.get("status") is not None or kind not in READERS or kind in _WITHOUT_STATUS:
        return raw
    return {**raw, "status": "completed"}


class _Typed(Struct):
    type: str = ""


def read(raw: Raw) -> Item:
    """Parse an item of the history. One that does not parse is kept: older versions stored what is refused now."""
    try:
        return parse(raw)
    except msgspec.ValidationError:
        return Item(raw, None)


def parse(raw: Raw) -> Item:
    """Parse a new item. Raises `msgspec.ValidationError` for a known type with invalid fields."""
    msgspec.convert(raw, _Typed)
    reader = READERS.get(kind_of(raw))
    return Item(raw, convert_with_tools(raw, reader) if reader else None)
