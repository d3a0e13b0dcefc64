"""Our own server passes the suite that it ships, as an ordinary user and as root."""

from __future__ import annotations

import pytest

from antwort.sandbox import conformance


@pytest.mark.parametrize("check", conformance.BASE + conformance.SESSIONS, ids=lambda check: check.__name__)
def test_the_server_conforms(server, check):
    check(server.client)


def test_the_suite_says_what_fails(server, capsys):
    assert conformance.main([]) == 2
    assert conformance.main(["--base", "http://127.0.0.1:9"]) == 1
    assert "FAILED health" in capsys.readouterr().out
