"""Retries with back-off for upstream models.

    RetryingModel         wraps a model: retries, total timeout, circuit breakers, instrumentation
    RetryingCompaction    wraps the compaction of its upstream, with the same circuit breakers
    RetryPolicy           number of attempts and the back-off between them (full jitter; `Retry-After` is the minimum)

A request is retried only while no piece of its answer was yielded: a later retry would repeat text. If the circuit
breaker opens meanwhile, the request ends with the last fault of its own attempts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar, cast

import structlog
from msgspec import Struct

from antwort.engine.ports import (
    CompactedHistory,
    Finished,
    Model,
    ModelFault,
    ModelRequest,
    Piece,
    UpstreamCompaction,
)
from antwort.models import upstream_errors
from antwort.models.circuit_breaker import CircuitBreakers, CircuitOpen
from antwort.models.instrumentation import Instrumentation
from antwort.models.stop_sequences import cut_at_stop

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Exponential back-off with full jitter: a random delay between 0 and a bound that doubles. Times in seconds."""

    attempts: int = 3
    base_backoff: float = 0.5
    max_backoff: float = 8.0
    max_retry_after: float = 20.0
    """The longest `Retry-After` that is waited for; a longer one is returned to the caller."""

    def backoff(self, attempt: int, fault: ModelFault, rng: random.Random) -> float | None:
        """Seconds to wait after this attempt, counted from 1; None if the request must not be retried."""
        retry_after = fault.retry_after or 0
        if not fault.retryable or attempt >= self.attempts or retry_after > self.max_retry_after:
            return None
        bound = min(self.max_backoff, self.base_backoff * 2 ** min(attempt - 1, 32))
        return max(float(retry_after), rng.uniform(0, bound))


class RetryingModel:
    """A model with retries, a timeout for the whole answer, circuit breakers and instrumentation.

    All of them are in one generator, because every token passes through it.
    """

    def __init__(
        self,
        model: Model,
        *,
        instrumentation: Instrumentation,
        policy: RetryPolicy | None = None,
        breakers: CircuitBreakers | None = None,
        total_timeout: float | None = 600.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._model = model
        self._instrumentation = instrumentation
        self._policy = policy or RetryPolicy()
        self._breakers = breakers or CircuitBreakers()
        self._total_timeout = total_timeout
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret

    def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Yield the inner model's pieces up to a stop sequence; retry on a retryable fault before the first piece."""
        return self.attempt(request, self._generate_to_stop if request.sampling.stop else self._model.generate)

    def _generate_to_stop(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        return cut_at_stop(request, self._model.generate(request))

    async def attempt(
        self, request: ModelRequest, start: Callable[[ModelRequest], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """Yield what `start` yields, `Finished` last; start again on a retryable fault before the first piece."""
        now = asyncio.get_running_loop().time
        deadline = None if self._total_timeout is None else now() + self._total_timeout
        breaker = self._breakers.of(request.tenant)
        attempt, has_started, last_fault = 1, False, None
        with self._instrumentation.measure(request) as observe:
            while True:
                try:
                    with await breaker.admit(deadline) as admitted:
                        async with aclosing(start(request)) as pieces:
                            while (piece := await _next(pieces, deadline)) is not None:
                                if not has_started:
                                    has_started = True
                                    admitted.record_start()
                                observe(piece)
                                if isinstance(piece, Finished):
                                    admitted.record_success()
                                yield piece
                except CircuitOpen as rejection:
                    if last_fault is None:
                        raise
                    raise last_fault from rejection
                except ModelFault as fault:
                    last_fault = fault
                    is_final = has_started or breaker.is_open  # an open breaker would reject the next attempt
                    wait = None if is_final else self._policy.backoff(attempt, fault, self._rng)
                    if wait is None or (deadline is not None and now() + wait >= deadline):
                        raise
                    _log.info("model_retry", attempt=attempt, code=fault.code, status=fault.status, wait=round(wait, 3))
                else:
                    return
                await self._sleep(wait)
                attempt += 1

    async def count_tokens(self, request: ModelRequest) -> int:
        return await self._model.count_tokens(request)

    async def aclose(self) -> None:
        await self._model.aclose()


class RetryingCompaction:
    """Compaction by the upstream of a model, with that model's retries, timeout, circuit breakers and instrumentation.

    A compaction stores nothing at the upstream, so it can be repeated.
    """

    def __init__(self, compaction: UpstreamCompaction, model: RetryingModel) -> None:
        self._compaction = compaction
        self._model = model

    async def is_supported(self) -> bool:
        return await self._compaction.is_supported()

    async def compact(self, request: ModelRequest) -> CompactedHistory:
        async with aclosing(self._model.attempt(request, self._reply)) as reply:
            compacted, _ = [part async for part in reply]
        return cast("CompactedHistory", compacted)

    async def _reply(self, request: ModelRequest) -> AsyncGenerator[CompactedHistory | Finished, None]:
        compacted = await self._compaction.compact(request)
        yield compacted
        yield Finished(usage=compacted.usage)


async def _next(pieces: AsyncGenerator[T, None], deadline: float | None) -> T | None:
    """The next piece, or None after the last. The timeout covers the model only, not the reader between pieces."""
    if deadline is None:
        return await anext(pieces, None)
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(pieces, None)
    except TimeoutError as error:
        raise upstream_errors.timed_out() from error
