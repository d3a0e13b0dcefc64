"""Loopback names, and the Host, Origin and Sec-Fetch-Site check."""

from __future__ import annotations

import pytest
from cross_origin_cases import ALLOWED_FETCH_SITE, ALLOWED_HOSTS, REJECTED_HOSTS, REJECTED_ORIGINS

from antwort.net.origin import cross_origin_violation, is_loopback, is_loopback_host


def headers(*lines: str) -> list[tuple[bytes, bytes]]:
    pairs = (line.partition(":") for line in lines)
    return [(name.lower().encode(), value.strip().encode()) for name, _, value in pairs]


def test_pages_of_allowed_origins_pass_if_the_host_does():
    page = ("Origin: https://app.example", "Sec-Fetch-Site: cross-site")
    allowed = {"https://app.example"}

    assert cross_origin_violation(headers("Host: localhost", *page), allowed_origins=allowed) is None
    assert cross_origin_violation(headers("Host: rebound.example", *page), allowed_origins=allowed) == "host"
    rejected = [(*page, "Origin: https://evil.example"), page[1:], ("Origin: null",), ("Origin: *",)]
    for lines in rejected:
        assert cross_origin_violation(headers("Host: localhost", *lines), allowed_origins=allowed) == "origin"


@pytest.mark.parametrize("name", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_names(name):
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name",
    [
        "0.0.0.0",  # noqa: S104 - not bound
        "::",
        "10.0.0.1",
        "example.com",
        "",
        "127.1",
        "localhost.",
        "localhost.evil",
        "::ffff:127.0.0.1",
        "[::1]",
    ],
)
def test_other_names(name):
    assert not is_loopback(name)


@pytest.mark.parametrize(
    "host, expected",
    [
        (b"localhost", True),
        (b"localhost:", False),
        (b"localhost:80", True),
        (b"localhost:8o", False),
        (b"localhost.:80", False),
        (b"x.localhost", False),
        (b"127.0.0.1", True),
        (b"127.255.0.9:65535", True),
        (b"127.1", False),
        (b"2130706433", False),
        (b"::1", False),
        (b"[::1]", True),
        (b"[::1]:1", True),
        (b"[::1", False),
        (b"[::2]:1", False),
        (b"[127.0.0.1]", True),
        (b"user@localhost", False),
        (b"localhost/", False),
        (b"\xff", False),
        (b"", False),
        (b":80", False),
    ],
)
def test_loopback_hosts_with_and_without_port(host, expected):
    assert is_loopback_host(host) is expected


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
def test_loopback_hosts_are_allowed(host):
    assert cross_origin_violation(headers(f"Host: {host}", ALLOWED_FETCH_SITE)) is None


@pytest.mark.parametrize("lines", REJECTED_HOSTS, ids=str)
def test_every_host_header_must_be_a_loopback_name(lines):
    assert cross_origin_violation(headers(*lines)) == "host"
    assert cross_origin_violation(headers(*lines), check_host=False) is None


@pytest.mark.parametrize("line", REJECTED_ORIGINS)
@pytest.mark.parametrize("check_host", [True, False])
def test_web_pages_are_rejected(line, check_host):
    assert cross_origin_violation(headers("Host: localhost", line), check_host=check_host) == "origin"
