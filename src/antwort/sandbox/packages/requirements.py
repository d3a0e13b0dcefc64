"""Requirement validation: only package names with versions and extras are passed to the installer. Pure."""

from __future__ import annotations

import re
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from antwort.sandbox.errors import BadRequirement

MAX_REQUIREMENTS: Final = 50
_MAX_REQUIREMENT_CHARS: Final = 200
_REQUIREMENT_RE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,<>=!~*+ \[\]-]*")
# `uv` reads a name with such a suffix as the path of a file.
_ARCHIVE_SUFFIXES: Final = (
    ".whl", ".zip", ".tar", ".tgz", ".tbz", ".txz", ".tlz", ".gz", ".bz2", ".xz", ".lz", ".lzma", ".zst",
)  # fmt: skip


def check_requirements(requirements: list[str]) -> list[str]:
    """The requirements normalized, sorted and without duplicates, or `BadRequirement`."""
    if len(requirements) > MAX_REQUIREMENTS:
        raise BadRequirement(f"{len(requirements)} requirements are more than the {MAX_REQUIREMENTS} allowed")
    return sorted({_check_one(line) for line in requirements})


def _check_one(line: str) -> str:
    refusal = f"{line[:_MAX_REQUIREMENT_CHARS]!r} is not a package name with versions, such as 'rich>=13,<15'"
    # The pattern comes first: it excludes options, URLs, paths, markers and line breaks.
    if len(line) > _MAX_REQUIREMENT_CHARS or not _REQUIREMENT_RE.fullmatch(line):
        raise BadRequirement(refusal)
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise BadRequirement(refusal) from error
    is_archive = requirement.name.lower().endswith(_ARCHIVE_SUFFIXES)
    if is_archive or requirement.url is not None or requirement.marker is not None:
        raise BadRequirement(refusal)
    return str(requirement)
