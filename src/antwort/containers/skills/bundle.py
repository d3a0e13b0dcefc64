"""Archive of a skill: reads a hostile ZIP archive or uploaded files, and writes a plain ZIP archive and a tar. Pure.

The archive that is stored is written here, from names and contents that were checked, so that reading it later meets
neither links nor bombs. These functions take time proportional to the content: call them in a thread.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import yaml
from msgspec import Struct

from antwort.api.errors import ApiError, invalid
from antwort.containers.sandboxes.path_rules import is_plain_path

MAX_ARCHIVE_BYTES: Final = 8 << 20
MAX_UNPACKED_BYTES: Final = 16 << 20
MAX_FILES: Final = 500
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
_MAX_DEPTH: Final = 16
_BLOCK: Final = 4096
_MAX_HEAD: Final = 16 << 10
_MANIFEST: Final = "SKILL.md"
_NAME_RE: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_HEAD_RE: Final = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_IGNORED: Final = ("__MACOSX/", ".DS_Store")
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IS_ENCRYPTED: Final = 0x1
_BROKEN: Final = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


class SkillFile(Struct, frozen=True):
    """A file of a skill, by its path below the skill's folder."""

    path: str
    content: bytes
    is_executable: bool = False


class SkillBundle(Struct, frozen=True):
    """A skill that was checked: what its `SKILL.md` says, and its files as a ZIP archive."""

    name: str
    description: str
    archive: bytes


def read_archive(data: bytes, param: str, *, name: str = "", description: str = "") -> SkillBundle:
    """A skill from a ZIP archive; `ApiError` 400 that names `param`.

    `name` and `description` are used where they are given, in place of those of `SKILL.md`.
    """
    if len(data) > MAX_ARCHIVE_BYTES:
        raise _invalid(f"it has more than {MAX_ARCHIVE_BYTES} bytes", param)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = list(_members(archive, param))
    except _BROKEN as error:
        raise _invalid("it is not a valid ZIP archive", param) from error
    return bundle_of(files, param, name=name, description=description)


def _members(archive: zipfile.ZipFile, param: str) -> Iterator[SkillFile]:
    entries = [entry for entry in archive.infolist() if not _is_ignored(entry.filename)]
    if len(entries) > 2 * MAX_FILES:  # with directories
        raise _invalid(f"it has more than {MAX_FILES} files", param)
    left = MAX_UNPACKED_BYTES
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if entry.is_dir() and kind in (0, stat.S_IFDIR):
            _check_path(entry.filename.rstrip("/"), param)
            continue
        if kind not in (0, stat.S_IFREG):
            raise _invalid(f"{_shown(entry.filename)} is a link or a device", param)
        if entry.flag_bits & _IS_ENCRYPTED or entry.compress_type not in _METHODS:
            raise _invalid(f"{_shown(entry.filename)} is encrypted, or compressed in an unusual way", param)
        _check_path(entry.orig_filename, param)  # `filename` ends at a NUL
        with archive.open(entry) as opened:
            content = opened.read(left + 1)  # the sizes of the headers may lie
        left -= len(content)
        if left < 0:
            raise _too_large(param)
        yield SkillFile(entry.filename, content, bool((entry.external_attr >> 16) & 0o111))


def bundle_of(files: Sequence[SkillFile], param: str, *, name: str = "", description: str = "") -> SkillBundle:
    """A skill from files, which are in one folder or none; `ApiError` 400 that names `param`."""
    kept = _without_folder([file for file in files if not _is_ignored(file.path)])
    if len(kept) > MAX_FILES:
        raise _invalid(f"it has more than {MAX_FILES} files", param)
    if sum(len(file.content) for file in kept) > MAX_UNPACKED_BYTES:
        raise _too_large(param)
    for file in kept:
        _check_path(file.path, param)
    _check_tree([file.path for file in kept], param)
    manifest = next((file for file in kept if file.path == _MANIFEST), None)
    if manifest is None:
        raise _invalid(f"there is no {_MANIFEST} at its top", param)
    if not (name and description):
        head = _front_matter(manifest.content, param)
        name, description = name or _text(head, "name", param), description or _text(head, "description", param)
    if len(name) > MAX_NAME or not _NAME_RE.fullmatch(name):
        raise _invalid(f"its name must be of a-z, 0-9 and single hyphens, at most {MAX_NAME} characters", param)
    if len(description) > MAX_DESCRIPTION or not description.strip():
        raise _invalid(f"its description must have 1 to {MAX_DESCRIPTION} characters", param)
    description = " ".join(description.split())
    if any(map(_is_control, description)):
        raise _invalid("its description has control characters", param)
    return SkillBundle(name, description, _to_zip(kept))


def _is_control(character: str) -> bool:
    """A character that cannot be stored or encoded, or that a terminal would obey: such as NUL, and half a pair."""
    return unicodedata.category(character) in ("Cc", "Cs")


def _without_folder(files: list[SkillFile]) -> list[SkillFile]:
    """Paths without the folder that all files are in, if `SKILL.md` is directly in it."""
    folders = {file.path.partition("/")[0] for file in files}
    folder = next(iter(folders), "")
    if len(folders) != 1 or not any(file.path == f"{folder}/{_MANIFEST}" for file in files):
        return files
    return [SkillFile(file.path[len(folder) + 1 :], file.content, file.is_executable) for file in files]


def _check_path(path: str, param: str) -> None:
    if not is_plain_path(path) or path.count("/") >= _MAX_DEPTH:
        raise _invalid(f"{_shown(path)} is not a plain relative path: no '..', leading '/' or backslash", param)


def _check_tree(paths: Sequence[str], param: str) -> None:
    """Refuse two files of one path, also where the file system ignores case, and a file that is a folder, too."""
    seen = {path.casefold() for path in paths}
    if len(seen) < len(paths):
        raise _invalid("two of its files have the same path", param)
    for path in seen:
        parts = path.split("/")
        if any("/".join(parts[:end]) in seen for end in range(1, len(parts))):
            raise _invalid(f"{_shown(path)} is below a file", param)


def _front_matter(content: bytes, param: str) -> dict[str, Any]:
    found = _HEAD_RE.match(content[:_MAX_HEAD].decode(errors="replace"))
    try:
        head: object = yaml.safe_load(found[1]) if found else None
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        RecursionError,
    ) as error:  # as `!!int ""`
        raise _invalid(f"the head of its {_MANIFEST} is not valid YAML", param) from error
    if not isinstance(head, dict):
        raise _invalid(f"its {_MANIFEST} must begin with '---', `name` and `description` as YAML, and '---'", param)
    return cast("dict[str, Any]", head)


def _text(head: dict[str, Any], field: str, param: str) -> str:
    value = head.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _invalid(f"its {_MANIFEST} has no `{field}` at its head", param)
    return value.strip()


def _is_ignored(path: str) -> bool:
    return path.startswith(_IGNORED[0]) or path.rpartition("/")[2] == _IGNORED[1]


def _to_zip(files: Iterable[SkillFile]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files, key=lambda file: file.path):
            info = zipfile.ZipInfo(file.path)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if file.is_executable else 0o644)) << 16
            archive.writestr(info, file.content)
    return written.getvalue()


def unpacked_size(archive: bytes) -> int:
    """The bytes that the files of a stored skill take on a disk, about: each takes a block at least."""
    with zipfile.ZipFile(io.BytesIO(archive)) as stored:
        return sum(max(entry.file_size, _BLOCK) for entry in stored.infolist())


def to_tar(archive: bytes) -> bytes:
    """The files of a stored skill as a tar."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as stored, tarfile.open(fileobj=written, mode="w") as tar:
        for entry in stored.infolist():
            info = tarfile.TarInfo(entry.filename)
            info.size, info.mode = entry.file_size, (entry.external_attr >> 16) & 0o777
            tar.addfile(info, io.BytesIO(stored.read(entry)))
    return written.getvalue()


def _shown(path: str) -> str:
    return repr(path[:100])


def _too_large(param: str) -> ApiError:
    return _invalid(f"its files have more than {MAX_UNPACKED_BYTES} bytes", param)


def _invalid(reason: str, param: str) -> ApiError:
    return invalid(f"Invalid skill: {reason}.", param=param)
