"""Name resolution for fetches: `FairResolver` looks names up in turn for tenants, `GuardedResolver` checks addresses.

A name is resolved once, and has addresses only if all of them may be connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore
from antwort.net.fetch.addresses import AddressPolicy
from antwort.net.fetch.errors import FetchError, FetchRefused

MAX_LOOKUPS: Final = 16
"""At the same time."""
MAX_TENANT_LOOKUPS: Final = 4
_MAX_QUEUE: Final = 1024
_MAX_ADDRESSES: Final = 4


class Resolver(Protocol):
    """Resolves a host name to IP addresses; `OSError` if it has none."""

    def __call__(self, host: str, port: int) -> Coroutine[Any, Any, Sequence[str]]: ...


class SystemResolver:
    """The resolver of the operating system.

    Its threads are its own: a name server that answers slowly occupies one for longer than the fetch lasts, and delays
    only other lookups here, not what else the server resolves or runs in threads.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_LOOKUPS, thread_name_prefix="fetch-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, resolve)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


class FairResolver:
    """Lookups of many tenants, in turn: a tenant whose names resolve slowly does not occupy all threads.

    The system's resolver cannot be interrupted. So a lookup counts until it ends, also if its fetch has given up.
    """

    def __init__(self, resolve: Resolver | None = None) -> None:
        self._resolve = resolve or SystemResolver()
        self._slots = FairSemaphore(MAX_LOOKUPS, "name lookups", max_queue=_MAX_QUEUE)
        self._own_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By tenant."""
        self._running: set[asyncio.Task[Sequence[str]]] = set()

    def of(self, tenant: str) -> Resolver:
        """The resolver of a tenant."""
        return partial(self._look_up, tenant)

    async def _look_up(self, tenant: str, host: str, port: int) -> Sequence[str]:
        own_slots = self._own_slots.get(tenant)
        if own_slots is None:
            own_slots = self._own_slots[tenant] = asyncio.Semaphore(MAX_TENANT_LOOKUPS)
        await own_slots.acquire()
        try:
            await self._slots.acquire(tenant)
        except QueueFull as error:
            own_slots.release()
            raise FetchError("too many names are being looked up") from error
        except BaseException:
            own_slots.release()
            raise
        lookup = asyncio.create_task(self._resolve(host, port))
        self._running.add(lookup)

        def ended(lookup: asyncio.Task[Sequence[str]]) -> None:
            self._running.discard(lookup)
            self._slots.release()
            own_slots.release()
            if not lookup.cancelled():
                lookup.exception()  # nothing waits for that of a fetch that has given up

        lookup.add_done_callback(ended)
        return await asyncio.shield(lookup)


class GuardedResolver:
    """The `resolve` of a transport: the connection goes to a checked address, whatever the name resolves to later."""

    def __init__(self, policy: AddressPolicy, resolve: Resolver) -> None:
        self._policy = policy
        self._resolve = resolve

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses to connect to, each of them allowed. One that is not refuses the host."""
        try:
            addresses = [host] if is_address(host) else await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise FetchError(f"the name {host} cannot be resolved") from error
        if not addresses:
            raise FetchError(f"the name {host} cannot be resolved")
        if not all(map(self._policy.allows, addresses)):
            raise FetchRefused(f"{host} is not on the public internet")
        return addresses[:_MAX_ADDRESSES]


def is_address(host: str) -> bool:
    """Whether a host is an IPv4 or IPv6 address. Other forms, such as `127.1` and `0x7f000001`, are none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, UnicodeError, ValueError):
            continue
        return True
    return False
