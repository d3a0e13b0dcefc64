"""Which calls of the CLI's tools are refused: a second check, before the CLI's own permission rules."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk.messages import STRUCTURED_OUTPUT

_PATH_ARGUMENTS = {
    "Read": ("file_path",),
    "Write": ("file_path",),
    "Edit": ("file_path",),
    "Glob": ("path", "pattern"),
    "Grep": ("path",),
}

_ALTERNATIVE_RE = re.compile(r"[{,](?:/|~|\.\.)")  # an alternative that starts elsewhere, as in `{/etc,src}/*`


def refusal(name: str, arguments: Mapping[str, Any], *, offered: Collection[str], directory: Path) -> str | None:
    """Why a call is refused; None if it is not. `offered` are the names of all tools of the evaluation."""
    if name == STRUCTURED_OUTPUT:
        return None
    if name not in offered:
        return f"{name} is not available."
    if name == "Bash":
        return _refuse_command(arguments)
    for argument in _PATH_ARGUMENTS.get(name, ()):
        path: object = arguments.get(argument)
        if isinstance(path, str) and not _is_inside(path, directory):
            return f"{path!r} is not in the working directory, and other files are not available."
    return None


def _refuse_command(arguments: Mapping[str, Any]) -> str | None:
    if arguments.get("dangerouslyDisableSandbox"):
        return "Commands run in the sandbox only."
    if arguments.get("run_in_background"):
        return "Commands run in the foreground only; use a timeout for those that do not end."
    return None


def _is_inside(path: str, directory: Path) -> bool:
    """Whether a path, or the part of a glob pattern before its first wildcard, is in a directory, links resolved."""
    if "\0" in path or path.startswith("~"):
        return False
    if any(wildcard in path for wildcard in "*?[{") and (".." in path.split("/") or _ALTERNATIVE_RE.search(path)):
        return False  # what such a pattern matches is for the CLI to say
    root = os.path.realpath(directory)
    found = os.path.realpath(os.path.join(directory, path))  # noqa: PTH118 - an absolute path replaces the directory
    return found == root or found.startswith(f"{root}{os.sep}")
