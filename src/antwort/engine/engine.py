"""Engine: from a request to a `ResponseRun`, whose events are streamed, awaited, or run in the background.

`start` validates the request, prepares its tools and history, and stores that the response
began. `resume` continues a background response that another process left unfinished.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from antwort.api import items
from antwort.api.errors import ApiError, invalid, unavailable
from antwort.api.ids import new_id
from antwort.api.items import Item, Raw
from antwort.api.requests import CreateResponse, check, check_input, given_schemas
from antwort.api.responses import CompactedResponse, IgnoredTool, Response, Usage, initial_response
from antwort.api.secrets import without_secrets
from antwort.api.token_estimate import estimate_item
from antwort.api.tools import ToolDeclaration, ToolTypes, convert_with_tools, tool_name, tool_type
from antwort.config import CompactionSettings
from antwort.engine.attachments import Attacher
from antwort.engine.attachments.input_urls import InputUrls
from antwort.engine.checkpoint.state import Checkpoint, read_checkpoint
from antwort.engine.classify import (
    available_tool_types,
    check_choice,
    check_tool_types,
    classify,
    is_available,
    is_hosted,
)
from antwort.engine.compaction.compactor import Compactor
from antwort.engine.compaction.opening import SealedReasoning, TenantSealer
from antwort.engine.compaction.plan import CompactionPlan
from antwort.engine.compaction.retention import Budgets
from antwort.engine.context import (
    NO_RECENT_RESPONSES,
    Context,
    RecentResponses,
    check_in_steps,
    check_outputs,
    load_context,
)
from antwort.engine.declared.approvals import check_approvals
from antwort.engine.declared.tools import DeclaredTool, declare, declared_tools, has_secrets
from antwort.engine.driver import ResponseRun, RetryingWriter
from antwort.engine.hosted.cancellation import raise_leaked
from antwort.engine.hosted.guarded import HostedTool, HostedTools
from antwort.engine.output_builder import OutputBuilder, SealReasoning
from antwort.engine.ports import ChosenModel, Models, SamplingOptions, ToolContext, ToolRegistry
from antwort.engine.stores import Owner, Store, StoredResponse, StoreFault
from antwort.engine.turn import TurnLoop
from antwort.sealing import Sealer

_logger = logging.getLogger(__name__)

_CONTENT_READS = 4
"""Resumed responses that read contents of files at a time: all those of a replica that has ended begin at once."""
_DECLARED_RE = re.compile(r"tools\[(\d+)\]")


@dataclass
class Engine:
    """Starts and resumes responses."""

    models: Models
    tools: ToolRegistry
    store: Store
    sealer: Sealer
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    max_turns: int = 32
    max_attached: int = 50 * 1024 * 1024
    ignore_unavailable_tools: bool = False
    """Whether declared tools that this server lacks are left out, instead of an error."""
    max_resumed: int = 3
    """How often a background response is resumed: one that crashes the process must not do so for ever."""
    now: Callable[[], int] = field(default=lambda: int(time.time()))
    retries: RetryingWriter = field(default_factory=RetryingWriter)
    input_urls: InputUrls | None = None
    """Fetches the URLs of input items, if the operator allows it."""
    check_lease: Callable[[], None] = field(default=lambda: None)
    """Raises `StoreFault` if other replicas may take over the responses of this one."""
    _content_reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONTENT_READS))

    @property
    def tool_types(self) -> ToolTypes:
        """The tool types that requests may declare."""
        return ToolTypes(available_tool_types(self.tools), self.ignore_unavailable_tools)

    async def start(
        self,
        owner: Owner,
        request: CreateResponse,
        sampling: SamplingOptions | None = None,
        *,
        recent: RecentResponses = NO_RECENT_RESPONSES,
        generate: bool = True,
    ) -> ResponseRun:
        """Validate the request, prepare its response, and store that it began. `sampling` is for other wires.

        The response may continue one of `recent`. Without `generate` it is complete at once, without output: a later
        one continues it. `StoreFault`, and nothing is stored, while other replicas may take this one for dead: they
        would end it.
        """
        await self._check(request)
        if generate:
            check_input(request)
        chosen = self.models.find(request.model)
        if sampling is not None and sampling.logit_bias and not chosen.biases_logits:
            raise _no_logit_bias(chosen.name)
        run = await self._new_run(owner, request, chosen, sampling, recent)
        run.turn.generates = generate
        if run.is_stored:
            self.check_lease()
            await self._write_begun(run)
        return run

    async def count_tokens(self, owner: Owner, request: CreateResponse) -> int:
        """How many input tokens a request would have."""
        await self._check(request)
        chosen = self.models.find(request.model)
        run = await self._new_run(owner, request, chosen)
        return await chosen.model.count_tokens(run.model_request())

    async def compact(self, owner: Owner, request: CreateResponse) -> CompactedResponse:
        """Compact the history of a request. Nothing of it is stored."""
        await self._check(request)
        check_input(request)
        chosen = self.models.find(request.model)
        request = msgspec.structs.replace(request, store=False, input=_with_trigger(request.input))
        run = await self._new_run(owner, request, chosen)
        if run.turn.is_compacted_upstream:
            assert chosen.compaction is not None  # noqa: S101 - the plan says so
            done = await chosen.compaction.compact(run.model_request())
            return _compacted_response(run.response, done.output, done.usage)
        response = await run.finish()
        if run.fault is not None:
            raise run.fault
        assert run.turn.compacted is not None  # noqa: S101 - a triggered compaction has a result, or a fault
        users = [item.raw for item in run.turn.compacted.user_messages]
        return _compacted_response(response, [*users, *response.output], response.usage or Usage())

    async def resume(
        self,
        owner: Owner,
        stored: StoredResponse,
        launching: asyncio.Lock,
        launch: Callable[[ResponseRun], Awaitable[None]],
    ) -> None:
        """Launch a background response that an earlier process left unfinished, from its checkpoint.

        Without a checkpoint nothing of it was visible but that it had begun, and it starts again. The attempt is stored
        before the preparation, which may crash the process as well as the run. `launching` is held between the change
        in the store and the end of the launch.
        """
        if stored.had_secrets:
            raise unavailable("Its tools need secrets, and those are not stored. Send the request again.")
        resumed = 1 + stored.resumed
        if resumed > self.max_resumed:
            raise unavailable(f"It was begun {resumed} times, and none of them ended it.")
        await self.store.resume_response(owner, msgspec.structs.replace(stored, resumed=resumed))
        checkpoint = read_checkpoint(await self.store.read_steps(owner, stored.response.id))
        request = msgspec.structs.replace(convert_with_tools(stored.request, CreateResponse), input=stored.input)
        response = initial_response(
            request, identifier=stored.response.id, model=stored.response.model, created_at=stored.response.created_at
        )
        chosen = self.models.find(request.model)
        run = await self._prepare(owner, request, response, chosen, is_resumed=True, checkpoint=checkpoint)
        resumed_now = msgspec.structs.replace(stored, response=run.response, resumed=resumed)
        after = -1 if checkpoint is None else checkpoint.last_event
        async with launching:
            number = await self.store.resume_response(owner, resumed_now, after=after)
            if checkpoint is not None:
                run.continue_at(number, checkpoint.steps)
            await launch(run)

    async def _check(self, request: CreateResponse) -> None:
        if not self.ignore_unavailable_tools:
            check_tool_types(declare(request.tools or ()), self.tools)  # before the history is read
        check(request, self.tool_types)
        await check_in_steps(given_schemas(request))

    async def _new_run(
        self,
        owner: Owner,
        request: CreateResponse,
        chosen: ChosenModel,
        sampling: SamplingOptions | None = None,
        recent: RecentResponses = NO_RECENT_RESPONSES,
    ) -> ResponseRun:
        name = chosen.name if request.model is None else request.model
        response = initial_response(request, identifier=new_id("resp_"), model=name, created_at=self.now())
        return await self._prepare(owner, request, response, chosen, sampling=sampling, recent=recent)

    async def _prepare(
        self,
        owner: Owner,
        request: CreateResponse,
        response: Response,
        chosen: ChosenModel,
        *,
        is_resumed: bool = False,
        checkpoint: Checkpoint | None = None,
        sampling: SamplingOptions | None = None,
        recent: RecentResponses = NO_RECENT_RESPONSES,
    ) -> ResponseRun:
        """Everything that can be wrong with a request is an error here, before anything is sent or stored."""
        sealer = TenantSealer(self.sealer, owner.tenant)
        context = await load_context(
            request,
            owner,
            self.store,
            sealer,
            chosen,
            tool_types=self.tool_types,
            is_resumed=is_resumed,
            recent=recent,
        )
        check_outputs(context)
        if self.input_urls is not None and not is_resumed:
            images = chosen.reads_images or bool(request.tools)
            context = await self.input_urls.resolve(context, owner.tenant, images=images)
        tools = self._available_tools(request, context, response)
        if not context.is_compaction:  # which runs nothing
            check_approvals(context.history, context.visible, tools, context.start)
        tool_context = _tool_context(owner, request, response, chosen, context, tools, checkpoint)
        prepared = {
            index: await self._prepare_tool(declared.tool, declared.param, tool_context)
            for index, declared in enumerate(tools)
            if is_hosted(declared)
        }
        offer = classify(tools, response.tool_choice, prepared)
        reads_files = any(tool.reads_files for tool in prepared.values())
        attacher = Attacher(
            owner,
            self.store,
            chosen,
            self.max_attached,
            tools_read_files=reads_files,
            history_param=request.history_param,
            content_reads=self._content_reads if is_resumed else nullcontext(),
        )
        history = [offer.names.for_model(item) for item in await attacher.history(context)]
        hosted = HostedTools(prepared)
        show_tools = partial(_shown_tools, tools, hosted)
        response.tools = show_tools(response.tools)
        summary_model = self.models.find(self.compaction.model) if self.compaction.model else chosen
        plan = await self._plan_compaction(request, context, history, chosen, summary_model, sealer)
        turn = TurnLoop(
            request,
            response,
            upstream_model=chosen.upstream_name,
            tenant=owner.tenant,
            history=history,
            offer=offer,
            now=self.now,
            max_turns=self.max_turns,
            output=_output_builder(request, response, chosen, sealer, hosted if prepared else None),
            compaction=plan,
        )
        turn.sampling = sampling or turn.sampling
        turn.opening = hosted.opening()
        turn.show_tools = show_tools
        if checkpoint is not None:
            turn.restore(checkpoint)
        return ResponseRun(
            owner, context, turn, chosen.model, hosted, self.store, self.retries, summary_model=summary_model.model
        )

    def _available_tools(self, request: CreateResponse, context: Context, response: Response) -> list[DeclaredTool]:
        """The declared tools, with their secrets. Those that this server lacks are an error, or noted as ignored.

        Those of the stored history are never an error: the client could not use that history any more.
        """
        declared = declared_tools(request, context.before, context.given, context.start)
        if not self.ignore_unavailable_tools:
            check_tool_types([one for one in declared if one.is_given], self.tools)
        tools = [one for one in declared if is_available(one, self.tools)]
        ignored = [one for one in declared if not is_available(one, self.tools)]
        check_choice(response.tool_choice, tools, self.tools, ignored)
        if ignored:
            response.ignored_tools = [IgnoredTool(one.param, tool_type(one.tool)) for one in ignored]
        return tools

    async def _plan_compaction(
        self,
        request: CreateResponse,
        context: Context,
        history: list[Item],
        chosen: ChosenModel,
        summary_model: ChosenModel,
        sealer: TenantSealer,
    ) -> CompactionPlan:
        managed = next(iter(request.context_management or ()), None)
        if managed is None and not context.is_compaction:
            return CompactionPlan()
        if chosen.compaction is not None and await chosen.compaction.is_supported():
            threshold = None if managed is None else managed.compact_threshold or self.compaction.threshold
            return CompactionPlan(upstream_threshold=threshold, is_upstream_triggered=context.is_compaction)
        settings = self.compaction
        threshold = _threshold(None if managed is None else managed.compact_threshold, settings, chosen)
        budgets = Budgets(settings.summary_tokens, settings.user_message_tokens, settings.tool_output_tokens)
        is_client_managed = request.previous_response_id is None and request.conversation is None and managed is None
        if managed is None:  # the history was too long for its client, whose threshold is not known
            size = max(_MIN_HISTORY_TOKENS, sum(map(estimate_item, context.history)))
            budgets = budgets.within_history(size)
        compactor = Compactor(
            sealer,
            summary_model.upstream_name,
            budgets.within(threshold),
            None if managed is None else threshold,
            context.given if is_client_managed else None,
            is_other_model=summary_model.name != chosen.name,
        )
        return CompactionPlan(compactor, context.is_compaction, transcript=context.history, history=history)

    async def _prepare_tool(self, tool: ToolDeclaration, param: str, context: ToolContext) -> HostedTool:
        try:
            with raise_leaked():
                prepared = await self.tools.prepare(tool, param, context)
            return HostedTool(
                tool_type(tool),
                prepared,
                tuple(prepared.specs),
                reads_files=prepared.reads_files,
                is_client_run=prepared.is_client_run,
                is_written_whole=prepared.is_written_whole,
                begins_at=prepared.begins_at,
            )
        except (ApiError, StoreFault):
            raise
        except Exception as error:  # code of a provider
            _logger.exception("tool %s could not be prepared", tool_type(tool))
            raise unavailable(f"Tool type '{tool_type(tool)}' is not available now.") from error

    async def _write_begun(self, run: ResponseRun) -> None:
        request = run.turn.request
        tools = request.tools or []
        # A chain of stored responses is read from the store: what it continues and is not stored becomes its input.
        unstored = [] if run.context.is_previous_stored else run.context.previous
        stored = StoredResponse(
            response=run.response,
            input=[*unstored, *(item.raw for item in run.context.given)],
            request={
                **msgspec.to_builtins(msgspec.structs.replace(request, tools=None, input=None)),
                "tools": run.response.tools,  # without their secrets, which are not stored
            },
            had_secrets=without_secrets(tools) != tools or has_secrets(run.context.given),
        )
        try:
            await self.store.begin_response(run.owner, stored)
        except StoreFault:  # it may have been stored, and nothing would work on it
            self.retries.schedule(lambda: self._forget(run.owner, run.response.id))
            raise

    async def _forget(self, owner: Owner, response_id: str) -> None:
        await self.store.delete_response(owner, response_id)


_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_WINDOW_SHARE = 0.75
_MIN_HISTORY_TOKENS = 4_000
"""A compaction without a threshold has at least the budgets of a history of this size."""


def _no_logit_bias(model: str) -> ApiError:
    message = f"Unsupported parameter: 'logit_bias' is not supported with model '{model}'."
    return invalid(message, param="logit_bias", code="unsupported_parameter")


def _threshold(requested: int | None, settings: CompactionSettings, chosen: ChosenModel) -> int:
    """The threshold of a request. It leaves a quarter of a known context window for the answer."""
    threshold = requested or settings.threshold
    return threshold if chosen.context_window is None else min(threshold, int(chosen.context_window * _WINDOW_SHARE))


def _reasoning_sealer(sealer: TenantSealer) -> SealReasoning:
    return lambda item_id, text: sealer.seal(item_id, SealedReasoning(text))


def _tool_context(
    owner: Owner,
    request: CreateResponse,
    response: Response,
    chosen: ChosenModel,
    context: Context,
    tools: Sequence[DeclaredTool],
    checkpoint: Checkpoint | None,
) -> ToolContext:
    """What hosted tools are prepared for."""
    ended = [] if checkpoint is None else [items.read(raw) for raw in checkpoint.items]
    begun = [] if checkpoint is None else [items.read(raw) for raw in checkpoint.output[len(ended) :]]
    return ToolContext(
        owner=owner,
        response_id=response.id,
        # The call that had begun comes before the input: its container may not have the files of that yet.
        history=[*context.before, *begun, *context.visible, *ended],
        given=context.visible,
        created_at=response.created_at,
        made=[*ended, *begun],
        include=frozenset(request.include or ()),
        images_are_files=not chosen.reads_images,
        is_stored=response.store,
        taken_names=frozenset(tool_name(one.tool) for one in tools if one.namespace is None),
    )


def _output_builder(
    request: CreateResponse, response: Response, chosen: ChosenModel, sealer: TenantSealer, hosted: HostedTools | None
) -> OutputBuilder:
    return OutputBuilder(
        None if hosted is None else hosted.annotator,
        _reasoning_sealer(sealer) if _ENCRYPTED_REASONING in (request.include or ()) else None,
        reasoning_as_summary=response.reasoning.asks_for_summary and not chosen.summarizes_reasoning,
    )


def _shown_tools(tools: Sequence[DeclaredTool], hosted: HostedTools, declared: list[Raw]) -> list[Raw]:
    """The declared tools as the response shows them now."""
    places = {index: at for index, one in enumerate(tools) if (at := _DECLARED_RE.fullmatch(one.param))}
    shown = {int(places[index][1]): raw for index, raw in hosted.shown_declarations().items() if index in places}
    return [shown.get(at, raw) for at, raw in enumerate(declared)]


def _with_trigger(given: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    messages = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else (given or [])
    return [*messages, {"type": "compaction_trigger"}]


def _compacted_response(response: Response, output: list[dict[str, Any]], usage: Usage) -> CompactedResponse:
    return CompactedResponse(
        id=response.id, created_at=response.created_at, output=output, usage=usage, compaction=response.compaction
    )
