"""Circuit breakers of one model: after consecutive failures its upstream is left alone for a pause.

    CircuitBreakers    one breaker for each tenant, so that the failures of one do not lock out another
    CircuitBreaker     closed; open for a pause; then half-open, while one request is sent as a probe
    Attempt            an attempt that a breaker has admitted, and what came of it

Requests that arrive while a probe runs wait for its outcome: a success admits them, a failure rejects them, and a
cancelled probe makes the first of them the next one. A request that has waited for `max_wait` seconds is rejected: the
first token of a probe may take as long as the timeout of the model.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

import structlog

from antwort.engine.ports import ModelFault
from antwort.models import upstream_errors

_log = structlog.get_logger(__name__)
_SERVER_ERROR = 500


class CircuitOpen(ModelFault):
    """The circuit breaker rejects the request. The caller may retry; this server does not."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "The model failed repeatedly; its circuit breaker is open. Try again later.",
            status=503,
            retry_after=math.ceil(seconds),
            retryable=True,
        )


class Attempt:
    """An attempt that was admitted, as a context manager: leaving it records a fault, or that it was cancelled.

    The success is recorded by the caller, with the last piece: an answer's reader does not read past it.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def record_start(self) -> None:
        """The upstream answers. A probe that is read slowly must not keep other requests waiting."""
        self._breaker.record_start()

    def record_success(self) -> None:
        """The answer is complete."""
        self._breaker.record_success()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, ModelFault):
            if error.retryable and error.status >= _SERVER_ERROR:
                self._breaker.record_failure(self, error)
            else:  # the upstream answered
                self._breaker.record_success()
        self._breaker.leave(self)


class CircuitBreaker:
    """Opens after `threshold` consecutive failures. After `pause` seconds it admits one probe at a time.

    The first piece of a probe's answer closes it, and then one failure opens it again until an answer has completed. A
    failed probe restarts the pause.
    """

    def __init__(
        self,
        *,
        threshold: float = 5,
        pause: float = 10,
        max_wait: float = 10,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[CircuitBreaker], None] = lambda _: None,
        name: str = "",
    ) -> None:
        self._threshold = threshold
        self._pause = pause
        self._max_wait = max_wait
        self._clock = clock
        self._on_change = on_change
        self._name = name
        self._failures: float = 0
        self._probe_at: float | None = None
        """When an open breaker admits a probe; None while it is closed."""
        self._probe: Attempt | None = None
        self._waiting: dict[asyncio.Future[Attempt | None], None] = {}
        """Requests that wait for the probe's outcome, in order. The result is an attempt, None for a rejection."""

    @property
    def is_open(self) -> bool:
        return self._probe_at is not None

    @property
    def has_failures(self) -> bool:
        """Whether its state differs from that of a new breaker."""
        return self._failures > 0 or self.is_open

    async def admit(self, deadline: float | None = None) -> Attempt:
        """Admit an attempt, after the outcome of a running probe; `CircuitOpen` if it is rejected.

        The deadline is a time of the event loop; past it the wait ends with a `ModelFault` of status 504, unless
        `max_wait` has passed before.
        """
        if self._probe_at is None:
            return Attempt(self)
        if self._probe is None:
            if (wait := self._probe_at - self._clock()) > 0:
                raise CircuitOpen(wait)
            self._probe = Attempt(self)
            return self._probe
        latest = asyncio.get_running_loop().time() + self._max_wait
        try:
            async with asyncio.timeout_at(latest if deadline is None else min(latest, deadline)):
                admitted = await self._outcome_of_probe()
        except TimeoutError as error:
            is_late = deadline is not None and deadline <= latest
            raise upstream_errors.timed_out() if is_late else CircuitOpen(self._max_wait) from error
        if admitted is None:
            raise CircuitOpen(self._seconds_left())
        return admitted

    # ── what an attempt reports ──────────────────────────────────────────────────────────────────────────────────────

    def record_start(self) -> None:
        if self.is_open:
            self._close(self._threshold - 1)

    def record_success(self) -> None:
        if self.has_failures:
            self._close(0)

    def record_failure(self, attempt: Attempt, fault: ModelFault) -> None:
        self._failures += 1
        # While open, only the probe counts: attempts that began before would prolong the pause.
        if attempt is self._probe or (not self.is_open and self._failures >= self._threshold):
            self._probe_at, self._probe = self._clock() + self._pause, None
            _log.warning("circuit_open", model=self._name, code=fault.code, pause=self._pause)
            self._resolve(lambda: None)
        self._on_change(self)

    def leave(self, attempt: Attempt) -> None:
        """The attempt has ended. If it is still the probe, it has no outcome: the next request is the probe."""
        if attempt is not self._probe:
            return
        self._probe = None
        following = next((future for future in self._waiting if not future.done()), None)
        if following is not None:
            self._probe = Attempt(self)
            following.set_result(self._probe)

    def _close(self, failures: float) -> None:
        self._failures, self._probe_at, self._probe = failures, None, None
        self._resolve(lambda: Attempt(self))
        self._on_change(self)

    # ── requests that wait ───────────────────────────────────────────────────────────────────────────────────────────

    async def _outcome_of_probe(self) -> Attempt | None:
        future: asyncio.Future[Attempt | None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and (admitted := future.result()) is not None:
                self.leave(admitted)  # it was made the probe at the same moment
            raise
        finally:
            del self._waiting[future]

    def _resolve(self, result: Callable[[], Attempt | None]) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(result())

    def _seconds_left(self) -> float:
        return 0 if self._probe_at is None else max(0.0, self._probe_at - self._clock())


class CircuitBreakers:
    """The circuit breakers of one model, by tenant. Only those with failures are kept, at most `max_kept`.

    A breaker without failures lives as long as its attempts.
    """

    def __init__(
        self,
        *,
        threshold: float = 5,
        pause: float = 10,
        max_wait: float = 10,
        max_kept: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
    ) -> None:
        self._threshold = threshold
        self._pause = pause
        self._max_wait = max_wait
        self._max_kept = max_kept
        self._clock = clock
        self._name = name
        self._in_use: WeakValueDictionary[str, CircuitBreaker] = WeakValueDictionary()
        self._failing: OrderedDict[str, CircuitBreaker] = OrderedDict()
        """Keeps the breakers with failures alive; the last one failed last."""

    def of(self, tenant: str) -> CircuitBreaker:
        """The breaker of a tenant."""
        breaker = self._in_use.get(tenant)
        if breaker is None:
            breaker = self._in_use[tenant] = CircuitBreaker(
                threshold=self._threshold,
                pause=self._pause,
                max_wait=self._max_wait,
                clock=self._clock,
                on_change=lambda changed: self._keep_or_drop(tenant, changed),
                name=self._name,
            )
        return breaker

    def _keep_or_drop(self, tenant: str, breaker: CircuitBreaker) -> None:
        if not breaker.has_failures:
            self._failing.pop(tenant, None)
            return
        self._failing[tenant] = breaker
        self._failing.move_to_end(tenant)
        if len(self._failing) > self._max_kept:
            self._failing.popitem(last=False)
