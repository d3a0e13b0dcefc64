"""Aliases of models: exact names and globs that stand for the name of a configured model.

An exact alias has precedence over every glob, and of several globs that match the first in the configuration is used.
Names are case-sensitive. In a glob, `*` matches any characters, also `/`, `?` one character, and `[ab]` one of a set.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping


class Aliases:
    """Aliases, each with the name of its model."""

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self._exact = {alias: model for alias, model in aliases.items() if not _is_glob(alias)}
        # The translation of `fnmatch` does not backtrack into an earlier `*`: matching takes linear time.
        self._globs = [
            (re.compile(fnmatch.translate(alias)), model) for alias, model in aliases.items() if _is_glob(alias)
        ]

    def resolve(self, name: str) -> str | None:
        """The model that this name stands for; None if no alias matches."""
        if name in self._exact:
            return self._exact[name]
        return next((model for glob, model in self._globs if glob.match(name)), None)

    def names(self) -> list[str]:
        """The exact aliases. A glob is no name that a request could send."""
        return list(self._exact)


def _is_glob(alias: str) -> bool:
    return any(character in alias for character in "*?[")
