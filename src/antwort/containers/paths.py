"""Names of files in a container, and what has changed among them. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from antwort.api.errors import invalid
from antwort.containers.sandboxes.port import SandboxFile
from antwort.engine.stores import ContainerFileRecord, FileRecord

DATA = "/mnt/data"
"""Where the files of a container are, for the code in it."""

_LONGEST_NAME = 255
_DEEPEST = 64


class Changes(Struct, frozen=True):
    """What is new or was written again since it was last looked at, and the ids of what is not there any more."""

    written: list[SandboxFile]
    gone: list[str]


def changes(known: Mapping[str, ContainerFileRecord], there: Sequence[SandboxFile]) -> Changes:
    """Compare what is known, by path, with what there is."""
    found = {file.path for file in there}
    return Changes(
        written=[file for file in there if not _is_same(known.get(file.path), file)],
        gone=[record.id for path, record in known.items() if path not in found],
    )


def _is_same(record: ContainerFileRecord | None, file: SandboxFile) -> bool:
    return record is not None and (record.bytes, record.modified) == (file.size, file.modified)


def relative_path(name: str, *, param: str) -> str:
    """The place below `/mnt/data` that a caller names; `ApiError` 400 for one that is not below it."""
    path = name.removeprefix(DATA + "/").removeprefix("./")
    if not _is_plain(path):
        raise invalid(
            f"A name must be a plain path below {DATA}: no '..', no backslash or control character, no empty part, "
            f"at most {_LONGEST_NAME} bytes for each part.",
            param=param,
        )
    return path


def place_for(file: FileRecord, is_taken: Callable[[str], bool]) -> str:
    """Where an uploaded file goes: by its own name if that can be, else by one that says which file it is."""
    name = file.filename.removeprefix(DATA + "/").removeprefix("./")
    if not _is_plain(name):
        name = "".join(character for character in name.rpartition("/")[2] if not _misleads(character))
    if not _is_plain(name):
        return file.id
    if not is_taken(name):
        return name
    above, slash, last = name.rpartition("/")
    longer = f"{above}{slash}{file.id}-{last}"
    return longer if _is_plain(longer) and not is_taken(longer) else file.id


def _is_plain(path: str) -> bool:
    parts = path.split("/")
    return len(parts) <= _DEEPEST and all(map(_is_part, parts))


def _is_part(name: str) -> bool:
    return name not in ("", ".", "..") and _fits(name) and not any(map(_misleads, name))


def _fits(name: str) -> bool:
    try:
        return len(name.encode()) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def _misleads(character: str) -> bool:
    """As the sandbox sees it: odd spaces and joined emoji are names, line ends and turned writing are tricks."""
    kind = unicodedata.category(character)
    return character == "\\" or (kind.startswith("C") and character != "\N{ZERO WIDTH JOINER}") or kind in ("Zl", "Zp")
