"""Network attacks: no name resolution, no route, only the container's own loopback."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

import pytest

CONNECT = """
import socket
def go(host, port=80, kind=socket.SOCK_STREAM):
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        with socket.socket(family, kind) as s: s.settimeout(2); s.connect(address)
        return 'connected'
    except OSError as e: return type(e).__name__, e.errno
"""
UNREACHABLE = {f"('OSError', {number})" for number in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL)} | {
    f"('PermissionError', {errno.EACCES})"  # broadcast
}


LOOPBACK = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"),
    *("0", "::"),
    "0.0.0.0",  # noqa: S104 - a target, not a bind
]
OTHER_ADDRESSES = [
    *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "::ffff:169.254.169.254", "fd00:ec2::254"),
    *(
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "fe80::1",
        "fc00::1",
        "64:ff9b::a00:1",
        "192.0.2.1",
        "2001:db8::1",
    ),
    *("167772161", "0x0a000001", "012.0.0.1", "10.1", "::ffff:10.0.0.1", "::ffff:a00:1", "3232235521", "0xc0.0xa8.0.1"),
    *("::ffff:192.168.0.1", "2886729729", "169.254.0.1", "fe80::a9fe:a9fe", "2002:a9fe:a9fe::1"),
    *("255.255.255.255", "224.0.0.1", "ff02::1"),
]


def own_addresses() -> list[str]:
    """The addresses of this host."""
    found = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))  # sends nothing
            found.add(probe.getsockname()[0])
    return sorted(str(address) for address in found)


def resolvers() -> list[str]:
    with contextlib.suppress(OSError):
        lines = Path("/etc/resolv.conf").read_text(encoding="utf-8").splitlines()
        return [line.split()[1] for line in lines if line.startswith("nameserver ")]
    return []


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_in_any_notation_is_the_containers_own(attacker, host):
    port = int(attacker.client.url.rpartition(":")[2])
    assert "connected" not in attacker.evaluate(f"{CONNECT}go({host!r}, {port})")


@pytest.mark.parametrize("host", OTHER_ADDRESSES)
def test_other_addresses_have_no_route(attacker, host):
    """Connecting a datagram socket sends nothing: it only looks up a route."""
    assert attacker.evaluate(f"{CONNECT}go({host!r}, 53, socket.SOCK_DGRAM)") in UNREACHABLE


@pytest.mark.parametrize("name", ["example.com", "metadata.google.internal", "localhost.localdomain"])
def test_no_name_resolves(attacker, name):
    assert "gaierror" in attacker.evaluate(f"{CONNECT}go({name!r})")


def test_the_host_is_not_reachable_at_any_of_its_addresses(attacker):
    """Neither the server nor another listener."""
    port = int(attacker.client.url.rpartition(":")[2])
    with socket.create_server(("", 0)) as everywhere:
        for address in [*own_addresses(), "127.0.0.1"]:
            for target in (port, everywhere.getsockname()[1]):
                assert "connected" not in attacker.evaluate(f"{CONNECT}go({address!r}, {target})")


def test_dns_resolvers_are_not_reachable(attacker):
    query = b"\x12\x34\x01\x00\x00\x01" + b"\x00" * 6 + b"\x07example\x03com\x00\x00\x01\x00\x01"
    for address in {*resolvers(), "127.0.0.53", "127.0.0.1", "192.0.2.53"}:
        code = f"""
            import socket
            s = socket.socket(socket.AF_INET6 if ':' in {address!r} else socket.AF_INET, socket.SOCK_DGRAM)
            s.settimeout(0.3)
            try: s.sendto({query!r}, ({address!r}, 53)); r = s.recv(512)
            except OSError as e: r = None
            r is None
        """
        assert attacker.evaluate(code) == "True"


def test_only_loopback_exists(attacker):
    code = (
        "import socket\nnames = []\nfor i in range(1, 64):\n"
        "    try: names.append(socket.if_indextoname(i))\n    except OSError: pass\nnames"
    )
    assert attacker.evaluate(code) == "['lo']"


def test_raw_packet_netlink_and_vsock_sockets_are_refused(attacker):
    code = """
        import socket
        r = []
        for family, kind in ((2, 3), (17, 3), (16, 3), (40, 1), (38, 5), (10, 3), (31, 1)):
            try: socket.socket(family, kind); r.append(family)
            except OSError as e: assert e.errno == 1, e
        r
    """
    assert attacker.evaluate(code) == "[]"


def test_siblings_do_not_share_loopback(attacker):
    attacker.run_in_sibling("import socket\ns = socket.create_server(('127.0.0.1', 7777))")
    assert "connected" not in attacker.evaluate(f"{CONNECT}go('127.0.0.1', 7777)")


def test_loopback_inside_one_container_works(attacker):
    assert (
        attacker.evaluate(f"{CONNECT}s = socket.create_server(('127.0.0.1', 7777))\ngo('127.0.0.1', 7777)")
        == "'connected'"
    )
