"""Settings come from the environment, are checked, and never open an unprotected door."""

from __future__ import annotations

import pytest

from antwort.sandbox.errors import Refused
from antwort.sandbox.server.settings import from_environment


def test_the_environment_is_read_and_the_command_line_wins():
    found = from_environment({"SANDBOX_PORT": "9", "SANDBOX_MAX_CONCURRENT": "5", "SANDBOX_BUILDS": "true"}, port=7)
    assert (found.port, found.max_concurrent, found.builds, found.output_dir) == (7, 5, True, "output")


@pytest.mark.parametrize("name,value", [("PORT", "x"), ("BUILDS", "maybe"), ("QUEUE_SECONDS", "soon")])
def test_a_wrong_value_names_its_variable(name, value):
    with pytest.raises(Refused, match=f"SANDBOX_{name}"):
        from_environment({f"SANDBOX_{name}": value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sandbox.internal"])  # noqa: S104 - what must be refused
def test_beyond_loopback_a_token_is_needed(host):
    with pytest.raises(Refused, match="SANDBOX_TOKEN"):
        from_environment({}, host=host).check()
    from_environment({}, host=host, token="t").check()


def test_loopback_needs_none():
    for host in ("127.0.0.1", "::1", "localhost"):
        from_environment({}, host=host).check()
