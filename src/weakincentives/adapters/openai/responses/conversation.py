"""One evaluation's requests: what each of them says, where its code runs, and what its answer means.

A `Conversation` is the adapter's `Connection`. It is made before anything is sent, and refuses what cannot work.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.openai.config import OpenAIModelConfig
from weakincentives.adapters.openai.containers.source import ContainerGuide, ContainerSource, ContainerVisit
from weakincentives.adapters.openai.native_tools.capability import ConfigError
from weakincentives.adapters.openai.responses.history import Replay, encode, ran_in
from weakincentives.adapters.openai.responses.parsing import read_reply
from weakincentives.adapters.openai.responses.streaming import Kind
from weakincentives.adapters.openai.responses.tool_params import Offer, Offered, make_offer, refusal
from weakincentives.adapters.openai.sdk import Transport
from weakincentives.adapters.openai.uploads import Uploads, plan_uploads
from weakincentives.adapters.openai.wire import (
    INCLUDE_REASONING,
    Malformed,
    Wire,
    as_object,
    is_expiry,
    json_schema,
    message,
    refused_tool,
    text_in,
)
from weakincentives.adapters.turn import ModelReply, ModelRequest, ToolChoice
from weakincentives.deadlines import Deadline
from weakincentives.errors import NativeToolError, PromptEvaluationError, ProviderFault
from weakincentives.prompt import RenderedPrompt, output_schema
from weakincentives.runtime import ModelProgress

if TYPE_CHECKING:
    from weakincentives.adapters.core import Evaluation

_logger = logging.getLogger(__name__)

_MOST_CONTAINERS = 2  # for one request; where the one in its place is dead too, another will not help
_TRIED_AGAIN = {"server_error": 500, "vector_store_timeout": 503, "rate_limit_exceeded": 429}


@dataclass(frozen=True)
class _Toolset:
    """The tools of a rendered prompt, the section that brings their container, and heads of requests with them."""

    rendered: RenderedPrompt[Any]
    offer: Offer
    source: ContainerSource | None
    heads: dict[tuple[ToolChoice, str | None], bytes] = field(default_factory=dict[Any, bytes])


class Conversation:
    """Sends the requests of one evaluation, each with everything that was said before."""

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        transport: Transport,
        model: str,
        config: OpenAIModelConfig,
        allowed: Collection[str] | None,
    ) -> None:
        self._evaluation = evaluation
        self._transport = transport
        self._model = model
        self._config = config
        self._allowed = allowed
        self._prompt_name = evaluation.prompt.name
        self._uploads: Uploads | None = None
        self._replay = Replay([message(config.prompt_role, evaluation.rendered.text)])
        self._take_up(evaluation.rendered)
        self._container: str | None = None

    def __call__(self, request: ModelRequest) -> ModelReply:
        """Send one request and read its answer."""
        self._replay.follow(request.history)
        if request.rendered is not self._tools.rendered:  # a section was opened, and brought its tools
            self._take_up(request.rendered)
        try:
            response = self._exchange(request)
        except ProviderFault as fault:
            if (explained := self._explained(fault)) is None:
                raise
            raise explained from fault
        except Malformed as error:
            raise self._response_error(f"the answer is not of the Responses API: {error}", None) from error
        try:
            self._check_status(response)
            return read_reply(response, self._tools.offer, prompt_name=self._prompt_name)
        except Malformed as error:
            raise self._response_error(f"the answer is not of the Responses API: {error}", response) from error

    # ── getting ready ────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_up(self, rendered: RenderedPrompt[Any]) -> None:
        self._tools = self._toolset(rendered)
        if self._uploads is None and (uploads := self._plan_uploads()) is not None:
            self._uploads = uploads
            self._replay.add(message("developer", uploads.note()))

    def _toolset(self, rendered: RenderedPrompt[Any]) -> _Toolset:
        offer = make_offer(rendered, prompt_name=self._prompt_name, allowed=self._allowed)
        for one in offer.natives:
            try:
                one.capability.check_resources(one.wire, one.declared.config, self._evaluation.resources)
            except ConfigError as error:
                raise refusal(one.declared, str(error), self._prompt_name) from error
        return _Toolset(rendered, offer, self._source(rendered, offer))

    def _source(self, rendered: RenderedPrompt[Any], offer: Offer) -> ContainerSource | None:
        """The section that brings a container; None where there is none, or nothing that would use it."""
        sources = [section for section in rendered.active if isinstance(section, ContainerSource)]
        if not sources:
            return None
        keys = " and ".join(repr(section.key) for section in sources)
        if len(sources) > 1:
            raise self._native_error(f"sections {keys} both bring a container: a prompt can have one of them")
        try:
            return sources[0] if offer.placed("cntr_to_come") else None
        except ConfigError as error:
            raise self._native_error(f"{error}: section {keys} brings one. Remove one of them") from error

    def _plan_uploads(self) -> Uploads | None:
        try:
            uploads = plan_uploads(self._tools.offer, self._evaluation.cleanup)
        except ConfigError as error:
            raise self._native_error(str(error)) from error
        if uploads is not None and self._tools.source is not None:
            raise self._native_error(
                "container.host_mounts: a section of the prompt brings a container; mount them there"
            )
        if uploads is not None:
            self._evaluation.cleanup.callback(lambda: uploads.remove(self._transport.client))
        return uploads

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _exchange(self, request: ModelRequest) -> Wire:
        """Send the conversation as it stands; once more in another container, where the one we were given is gone."""
        source = self._tools.source
        if source is None:
            return self._send(request, self._tools.offer, None)
        visit = ContainerVisit(self._transport.client, self._evaluation.session, request.deadline)
        left = _MOST_CONTAINERS
        while True:
            container = source.open_container(visit)
            self._move_to(container, source)
            left -= 1
            try:
                response = self._send(request, self._tools.offer.placed(container) or self._tools.offer, container)
            except ProviderFault as fault:
                if not left or not is_expiry(fault.status, str(fault), container):
                    raise
                _logger.info("container %s is gone; asking for another", container)
                source.container_expired(container, visit)
                self._replay.scrub(container)
            else:
                self._tell_used(source, container, replace(visit, ran=ran_in(container, response)))
                return response

    def _move_to(self, container: str, source: ContainerSource) -> None:
        """What ran in another container before is retold in words, and what is new here is said."""
        before, self._container = self._container, container
        if before == container:
            return
        if before is not None:
            self._replay.scrub(before)
        note = source.container_note(replaced=before is not None) if isinstance(source, ContainerGuide) else None
        if note:
            self._replay.add(message("developer", note))

    def _tell_used(self, source: ContainerSource, container: str, visit: ContainerVisit) -> None:
        try:
            source.container_used(container, visit)
        except ProviderFault as fault:  # what was answered must not be asked for again
            raise self._evaluation.error(f"container {container} could not be looked at: {fault}") from fault

    def _send(self, request: ModelRequest, offer: Offer, container: str | None) -> Wire:
        key = (request.tool_choice, container)
        if key not in self._tools.heads:
            self._tools.heads[key] = encode(self._head(request, offer))
        seconds = None if request.deadline is None else request.deadline.remaining  # after the uploads of the head
        tell = self._tell if self._config.stream else None
        return self._transport.send(self._replay.body(self._tools.heads[key]), seconds=seconds, tell=tell)

    def _tell(self, kind: Kind, item_id: str, text: str) -> None:
        session, adapter = self._evaluation.session, self._evaluation.adapter.provider
        session.notify(
            ModelProgress(
                prompt_name=self._prompt_name,
                adapter=adapter,
                kind=kind,
                text=text,
                item_id=item_id,
                session_id=session.session_id,
            )
        )

    def _head(self, request: ModelRequest, offer: Offer) -> Wire:
        """Everything in a request but what was said."""
        head: Wire = {"model": self._model, **self._config.parameters()}
        if self._config.stream:
            head["stream"] = True
        if tools := [*offer.functions, *(self._declared(one, request.deadline) for one in offer.natives)]:
            head |= {"tools": tools, "tool_choice": offer.choice(request.tool_choice)}
        if include := [*offer.includes, *([INCLUDE_REASONING] if self._config.store is False else [])]:
            head["include"] = include
        schema = output_schema(request.rendered)
        text = {"format": json_schema(schema)} if schema else {}
        text |= {"verbosity": self._config.verbosity} if self._config.verbosity else {}
        _logger.debug("asking %s with tools %s", self._model, [_described(one) for one in offer.natives])
        return head | ({"text": text} if text else {})

    def _declared(self, one: Offered, deadline: Deadline | None) -> Wire:
        uploads = self._uploads
        if uploads is None or one.declared.config is not uploads.config:
            return one.wire
        return {**one.wire, "container": uploads.declare(self._transport.client, deadline)}

    # ── understanding ────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_status(self, response: Wire) -> None:
        """Go on with an answer; raise for what is none."""
        status = response.get("status")
        if status in (None, "completed", "incomplete"):
            return
        if status != "failed":
            raise self._response_error(f"the response ended as {status!r}: ask again", response)
        error = as_object(response.get("error") or {}, "error")
        code = text_in(error, "code")
        told = f"the response failed ({code or 'no code'}): {text_in(error, 'message') or 'no reason given'}"
        if code in _TRIED_AGAIN and not response.get("output"):  # what has begun to run is not run twice
            raise ProviderFault(told, status=_TRIED_AGAIN[code], payload=error)
        raise self._response_error(told, response)

    def _explained(self, fault: ProviderFault) -> PromptEvaluationError | None:
        """A refusal in terms of what the author wrote; None where it is about something else."""
        natives = self._tools.offer.natives
        number = refused_tool(fault.payload)
        at = -1 if number is None else number - len(self._tools.offer.functions)
        if 0 <= at < len(natives):
            what = f"the server refuses it: {fault}. Remove it, or use a model or a server that has it"
            return refusal(natives[at].declared, what, self._prompt_name)
        for one in natives:
            container = one.capability.container(one.wire)
            if container is not None and is_expiry(fault.status, str(fault), container):
                what = f"container {container!r} is gone: {fault}. Make another and give its id, or let one be made"
                return refusal(one.declared, what, self._prompt_name)
        return None

    def _native_error(self, message: str) -> NativeToolError:
        return NativeToolError(message, prompt_name=self._prompt_name, phase="request")

    def _response_error(self, message: str, response: Wire | None) -> PromptEvaluationError:
        return PromptEvaluationError(
            message, prompt_name=self._prompt_name, phase="response", provider_payload=response
        )


def _described(one: Offered) -> str:
    """For the log: the tool, and its container's id or memory. The rest of a declaration may hold secrets."""
    asked = one.wire.get("container")
    memory = asked.get("memory_limit") if isinstance(asked, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    where = one.capability.container(one.wire) or memory  # pyright: ignore[reportUnknownVariableType] - the same
    return f"{one.declared.name} in {where}" if where else one.declared.name
