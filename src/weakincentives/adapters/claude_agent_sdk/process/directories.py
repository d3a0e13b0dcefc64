"""Directories of one CLI session: configuration, temporary files, home, and the files with the key and the prompt."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from weakincentives.tools.workspace import remove_tree


class SessionDirectories:
    """A private directory for the CLI, so that it neither reads nor writes the user's.

    It is removed by `remove`, or when this object is garbage-collected.

    `private` has what commands of the model must not read.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="wink-claude-"))  # with mode 0700; short, because sockets lie in it
        self.config, self.temporary, self.home, self.private, self.empty = (
            self.root / name for name in ("config", "tmp", "home", "private", "empty")
        )
        for directory in (self.config, self.temporary, self.home, self.private, self.empty):
            directory.mkdir(mode=0o700)
        self._finalizer = weakref.finalize(self, remove_tree, self.root)

    def write_private(self, name: str, text: str) -> Path:
        """Write a file that only this user can read."""
        path = self.private / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        return path

    def write_launcher(self, program: str, environment: Mapping[str, str]) -> Path:
        """Write a program that starts the CLI with exactly this environment.

        The SDK starts the CLI with the environment of this process, and can add to it only.
        """
        path = self.write_private("claude", launcher(program, environment))
        path.chmod(0o700)
        return path

    def remove(self) -> None:
        """Remove everything. A second call does nothing."""
        self._finalizer()

    @property
    def is_removed(self) -> bool:
        return not self._finalizer.alive


def launcher(program: str, environment: Mapping[str, str]) -> str:
    """The text of a shell script that runs `program` with its arguments and exactly this environment."""
    env = shutil.which("env") or "/usr/bin/env"
    variables = " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(environment.items()))
    return f'#!/bin/sh\nexec {shlex.quote(env)} -i {variables} {shlex.quote(program)} "$@"\n'
