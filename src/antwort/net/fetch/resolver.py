"""`GuardedResolver`: resolves a name once, and returns its addresses only if all of them may be connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from antwort.net.fetch.addresses import AddressPolicy
from antwort.net.fetch.errors import FetchError, FetchRefused

_MAX_ADDRESSES: Final = 4


class Resolver(Protocol):
    """Resolves a host name to IP addresses; `OSError` if it has none."""

    async def __call__(self, host: str, port: int) -> Sequence[str]: ...


_RESOLVER_THREADS: Final = ThreadPoolExecutor(16, thread_name_prefix="fetch-resolver")


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The resolver of the operating system.

    Its threads are its own: a name server that answers slowly occupies one for longer than the fetch lasts, and delays
    only other fetches, not what else the server resolves or runs in threads.
    """
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVER_THREADS, resolve)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedResolver:
    """The `resolve` of a transport: the connection goes to a checked address, whatever the name resolves to later."""

    def __init__(self, policy: AddressPolicy, resolve: Resolver = system_resolver) -> None:
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
