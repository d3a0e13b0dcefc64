"""Settings: environment variables, validation, and the token required beyond loopback."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from antwort.sandbox.errors import Refused
from antwort.sandbox.server.settings import SandboxSettings, from_environment


def test_command_line_options_override_the_environment():
    found = from_environment({"SANDBOX_PORT": "9", "SANDBOX_MAX_CONCURRENT": "5", "SANDBOX_BUILDS": "true"}, port=7)
    assert (found.port, found.max_concurrent, found.builds, found.output_dir) == (7, 5, True, "output")


@pytest.mark.parametrize("name,value", [("PORT", "x"), ("BUILDS", "maybe"), ("QUEUE_SECONDS", "soon")])
def test_the_error_of_an_invalid_value_names_its_variable(name, value):
    with pytest.raises(Refused, match=f"SANDBOX_{name}"):
        from_environment({f"SANDBOX_{name}": value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sandbox.internal"])  # noqa: S104 - these are rejected
def test_a_token_is_required_beyond_loopback(host):
    with pytest.raises(Refused, match="SANDBOX_TOKEN"):
        from_environment({}, host=host).check()
    from_environment({}, host=host, token="t").check()


def test_loopback_needs_no_token():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        from_environment({}, host=host).check()


def test_a_unix_socket_needs_no_token():
    from_environment({"SANDBOX_HOST": "0.0.0.0", "SANDBOX_UDS": "/run/mine/socket"}).check()  # noqa: S104 - not used


@pytest.mark.parametrize("name", ["..", "/tmp", "a/../b", "a\\b", "a\nb", ".", "a//b", "x" * 300])  # noqa: S108 - these are rejected
def test_the_output_directory_must_be_a_relative_path_in_the_container(name):
    with pytest.raises(Refused, match="SANDBOX_OUTPUT_DIR"):
        from_environment({"SANDBOX_OUTPUT_DIR": name}).check()
    from_environment({"SANDBOX_OUTPUT_DIR": "out/here"}).check()


@pytest.mark.parametrize(
    "name, value",
    [
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("MAX_CONCURRENT", "0"),
        ("QUEUE", "-1"),
        ("QUEUE_SECONDS", "nan"),
        ("QUEUE_SECONDS", "inf"),
        ("MAX_SESSIONS", "0"),
        ("SESSION_SECONDS", "0"),
        ("MAX_TIMEOUT_SECONDS", "0"),
        ("MAX_OUTPUT_BYTES", "-5"),
    ],
)
def test_the_error_of_a_number_out_of_range_names_its_variable(name, value):
    with pytest.raises(Refused, match=f"SANDBOX_{name}={value}"):
        from_environment({f"SANDBOX_{name}": value}).check()


def test_every_setting_is_documented():
    text = (Path(__file__).parents[4] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    names = [f"SANDBOX_{field.name.upper()}" for field in dataclasses.fields(SandboxSettings)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_one_tenant_cannot_use_all_sessions():
    assert SandboxSettings().max_sessions_per_tenant < SandboxSettings().max_sessions
