"""Client of an upstream Responses API: OpenAI, vLLM, another antwort.

Does the I/O. `request` builds the request body; `stream` parses the streamed answer. The upstream's own hosted tools
are not used: this server runs the tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import cast

from antwort.engine.ports import ModelFault, ModelRequest, Piece
from antwort.models.responses.request import ReplayReasoning, to_body
from antwort.models.responses.stream import ResponsesStream
from antwort.models.tokens import estimate_request
from antwort.models.upstream import Upstream, UpstreamStatusError


class Responses:
    """A model behind a Responses API. `model` is its name there; by default the name in the client's request.

    `replay_reasoning` selects the earlier reasoning that is sent back: with `encrypted_content` only, all, or none.
    """

    def __init__(
        self, upstream: Upstream, *, model: str | None = None, replay_reasoning: ReplayReasoning = "sealed"
    ) -> None:
        self._upstream = upstream
        self._model = model
        self._replay_reasoning: ReplayReasoning = replay_reasoning
        self._can_count_tokens = True

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Send the request and yield the pieces of the streamed answer."""
        to_fault = partial(self._upstream.stream_fault, model=request.model)
        stream = ResponsesStream(to_fault=to_fault, top_logprobs=request.top_logprobs)
        body = to_body(request, model=self._model or request.model, reasoning=self._replay_reasoning)
        try:
            async with aclosing(self._upstream.stream("responses", body, lambda: stream.is_done)) as events:
                async for event in events:
                    for piece in stream.read(event):
                        yield piece
        except UpstreamStatusError as refusal:
            raise self._upstream.fault(refusal, model=request.model) from refusal
        for piece in stream.close():
            yield piece

    async def count_tokens(self, request: ModelRequest) -> int:
        """The upstream's count; an estimate if it does not support counting or fails."""
        counted = await self._count(request) if self._can_count_tokens else None
        return estimate_request(request) if counted is None else counted

    async def aclose(self) -> None:
        await self._upstream.aclose()

    async def _count(self, request: ModelRequest) -> int | None:
        body = to_body(request, model=self._model or request.model, reasoning=self._replay_reasoning, stream=False)
        try:
            answer = await self._upstream.post(f"{self._upstream.base_url}/responses/input_tokens", body)
        except UpstreamStatusError as refusal:
            self._can_count_tokens = refusal.status not in (404, 405, 501)
            return None
        except ModelFault:
            return None
        count = cast("dict[str, object]", answer).get("input_tokens") if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None
