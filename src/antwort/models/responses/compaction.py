"""Compaction by an upstream Responses API: asks whether it has `POST /responses/compact`, and uses it.

The items of the answer are passed through unchanged: only the upstream can read its encrypted content.
"""

from __future__ import annotations

import asyncio
from typing import cast

import structlog

from antwort.engine.ports import CompactedHistory, ModelFault, ModelRequest
from antwort.models import upstream_errors
from antwort.models.responses.request import ReplayReasoning, to_compact_body
from antwort.models.responses.stream import check_item, parse_usage
from antwort.models.upstream import Upstream, UpstreamStatusError

_log = structlog.get_logger(__name__)
_MISSING_ENDPOINT = {404, 405, 501}
_TRANSIENT = {408, 429}
_CLIENT_ERRORS = range(400, 500)


class ResponsesCompaction:
    """Implements the `UpstreamCompaction` port. `is_supported` is None if the upstream has to be asked.

    The question is a request with an empty body, which an upstream with the endpoint refuses at no cost. The answer
    is kept. Rate limits, server errors and timeouts decide nothing: the upstream is asked again later.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str | None = None,
        replay_reasoning: ReplayReasoning = "sealed",
        is_supported: bool | None = None,
        probe_timeout: float = 10.0,
    ) -> None:
        self._upstream = upstream
        self._url = f"{upstream.base_url}/responses/compact"
        self._model = model
        self._replay_reasoning: ReplayReasoning = replay_reasoning
        self._is_supported = is_supported
        self._probe_timeout = probe_timeout
        self._probes: int = 0
        self._lock = asyncio.Lock()

    async def is_supported(self) -> bool:
        """Whether the upstream compacts. Callers that wait for a probe share its result, also if it is no answer."""
        if self._is_supported is None:
            probes = self._probes
            async with self._lock:
                if self._probes == probes:
                    self._is_supported = await self._probe()
                    self._probes += 1
        return self._is_supported is True

    async def compact(self, request: ModelRequest) -> CompactedHistory:
        """The items of the compacted history, unchanged."""
        body = to_compact_body(request, model=self._model or request.model, reasoning=self._replay_reasoning)
        try:
            answer = await self._upstream.post(self._url, body)
        except UpstreamStatusError as refusal:
            raise self._upstream.fault(refusal, model=request.model) from refusal
        fields = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
        output = fields.get("output")
        if not isinstance(output, list):
            raise upstream_errors.malformed_answer()
        items = [check_item(item) for item in cast("list[object]", output)]
        return CompactedHistory(items, parse_usage(fields.get("usage")))

    async def _probe(self) -> bool | None:
        """Ask the upstream; None if there is no answer to the question."""
        try:
            async with asyncio.timeout(self._probe_timeout):
                await self._upstream.post(self._url, {})
        except UpstreamStatusError as refusal:
            is_supported = _has_endpoint(refusal.status)
        except (ModelFault, TimeoutError):
            is_supported = None
        else:
            is_supported = True
        _log.info("upstream_compaction_probed", is_supported=is_supported)
        return is_supported


def _has_endpoint(status: int) -> bool | None:
    if status in _MISSING_ENDPOINT:
        return False
    return True if status in _CLIENT_ERRORS and status not in _TRANSIENT else None
