"""A server that speaks the Responses API itself: OpenAI, vLLM, another of us.

This is the driver. What is sent is made in `responses_request`, what comes is
understood in `responses_stream`. The upstream's own tools are not used: tools are run here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

from antwort.engine.ports import ModelFault, ModelRequest, Piece
from antwort.models.responses.request import ReplayReasoning, to_body
from antwort.models.responses.stream import ResponsesStream
from antwort.models.tokens import estimate
from antwort.models.upstream import Timeouts, Upstream, UpstreamStatusError


class Responses:
    """A model behind a Responses server. `model` is its name there; without one it is asked for as the client names it.

    `replay_reasoning` says which earlier reasoning is sent back: that which the upstream
    sealed itself, all of it, or none.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        replay_reasoning: ReplayReasoning = "sealed",
        timeouts: Timeouts | None = None,
        max_event: int = 16 * 1024 * 1024,
        ca_file: str | None = None,
    ) -> None:
        self._upstream = Upstream(
            base_url, api_key=api_key, headers=headers, timeouts=timeouts, max_event=max_event, ca_file=ca_file
        )
        self._model = model
        self._replay: ReplayReasoning = replay_reasoning
        self._counts = True

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Ask, and pass on what comes."""
        stream = ResponsesStream(model=request.model, logprobs=request.top_logprobs)
        body = to_body(request, model=self._model or request.model, reasoning=self._replay)
        try:
            async with aclosing(self._upstream.stream("responses", body, lambda: stream.done)) as events:
                async for event in events:
                    for piece in stream.read(event):
                        yield piece
        except UpstreamStatusError as refusal:
            raise self._upstream.fault(refusal, model=request.model) from refusal
        for piece in stream.close():
            yield piece

    async def count_tokens(self, request: ModelRequest) -> int:
        """As the upstream counts, or else an estimate."""
        counted = await self._count(request) if self._counts else None
        return estimate(request) if counted is None else counted

    async def aclose(self) -> None:
        await self._upstream.aclose()

    async def _count(self, request: ModelRequest) -> int | None:
        body = to_body(request, model=self._model or request.model, reasoning=self._replay, stream=False)
        try:
            answer = await self._upstream.post(f"{self._upstream.base_url}/responses/input_tokens", body)
        except UpstreamStatusError as refusal:
            self._counts = refusal.status not in (404, 405, 501)
            return None
        except ModelFault:
            return None
        count = cast("dict[str, object]", answer).get("input_tokens") if isinstance(answer, dict) else None
        return count if isinstance(count, int) else None
