"""Paths of files in a container: validation, names of uploads, and changes between two listings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from antwort.api.errors import invalid
from antwort.containers.sandboxes.path_rules import MAX_NAME_BYTES, is_forbidden, is_plain_path
from antwort.containers.sandboxes.port import SandboxFile
from antwort.engine.stores import ContainerFileRecord, FileRecord

DATA = "/mnt/data"
"""The directory of a container's files, inside of its sandbox."""


class Changes(Struct, frozen=True):
    """The files that are new or changed, and the ids of those that were removed."""

    written: list[SandboxFile]
    removed_ids: list[str]


def changes(known: Mapping[str, ContainerFileRecord], listing: Sequence[SandboxFile]) -> Changes:
    """Compare the known records, by path, with a listing of the sandbox."""
    found = {file.path for file in listing}
    return Changes(
        written=[file for file in listing if not _is_same(known.get(file.path), file)],
        removed_ids=[record.id for path, record in known.items() if path not in found],
    )


def _is_same(record: ContainerFileRecord | None, file: SandboxFile) -> bool:
    return record is not None and (record.bytes, record.modified) == (file.size, file.modified)


def relative_path(name: str, *, param: str) -> str:
    """The path below `/mnt/data` that a caller names; `ApiError` 400 for a path outside of it."""
    path = name.removeprefix(DATA + "/").removeprefix("./")
    if not is_plain_path(path):
        raise invalid(
            f"A name must be a plain path below {DATA}: no '..', no backslash or control character, no empty part, "
            f"at most {MAX_NAME_BYTES} bytes for each part.",
            param=param,
        )
    return path


def path_for(file: FileRecord, is_taken: Callable[[str], bool]) -> str:
    """The path of an uploaded file: its own name if valid and free, else one with its id."""
    name = file.filename.removeprefix(DATA + "/").removeprefix("./")
    if not is_plain_path(name):
        name = "".join(character for character in name.rpartition("/")[2] if not is_forbidden(character))
    if not is_plain_path(name):
        return file.id
    if not is_taken(name):
        return name
    above, slash, last = name.rpartition("/")
    longer = f"{above}{slash}{file.id}-{last}"
    return longer if is_plain_path(longer) and not is_taken(longer) else file.id
