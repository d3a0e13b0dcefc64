"""A model that is watched: every request to it has a span and counts in the metrics. What is said passes unseen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antwort.api.requests import TextFormat
from antwort.engine.ports import Finished, Model, ModelFault, ModelRequest, Piece
from antwort.telemetry import Metrics, ModelCallSpan


class Observed:
    """Wraps any model. `name` is how the configuration calls it, so that nobody else chooses the metrics' labels."""

    def __init__(self, model: Model, metrics: Metrics, *, name: str, kind: str) -> None:
        self._model = model
        self._metrics = metrics
        self._name = name
        self._kind = kind

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """The inner model's answer, as it comes."""
        call = ModelCallSpan(self._metrics, self._name, request.model, self._kind, _asked(request))
        try:
            async with aclosing(self._model.generate(request)) as pieces:
                async for piece in pieces:
                    call.record_chunk()
                    if isinstance(piece, Finished):
                        call.finished(piece.reason, piece.usage.input_tokens, piece.usage.output_tokens)
                    yield piece
        except ModelFault as fault:
            call.failed(fault.code)
            raise
        finally:
            call.close()

    async def count_tokens(self, request: ModelRequest) -> int:
        return await self._model.count_tokens(request)

    async def aclose(self) -> None:
        await self._model.aclose()


def _asked(request: ModelRequest) -> dict[str, str | float | None]:
    return {
        "gen_ai.output.type": "text" if isinstance(request.format, TextFormat) else "json",
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.frequency_penalty": request.frequency_penalty,
        "gen_ai.request.presence_penalty": request.presence_penalty,
    }
