"""Fixtures for the Claude Agent SDK: adapters for a server, and what its CLI leaves on the host."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fixtures_server import Server

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig

KEY = "sk-test-7c1f0b6e"  # not a secret: a string that occurs nowhere else

needs_the_cli = pytest.mark.skipif(
    importlib.util.find_spec("claude_agent_sdk") is None, reason="run `make test-claude`, which installs the SDK"
)


TestT = TypeVar("TestT", bound=Callable[..., object])


def proves(feature: str, *, openai: str, claude: str) -> Callable[[TestT], TestT]:
    """Decorator: the test proves a row of the table in docs/claude-agent-sdk.md; read by scripts/parity_table.py."""
    _ = feature, openai, claude
    return lambda test: test


def claude_adapter(server: Server, **options: Any) -> ClaudeAgentSDKAdapter:
    config = ClaudeAgentSDKClientConfig(base_url=server.url, api_key=KEY)
    return ClaudeAgentSDKAdapter(**{"model": "scripted", "client_config": config, **options})


def own(name: str, **arguments: Any) -> dict[str, Any]:
    """A turn that calls a tool of the prompt through the CLI."""
    return {"call": {"name": f"mcp__wink__{name}", "arguments": arguments}}


def answer(**fields: Any) -> dict[str, Any]:
    """A turn that ends with a structured answer through the CLI."""
    return {"call": {"name": "StructuredOutput", "arguments": fields}}


@contextmanager
def temporary_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the temporary files of this process, with a short name because sockets lie in it.

    Nothing may be left in it, nor elsewhere in the directory of temporary files.
    """
    before = _leftovers()
    with tempfile.TemporaryDirectory(prefix="t") as directory:
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield Path(directory)
        assert os.listdir(directory) == []  # noqa: PTH208 - names only
        monkeypatch.undo()
    assert _leftovers() - before == set()
    assert _commands_with(directory) == []


def _leftovers() -> set[str]:
    """Files and sockets of the CLI outside of its own directories. Runs in other processes share an empty directory."""
    parents = [path for path in Path("/tmp").iterdir() if path.name.startswith(("cc-", "claude-"))]  # noqa: S108 - where it would leave them
    return {str(path) for parent in parents for path in parent.rglob("*")}


def _commands_with(directory: str) -> list[bytes]:
    """The processes that have this directory in their environment."""
    found: list[bytes] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if directory.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found
