"""Address policy: refuses private, loopback, link-local and other special addresses, unless they are allowed. Pure.

Python's `is_global` follows the registries of special addresses, and differs between Python versions. So the ranges
that lead somewhere else than they say (translation and tunnels to IPv4) are listed here, and an IPv6 address that
embeds an IPv4 address is refused, or stands for that address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, with the metadata services of clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "::/96",  # unspecified, loopback, and IPv4-compatible
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64, local
        "100::/64",
        "2001::/23",  # Teredo, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)


class AddressPolicy:
    """Which addresses may be connected to: those of the public internet, and the networks that are allowed."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """`allowed` are networks in CIDR form, or addresses; `ValueError` for anything else."""
        self._allowed = [ipaddress.ip_network(network) for network in allowed]

    def allows(self, address: str) -> bool:
        """Whether this may be connected to. What is not an address in its usual form is refused."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address):
            if parsed.scope_id is not None:
                return False
            parsed = parsed.ipv4_mapped or parsed
        if _is_in(parsed, self._allowed):
            return True
        return parsed.is_global and not parsed.is_multicast and not _is_in(parsed, _REFUSED)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
