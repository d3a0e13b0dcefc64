"""Protocols of models and hosted tools, and the values that they exchange with the engine.

`antwort.testing.model` is the conformance suite of models. The protocols of stores are in `stores`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from antwort.api.errors import ResponseErrorCode
from antwort.api.items import Annotation, Item
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat, ReasoningOptions, TextFormat
from antwort.api.responses import Usage
from antwort.api.tools import GrammarFormat, ToolDeclaration
from antwort.engine.stores import Owner

# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


FREE_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""JSON schema of the parameters of a custom tool, for a model that only writes JSON arguments."""


class FunctionSpec(Struct, frozen=True):
    """A function that a model is offered.

    With `free_text` the function takes a string instead of JSON; the model still writes JSON
    arguments, with that string as `input`.
    """

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool = False
    free_text: bool = False
    grammar: GrammarFormat | None = None
    """Restricts the free text."""
    choice_name: str | None = None
    """What a `tool_choice` calls it, beside the label of its MCP server."""
    current_state: str | None = None
    """State that changes between responses, such as the files in the container. Separate from the description, for
    models that read what changes last (prompt caching)."""

    @property
    def grammar_note(self) -> str:
        """The grammar in words, for models that cannot enforce it."""
        if self.grammar is None:
            return ""
        return f"The input must be allowed by this {self.grammar.syntax} grammar:\n{self.grammar.definition}"

    @property
    def full_description(self) -> str:
        """The description and the current state."""
        return "\n".join(filter(None, (self.description, self.current_state)))


class MustCall(Struct, frozen=True):
    """The model must call this function."""

    name: str


Choice: TypeAlias = Literal["auto", "none", "required"] | MustCall
"""Whether the model may, must not or must call a function; or the function that it must call."""


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """Sampling options that the Responses API does not have. Other wires set them. They are not stored or returned."""

    stop: tuple[str, ...] = ()
    """Stop sequences, none of them empty. The text of a reply ends before the first one. A backend may ignore them: the
    registry of models cuts the reply there."""
    seed: int | None = None
    """Models that sample with a seed use this one; others ignore it."""
    logit_bias: dict[str, float] | None = None
    """By token id. Only for models with `biases_logits`."""
    max_output_is_ceiling: bool = False
    """Whether `max_output_tokens` may be more than the model can write. Backends refuse that, or say that the prompt is
    too long, because they reserve the space; then the request is repeated without the limit."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One request to a model: the history, the offered functions, and the sampling parameters."""

    model: str
    items: Sequence[Item]
    tenant: str = ""
    """Whose request it is. Not sent to a backend: failures are counted for each tenant."""
    instructions: str | None = None
    tools: Sequence[FunctionSpec] = ()
    choice: Choice = "auto"
    parallel: bool = True
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = field(default_factory=TextFormat)
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    """Number of alternatives for each token; None if logprobs are not requested."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    sampling: SamplingOptions = SamplingOptions()
    reasoning: ReasoningOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    user: str | None = None
    compact_threshold: int | None = None
    """Only for a model with `UpstreamCompaction`: it compacts the history by itself above so many tokens…"""
    compaction_trigger: bool = False
    """…or now, instead of answering."""


class TextPiece(Struct, frozen=True, tag=True):
    """A delta of the output text. `logprobs` have the format of the wire."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


class RefusalPiece(Struct, frozen=True, tag=True):
    """A delta of a refusal."""

    text: str


class ReasoningPiece(Struct, frozen=True, tag=True):
    """A delta of the reasoning text."""

    text: str


class SummaryPiece(Struct, frozen=True, tag=True):
    """A delta of the reasoning summary. A piece with another `part` than the one before it begins a new part."""

    text: str
    part: int = 0


class ItemPiece(Struct, frozen=True, tag=True):
    """The item that the text and reasoning after it belong to, from a backend whose replies have items.

    The pieces of one item share `index`. Without this piece, text continues the message before it. The pieces of an
    item are assumed to be consecutive, as OpenAI sends them: where two items alternate, each change begins a new item.
    """

    index: int
    phase: str | None = None
    """Of a message: `commentary` or `final_answer`. A second piece of the item may add it."""


class EncryptedReasoning(Struct, frozen=True, tag=True):
    """Reasoning in the upstream's encrypted form, which is sent back unchanged."""

    encrypted_content: str


class CompactionPiece(Struct, frozen=True, tag=True):
    """A compaction item of an upstream that compacts by itself. It is passed through unchanged."""

    item: dict[str, Any]


class CallPiece(Struct, frozen=True, tag=True):
    """A delta of a function call. The pieces of one call share `index`; the first one has the name."""

    index: int
    name: str = ""
    call_id: str = ""
    arguments: str = ""


class Finished(Struct, frozen=True, tag=True):
    """The end of the reply. Always the last piece."""

    reason: Literal["stop", "length", "content_filter", "calls"] = "stop"
    usage: Usage = field(default_factory=Usage)
    stop_sequence: str | None = None
    """The stop sequence that ended the text. None where the model ended by itself, or its backend does not say."""


Piece: TypeAlias = (
    TextPiece
    | RefusalPiece
    | ReasoningPiece
    | SummaryPiece
    | ItemPiece
    | EncryptedReasoning
    | CompactionPiece
    | CallPiece
    | Finished
)


class ModelFault(Exception):
    """The model, or the connection to it, failed.

    The message is safe for clients: it contains no secret and no address, also where it quotes an upstream.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ResponseErrorCode = "server_error",
        status: int = 502,
        retry_after: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code: ResponseErrorCode = code
        self.status = status
        self.retry_after = retry_after
        self.retryable = retryable
        self.exceeds_output_limit = False
        """Whether `max_output_tokens` is more than the model can write, whatever its input is."""

    @property
    def is_about_length(self) -> bool:
        """Whether a smaller `max_output_tokens` may help."""
        return self.exceeds_output_limit or self.code == "context_length_exceeded"

    @property
    def kind(self) -> str:
        """The error type on the wire, by the code and the status."""
        if self.code == "insufficient_quota":
            return self.code
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


class CallNotRecorded(ModelFault):
    """The store did not accept that a hosted call begins, so the call was not run."""

    def __init__(self) -> None:
        super().__init__("The server could not store that a tool call begins, so the call was not run.", status=503)


class Model(Protocol):
    """A model backend."""

    def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Stream the reply, ended by `Finished`; `ModelFault` where it fails.

        A caller that stops early closes the generator (`contextlib.aclosing`), which cancels the request.
        """
        ...

    async def count_tokens(self, request: ModelRequest) -> int:
        """The number of input tokens, as exactly as the backend can count them."""
        ...

    async def aclose(self) -> None:
        """Close connections and processes."""
        ...


class CompactedHistory(Struct, frozen=True):
    """The result of an upstream's compaction: the items of the next window, unchanged, and the usage."""

    output: list[dict[str, Any]]
    usage: Usage


class UpstreamCompaction(Protocol):
    """Compaction by the upstream of a model, instead of by this server."""

    async def is_supported(self) -> bool:
        """Whether the upstream compacts. Asks it once; an upstream that does not answer is asked again later."""
        ...

    async def compact(self, request: ModelRequest) -> CompactedHistory:
        """Compact the items of the request; `ModelFault` where it fails."""
        ...


class ChosenModel(Struct, frozen=True):
    """A model with its name in the configuration, and its name at the backend."""

    name: str
    model: Model
    upstream_name: str
    reads_files: bool = True
    """Whether it accepts files of any type; otherwise only text."""
    reads_images: bool = True
    """Whether it accepts images."""
    reads_file_urls: bool = False
    """Whether its backend fetches files by URL itself."""
    encrypts_reasoning: bool = False
    """Whether its backend encrypts reasoning by itself: encrypted content of others is then sent to it unchanged."""
    summarizes_reasoning: bool = False
    """Whether its backend summarizes its reasoning on request. The reasoning text of others is shown as the summary."""
    biases_logits: bool = False
    """Whether its backend takes a `logit_bias`."""
    context_window: int | None = None
    """Tokens of the history and the answer together, where that is known."""
    compaction: UpstreamCompaction | None = None
    """Set if the upstream may compact by itself."""


class Models(Protocol):
    """The configured models."""

    def find(self, name: str | None) -> ChosenModel:
        """The model of this name or alias; without a name the default model; `ApiError` 400 if there is none."""
        ...

    def names(self) -> list[str]:
        """The names of the models, without aliases."""
        ...


# ── hosted tools ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Progress(Struct, frozen=True):
    """A progress event of a hosted call, such as `response.code_interpreter_call.interpreting`."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    has_item_id: bool = True
    """Whether the event has the `item_id` of the call; that of a command of the shell has not."""


class NextItem(Struct, frozen=True):
    """The item of a hosted call ends, and the call continues with another item: `shell_call`, `shell_call_output`.

    What the call reports afterwards belongs to the item that has begun.
    """

    done: dict[str, Any]
    begun: dict[str, Any]


class ToolDone(Struct, frozen=True):
    """The end of a hosted call: its item for the client, and the text that the model reads.

    The item is complete: `api.projection` removes what the request did not `include`.
    """

    item: dict[str, Any]
    text: str
    web_requests: int = 0
    """Requests to a search engine that the call made, for `tool_usage`."""
    awaits_client: bool = False
    """The client has to act: it runs the call, or approves it. The response ends with the reply of the model, and the
    model reads of the call in the next one only."""
    is_broken: bool = False
    """The arguments are malformed, and nothing was done: the model may make the call again, once in a response."""


class CallRefused(Exception):
    """A call cannot begin. It gets no item: the model reads the reason as its output, and is asked again.

    `is_broken`: because its arguments are malformed. The model may make it again once in a response, and reads so.
    """

    def __init__(self, reason: str, *, is_broken: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_broken = is_broken


class OpeningItem(Struct, frozen=True):
    """An item that a response begins with, before the model is asked, such as `mcp_list_tools`."""

    begun: dict[str, Any]
    events: Sequence[Progress]
    done: dict[str, Any]


class WholeCall(Struct, frozen=True):
    """A call with all of its arguments, as a model writes it."""

    name: str
    call_id: str
    arguments: str


class ToolContext(Struct, frozen=True, kw_only=True):
    """The request that a hosted tool is prepared for."""

    owner: Owner
    response_id: str
    history: Sequence[Item]
    given: Sequence[Item]
    """The end of the history: the items of this request."""
    created_at: int = 0
    """When the response was created, in seconds."""
    made: Sequence[Item] = ()
    """Of a response that is continued after a crash: its output items so far. They are part of the history."""
    include: frozenset[str]
    images_are_files: bool = False
    """Whether the images of the history are files for the tool, because the model cannot read them."""
    is_stored: bool = True
    """Whether the response is stored. If it is not, a tool must not store anything of its content either."""
    taken_names: frozenset[str] = frozenset()
    """The names of the client's functions, which functions of tools that choose names cannot have."""


class HostedCall(Protocol):
    """One call of a hosted tool. It begins as the model writes it, or later, when the items before it are done.

    A call reports its failure with `ToolDone`. An exception of any method makes it a failed call.
    """

    @property
    def item(self) -> dict[str, Any]:
        """The item at the start of the call, with an `id` and a `type`."""
        ...

    @property
    def serial_key(self) -> str | None:
        """Calls of a reply with the same key run one after another, others at the same time. Read after `write`."""
        ...

    def started_events(self) -> Sequence[Progress]:
        """Events that follow `response.output_item.added`."""
        ...

    def write(self, delta: str) -> Sequence[Progress]:
        """Take the next part of the arguments, as the model writes them; the events of it."""
        ...

    def run(self) -> AsyncIterator[Progress | NextItem | ToolDone]:
        """Run the call, once the arguments are complete; the last value is `ToolDone`."""
        ...

    def failed(self, reason: str) -> ToolDone:
        """The end of a call that could not be run: of its item, or of the one that `NextItem` began.

        Changes nothing: the call may be run afterwards.
        """
        ...


class CallDefaults:
    """The rest of a `HostedCall` that shares nothing with other calls."""

    @property
    def serial_key(self) -> str | None:
        return None


class TextAnnotator(Protocol):
    """Finds the citations of one text while the model writes it."""

    def feed(self, delta: str) -> Sequence[Annotation]:
        """The citations that are complete with this part of the text. Indexes count from the start of the text."""
        ...

    def finish(self, text: str) -> Sequence[Annotation]:
        """The remaining citations of the complete text, which is all parts together."""
        ...


class WholeTextAnnotator:
    """A `TextAnnotator` that reads the complete text only."""

    def __init__(self, find: Callable[[str], Sequence[Annotation]] = lambda _: ()) -> None:
        self._find = find

    def feed(self, delta: str) -> Sequence[Annotation]:
        del delta
        return ()

    def finish(self, text: str) -> Sequence[Annotation]:
        return self._find(text)


class PreparedTool(Protocol):
    """A hosted tool prepared for one response: the state that its calls share."""

    @property
    def specs(self) -> Sequence[FunctionSpec]:
        """The functions that the model is offered, with their final descriptions."""
        ...

    @property
    def reads_files(self) -> bool:
        """Whether its calls can read the files of the history, including those that the model cannot be shown."""
        ...

    @property
    def is_client_run(self) -> bool:
        """Whether the client runs its calls: these have no effect here, and `max_tool_calls` does not count them."""
        ...

    @property
    def is_written_whole(self) -> bool:
        """Whether a call begins only when its arguments are complete, because its first item depends on them."""
        ...

    @property
    def begins_at(self) -> re.Pattern[str] | None:
        """Of calls that are written whole: one whose arguments begin with a match of this begins already then.

        The rest of its arguments is written to it while the model writes it.
        """
        ...

    def shown_declaration(self) -> dict[str, Any] | None:
        """How the response shows the tool, where that differs from the declaration. Read twice: first and last."""
        ...

    def opening_items(self) -> Sequence[OpeningItem]:
        """The items that the response begins with, without those that the output has already."""
        ...

    def opening_calls(self) -> Sequence[WholeCall]:
        """The calls that run before the model is asked, such as those that the client has approved."""
        ...

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        """Begin a call of one of the functions; `CallRefused` if the model is to make it again.

        `arguments` is empty where calls are not written whole, and what is written so far where one begins earlier. In
        all cases `HostedCall.write` gets all of the arguments.
        """
        ...

    def annotator(self) -> TextAnnotator:
        """Finds the citations, in one text of the model, of what the calls produced."""
        ...

    def lease(self) -> AbstractContextManager[object]:
        """Entered before the first event and left after the last: holds the resources that the calls share."""
        ...


class ToolDefaults:
    """The rest of a `PreparedTool` whose calls run on the server while the model writes nothing else."""

    is_client_run: bool = False
    is_written_whole: bool = False
    begins_at: re.Pattern[str] | None = None

    def shown_declaration(self) -> dict[str, Any] | None:
        return None

    def opening_items(self) -> Sequence[OpeningItem]:
        return ()

    def opening_calls(self) -> Sequence[WholeCall]:
        return ()


class ToolRegistry(Protocol):
    """The hosted tools. `antwort.tools.ToolRegistry` implements it."""

    def supports(self, tool: ToolDeclaration) -> bool:
        """Whether a provider runs tools of this type. Costs nothing."""
        ...

    @property
    def tool_types(self) -> Sequence[str]:
        """The types of the tools that providers run."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        """Prepare a supported tool for a response; `ApiError` that names the field, below `param`, if it cannot.

        Acquires nothing that has to be released: the model may never call it.
        """
        ...
