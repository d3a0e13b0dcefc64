"""Host, Origin and Sec-Fetch-Site check of servers without authentication, and the loopback test.

A server without keys or token answers only programs on its own machine. A web browser on that machine is a way in for
others: any web page can make it send requests to loopback, even under a name of the page's own that resolves to
127.0.0.1 (DNS rebinding). The check relies on headers that a page can neither omit nor change: `Host`, `Origin` and
`Sec-Fetch-Site`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from typing import Final, Literal

_OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})


def is_loopback(name: str) -> bool:
    """Whether a name or an IP address (without brackets) means this machine, whichever resolver is asked.

    IPv4-mapped IPv6 addresses are no loopback addresses here; Python versions disagree about them.
    """
    if name.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None


def is_loopback_host(host: bytes) -> bool:
    """Whether a `Host` header names loopback, with any port or none."""
    name, colon, port = host.decode("latin-1").rpartition(":")
    if not colon or port.endswith("]"):  # no port, or the colon is part of an IPv6 address
        name, port = f"{name}{colon}{port}", "0"
    if name.startswith("["):
        name = name[1:-1] if name.endswith("]") else ""
    elif ":" in name:
        return False
    return port.isdecimal() and is_loopback(name)


def cross_origin_violation(
    headers: Iterable[tuple[bytes, bytes]], *, check_host: bool = True, allowed_origins: Collection[str] = ()
) -> Literal["host", "origin"] | None:
    """Which check a request fails: `origin` if a web page sent it, `host` if any `Host` is not a loopback name.

    `check_host=False` is for Unix sockets, which browsers cannot reach and where `Host` has no meaning; a proxy in
    front of the socket still forwards `Origin`. Pages of `allowed_origins` pass: browsers send `Origin` with every
    request whose response a page of another site can read. `headers` have lower-case names, as in an ASGI scope.
    """
    hosts: list[bytes] = []
    origins: list[bytes] = []
    is_other_site = False
    for name, value in headers:
        if name == b"origin":
            origins.append(value)
        elif name == b"host":
            hosts.append(value)
        elif name == b"sec-fetch-site":
            is_other_site = is_other_site or value in _OTHER_SITES
    if not all(origin.decode("latin-1") in allowed_origins for origin in origins) or (is_other_site and not origins):
        return "origin"
    if check_host and not (hosts and all(map(is_loopback_host, hosts))):
        return "host"
    return None
