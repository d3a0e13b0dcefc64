from __future__ import annotations

import pytest

from antwort.net.fetch import AddressPolicy

PUBLIC = ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "::ffff:1.1.1.1"]
SPECIAL = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254"),  # noqa: S104 - addresses to check
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *(
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:0:127.0.0.1",
        "::ffff:169.254.169.254",
    ),
    *("64:ff9b::7f00:1", "64:ff9b::1.1.1.1", "64:ff9b:1::a00:1", "100::1", "2001::1", "2001:db8::1", "2001:10::1"),
    *(
        "2002:7f00:1::",
        "2002:a00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ),
]
INVALID = [
    "",
    "localhost",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "fe80::1%eth0",
    "1.1.1.1%1",
    "[::1]",
    "1.1.1.1 ",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address):
    assert AddressPolicy().allows(address)


@pytest.mark.parametrize("address", [*SPECIAL, *INVALID])
def test_special_addresses_are_refused(address):
    assert not AddressPolicy().allows(address)


def test_networks_can_be_allowed():
    policy = AddressPolicy(["127.0.0.1/32", "10.0.0.0/8", "fd00::/8"])

    assert all(map(policy.allows, ["127.0.0.1", "::ffff:127.0.0.1", "10.9.8.7", "fd00::5", "1.1.1.1"]))
    assert not any(map(policy.allows, ["127.0.0.2", "::1", "fc00::1", "192.168.0.1", "64:ff9b::7f00:1"]))


@pytest.mark.parametrize("network", ["10.0.0.1/8", "x", ""])
def test_a_network_that_is_none_is_an_error(network):
    with pytest.raises(ValueError, match=r"host bits|does not appear"):
        AddressPolicy([network])
