from __future__ import annotations

import stat
import subprocess

import pytest

from weakincentives.adapters.claude_agent_sdk.process.directories import SessionDirectories


@pytest.fixture
def directories():
    created = SessionDirectories()
    yield created
    created.remove()


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_are_private_and_removed(directories):
    key = directories.write_private("key", "secret")
    assert key.read_text() == "secret"
    assert mode(key) == 0o600
    assert mode(directories.root) == mode(directories.private) == 0o700

    for _ in range(2):
        directories.remove()
    assert not directories.root.exists()


def test_launcher_starts_with_exactly_the_given_environment(directories, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    environment = {"A": "it's $HOME `id`\n", "PATH": "/usr/bin:/bin"}
    launcher = directories.write_launcher("/usr/bin/env", environment)
    output = subprocess.run([launcher, "-0"], capture_output=True, text=True, check=True).stdout

    assert sorted(output.split("\0")[:-1]) == sorted(f"{name}={value}" for name, value in environment.items())
    shown = subprocess.run(
        [directories.write_launcher("/bin/echo", environment), "a b", "--c"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "a b --c\n"
