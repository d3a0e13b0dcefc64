"""There is no network: nothing resolves, nothing answers, nothing but loopback is there."""

from __future__ import annotations

import pytest

CONNECT = "import socket\ndef go(h, p=80):\n    try:\n        socket.create_connection((h, p), 2).close(); return 'connected'\n    except OSError as e: return type(e).__name__, e.errno\n"


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[fd00:ec2::254]", "127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "::ffff:127.0.0.1", "::1", "0.0.0.0", "192.0.2.1"],  # noqa: S104 - a target, not a bind  # fmt: skip
)
def test_no_address_in_any_form_reaches_the_server(arena, host):
    port = int(arena.client.url.rpartition(":")[2])
    assert "connected" not in arena.value(f"{CONNECT}go({host.strip('[]')!r}, {port})")


@pytest.mark.parametrize("name", ["example.com", "metadata.google.internal", "localhost.localdomain"])
def test_no_name_resolves(arena, name):
    assert "gaierror" in arena.value(f"{CONNECT}go({name!r})")


def test_only_loopback_exists(arena):
    code = (
        "import socket\nnames = []\nfor i in range(1, 64):\n"
        "    try: names.append(socket.if_indextoname(i))\n    except OSError: pass\nnames"
    )
    assert arena.value(code) == "['lo']"


def test_raw_packet_netlink_and_vsock_sockets_are_refused(arena):
    code = "import socket\nr = []\nfor family, kind in ((2, 3), (17, 3), (16, 3), (40, 1), (38, 5), (10, 3), (31, 1)):\n    try: socket.socket(family, kind); r.append(family)\n    except OSError as e: assert e.errno == 1, e\nr"  # fmt: skip
    assert arena.value(code) == "[]"


def test_siblings_cannot_talk_over_loopback(arena):
    arena.client.run(arena.sibling, "import socket\ns = socket.create_server(('127.0.0.1', 7777))")
    assert "connected" not in arena.value(f"{CONNECT}go('127.0.0.1', 7777)")


def test_loopback_inside_one_container_works(arena):
    assert arena.value(f"{CONNECT}s = socket.create_server(('127.0.0.1', 7777))\ngo('127.0.0.1', 7777)") == "'connected'"
