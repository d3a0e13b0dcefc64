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
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from antwort.api.errors import ApiError
from antwort.api.events import ENDINGS, AnyEvent
from antwort.api.ids import new_id
from antwort.api.items import Annotation
from antwort.api.requests import CreateResponse, check
from antwort.api.responses import Response, ResponseError, begin
from antwort.engine.classify import Offer, Ours, classify
from antwort.engine.context import Context, check_outputs, gather
from antwort.engine.driver import Drive
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


@dataclass
class LateWriter:
    """Writes what a store refused for now, again and again: a response that ended must not stay `in_progress`."""

    first_wait: float = 1.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def later(self, write: Callable[[], Awaitable[None]]) -> None:
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
    _late: LateWriter
    abandoned: bool = False
    """The server stops: whoever starts next finds this unfinished, and ends it or does it again."""

    @property
    def fault(self) -> ModelFault | None:
        """Why the model failed, if it did."""
        return self._drive.fault

    async def events(self) -> AsyncGenerator[AnyEvent]:
        """Do the work, event by event. Closing this cancels it; what came of it is stored in any case."""
        events = self._drive.events()
        settled = False
        try:
            async for event in events:
                if isinstance(event, ENDINGS):
                    self.response = copy.copy(event.response)  # whatever becomes of the reader, this is how it ended
                    settled = True
                    await self._settle()
                yield event
        finally:
            await events.aclose()
            if not settled:
                self.response = self._drive.response
                if not self.abandoned:
                    await asyncio.shield(self._settle())

    async def finish(self) -> Response:
        """Do all the work, for a caller who wants only the end of it."""
        async for _ in self.events():
            pass
        return self.response

    def model_request(self) -> ModelRequest:
        """What the model would be asked first."""
        return first_request(self._drive.job)

    async def _settle(self) -> None:
        """Durable before visible: the store knows how it ended before anybody is told."""
        if not self.response.ended:
            self.response.status = "cancelled"
        try:
            await self._write()
        except StoreFault:
            self._late.later(self._write)
            raise

    async def _write(self) -> None:
        said = self.response.status in ("completed", "incomplete")
        appended = [*(item.raw for item in self.context.given), *self.response.output] if said else []
        if self.stored:
            await self._store.finish_response(self.owner, self.response, appended=appended)
        elif self.response.conversation is not None and appended:
            await self._store.add_items(self.owner, self.response.conversation.id, appended)


@dataclass
class Engine:
    """Everything that a response needs."""

    models: Models
    toolbox: Toolbox
    store: Store
    max_turns: int = 32
    now: Callable[[], int] = field(default=lambda: int(time.time()))
    late: LateWriter = field(default_factory=LateWriter)

    async def start(self, owner: Owner, request: CreateResponse) -> Work:
        """Check everything that can be wrong with a request, and write that the response began."""
        check(request)
        chosen = self.models.find(request.model)
        response = begin(request, identifier=new_id("resp_"), model=chosen.name, created_at=self.now())
        work = await self._prepare(owner, request, response)
        if work.stored:
            await self._write_begun(work, request)
        return work

    async def _write_begun(self, work: Work, request: CreateResponse) -> None:
        given = [item.raw for item in work.context.given]
        asked = msgspec.to_builtins(request)
        stored = StoredResponse(response=work.response, input=given, request=asked)
        await self.store.begin_response(work.owner, stored)

    async def resume(self, owner: Owner, stored: StoredResponse) -> Work:
        """Do the work of a response that a process which is gone had only begun."""
        request = msgspec.convert(stored.request, CreateResponse)
        again = msgspec.structs.replace(request, input=stored.input)
        fresh = begin(
            request,
            identifier=stored.response.id,
            model=stored.response.model,
            created_at=stored.response.created_at,
        )
        work = await self._prepare(owner, again, fresh)
        await self._write_begun(work, again)  # without the events that the other process kept
        return work

    async def _prepare(self, owner: Owner, request: CreateResponse, response: Response) -> Work:
        chosen = self.models.find(request.model)
        offer = classify(response.tools, response.tool_choice, self.toolbox)
        context = await gather(request, owner, self.store)
        check_outputs(context)
        benches = await self._benches(owner, request, response, context, offer)

        def annotate(text: str) -> list[Annotation]:
            return [annotation for bench in benches.values() for annotation in bench.annotate(text)]

        job = Job(
            request,
            response,
            chosen.upstream,
            context.history,
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
        return {at: await self.toolbox.prepare(response.tools[at], f"tools[{at}]", known) for at in hosted}

    async def count_tokens(self, owner: Owner, request: CreateResponse) -> int:
        """How many input tokens a request would have."""
        check(request)
        chosen = self.models.find(request.model)
        response = begin(request, identifier=new_id("resp_"), model=chosen.name, created_at=self.now())
        work = await self._prepare(owner, request, response)
        return await chosen.model.count_tokens(work.model_request())

    async def recover(self) -> list[Work]:
        """What a process that is gone has left: background responses to do again; all others end as failed."""
        again: list[Work] = []
        for owner, stored in await self.store.unfinished():
            if stored.response.background:
                try:
                    again.append(await self.resume(owner, stored))
                    continue
                except (ApiError, msgspec.ValidationError):
                    _logger.exception("response %s cannot be resumed", stored.response.id)
            await self.store.finish_response(owner, _lost(stored.response))
        return again


def _lost(response: Response) -> Response:
    error = ResponseError("server_error", "The server was stopped while it worked on this response.")
    return msgspec.structs.replace(response, status="failed", error=error)
