"""`ResponsesConversation`: the requests of one evaluation to the Responses API: body, container, expiry, response.

It is the adapter's `Connection`, created before anything is sent, and checks the prompt's tools.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.openai.compaction.conversation import ConversationCompactor
from weakincentives.adapters.openai.compaction.manager import CompactionManager
from weakincentives.adapters.openai.compaction.support import REPAIRABLE_CODES
from weakincentives.adapters.openai.config import OpenAIModelConfig
from weakincentives.adapters.openai.containers.source import ContainerSource, EvaluationScope
from weakincentives.adapters.openai.native_tools.capability import ToolConfigError
from weakincentives.adapters.openai.native_tools.registry import capabilities
from weakincentives.adapters.openai.responses.history import RequestHistory, encode_json, has_calls_in
from weakincentives.adapters.openai.responses.parsing import parse_response
from weakincentives.adapters.openai.responses.tool_params import (
    NativeToolParam,
    ToolParams,
    build_tool_params,
    declaration_error,
)
from weakincentives.adapters.openai.sdk import SdkClient
from weakincentives.adapters.openai.uploads import Uploads, plan_uploads
from weakincentives.adapters.openai.wire import (
    INCLUDE_REASONING,
    MalformedResponse,
    Wire,
    as_object,
    get_str,
    is_container_expired,
    is_zero_retention_refusal,
    json_schema,
    may_reject_include,
    message,
    rejected_tool_index,
)
from weakincentives.adapters.turn import ModelReply, ModelRequest
from weakincentives.deadlines import Deadline
from weakincentives.errors import NativeToolError, PromptEvaluationError, ProviderFault
from weakincentives.prompt import RenderedPrompt, ToolChoice, output_schema

if TYPE_CHECKING:
    from openai import OpenAI

    from weakincentives.adapters.core import Evaluation

_logger = logging.getLogger(__name__)

_MAX_CONTAINERS = 2  # for one request: if the replacement is gone too, a third one does not help
_RETRYABLE_CODES = {"server_error": 500, "vector_store_timeout": 503, "rate_limit_exceeded": 429}


@dataclass(frozen=True)
class _Toolset:
    """The tools of a rendered prompt, the section that supplies their container, and encoded requests without input."""

    rendered: RenderedPrompt[Any]
    params: ToolParams
    source: ContainerSource | None
    heads: dict[tuple[ToolChoice, str | None, bool, bool], bytes] = field(default_factory=dict[Any, bytes])


def open_client(sdk: SdkClient, evaluation: Evaluation) -> OpenAI:
    """The client of an evaluation. An error of its creation, such as a missing API key, names the prompt."""
    try:
        return sdk.open()
    except ProviderFault as fault:
        raise evaluation.error(f"no client could be created: {fault}") from fault


class ResponsesConversation:
    """Sends the requests of one evaluation, each with the whole history."""

    def __init__(
        self,
        evaluation: Evaluation,
        sdk: SdkClient,
        model: str,
        config: OpenAIModelConfig,
        manager: CompactionManager | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._sdk = sdk
        self._model = model
        self._config = config
        self._allowed = config.native_tools.get(model)
        self._prompt_name = evaluation.prompt.name
        self._uploads: Uploads | None = None
        self._history, self._compactor = self._open_history(manager)
        self._prepare_tools(evaluation.rendered)
        self._container_id: str | None = None
        self._request_id: str | None = None

    def __call__(self, request: ModelRequest) -> ModelReply:
        """Send one request and parse its response."""
        self._history.append_new(request.history)
        if request.rendered is not self._tools.rendered:  # a section was opened, which added tools
            self._prepare_tools(request.rendered)
        if self._compactor is not None:
            self._compactor.before_request(request.turn, self._tools.params.wire)
        try:
            response = self._exchange_repairing(request)
        except ProviderFault as fault:
            if (explained := self._explain(fault)) is None:
                raise
            explained.request_id = fault.request_id
            raise explained from fault
        except MalformedResponse as error:
            raise self._response_error(f"the answer is not of the Responses API: {error}", None) from error
        try:
            reply = parse_response(response, self._tools.params, prompt_name=self._prompt_name)
        except MalformedResponse as error:
            raise self._response_error(f"the answer is not of the Responses API: {error}", response) from error
        reply = replace(reply, request_id=self._request_id)
        if reply.error is not None:
            reply.error.request_id = self._request_id
        if self._compactor is None:
            return reply
        self._compactor.after_response(reply)
        return replace(reply, other_usage=self._compactor.take_usage())

    def _open_history(self, manager: CompactionManager | None) -> tuple[RequestHistory, ConversationCompactor | None]:
        """The history of the first request: the prompt, after the window of the session if there is compaction."""
        evaluation = self._evaluation
        prompt = message(self._config.prompt_role, evaluation.rendered.text)
        if manager is None:
            return RequestHistory([prompt]), None
        history = RequestHistory(manager.inject_encrypted_items([prompt]))
        compactor = ConversationCompactor(manager, history, evaluation.limits)
        evaluation.cleanup.callback(compactor.close)
        return history, compactor

    # ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare_tools(self, rendered: RenderedPrompt[Any]) -> None:
        self._tools = self._toolset(rendered)
        if self._uploads is None and (uploads := self._plan_uploads()) is not None:
            self._uploads = uploads
            self._history.append(message("developer", uploads.note()))

    def _toolset(self, rendered: RenderedPrompt[Any]) -> _Toolset:
        params = build_tool_params(rendered, prompt_name=self._prompt_name, allowed=self._allowed)
        for one in params.native:
            try:
                one.capability.check_resources(one.wire, one.declaration.config, self._evaluation.resources)
            except ToolConfigError as error:
                raise declaration_error(one.declaration, str(error), self._prompt_name) from error
        return _Toolset(rendered, params, self._container_source(rendered, params))

    def _container_source(self, rendered: RenderedPrompt[Any], params: ToolParams) -> ContainerSource | None:
        """The section that supplies the container; None if there is none, or no tool needs it."""
        sources = [section for section in rendered.active if isinstance(section, ContainerSource)]
        if not sources:
            return None
        keys = " and ".join(repr(section.key) for section in sources)
        if len(sources) > 1:
            raise self._native_error(f"sections {keys} both supply a container: a prompt can have one of them")
        try:
            is_used = params.needs_container()
        except ToolConfigError as error:
            raise self._native_error(f"{error}: section {keys} supplies one. Remove one of them") from error
        # Only before the first request: what the model opens later must not end an evaluation that has begun.
        if not is_used and rendered is self._evaluation.rendered and not self._may_open_code_tools(rendered):
            raise self._native_error(
                f"section {keys} supplies a container, but no tool runs code in it: enable code_interpreter, such as "
                "with OpenAIAdapter(hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True)), or remove the section"
            )
        return sources[0] if is_used else None

    def _may_open_code_tools(self, rendered: RenderedPrompt[Any]) -> bool:
        """Whether a summarized section, which the model may open later, has a tool that runs in a container."""
        parents = tuple(f"{path}." for path in rendered.summarized)
        nodes = self._evaluation.prompt.template.nodes
        hidden = [node.section for node in nodes if f"{node.path}.".startswith(parents)]
        declared: list[Mapping[str, Any]] = []
        for section in hidden:
            declared += section.native_tools(section.default_params)
            declared += [one for tool in section.tools() if (one := tool.declaration())]
        names = {capability.name for capability in capabilities().values() if capability.runs_in_container}
        # The type, or the name of `{"type": "built_in", "name": …}`.
        return any({one.get("type"), one.get("name")} & names for one in declared)

    def _plan_uploads(self) -> Uploads | None:
        try:
            uploads = plan_uploads(self._tools.params, self._evaluation.cleanup)
            if uploads is not None:
                uploads.check_file_types(open_client(self._sdk, self._evaluation))
        except ToolConfigError as error:
            raise self._native_error(str(error)) from error
        if uploads is not None and self._tools.source is not None:
            raise self._native_error(
                "container.host_mounts: a section of the prompt supplies a container; mount them there"
            )
        if uploads is not None:
            self._evaluation.cleanup.callback(lambda: uploads.remove(self._sdk.client))
        return uploads

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _exchange_repairing(self, request: ModelRequest) -> Wire:
        """Send the conversation, again after each refusal that the compactor can repair."""
        while True:
            try:
                response = self._exchange(request)
                self._check_status(response)
            except ProviderFault as fault:
                if self._compactor is None or not self._compactor.repair(fault):
                    raise
            else:
                return response

    def _exchange(self, request: ModelRequest) -> Wire:
        """Send the conversation; if the container expired, a second time with another container."""
        source, params = self._tools.source, self._tools.params
        if source is None:
            return self._send_scrubbing(request)
        scope = EvaluationScope(self._sdk.client, self._evaluation.session, request.deadline)
        attempts_left = _MAX_CONTAINERS
        while True:
            container_id = source.open_container(scope)
            self._use_container(container_id, source)
            attempts_left -= 1
            try:
                response = self._send(request, params.with_container(container_id), container_id)
            except ProviderFault as fault:
                if not attempts_left or not is_container_expired(fault.status, str(fault), container_id):
                    raise
                _logger.info("container %s expired; opening another", container_id)
                source.container_expired(container_id, scope)
                self._history.scrub_container(container_id)
            else:
                self._report_used(source, container_id, scope, response)
                return response

    def _send_scrubbing(self, request: ModelRequest) -> Wire:
        """Send the conversation; if containers of earlier evaluations expired, a second time without their ids."""
        try:
            return self._send(request, self._tools.params, None)
        except ProviderFault as fault:
            given = {one.capability.container_id(one.wire) for one in self._tools.params.native}
            earlier = self._history.containers() - given if self._compactor is not None else set[str]()
            named = {one for one in earlier if one in str(fault)} or earlier
            expired = {one for one in named if is_container_expired(fault.status, str(fault), one)}
            if not expired:
                raise
            _logger.info("containers %s of the history expired", ", ".join(sorted(expired)))
            for container_id in expired:
                self._history.scrub_container(container_id)
        return self._send(request, self._tools.params, None)

    def _use_container(self, container_id: str, source: ContainerSource) -> None:
        """Rewrite calls in an earlier container as text, and add the section's note about a new one."""
        before, self._container_id = self._container_id, container_id
        if before == container_id:
            return
        for earlier in self._history.containers() - {container_id}:  # also those of earlier evaluations
            self._history.scrub_container(earlier)
        if note := source.container_note(replaced=before is not None):
            self._history.append(message("developer", note))

    def _report_used(self, source: ContainerSource, container_id: str, scope: EvaluationScope, response: Wire) -> None:
        has_run_code = has_calls_in(container_id, response)
        try:
            source.container_used(container_id, scope, has_run_code=has_run_code)
        except ProviderFault as fault:  # not retried: the response is complete
            raise self._evaluation.error(f"the files of container {container_id} were not listed: {fault}") from fault

    def _send(self, request: ModelRequest, params: ToolParams, container_id: str | None) -> Wire:
        """Send the conversation; if the server refuses the extensions, again without them."""
        extensions = [] if self._sdk.takes_extensions is False else params.extension_includes
        head = self._encoded_head(request, params, container_id, extensions)
        try:
            response = self._post(head, request)
        except ProviderFault as fault:
            if not extensions or self._sdk.takes_extensions or not may_reject_include(fault, extensions):
                raise
            response = self._post(self._encoded_head(request, params, container_id, []), request)
            self._sdk.takes_extensions = False
        else:
            if extensions:
                self._sdk.takes_extensions = True
        return response

    def _encoded_head(
        self, request: ModelRequest, params: ToolParams, container_id: str | None, extensions: Sequence[str]
    ) -> bytes:
        extra = {} if self._compactor is None else self._compactor.parameters()
        key = (request.tool_choice, container_id, bool(extra), bool(extensions))
        if key not in self._tools.heads:
            self._tools.heads[key] = encode_json(self._head(request, params, extensions) | extra)
        return self._tools.heads[key]

    def _post(self, head: bytes, request: ModelRequest) -> Wire:
        seconds = None if request.deadline is None else request.deadline.remaining  # after the uploads of the head
        on_delta = self._evaluation.audit.notify_progress if self._config.stream else None
        self._request_id = None
        answer = self._sdk.send(self._history.body(head), timeout=seconds, on_delta=on_delta)
        self._request_id = answer.request_id
        return answer.body

    def _head(self, request: ModelRequest, params: ToolParams, extensions: Sequence[str]) -> Wire:
        """The request without its input. `extensions` are values of `include` that only some servers know."""
        head: Wire = {"model": self._model, **self._config.parameters()}
        if self._config.stream:
            head["stream"] = True
        if tools := [*params.functions, *(self._declared(one, request.deadline) for one in params.native)]:
            head |= {"tools": tools, "tool_choice": params.tool_choice(request.tool_choice)}
        reasoning = [INCLUDE_REASONING] if self._config.store is False else []
        if include := [*params.includes, *extensions, *reasoning]:
            head["include"] = include
        schema = output_schema(request.rendered)
        text = {"format": json_schema(schema)} if schema else {}
        text |= {"verbosity": self._config.verbosity} if self._config.verbosity else {}
        _logger.debug("asking %s with tools %s", self._model, [_described(one) for one in params.native])
        return head | ({"text": text} if text else {})

    def _declared(self, one: NativeToolParam, deadline: Deadline | None) -> Wire:
        uploads = self._uploads
        if uploads is None or one.declaration.config is not uploads.config:
            return one.wire
        return {**one.wire, "container": uploads.container_param(self._sdk.client, deadline)}

    # ── responses and faults ─────────────────────────────────────────────────────────────────────────────────────────

    def _check_status(self, response: Wire) -> None:
        """Raise for a response that is neither complete nor incomplete."""
        status = response.get("status")
        if status in (None, "completed", "incomplete"):
            return
        if status != "failed":
            raise self._response_error(f"the response ended as {status!r}: ask again", response)
        error = as_object(response.get("error") or {}, "error")
        code = get_str(error, "code")
        what = f"the response failed ({code or 'no code'}): {get_str(error, 'message') or 'no reason given'}"
        status = _RETRYABLE_CODES.get(code) or (400 if self._compactor and code in REPAIRABLE_CODES else None)
        if status is not None and not response.get("output"):  # calls that have run must not run twice
            raise ProviderFault(what, status=status, payload=error, request_id=self._request_id)
        raise self._response_error(what, response)

    def _explain(self, fault: ProviderFault) -> PromptEvaluationError | None:
        """The error that names the declaration which the server rejected; None for other faults."""
        native = self._tools.params.native
        if self._config.store is False and is_zero_retention_refusal(fault.status, str(fault)):
            return self._native_error(
                f"containers are not available with zero data retention at this provider: {fault}. Run the code on the "
                "client, with a shell that has no container, or use a server that keeps containers apart from the store"
            )
        number = rejected_tool_index(fault.payload)
        index = -1 if number is None else number - len(self._tools.params.functions)
        if 0 <= index < len(native):
            what = f"the server refuses it: {fault}. Remove it, or use a model or a server that has it"
            return declaration_error(native[index].declaration, what, self._prompt_name)
        for one in native:
            given_id = one.capability.container_id(one.wire)
            if given_id is not None and is_container_expired(fault.status, str(fault), given_id):
                what = f"container {given_id!r} is gone: {fault}. Give the id of another, or no id to have one created"
                return declaration_error(one.declaration, what, self._prompt_name)
        return None

    def _native_error(self, what: str) -> NativeToolError:
        return NativeToolError(what, prompt_name=self._prompt_name, phase="request")

    def _response_error(self, what: str, response: Wire | None) -> PromptEvaluationError:
        return PromptEvaluationError(
            what,
            prompt_name=self._prompt_name,
            phase="response",
            provider_payload=response,
            request_id=self._request_id,
        )


def _described(one: NativeToolParam) -> str:
    """For the log: the tool, and its container's id or memory. The rest of a declaration may hold secrets."""
    container = one.wire.get("container")
    memory = container.get("memory_limit") if isinstance(container, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    where = one.capability.container_id(one.wire) or memory  # pyright: ignore[reportUnknownVariableType] - any JSON
    return f"{one.declaration.name} in {where}" if where else one.declaration.name
