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


# ── tools that are run here ──────────────────────────────────────────────────────────────────────────────────────────


class Progress(Struct, frozen=True):
    """An event of a hosted call, such as `response.code_interpreter_call.interpreting`."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


class ToolDone(Struct, frozen=True):
    """A hosted call is over: its item for the client, and the text that the model reads.

    The item is whole: what of it a client sees, `api.shown` decides.
    """

    item: dict[str, Any]
    text: str


class ToolContext(Struct, frozen=True, kw_only=True):
    """What a hosted tool may know of the response that it is made ready for."""

    owner: Owner
    response_id: str
    history: Sequence[Item]
    given: Sequence[Item]
    """The end of the history: what this request has brought."""
    include: frozenset[str]


class HostedCall(Protocol):
    """One call of a tool that is run here, from the moment the model begins to write it.

    What it cannot do is told by `ToolDone`. One that raises ends the whole response, so the
    registry lets none of its providers' calls do that.
    """

    @property
    def item(self) -> dict[str, Any]:
        """The item as it begins."""
        ...

    def opening(self) -> Sequence[Progress]:
        """Events right after it began."""
        ...

    def write(self, delta: str) -> Sequence[Progress]:
        """Events of some more of the arguments, as the model writes them."""
        ...

    def run(self) -> AsyncIterator[Progress | ToolDone]:
        """Run it, once the arguments are whole; the last thing that comes is `ToolDone`."""
        ...

    def failed(self, reason: str) -> ToolDone:
        """How it looks when it could not be run."""
        ...


class Workbench(Protocol):
    """A hosted tool that was made ready for one response: what its calls share."""

    @property
    def takes_files(self) -> bool:
        """Whether its calls can read the files of this history, also those that the model cannot be shown."""
        ...

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        """What the model is told of an offered function, now that more is known."""
        ...

    async def open(self, name: str, call_id: str) -> HostedCall:
        """Begin a call of one of the offered functions."""
        ...

    def annotate(self, text: str) -> Sequence[Annotation]:
        """What an answer of the model cites of what its calls have made."""
        ...

    def at_work(self) -> AbstractContextManager[object]:
        """Around all of the work on the response: what its calls share is kept until then, and given back after it."""
        ...


class Toolbox(Protocol):
    """The tools that are run here."""

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        """What a model is told of a declared tool; None where that tool is not run here."""
        ...

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        """Make an offered tool ready for a response; an `ApiError` that names the field, below `param`, if it cannot.

        Nothing is taken yet that would have to be given back: the model may never call it.
        """
        ...
