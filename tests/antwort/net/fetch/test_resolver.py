from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from waiting import wait_until_async

from antwort.net.fetch import AddressPolicy, FairResolver, FetchRefused, GuardedResolver
from antwort.net.fetch.resolver import MAX_LOOKUPS, MAX_TENANT_LOOKUPS

pytestmark = pytest.mark.anyio


class SlowNames:
    """Names that begin with a tenant. They resolve when the test lets them."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.ended = 0
        self.go = asyncio.Event()

    async def __call__(self, host: str, port: int):
        self.running[host[0]] += 1
        try:
            await self.go.wait()
            if host.endswith("none"):
                raise OSError("no such name")
            return ["192.0.2.1"]
        finally:
            self.running[host[0]] -= 1
            self.ended += 1


async def test_a_tenant_has_a_part_of_the_lookups_also_when_nothing_waits_for_them():
    names = SlowNames()
    resolver = FairResolver(names)
    given_up = [asyncio.create_task(resolver.of("a")(f"a{number}", 80)) for number in range(10)]
    await wait_until_async(lambda: names.running["a"] == MAX_TENANT_LOOKUPS)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    waiting = [asyncio.create_task(resolver.of(tenant)(tenant, 80)) for tenant in "abcdef" for _ in range(10)]
    await wait_until_async(lambda: names.running.total() == MAX_LOOKUPS)
    assert max(names.running.values()) == MAX_TENANT_LOOKUPS

    names.go.set()
    assert await asyncio.gather(*waiting) == [["192.0.2.1"]] * len(waiting)
    assert names.ended == MAX_TENANT_LOOKUPS + len(waiting)


async def test_a_lookup_that_fails_after_its_fetch_is_not_reported(caplog):
    names = SlowNames()
    lookup = asyncio.create_task(FairResolver(names).of("a")("a-none", 80))
    await wait_until_async(lambda: names.running["a"])
    lookup.cancel()
    await asyncio.gather(lookup, return_exceptions=True)
    names.go.set()
    await wait_until_async(lambda: names.ended)

    with pytest.raises(OSError, match="no such name"):
        await FairResolver(names).of("a")("a-none", 80)
    assert not caplog.records


async def test_all_addresses_of_a_name_are_checked():
    async def resolve(host, port):
        return ["192.0.2.1", "127.0.0.1"]

    with pytest.raises(FetchRefused, match="is not on the public internet"):
        await GuardedResolver(AddressPolicy(), FairResolver(resolve).of("a"))("tea.example", 80)
