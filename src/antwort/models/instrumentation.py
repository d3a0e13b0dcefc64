"""Instrumentation of model requests: one span and the model metrics for each. No content is recorded."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from antwort.api.requests import TextFormat
from antwort.engine.ports import Finished, ModelFault, ModelRequest
from antwort.telemetry import Metrics, ModelCallSpan


class Instrumentation:
    """Measures the requests to one model. `name` is the configured name: a request cannot choose metric labels."""

    def __init__(self, metrics: Metrics, *, name: str, kind: str) -> None:
        self._metrics = metrics
        self._name = name
        self._kind = kind

    @contextmanager
    def measure(self, request: ModelRequest) -> Generator[Callable[[object], None]]:
        """Measure one request, retries included; the result must be called with every piece."""
        call = ModelCallSpan(self._metrics, self._name, request.model, self._kind, _span_attributes(request))

        def observe(piece: object) -> None:
            call.record_chunk()
            if isinstance(piece, Finished):
                call.finished(piece.reason, piece.usage.input_tokens, piece.usage.output_tokens)

        try:
            yield observe
        except ModelFault as fault:
            call.failed(fault.code)
            raise
        finally:
            call.close()


def _span_attributes(request: ModelRequest) -> dict[str, str | float | None]:
    return {
        "gen_ai.output.type": "text" if isinstance(request.format, TextFormat) else "json",
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.frequency_penalty": request.frequency_penalty,
        "gen_ai.request.presence_penalty": request.presence_penalty,
    }
