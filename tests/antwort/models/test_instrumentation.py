from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from antwort.api.responses import Usage
from antwort.engine.ports import CompactedHistory, Finished, ModelFault, ModelRequest, TextPiece
from antwort.models.instrumentation import Instrumentation
from antwort.models.retry import RetryingCompaction, RetryingModel, RetryPolicy
from antwort.telemetry import Metrics

pytestmark = pytest.mark.anyio

REQUEST = ModelRequest(model="upstream", items=[])


class ListModel:
    """Yields the given pieces and raises the given exceptions. Records whether it was stopped and closed."""

    def __init__(self, *pieces) -> None:
        self._pieces = pieces
        self.is_stopped = False
        self.is_closed = False

    async def generate(self, request):
        try:
            for piece in self._pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.is_stopped = True

    async def count_tokens(self, request) -> int:
        return 7

    async def aclose(self) -> None:
        self.is_closed = True


def instrumented(inner) -> tuple[RetryingModel, Metrics]:
    metrics = Metrics()
    instrumentation = Instrumentation(metrics, name="mine", kind="scripted")
    return RetryingModel(
        inner, instrumentation=instrumentation, policy=RetryPolicy(attempts=2, base_backoff=0)
    ), metrics


def page(metrics: Metrics) -> str:
    return metrics.render()[0].decode()


async def test_pieces_are_unchanged_and_counted():
    pieces = [TextPiece("a"), TextPiece("b"), Finished("stop", Usage(input_tokens=10, output_tokens=5))]
    model, metrics = instrumented(ListModel(*pieces))

    assert [piece async for piece in model.generate(REQUEST)] == pieces
    assert 'antwort_tokens_total{kind="input",model="mine"} 10.0' in page(metrics)
    assert 'antwort_tokens_total{kind="output",model="mine"} 5.0' in page(metrics)
    assert 'antwort_model_first_piece_seconds_count{model="mine"} 1.0' in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)
    assert "antwort_model_faults_total{" not in page(metrics)


async def test_a_compaction_of_the_upstream_is_counted_as_a_model_request():
    class Compaction:
        async def is_supported(self) -> bool:
            return True

        async def compact(self, request) -> CompactedHistory:
            return CompactedHistory([], Usage(input_tokens=10, output_tokens=5))

    model, metrics = instrumented(ListModel())
    await RetryingCompaction(Compaction(), model).compact(REQUEST)

    assert 'antwort_tokens_total{kind="input",model="mine"} 10.0' in page(metrics)
    assert 'antwort_tokens_total{kind="output",model="mine"} 5.0' in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_a_fault_is_counted_by_code_and_raised():
    model, metrics = instrumented(ListModel(TextPiece("a"), ModelFault("no", code="rate_limit_exceeded")))
    with pytest.raises(ModelFault):
        async for _ in model.generate(REQUEST):
            pass

    assert 'antwort_model_faults_total{code="rate_limit_exceeded",model="mine"} 1.0' in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_another_exception_is_raised_and_not_counted_as_fault():
    model, metrics = instrumented(ListModel(ValueError("bug")))
    with pytest.raises(ValueError, match="bug"):
        async for _ in model.generate(REQUEST):
            pass

    assert "antwort_model_faults_total{" not in page(metrics)
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_retries_are_one_measured_request():
    class RecoveringModel(ListModel):
        async def generate(self, request):
            if not self.is_stopped:
                self.is_stopped = True
                raise ModelFault("busy", retryable=True)
            yield Finished()

    model, metrics = instrumented(RecoveringModel())

    assert [piece async for piece in model.generate(REQUEST)] == [Finished()]
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)
    assert "antwort_model_faults_total{" not in page(metrics)


async def test_closing_the_generator_stops_the_model_and_ends_the_measurement():
    inner = ListModel(*[TextPiece("a")] * 5)
    model, metrics = instrumented(inner)
    async with aclosing(model.generate(REQUEST)) as pieces:
        await anext(pieces)

    assert inner.is_stopped
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_cancelling_the_reader_stops_the_model():
    class SilentModel(ListModel):
        async def generate(self, request):
            try:
                yield TextPiece("a")
                await asyncio.Event().wait()
            finally:
                self.is_stopped = True

    inner = SilentModel()
    model, metrics = instrumented(inner)

    async def read():
        async with aclosing(model.generate(REQUEST)) as pieces:
            async for _ in pieces:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.wait([reader])

    assert inner.is_stopped
    assert 'antwort_model_seconds_count{model="mine"} 1.0' in page(metrics)


async def test_count_tokens_and_aclose_are_delegated():
    inner = ListModel()
    model, _ = instrumented(inner)

    assert await model.count_tokens(REQUEST) == 7
    await model.aclose()
    assert inner.is_closed
