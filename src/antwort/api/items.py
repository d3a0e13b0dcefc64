"""Items: what conversations are made of. Ours are structs; what comes from outside is kept as it came.

An item from outside is read for what the engine needs (`read`), and its raw form
goes on: stored, listed and replayed with every field it had, known to us or not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Raw: TypeAlias = dict[str, Any]
GivenItem: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/GivenItem"})]
"""An item as a request has it. `read` says what it must be, and the OpenAPI document repeats it."""


# ── annotations ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ContainerFileCitation(Struct, tag_field="type", tag="container_file_citation"):
    """A file that the model made and speaks of; the indexes cover where."""

    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class FileCitation(Struct, tag_field="type", tag="file_citation"):
    """A file that the model found something in."""

    file_id: str
    filename: str
    index: int


class UrlCitation(Struct, tag_field="type", tag="url_citation"):
    """A page that the model found something on."""

    url: str
    title: str
    start_index: int
    end_index: int


class FilePath(Struct, tag_field="type", tag="file_path"):
    """A file that the model names."""

    file_id: str
    index: int


Annotation: TypeAlias = ContainerFileCitation | FileCitation | UrlCitation | FilePath


# ── what a model says ────────────────────────────────────────────────────────────────────────────────────────────────


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text."""

    text: str = ""
    annotations: list[Annotation] = field(default_factory=list[Annotation])
    logprobs: list[Raw] = field(default_factory=list[Raw])


class Refusal(Struct, tag_field="type", tag="refusal"):
    """The model would not."""

    refusal: str = ""


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Reasoning, in the open."""

    text: str = ""


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    """Reasoning, summarized."""

    text: str = ""


class Message(Struct, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    content: list[OutputText | Refusal] = field(default_factory=list[OutputText | Refusal])
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    phase: str | UnsetType = UNSET


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    """What the model thinks before it says anything."""

    id: str
    summary: list[SummaryText] = field(default_factory=list[SummaryText])
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: Status | UnsetType = UNSET


# ── calls that go back to the client ─────────────────────────────────────────────────────────────────────────────────


class FunctionCall(Struct, tag_field="type", tag="function_call"):
    """The model calls a function of the client's."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


class CustomToolCall(Struct, tag_field="type", tag="custom_tool_call"):
    """The model calls a tool of the client's that takes free text."""

    id: str
    call_id: str
    name: str
    input: str = ""
    status: Status | UnsetType = UNSET


# ── calls that are run here ──────────────────────────────────────────────────────────────────────────────────────────


class Logs(Struct, tag_field="type", tag="logs"):
    """What code printed, and the value of its last expression."""

    logs: str


class Image(Struct, tag_field="type", tag="image"):
    """A figure, as a data URL."""

    url: str


class CodeInterpreterCall(Struct, tag_field="type", tag="code_interpreter_call"):
    """Python that the model wrote. `outputs` is null unless the client asked for them."""

    id: str
    container_id: str
    code: str | None = ""
    outputs: list[Logs | Image] | None = field(default_factory=list[Logs | Image])
    status: Literal["in_progress", "interpreting", "completed", "incomplete", "failed"] = "in_progress"


OutputItem: TypeAlias = Message | Reasoning | FunctionCall | CustomToolCall | CodeInterpreterCall
"""An item that this server makes. A tool's provider may make others, as raw items."""


# ── what comes from outside ──────────────────────────────────────────────────────────────────────────────────────────


class InputText(Struct, tag_field="type", tag="input_text"):
    """Text."""

    text: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    """A picture, by address, data URL or uploaded file."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    """A file, by uploaded file, address or content."""

    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class GivenText(Struct, tag_field="type", tag="output_text"):
    """What a model said before. Its annotations may be of any kind, and are not ours to judge."""

    text: str


Part: TypeAlias = InputText | InputImage | InputFile | GivenText | Refusal


class GivenMessage(Struct):
    """A message in the input: by anybody, with a string or parts."""

    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[Part]


class FunctionCallOutput(Struct):
    """What the client's function answered."""

    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class GivenFunctionCall(Struct):
    """A call that is part of the history."""

    call_id: str
    name: str
    arguments: str


class CustomToolCallOutput(Struct):
    """What the client's tool answered."""

    call_id: str
    output: str | list[InputText | InputImage | InputFile]


class GivenCustomToolCall(Struct):
    """A call that is part of the history."""

    call_id: str
    name: str
    input: str


class GivenReasoning(Struct):
    """Reasoning that is part of the history."""

    summary: list[SummaryText] = field(default_factory=list[SummaryText])
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class GivenCodeCall(Struct):
    """Code that was run before; its container may still live."""

    id: str
    container_id: str
    code: str | None = None
    outputs: list[Logs | Image] | None = None


class ItemReference(Struct):
    """An item that was stored before."""

    id: str


READERS: dict[str, type[Struct]] = {
    "message": GivenMessage,
    "function_call": GivenFunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": GivenCustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "reasoning": GivenReasoning,
    "code_interpreter_call": GivenCodeCall,
    "item_reference": ItemReference,
}
"""The types of which we need to know something. All others go through as they are."""


class Paired(Struct):
    """What is asked of an item of any type: calls and their outputs are paired by this."""

    call_id: str | None = None


UNTYPED = ("message", "item_reference")
"""Those that may leave out their `type`: what else they have tells which they are."""


class Item(Struct, frozen=True):
    """An item of the history: its raw form, and what we know of it (`None` for a type that we do not)."""

    raw: Raw
    known: Struct | None

    @property
    def id(self) -> str | None:
        return self.raw.get("id")

    @property
    def type(self) -> str:
        return kind_of(self.raw)

    @property
    def call_id(self) -> str | None:
        """What pairs a call with its output. Of an item that was stored without being read it may be anything."""
        call_id = self.raw.get("call_id")
        if call_id is None and self.type == "local_shell_call_output":  # the wire calls it `id` there
            call_id = self.id
        return call_id if isinstance(call_id, str) else None


def kind_of(raw: Raw) -> str:
    """The type of an item, also of those that may leave it out."""
    if isinstance(raw.get("type"), str):
        return raw["type"]
    return "message" if "role" in raw else "item_reference"


def read(raw: Raw) -> Item:
    """Read an item from outside. A known type with wrong fields is a `msgspec.ValidationError`."""
    if not isinstance(raw.get("type", ""), str):
        raise msgspec.ValidationError(f"Expected `str`, got `{type(raw['type']).__name__}` - at `$.type`")
    reader = READERS.get(kind_of(raw))
    return Item(raw, msgspec.convert(raw, reader) if reader else None)
