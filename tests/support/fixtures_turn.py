"""Fixtures for turns: a scripted model, a hosted echo tool, a driver without an event loop, the grammar of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from antwort.api import events as wire
from antwort.api.events import AnyEvent, ToolProgress, kind_of
from antwort.api.items import Item
from antwort.api.requests import CreateResponse, check, decode, read_input
from antwort.api.responses import Response, Usage, initial_response
from antwort.api.tools import ToolDeclaration, tool_type
from antwort.engine.checkpoint.steps import Step
from antwort.engine.classify import check_tool_types, classify, is_hosted
from antwort.engine.commands import Ask, Continue, Count, Emit, NextPiece, Open, Run
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.declared.tools import DeclaredTool, declare
from antwort.engine.hosted.guarded import GuardedCall, HostedTool, HostedTools
from antwort.engine.ports import (
    CallDefaults,
    CallRefused,
    Finished,
    FunctionSpec,
    HostedCall,
    ModelFault,
    ModelRequest,
    NextItem,
    OpeningItem,
    Piece,
    PreparedTool,
    Progress,
    TextAnnotator,
    ToolContext,
    ToolDefaults,
    ToolDone,
    WholeCall,
    WholeTextAnnotator,
)
from antwort.engine.turn import TurnLoop
from antwort.models.tokens import estimate_request

T = TypeVar("T")


class EchoCall(CallDefaults):
    """A hosted call that answers with its own arguments."""

    def __init__(self, identifier: str) -> None:
        self._id = identifier
        self._arguments = ""

    @property
    def item(self) -> dict[str, Any]:
        return {"id": self._id, "type": "file_search_call", "status": "in_progress", "queries": [], "results": None}

    def started_events(self) -> Sequence[Progress]:
        return [Progress("response.file_search_call.in_progress")]

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments += delta
        return []

    async def run(self) -> AsyncIterator[Progress | NextItem | ToolDone]:
        yield Progress("response.file_search_call.searching")
        yield Progress("response.file_search_call.completed")
        done = {**self.item, "status": "completed", "queries": [self._arguments]}
        yield ToolDone(done, f"echo {self._arguments}")

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**self.item, "status": "failed"}, reason)


class PairCall(EchoCall):
    """A call whose output is an item of its own, as that of a shell."""

    def __init__(self, identifier: str) -> None:
        super().__init__(identifier)
        self._output: dict[str, Any] | None = None

    async def run(self) -> AsyncIterator[Progress | NextItem | ToolDone]:
        yield Progress("response.shell_call_command.done", {"command": "ls"}, has_item_id=False)
        done = {**self.item, "status": "completed", "queries": [self._arguments]}
        self._output = {"id": f"out_{self._id}", "type": "shell_call_output", "status": "completed"}
        yield NextItem(done, self._output)
        yield Progress("response.shell_call_output_content.delta", {"delta": {"stdout": "x"}})
        yield ToolDone({**self._output, "output": []}, f"echo {self._arguments}")

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**(self._output or self.item), "status": "failed"}, reason)


class ClientRunCall(EchoCall):
    """A call that the client runs."""

    def started_events(self) -> Sequence[Progress]:
        return []

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        yield ToolDone({**self.item, "status": "completed", "queries": [self._arguments]}, "", awaits_client=True)


class CommandCall(ClientRunCall):
    """One that fails where it is broken."""

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        if "broken" in self._arguments:
            yield ToolDone({**self.item, "status": "incomplete"}, "Nothing was done.", is_broken=True)
            return
        async for step in super().run():
            yield step


class EchoTools(ToolDefaults):
    """A tool registry that hosts `file_search` and nothing else; it is its own prepared tool."""

    made: Sequence[dict[str, Any]] = ()
    """Of a response that is continued: its output so far."""

    reads_files = False
    specs: Sequence[FunctionSpec] = (FunctionSpec("file_search", "Search.", {"type": "object", "properties": {}}),)

    def __init__(self) -> None:
        self.opened = 0
        self.leases = 0

    tool_types: Sequence[str] = ("file_search",)

    def supports(self, tool: ToolDeclaration) -> bool:
        return tool_type(tool) in self.tool_types

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        return self

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator()

    @contextmanager
    def lease(self) -> Generator[None]:
        self.leases += 1
        try:
            yield
        finally:
            self.leases -= 1

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        self.opened += 1
        return EchoCall(f"fs_{self.opened}")


class PairTools(EchoTools):
    """Calls of two items."""

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        self.opened += 1
        return PairCall(f"fs_{self.opened}")


class SharedCall(EchoCall):
    """A call in the container that all calls share."""

    @property
    def serial_key(self) -> str | None:
        return "container"


class SharedTools(EchoTools):
    """Calls that run one after another."""

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        self.opened += 1
        return SharedCall(f"fs_{self.opened}")


class ClientRunTools(EchoTools):
    """Calls that the client runs. Those with `broken` in their arguments are refused."""

    is_client_run = True
    is_written_whole = True

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        if "broken" in arguments:
            raise CallRefused("The patch is broken.", is_broken=True)
        self.opened += 1
        return ClientRunCall(f"fs_{self.opened}")


class CommandTools(EchoTools):
    """Calls that the client runs, whose items begin while they are written. Those with `broken` in them fail."""

    is_client_run = True

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        self.opened += 1
        return CommandCall(f"fs_{self.opened}")


class OpeningTools(EchoTools):
    """Tools that list themselves, and of which the client has approved two calls."""

    def opening_items(self) -> Sequence[OpeningItem]:
        if any(item["id"] == "mcpl_1" for item in self.made):
            return ()
        listed = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "s", "tools": []}
        return [OpeningItem(listed, [Progress("response.mcp_list_tools.completed")], {**listed, "tools": ["t"]})]

    def opening_calls(self) -> Sequence[WholeCall]:
        if any(item["type"] == "file_search_call" for item in self.made):
            return ()
        return [WholeCall("file_search", f"call_{name}", f'{{"q": "{name}"}}') for name in ("alpha", "beta")]


def prepared(tools: Sequence[DeclaredTool], tool: PreparedTool) -> dict[int, PreparedTool]:
    """Every hosted tool of these, prepared as this one."""
    return {index: tool for index, one in enumerate(tools) if is_hosted(one)}


class TurnRunner:
    """Drives a turn without an event loop. `replies` is one list of pieces for each request to the model.

    With `compaction` there are also requests for summaries; these are in `requests` and in `summary_requests`.
    """

    def __init__(
        self,
        request: dict[str, Any],
        *replies: Sequence[Piece | Exception],
        max_turns: int = 32,
        compaction: Callable[[Sequence[Item]], CompactionPlan] | None = None,
        history: Sequence[Item] | None = None,
        tools: Callable[[], EchoTools] | None = None,
    ) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []
        self.summary_requests: list[ModelRequest] = []
        self.counts: list[int | ModelFault] = []
        """Results of token counts; an estimate if there are none left."""
        self.events: list[AnyEvent] = []
        self.first_sequence = 0
        self.transactions: list[tuple[list[AnyEvent], Step | None]] = []
        """What a store would have, in order: events, and the step that is stored together with them."""
        self.ran: list[str] = []
        """The ids of the calls that were run."""
        self._started: list[GuardedCall] = []
        """The calls that were begun beside another, and are not read yet."""
        self.tools = tools() if tools else EchoTools()
        parsed = decode(msgspec.json.encode({"model": "m", "input": "hi", **request}), CreateResponse)
        check(parsed)
        response = initial_response(parsed, identifier="resp_1", model="m", created_at=1)
        declared = declare(parsed.tools or ())
        check_tool_types(declared, self.tools)
        hosted = prepared(declared, self.tools)
        self._hosted = HostedTools(
            {
                i: HostedTool(
                    "file_search", tool, tuple(tool.specs), tool.reads_files, tool.is_client_run, tool.is_written_whole
                )
                for i, tool in hosted.items()
            }
        )
        visible = read_input(parsed.input) if history is None else list(history)
        self.turn = TurnLoop(
            parsed,
            response,
            upstream_model="m",
            history=visible,
            offer=classify(declared, response.tool_choice, hosted),
            now=lambda: 2,
            max_turns=max_turns,
            compaction=compaction(visible) if compaction else None,
        )

        self.open_response()

    def open_response(self) -> None:
        """Have the turn begin with what the tools say. Tools may say less after a crash."""
        self.turn.opening = self._hosted.opening()

    def run(self) -> Response:
        commands = self.turn.run()
        pieces: list[Piece | Exception] = []
        result: object = None
        try:
            while True:
                command = commands.throw(result) if isinstance(result, Exception) else commands.send(result)
                result = None
                match command:
                    case Count(request):
                        result = self._count(request)
                    case Ask(request, for_summary):
                        self.requests.append(request)
                        self.summary_requests += [request] if for_summary else []
                        pieces = self.reply(command)
                        result = pieces.pop(0)
                    case NextPiece():
                        result = pieces.pop(0)
                    case Open(call, tool_index):
                        result = run_now(self._hosted.open(tool_index, call))
                    case Run() | Continue():
                        result = self._run_call(command)
                    case Emit(events, step):
                        self._emit(*events)
                        if step is not None:
                            self._store_together(len(events), step)
        except StopIteration as stop:
            return stop.value

    def _run_call(self, command: Run | Continue) -> NextItem | ToolDone:
        if isinstance(command, Run):
            self.transactions.append(([], command.step))
            if self.tools.is_client_run:
                pass  # nothing runs
            elif command.call not in self._started:
                self.ran += [one.call_id for one in (command.named, *command.beside)]
                self._started += [one.call for one in command.beside]
            else:
                self._started.remove(command.call)
        call = command.call
        while isinstance(step := call.deliver(run_now(call.produce())), ToolProgress):
            self._emit(step)
        return step

    def reply(self, ask: Ask) -> list[Piece | Exception]:
        """The reply to a request."""
        return list(self.replies.pop(0))

    def _count(self, request: ModelRequest) -> int | ModelFault:
        return self.counts.pop(0) if self.counts else estimate_request(request)

    def _emit(self, *events: AnyEvent) -> None:
        for event in events:
            event.sequence_number = self.first_sequence + len(self.events)
            self.events.append(event)
            self.transactions.append(([event], None))

    def _store_together(self, count: int, step: Step) -> None:
        """As the driver does: the last events are stored in one transaction, together with a step."""
        together = [event for (event,), _ in self.transactions[-count:]]
        del self.transactions[-count:]
        # A reported end of a call is stored with its result.
        while self.transactions and _reports_end(*self.transactions[-1]):
            together = [*self.transactions.pop()[0], *together]
        self.transactions.append((together, step))

    @property
    def kinds(self) -> list[str]:
        return [kind_of(event).removeprefix("response.") for event in self.events]

    def history(self) -> list[Item]:
        return list(self.requests[-1].items)


def _reports_end(events: Sequence[AnyEvent], step: Step | None) -> bool:
    return step is None and any(kind_of(one).endswith(".completed") for one in events)


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine has to wait")


def used(output: int = 1) -> Finished:
    return Finished("stop", Usage(input_tokens=10, output_tokens=output, total_tokens=10 + output))


def check_grammar(events: Sequence[AnyEvent], *, is_continued: bool = False) -> None:
    """Check the rules of every stream: order, ids, indexes, sequence numbers.

    A continued response is in the background, and may have gaps in its sequence numbers.
    """
    numbers = [event.sequence_number for event in events]
    assert numbers == (sorted(set(numbers)) if is_continued else list(range(len(events))))
    opening = [wire.ResponseCreated, *([wire.ResponseQueued] if is_continued else []), wire.ResponseInProgress]
    assert [type(event) for event in events if isinstance(event, tuple(opening))] == opening
    assert [type(event) for event in events[: len(opening)]] == opening
    assert [event for event in events if isinstance(event, wire.FINAL_EVENTS)] == [events[-1]]
    open_items: dict[int, str] = {}
    begun = 0
    for event in events:
        match event:
            case wire.OutputItemAdded(output_index=index, item=item):
                assert index == begun
                assert open_items == {}, "an item is done before the next one is added"
                begun += 1
                open_items[index] = item["id"]
            case wire.OutputItemDone(output_index=index, item=item):
                assert open_items.pop(index) == item["id"]
            case ToolProgress(item_id=None):
                assert event.output_index in open_items
            case ToolProgress() | wire._ItemProgress():
                assert open_items[event.output_index] == event.item_id
            case _:
                pass
    if isinstance(events[-1], wire.ResponseCompleted):
        assert open_items == {}
    _check_texts(events)


def _check_texts(events: Sequence[AnyEvent]) -> None:
    """The deltas add up to the complete text."""
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        match event:
            case wire.OutputTextDelta(item_id=item, content_index=at, delta=delta):
                texts[item, at] = texts.get((item, at), "") + delta
            case wire.OutputTextDone(item_id=item, content_index=at, text=text):
                assert texts[item, at] == text
            case _:
                pass
