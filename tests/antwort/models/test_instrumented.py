from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from antwort.api.responses import Usage
from antwort.engine.ports import Finished, ModelFault, ModelRequest, TextPiece
from antwort.models.instrumented import Observed
from antwort.telemetry import Metrics

pytestmark = pytest.mark.anyio

REQUEST = ModelRequest(model="upstream", items=[])


class Speaker:
    """Says what it is given; an exception is raised. Remembers whether it was stopped, and closed."""

    def __init__(self, *says) -> None:
        self._says = says
        self.stopped = False
        self.closed = False

    async def generate(self, request):
        try:
            for said in self._says:
                if isinstance(said, BaseException):
                    raise said
                yield said
        finally:
            self.stopped = True

    async def count_tokens(self, request) -> int:
        return 7

    async def aclose(self) -> None:
        self.closed = True


def observed(*says) -> tuple[Observed, Speaker, Metrics]:
    speaker, metrics = Speaker(*says), Metrics()
    return Observed(speaker, metrics, name="mine", kind="scripted"), speaker, metrics


def page(metrics: Metrics) -> str:
    return metrics.render()[0].decode()


async def test_pieces_pass_as_they_are_and_are_counted():
    pieces = [TextPiece("a"), TextPiece("b"), Finished("stop", Usage(input_tokens=10, output_tokens=5))]
    model, _, metrics = observed(*pieces)

    assert [piece async for piece in model.generate(REQUEST)] == pieces
    assert 'antwort_tokens_total{kind="input",model="mine"} 10.0' in page(metrics)
    assert 'antwort_tokens_total{kind="output",model="mine"} 5.0' in page(metrics)
    assert 'antwort_model_first_piece_seconds_count{model="mine"} 1.0' in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)
    assert "antwort_model_faults_total{" not in page(metrics)


async def test_a_fault_is_counted_by_its_code_and_passes():
    model, _, metrics = observed(TextPiece("a"), ModelFault("no", code="rate_limit_exceeded"))
    with pytest.raises(ModelFault):
        async for _ in model.generate(REQUEST):
            pass

    assert 'antwort_model_faults_total{code="rate_limit_exceeded",model="mine"} 1.0' in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_a_mistake_passes_too_and_is_no_fault_of_the_models():
    model, _, metrics = observed(ValueError("ours"))
    with pytest.raises(ValueError, match="ours"):
        async for _ in model.generate(REQUEST):
            pass

    assert "antwort_model_faults_total{" not in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_whoever_stops_listening_stops_the_model():
    model, speaker, metrics = observed(*[TextPiece("a")] * 5)
    async with aclosing(model.generate(REQUEST)) as pieces:
        await anext(pieces)

    assert speaker.stopped
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_a_cancelled_listener_stops_the_model_too():
    class Silent(Speaker):
        async def generate(self, request):
            try:
                yield TextPiece("a")
                await asyncio.Event().wait()
            finally:
                self.stopped = True

    speaker = Silent()

    async def listen():
        async with aclosing(Observed(speaker, Metrics(), name="mine", kind="x").generate(REQUEST)) as pieces:
            async for _ in pieces:
                pass

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.01)
    listening.cancel()
    await asyncio.wait([listening])

    assert speaker.stopped


async def test_the_rest_is_the_models_own():
    model, speaker, _ = observed()

    assert await model.count_tokens(REQUEST) == 7
    await model.aclose()
    assert speaker.closed
