"""A model that is tried again where that helps, and left alone where it does not.

    Resilient         wraps any model: retries, a limit on the whole answer, the breaker
    RetryPolicy       how often, and how long to wait in between (full jitter, `Retry-After` is the least)
    CircuitBreaker    counts failures and stops asking for a while; pure, its clock is handed in

Only what has not begun is tried again: once a piece of the answer is out, a second try
would say it twice.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import Enum

import structlog
from msgspec import Struct

from antwort.engine.ports import (
    Model,
    ModelFault,
    ModelRequest,
    Piece,
)
from antwort.models import upstream_errors

_log = structlog.get_logger(__name__)
_SERVER_ERROR = 500


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Exponential back-off with full jitter: a wait is anywhere between nothing and a bound that doubles."""

    attempts: int = 3
    base: float = 0.5
    longest: float = 8.0
    longest_asked: float = 20.0
    """The longest `Retry-After` that is waited for here; for a longer one the caller is told instead."""

    def wait(self, attempt: int, fault: ModelFault, rng: random.Random) -> float | None:
        """Seconds to wait after the attempt of this number, from 1; None where another is no use."""
        asked = fault.retry_after or 0
        if not fault.retryable or attempt >= self.attempts or asked > self.longest_asked:
            return None
        bound = min(self.longest, self.base * 2 ** min(attempt - 1, 32))
        return max(float(asked), rng.uniform(0, bound))


class State(Enum):
    """Where a circuit breaker stands."""

    CLOSED = "closed"  # requests pass
    OPEN = "open"  # no request passes until the pause is over
    HALF_OPEN = "half_open"  # one request passes, to see


class Ticket(Struct, frozen=True):
    """Says when a request was let in, so that news from before a change of state is not taken for new."""

    generation: int


class CircuitBreaker:
    """After `threshold` failures in a row it opens; after `pause` seconds it lets one request through, to see.

    The one that is let through closes it as soon as an answer begins, but on
    probation: the next failure opens it again, and only a whole answer clears the count.
    """

    def __init__(self, *, threshold: int = 5, pause: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = threshold
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._state = State.CLOSED
        self._generation = 0

    @property
    def state(self) -> State:
        return self._state

    def enter(self) -> Ticket | float:
        """A ticket for one request, or the seconds after which it is worth asking again."""
        if self._state is State.HALF_OPEN:
            return self._pause
        if self._state is State.OPEN:
            left = self._until - self._clock()
            if left > 0:
                return left
            self._move(State.HALF_OPEN)
        return Ticket(self._generation)

    def began(self, ticket: Ticket) -> Ticket:
        """An answer has begun; go on with the ticket that this returns."""
        if ticket.generation == self._generation and self._state is State.HALF_OPEN:
            self._move(State.CLOSED)
            self._failures = self._threshold - 1
            return Ticket(self._generation)
        return ticket

    def succeeded(self, ticket: Ticket) -> None:
        """The answer is whole, or was refused for good reason: the upstream works."""
        if ticket.generation == self._generation:
            self._failures = 0
            if self._state is not State.CLOSED:
                self._move(State.CLOSED)

    def failed(self, ticket: Ticket) -> None:
        """The upstream failed."""
        if ticket.generation != self._generation:
            return
        self._failures += 1
        if self._state is State.HALF_OPEN or self._failures >= self._threshold:
            self._until = self._clock() + self._pause
            self._move(State.OPEN)

    def abandoned(self, ticket: Ticket) -> None:
        """Nobody waited for the answer, so it says nothing; if it was to show something, the next one shall."""
        if ticket.generation == self._generation and self._state is State.HALF_OPEN:
            self._until = self._clock()
            self._move(State.OPEN)

    def _move(self, state: State) -> None:
        self._state = state
        self._generation += 1


class _LeftAlone(ModelFault):
    """The breaker is open. Worth another try of the caller's, not one of ours."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "The model failed too often and is left alone for a while. Try again later.",
            status=503,
            retry_after=math.ceil(seconds),
            retryable=True,
        )


class Resilient:
    """A model with retries, a time limit for the whole answer, and a circuit breaker."""

    def __init__(
        self,
        model: Model,
        *,
        policy: RetryPolicy | None = None,
        breaker: CircuitBreaker | None = None,
        total_timeout: float | None = 600.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._model = model
        self._policy = policy or RetryPolicy()
        self._breaker = breaker or CircuitBreaker()
        self._total = total_timeout
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """The inner model's answer, tried again as long as nothing of it is out."""
        deadline = None if self._total is None else asyncio.get_running_loop().time() + self._total
        attempt, begun = 1, False
        while True:
            try:
                async with aclosing(self._attempt(request, deadline)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
            except ModelFault as fault:
                hopeless = begun or isinstance(fault, _LeftAlone)
                wait = None if hopeless else self._policy.wait(attempt, fault, self._rng)
                if wait is None or (deadline is not None and asyncio.get_running_loop().time() + wait >= deadline):
                    raise
                _log.info("model_retry", attempt=attempt, code=fault.code, status=fault.status, wait=round(wait, 3))
                await self._sleep(wait)
                attempt += 1
            else:
                return

    async def count_tokens(self, request: ModelRequest) -> int:
        return await self._model.count_tokens(request)

    async def aclose(self) -> None:
        await self._model.aclose()

    async def _attempt(self, request: ModelRequest, deadline: float | None) -> AsyncGenerator[Piece, None]:
        entered = self._breaker.enter()
        if not isinstance(entered, Ticket):
            raise _LeftAlone(entered)
        ticket = entered
        try:
            async with aclosing(self._model.generate(request)) as pieces:
                while (piece := await _next(pieces, deadline)) is not None:
                    ticket = self._breaker.began(ticket)
                    yield piece
        except ModelFault as fault:
            broken = fault.retryable and fault.status >= _SERVER_ERROR
            (self._breaker.failed if broken else self._breaker.succeeded)(ticket)
            if broken and self._breaker.state is State.OPEN:
                _log.warning("model_left_alone", code=fault.code)
            raise
        except BaseException:
            self._breaker.abandoned(ticket)
            raise
        self._breaker.succeeded(ticket)


async def _next(pieces: AsyncGenerator[Piece, None], deadline: float | None) -> Piece | None:
    """The next piece; None after the last. The limit never reaches into the reader's own time."""
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(pieces, None)
    except TimeoutError as error:
        raise upstream_errors.timed_out() from error
