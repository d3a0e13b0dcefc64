"""Refuses to run clients of other projects where they could reach more than loopback."""

from __future__ import annotations

import socket

import pytest

FAR_ADDRESS = ("192.0.2.1", 9)  # reserved for documentation; a UDP socket that connects to it sends nothing


@pytest.fixture(scope="session", autouse=True)
def offline():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(FAR_ADDRESS)
        except OSError:
            return
    pytest.fail("these clients call home: run `make test-clients`, which takes the network away", pytrace=False)
