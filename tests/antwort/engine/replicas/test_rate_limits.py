from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antwort.api.errors import ApiError
from antwort.auth import Caller
from antwort.engine.replicas import rate_limits
from antwort.engine.replicas.port import TokenBucket
from antwort.engine.replicas.rate_limits import StoreRateLimiter
from antwort.engine.stores import StoreFault

pytestmark = pytest.mark.anyio

LIMITED = Caller("tenant", "key", requests_per_minute=60, concurrent_responses=1)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FakeSlots:
    """Slots and buckets in memory; `is_away` refuses calls, `entered` and `go_on` hold up a `take_slot`."""

    def __init__(self) -> None:
        self.slots: set[str] = set()
        self.calls = 0
        self.taken = 0
        self.bucket = TokenBucket(is_granted=True, tokens=59.0)
        self.is_away = False
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def take_request(self, key_id, per_minute):
        self._require()
        return self.bucket

    async def take_slot(self, key_id, slot, replica_id, most):
        self._require()
        if most is not None and len(self.slots) >= most:
            return False
        self.entered.set()
        await self.go_on.wait()
        self.slots.add(slot)
        self.taken += 1
        return True

    async def free_slots(self, slots):
        self._require()
        self.slots -= set(slots)

    def _require(self):
        self.calls += 1
        if self.is_away:
            raise StoreFault("The store failed: it is away.")


@pytest.fixture
async def limited(monkeypatch):
    monkeypatch.setattr(rate_limits, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(rate_limits, "_RELEASE_WAIT", 0.0)
    store: Any = FakeSlots()
    limiter = StoreRateLimiter(store, "rep_1")
    yield limiter, store
    await limiter.aclose()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the fake does not notify
            await asyncio.sleep(0.005)


async def test_a_key_without_limits_costs_no_query(limited):
    limiter, store = limited
    store.is_away = True
    free = Caller("tenant", "free")
    assert await limiter.take(free) is None
    (await limiter.begin(free))()
    (await limiter.resume(free))()
    assert store.calls == 0


async def test_the_state_of_the_bucket_is_reported(limited):
    limiter, store = limited
    state = await limiter.take(LIMITED)
    assert (state.limit, state.remaining, state.reset) == (60, 59, 1.0)
    store.bucket = TokenBucket(is_granted=False, tokens=-1.5)
    with pytest.raises(ApiError) as caught:
        await limiter.take(LIMITED)
    assert (caught.value.status, caught.value.retry_after) == (429, 3)


async def test_a_slot_is_freed_once_and_requests_one_after_the_other_are_admitted(limited):
    limiter, store = limited
    for _ in range(20):
        release = await limiter.begin(LIMITED)
        release()
        release()
    await until(lambda: not store.slots)
    await limiter.begin(LIMITED)
    with pytest.raises(ApiError, match="1 responses may run"):
        await limiter.begin(LIMITED)
    await limiter.resume(LIMITED)
    assert len(store.slots) == 2


async def test_a_store_that_is_away_refuses_requests_and_frees_slots_later(limited):
    limiter, store = limited
    release = await limiter.begin(LIMITED)
    store.is_away = True
    for refused in (limiter.take, limiter.begin, limiter.resume):
        with pytest.raises(StoreFault):
            await refused(LIMITED)
    release()
    calls = store.calls
    await until(lambda: store.calls > calls + 3)
    assert len(store.slots) == 1
    store.is_away = False
    await until(lambda: not store.slots)


async def test_a_request_that_is_cancelled_while_it_takes_a_slot_frees_it(limited):
    limiter, store = limited
    store.go_on.clear()
    beginning = asyncio.create_task(limiter.begin(LIMITED))
    await store.entered.wait()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    await asyncio.sleep(0.01)
    store.go_on.set()  # the cancelled transaction is completed only now
    await until(lambda: store.taken == 1 and not store.slots)
