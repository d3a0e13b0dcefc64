from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weakincentives.adapters.claude_agent_sdk import NetworkPolicy
from weakincentives.adapters.claude_agent_sdk.process.sandbox import find_programs, sandbox_settings, secret_places
from weakincentives.tools.jailed_shell import JailedShell

linux = pytest.mark.skipif(sys.platform != "linux", reason="macOS has a sandbox of its own")


def test_settings_demand_the_sandbox():
    settings = sandbox_settings(
        network=NetworkPolicy(allowed_domains=("example.com",)),
        readable=[Path("/work")],
        hidden=[Path("/home")],
        unwritable=[Path("/session/config")],
    )

    assert settings["enabled"] is settings["failIfUnavailable"] is True
    assert settings["allowUnsandboxedCommands"] is False
    assert settings["network"] == {"allowedDomains": ["example.com"]}
    assert settings["filesystem"] == {
        "denyRead": ["/home"],
        "allowRead": ["/work"],
        "denyWrite": ["/session/config"],
    }


@linux
def test_socat_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(JailedShell, "unavailable_reason", staticmethod(lambda: None))
    assert "socat is not installed" in str(find_programs(str(tmp_path)).missing)

    (tmp_path / "socat").touch(mode=0o755)
    found = find_programs(str(tmp_path))
    assert found.missing is None
    assert found.directories[-1] == str(tmp_path)


@linux
def test_bubblewrap_must_work(tmp_path, monkeypatch):
    monkeypatch.setattr(JailedShell, "unavailable_reason", staticmethod(lambda: "no user namespaces"))
    (tmp_path / "socat").touch(mode=0o755)

    assert find_programs(str(tmp_path)).missing == "no user namespaces"


def test_homes_and_temporary_files_are_secret(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    places = secret_places()

    assert {tmp_path, tmp_path / "home", Path.cwd()} <= set(places)
    assert Path("/") not in places
    assert all(place.exists() for place in places)
