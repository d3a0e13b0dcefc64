"""The Claude Agent SDK, imported on first use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from weakincentives.errors import MissingExtraError


def load_sdk() -> Any:  # noqa: ANN401 - an optional module
    """The module `claude_agent_sdk`. Raises `MissingExtraError`."""
    try:
        return import_module("claude_agent_sdk")
    except ImportError as error:
        raise MissingExtraError(
            "the Claude Agent SDK adapter needs the SDK: pip install 'weakincentives[claude]'"
        ) from error


def bundled_cli() -> Path:
    """The program of the package. Raises `MissingExtraError` if the package has none for this platform."""
    path = Path(load_sdk().__file__).parent / "_bundled" / "claude"
    if not path.is_file():
        raise MissingExtraError(
            f"the package claude-agent-sdk has no program for this platform ({path} does not exist): give cli_path"
        )
    return path
