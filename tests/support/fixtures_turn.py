"""A stage for turns: a model that says what it is given, a tool that is run here, and the grammar of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from antwort.api import events as wire
from antwort.api.events import AnyEvent, ToolProgress, kind_of
from antwort.api.items import Annotation, Item
from antwort.api.requests import CreateResponse, check, decode, read_input
from antwort.api.responses import Response, Usage, initial_response
from antwort.api.tools import FileSearchTool, ToolDeclaration
from antwort.engine.classify import classify
from antwort.engine.ports import (
    Finished,
    FunctionSpec,
    HostedCall,
    ModelRequest,
    Piece,
    Progress,
    ToolContext,
    ToolDone,
    Workbench,
)
from antwort.engine.turn import Ask, Command, Emit, Job, NextPiece, NextStep, Open, Run, turn


class EchoCall:
    """A hosted call that answers with its own arguments."""

    def __init__(self, identifier: str) -> None:
        self._id = identifier
        self._arguments = ""

    @property
    def item(self) -> dict[str, Any]:
        return {"id": self._id, "type": "file_search_call", "status": "in_progress", "queries": [], "results": None}

    def opening(self) -> Sequence[Progress]:
        return [Progress("response.file_search_call.in_progress")]

    def write(self, delta: str) -> Sequence[Progress]:
        self._arguments += delta
        return []

    def steps(self) -> list[Progress | ToolDone]:
        done = {**self.item, "status": "completed", "queries": [self._arguments]}
        return [
            Progress("response.file_search_call.searching"),
            Progress("response.file_search_call.completed"),
            ToolDone(done, f"echo {self._arguments}"),
        ]

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        for step in self.steps():
            yield step

    def failed(self, reason: str) -> ToolDone:
        return ToolDone({**self.item, "status": "failed"}, reason)


class EchoToolbox:
    """`file_search` is run here; nothing else is."""

    takes_files = False

    def __init__(self) -> None:
        self.opened = 0
        self.at_works = 0

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        if not isinstance(tool, FileSearchTool):
            return None
        return [FunctionSpec("file_search", "Search.", {"type": "object", "properties": {}})]

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        return self

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        return spec

    def annotate(self, text: str) -> Sequence[Annotation]:
        return []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self.at_works += 1
        try:
            yield
        finally:
            self.at_works -= 1

    async def open(self, name: str, call_id: str) -> HostedCall:
        return self.open_now()

    def open_now(self) -> EchoCall:
        self.opened += 1
        return EchoCall(f"fs_{self.opened}")


class Stage:
    """Drives turns without an event loop. `says` is one list of pieces for each request to the model."""

    def __init__(self, request: dict[str, Any], *says: Sequence[Piece | Exception], max_turns: int = 32) -> None:
        self.says = list(says)
        self.asked: list[ModelRequest] = []
        self.events: list[AnyEvent] = []
        self.toolbox = EchoToolbox()
        parsed = decode(msgspec.json.encode({"model": "m", "input": "hi", **request}), CreateResponse)
        check(parsed)
        response = initial_response(parsed, identifier="resp_1", model="m", created_at=1)
        self.job = Job(
            request=parsed,
            response=response,
            model="m",
            history=read_input(parsed.input),
            offer=classify(response.tools, response.tool_choice, self.toolbox),
            now=lambda: 2,
            max_turns=max_turns,
        )

    def play(self) -> Response:
        loop = turn(self.job)
        pieces: list[Piece | Exception] = []
        steps: list[Progress | ToolDone] = []
        answer: object = None
        try:
            while True:
                command = loop.throw(answer) if isinstance(answer, Exception) else loop.send(answer)
                answer = None
                match command:
                    case Ask(request):
                        self.asked.append(request)
                        pieces = list(self.says.pop(0))
                    case NextPiece():
                        answer = pieces.pop(0)
                    case Open():
                        answer = self.toolbox.open_now()
                    case Run(call):
                        assert isinstance(call, EchoCall)
                        steps = call.steps()
                    case NextStep():
                        answer = steps.pop(0)
                    case Emit(event):
                        event.sequence_number = len(self.events)
                        self.events.append(event)
        except StopIteration as stop:
            return stop.value

    @property
    def kinds(self) -> list[str]:
        return [kind_of(event).removeprefix("response.") for event in self.events]

    def history(self) -> list[Item]:
        return list(self.asked[-1].items)


def used(output: int = 1) -> Finished:
    return Finished("stop", Usage(input_tokens=10, output_tokens=output, total_tokens=10 + output))


def check_grammar(events: Sequence[AnyEvent]) -> None:
    """What must hold for every stream: order, ids, indexes, numbers."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(events[0], wire.ResponseCreated)
    assert isinstance(events[1], wire.ResponseInProgress)
    assert isinstance(events[-1], wire.FINAL_EVENTS)
    open_items: dict[int, str] = {}
    begun = 0
    for event in events:
        match event:
            case wire.OutputItemAdded(output_index=index, item=item):
                assert index == begun
                begun += 1
                open_items[index] = item["id"]
            case wire.OutputItemDone(output_index=index, item=item):
                assert open_items.pop(index) == item["id"]
            case ToolProgress() | wire._ItemProgress():
                assert open_items[event.output_index] == event.item_id
            case _:
                pass
    if isinstance(events[-1], wire.ResponseCompleted):
        assert open_items == {}
    _check_texts(events)


def _check_texts(events: Sequence[AnyEvent]) -> None:
    """Deltas add up to what is said to be whole."""
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        match event:
            case wire.OutputTextDelta(item_id=item, content_index=at, delta=delta):
                texts[item, at] = texts.get((item, at), "") + delta
            case wire.OutputTextDone(item_id=item, content_index=at, text=text):
                assert texts[item, at] == text
            case _:
                pass


Commands = Generator[Command, Any, Response]
