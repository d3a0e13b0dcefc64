"""What the engine asks of models, tools and stores. Protocols and the values that cross them.

Each port has a conformance suite: `antwort.testing.model`, `antwort.testing.store`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct, field

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
"""The parameters of a tool that takes free text, for a model that can only write JSON."""


class FunctionSpec(Struct, frozen=True):
    """A tool as a model is told of it.

    `free_text` takes a string instead of JSON; a model writes its calls as JSON all the
    same, with that string as `input`.
    """

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool = False
    free_text: bool = False
    grammar: GrammarFormat | None = None
    """What of free text is allowed."""
    now: str | None = None
    """What holds just now, such as the files that are there. Apart, for models that want what changes to come last."""

    @property
    def told(self) -> str:
        """All that a model is told of it."""
        return "\n".join(filter(None, (self.description, self.now)))


class Must(Struct, frozen=True):
    """The model must call this function."""

    name: str


Choice: TypeAlias = Literal["auto", "none", "required"] | Must
"""Whether the model may, must not or must call; or which function it must."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One request to a model: the history so far, and what it may do next."""

    model: str
    items: Sequence[Item]
    instructions: str | None = None
    tools: Sequence[FunctionSpec] = ()
    choice: Choice = "auto"
    parallel: bool = True
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = field(default_factory=TextFormat)
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    """How many likely tokens to tell beside each that was chosen; None where logprobs are not asked for at all."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning: ReasoningOptions | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    user: str | None = None


class TextPiece(Struct, frozen=True):
    """The model says something. `logprobs` are as the wire has them, where they were asked for."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


class RefusalPiece(Struct, frozen=True):
    """The model says that it will not."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """The model thinks aloud."""

    text: str


class SummaryPiece(Struct, frozen=True):
    """The model sums up what it thinks."""

    text: str


class SealedReasoning(Struct, frozen=True):
    """The upstream's own form of the reasoning, to be sent back as it is."""

    encrypted_content: str


class CallPiece(Struct, frozen=True):
    """A call begins, or goes on: pieces of one call share `index`. The first names the function."""

    index: int
    name: str = ""
    call_id: str = ""
    arguments: str = ""


class Finished(Struct, frozen=True):
    """The model is done. Always the last piece."""

    reason: Literal["stop", "length", "content_filter", "calls"] = "stop"
    usage: Usage = field(default_factory=Usage)


Piece: TypeAlias = TextPiece | RefusalPiece | ReasoningPiece | SummaryPiece | SealedReasoning | CallPiece | Finished


class ModelFault(Exception):
    """The model, or the way to it, failed. The message is ours: what an upstream said is logged, never passed on."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        status: int = 502,
        retry_after: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.retryable = retryable

    @property
    def kind(self) -> str:
        """Whose fault it is, as the wire says it."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


class Model(Protocol):
    """Something that continues a conversation."""

    def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """The pieces of the answer as they come, ended by `Finished`; `ModelFault` where that fails.

        Whoever stops before the end closes it (`contextlib.aclosing`), which stops the model too.
        """
        ...

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens the request's input has, as exactly as this model can tell."""
        ...

    async def aclose(self) -> None:
        """Let go of connections and processes."""
        ...


class ChosenModel(Struct, frozen=True):
    """A model, by the name that the client gave, and the name that its backend knows."""

    name: str
    model: Model
    upstream: str
    reads_files: bool = True
    """Whether it takes files of any kind; else it is shown what is text, and images."""


class Models(Protocol):
    """The models that there are."""

    def find(self, name: str | None) -> ChosenModel:
        """The model of this name, or the default one; `ApiError` 400 `model_not_found` where there is none."""
        ...

    def names(self) -> list[str]:
        """Every name that a request may use."""
        ...


# ── hosted tools ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Progress(Struct, frozen=True):
    """A progress event of a hosted call, such as `response.code_interpreter_call.interpreting`."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


class ToolDone(Struct, frozen=True):
    """The end of a hosted call: its item for the client, and the text that the model reads.

    The item is complete: `api.projection` removes what the request did not `include`.
    """

    item: dict[str, Any]
    text: str


class ToolContext(Struct, frozen=True, kw_only=True):
    """The request that a hosted tool is prepared for."""

    owner: Owner
    response_id: str
    history: Sequence[Item]
    given: Sequence[Item]
    """The end of the history: the items of this request."""
    include: frozenset[str]


class HostedCall(Protocol):
    """One call of a hosted tool, from the moment that the model begins to write it.

    A call reports its failure with `ToolDone`. An exception of any method makes it a failed call.
    """

    @property
    def item(self) -> dict[str, Any]:
        """The item at the start of the call, with an `id` and a `type`."""
        ...

    def started_events(self) -> Sequence[Progress]:
        """Events that follow `response.output_item.added`."""
        ...

    def write(self, delta: str) -> Sequence[Progress]:
        """Take the next part of the arguments, as the model writes them; the events of it."""
        ...

    def run(self) -> AsyncIterator[Progress | ToolDone]:
        """Run the call, once the arguments are complete; the last value is `ToolDone`."""
        ...

    def failed(self, reason: str) -> ToolDone:
        """The end of a call that could not be run."""
        ...


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

    async def open(self, name: str, call_id: str) -> HostedCall:
        """Begin a call of one of the functions."""
        ...

    def annotate(self, text: str) -> Sequence[Annotation]:
        """Citations in the model's text of what the calls produced."""
        ...

    def lease(self) -> AbstractContextManager[object]:
        """Entered before the first event and left after the last: holds the resources that the calls share."""
        ...


class ToolRegistry(Protocol):
    """The hosted tools. `antwort.tools.ToolRegistry` implements it."""

    def supports(self, tool: ToolDeclaration) -> bool:
        """Whether a provider runs tools of this type. Costs nothing."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        """Prepare a supported tool for a response; `ApiError` that names the field, below `param`, if it cannot.

        Acquires nothing that has to be released: the model may never call it.
        """
        ...
