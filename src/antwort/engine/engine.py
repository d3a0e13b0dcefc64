"""The engine: from a request to a response that is stored, streamed, run in the background, or all of it.

There is one path. `start` prepares a response and writes that it began; its `events` do
the work as they are taken. Streaming sends them, a blocking caller folds them, background
mode keeps them. Before the last event is handed out, the response is stored as it ended.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antwort.api.errors import ApiError, unavailable
from antwort.api.events import FINAL_EVENTS, AnyEvent, ResponseFailed, ResponseInProgress, to_sse
from antwort.api.ids import new_id
from antwort.api.items import Annotation
from antwort.api.requests import CreateResponse, check, check_input
from antwort.api.responses import Response, ResponseError, initial_response
from antwort.engine.attachments import Attacher
from antwort.engine.classify import Offer, Ours, classify
from antwort.engine.context import Context, check_outputs, gather
from antwort.engine.driver import Drive
from antwort.engine.event_buffer import EventBuffer, Frame
from antwort.engine.fold import fold
from antwort.engine.ports import (
    ModelFault,
    ModelRequest,
    Models,
    Owner,
    Store,
    StoredResponse,
    StoreFault,
    Toolbox,
    ToolContext,
    Workbench,
)
from antwort.engine.turn import Job, first_request

_logger = logging.getLogger(__name__)

_LONGEST_WAIT = 30.0
_HAD_SECRETS = "antwort:had_secrets"
_RESUMED = "antwort:resumed"


@dataclass
class RetryingWriter:
    """Writes what a store refused for now, again and again: a response that ended must not stay `in_progress`."""

    first_wait: float = 1.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def schedule(self, write: Callable[[], Awaitable[None]]) -> None:
        """Try until it is written."""
        task = asyncio.create_task(self._try(write))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, write: Callable[[], Awaitable[None]]) -> None:
        wait = self.first_wait
        while True:
            await asyncio.sleep(wait)
            try:
                return await write()
            except StoreFault:
                wait = min(_LONGEST_WAIT, wait * 2)

    async def aclose(self) -> None:
        """Give up. What is still unwritten is found unfinished on the next start."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Work:
    """A response under way. `events` is to be iterated once; `response` is how it stands, in the end how it ended."""

    owner: Owner
    response: Response
    stored: bool
    context: Context
    _drive: Drive
    _store: Store
    _late: RetryingWriter
    server_stopping: bool = False
    """The server stops: whoever starts next finds this unfinished, and ends it or does it again."""

    def __post_init__(self) -> None:
        self.journal = EventBuffer(self._store, self.owner, self.response.id)
        """Where the events of a background response are kept, up to the last ones, which are written with its end."""
        self._last: list[Frame] = []

    @property
    def fault(self) -> ModelFault | None:
        """Why it failed, if it did."""
        return self._drive.fault

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """Do the work, event by event. Closing this cancels it; what came of it is stored in any case."""
        events = self._drive.events()
        settled = False
        try:
            async for event in events:
                if isinstance(event, FINAL_EVENTS):
                    self.response = copy.copy(event.response)  # whatever becomes of the reader, this is how it ended
                    settled = True
                    await _to_its_end(self._settle(event))
                yield event
                if isinstance(event, ResponseInProgress):  # handed out before: cancelled meanwhile, it would be lost
                    await self._write_in_progress(event.response)
        finally:
            await events.aclose()
            if not settled:
                self.response = self._drive.response
                if not self.server_stopping:
                    await _to_its_end(self._settle(*self._drive.parting))

    async def finish(self) -> Response:
        """Do all the work, for a caller who wants only the end of it."""
        return fold([event async for event in self.events()])

    def model_request(self) -> ModelRequest:
        """What the model would be asked first."""
        return first_request(self._drive.job)

    async def _settle(self, *last: AnyEvent) -> None:
        """Durable before visible: the store knows how it ended before anybody is told."""
        if not self.response.ended:
            self.response.status = "cancelled"
        if self.response.background:
            self._last = await self.journal.close(*last)
        try:
            await self._write()
        except StoreFault:
            self._late.schedule(self._write)
            raise

    async def _write_in_progress(self, response: Response) -> None:
        """Whoever polls is to see that it is no longer queued. Nothing else depends on it."""
        if self.stored and response.background:
            with suppress(StoreFault):
                await self._store.finish_response(self.owner, response)

    async def _write(self) -> None:
        said = self.response.status in ("completed", "incomplete")
        appended = [*(item.raw for item in self.context.given), *self.response.output] if said else []
        if self.stored:
            await self._store.finish_response(self.owner, self.response, appended=appended, events=self._last)
        elif self.response.conversation is not None and appended:
            await self._store.add_items(self.owner, self.response.conversation.id, appended)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do something that must not be cut short: whoever is cancelled meanwhile is so afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@dataclass
class Engine:
    """Everything that a response needs."""

    models: Models
    toolbox: Toolbox
    store: Store
    max_turns: int = 32
    max_attached: int = 50 * 1024 * 1024
    max_resumed: int = 3
    """How often a background response is done again: one that ends every process must not do so for ever."""
    now: Callable[[], int] = field(default=lambda: int(time.time()))
    late: RetryingWriter = field(default_factory=RetryingWriter)

    async def start(self, owner: Owner, request: CreateResponse) -> Work:
        """Check everything that can be wrong with a request, and write that the response began."""
        check(request)
        check_input(request)
        chosen = self.models.find(request.model)
        response = initial_response(request, identifier=new_id("resp_"), model=chosen.name, created_at=self.now())
        work = await self._prepare(owner, request, response)
        if work.stored:
            await self._write_begun(work, request)
        return work

    async def _write_begun(self, work: Work, request: CreateResponse, resumed: int = 0) -> None:
        given = [item.raw for item in work.context.given]
        tools = work.response.tools  # without their secrets, which are not written down
        asked = msgspec.to_builtins(msgspec.structs.replace(request, tools=tools, input=None))
        if tools != (request.tools or []):
            asked[_HAD_SECRETS] = True
        if resumed:
            asked[_RESUMED] = resumed
        stored = StoredResponse(response=work.response, input=given, request=asked)
        await self.store.begin_response(work.owner, stored)

    async def resume(self, owner: Owner, stored: StoredResponse) -> Work:
        """Do the work of a response that a process which is gone had only begun."""
        if stored.request.get(_HAD_SECRETS):
            raise unavailable("Its tools need secrets, and those are not written down. Ask again.")
        resumed = 1 + stored.request.get(_RESUMED, 0)
        if resumed > self.max_resumed:
            raise unavailable(f"It was begun {resumed} times, and none of them ended it.")
        request = msgspec.convert({k: v for k, v in stored.request.items() if k != _RESUMED}, CreateResponse)
        again = msgspec.structs.replace(request, input=stored.input)
        fresh = initial_response(
            request,
            identifier=stored.response.id,
            model=stored.response.model,
            created_at=stored.response.created_at,
        )
        work = await self._prepare(owner, again, fresh)
        # Without the events that the other process kept. To prepare was survived before, so only the work is counted.
        await self._write_begun(work, again, resumed)
        return work

    async def _prepare(self, owner: Owner, request: CreateResponse, response: Response) -> Work:
        chosen = self.models.find(request.model)
        offer = classify(request.tools or [], response.tool_choice, self.toolbox)
        context = await gather(request, owner, self.store)
        check_outputs(context)
        benches = await self._benches(owner, request, response, context, offer)
        spared = any(bench.takes_files for bench in benches.values())
        history = await Attacher(owner, self.store, chosen, self.max_attached, spared=spared).history(context)

        def annotate(text: str) -> list[Annotation]:
            return [annotation for bench in benches.values() for annotation in bench.annotate(text)]

        job = Job(
            request,
            response,
            chosen.upstream,
            history,
            offer.described(benches),
            self.now,
            self.max_turns,
            annotate,
        )
        drive = Drive(job, chosen.model, benches)
        return Work(owner, response, response.store, context, drive, self.store, self.late)

    async def _benches(
        self, owner: Owner, request: CreateResponse, response: Response, context: Context, offer: Offer
    ) -> dict[int, Workbench]:
        """Make ready what is run here. What cannot be is an error now, before anything has been sent."""
        hosted = sorted({whose.at for whose in offer.whose.values() if isinstance(whose, Ours)})
        known = ToolContext(
            owner=owner,
            response_id=response.id,
            history=context.history,
            given=context.given,
            include=frozenset(request.include or ()),
        )
        tools = request.tools or []  # with what the response leaves out, such as secrets
        return {at: await self.toolbox.prepare(tools[at], f"tools[{at}]", known) for at in hosted}

    async def count_tokens(self, owner: Owner, request: CreateResponse) -> int:
        """How many input tokens a request would have."""
        check(request)
        chosen = self.models.find(request.model)
        response = initial_response(request, identifier=new_id("resp_"), model=chosen.name, created_at=self.now())
        work = await self._prepare(owner, request, response)
        return await chosen.model.count_tokens(work.model_request())

    async def recover(self) -> list[Work]:
        """What a process that is gone has left: background responses to do again; all others end as failed.

        One that cannot be resumed, for whichever reason, keeps nobody from starting; a store that takes nothing does.
        """
        again: list[Work] = []
        for owner, stored in await self.store.unfinished():
            why = ""
            if stored.response.background:
                try:
                    again.append(await self.resume(owner, stored))
                    continue
                except ApiError as error:
                    _logger.warning("response %s cannot be resumed: %s", stored.response.id, error)
                    why = f" {error}"
                except Exception:  # a lost file, a broken tool: of one response, while all others wait for the start
                    _logger.exception("response %s cannot be resumed", stored.response.id)
            await self._end(owner, _lost(stored.response, why))
        return again

    async def _end(self, owner: Owner, response: Response) -> None:
        """Write that a response has failed, also as the end of its events, where those are kept."""
        events: list[Frame] = []
        if response.background:
            number = 0
            while kept := await self.store.read_events(owner, response.id, number - 1):
                number = kept[-1][0] + 1
            events = [(number, to_sse(ResponseFailed(response=response, sequence_number=number)))]
        await self.store.finish_response(owner, response, events=events)


def _lost(response: Response, why: str) -> Response:
    message = f"The server was stopped while it worked on this response.{why}"
    return msgspec.structs.replace(response, status="failed", error=ResponseError("server_error", message))
