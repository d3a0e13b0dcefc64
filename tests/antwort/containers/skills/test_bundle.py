"""Archives of skills: what is read of them, and hostile ones."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile

import pytest

from antwort.api.errors import ApiError
from antwort.containers.skills.bundle import (
    MAX_FILES,
    MAX_UNPACKED_BYTES,
    SkillFile,
    bundle_of,
    read_archive,
    to_tar,
)

HEAD = "---\nname: csv-tools\ndescription: >\n  Reads\n  CSV files.\n---\n"


def zipped(files: dict[str, bytes | str], *entries: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for info, content in entries:
            archive.writestr(info, content)
    return written.getvalue()


def info(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    return entry


def names(archive: bytes) -> dict[str, int]:
    with tarfile.open(fileobj=io.BytesIO(to_tar(archive))) as tar:
        return {member.name: member.mode for member in tar}


@pytest.mark.parametrize("folder", ["", "csv-tools/"])
def test_name_description_and_files_of_an_archive(folder):
    script = info(f"{folder}scripts/run.sh", stat.S_IFREG | 0o755), b"#!/bin/sh\n"
    data = zipped(
        {f"{folder}SKILL.md": HEAD, f"{folder}a/b.txt": b"x", "__MACOSX/x": b"", f"{folder}.DS_Store": b""}, script
    )
    bundle = read_archive(data, "files")

    assert (bundle.name, bundle.description) == ("csv-tools", "Reads CSV files.")
    assert names(bundle.archive) == {"SKILL.md": 0o644, "a/b.txt": 0o644, "scripts/run.sh": 0o755}
    assert read_archive(bundle.archive, "files") == bundle


def test_a_given_name_and_description_replace_those_of_the_manifest():
    bundle = read_archive(zipped({"SKILL.md": "no head"}), "files", name="x", description="What x does.")
    assert (bundle.name, bundle.description) == ("x", "What x does.")


def test_uploaded_files():
    bundle = bundle_of([SkillFile("csv-tools/SKILL.md", HEAD.encode()), SkillFile("csv-tools/x", b"1")], "files")
    assert set(names(bundle.archive)) == {"SKILL.md", "x"}


BOMB = zipped({"SKILL.md": HEAD, "zeros": bytes(MAX_UNPACKED_BYTES + 1)})
HOSTILE = {
    "no archive": (b"PK\3\4 nothing", "not a valid ZIP"),
    "empty": (b"", "not a valid ZIP"),
    "no manifest": (zipped({"README.md": HEAD}), "no SKILL.md"),
    "a manifest in a second folder": (zipped({"a/SKILL.md": HEAD, "b/x": b""}), "no SKILL.md"),
    "bomb": (BOMB, "more than"),
    "too many files": (zipped({"SKILL.md": HEAD, **{f"f{at}": b"" for at in range(MAX_FILES)}}), "more than 500 files"),
    "dot dot": (zipped({"SKILL.md": HEAD, "../x": b""}), "plain relative path"),
    "absolute": (zipped({"SKILL.md": HEAD, "/etc/x": b""}), "plain relative path"),
    "backslash": (zipped({"SKILL.md": HEAD, "a\\b": b""}), "plain relative path"),
    "directory above": (zipped({"SKILL.md": HEAD, "../x/": b""}), "plain relative path"),
    "deep": (zipped({"SKILL.md": HEAD, "a/" * 40 + "x": b""}), "plain relative path"),
    "control character": (zipped({"SKILL.md": HEAD, "a\nb": b""}), "plain relative path"),
    "link": (zipped({"SKILL.md": HEAD}, (info("x", stat.S_IFLNK | 0o777), b"/etc/passwd")), "link or a device"),
    "device": (zipped({"SKILL.md": HEAD}, (info("x", stat.S_IFCHR | 0o666), b"")), "link or a device"),
    "two paths that differ in case": (zipped({"SKILL.md": HEAD, "a": b"", "A": b""}), "the same path"),
    "a file below a file": (zipped({"SKILL.md": HEAD, "a": b"", "a/b": b""}), "below a file"),
    "no head": (zipped({"SKILL.md": "# csv"}), "must begin with"),
    "head that is no mapping": (zipped({"SKILL.md": "---\n- a\n---\n"}), "must begin with"),
    "head that is not YAML": (zipped({"SKILL.md": "---\n{a: [\n---\n"}), "not valid YAML"),
    "nested head": (zipped({"SKILL.md": "---\n" + "[" * 5000 + "\n---\n"}), "YAML"),
    "object in the head": (zipped({"SKILL.md": "---\nname: !!python/object:os.system x\n---\n"}), "not valid YAML"),
    "number without digits": (zipped({"SKILL.md": '---\nname: !!int ""\n---\n'}), "not valid YAML"),
    "no time": (zipped({"SKILL.md": "---\nname: !!timestamp x\n---\n"}), "not valid YAML"),
    "no truth value": (zipped({"SKILL.md": "---\nname: !!bool x\n---\n"}), "not valid YAML"),
    "NUL": (zipped({"SKILL.md": '---\nname: x\ndescription: "a\\0b"\n---\n'}), "control characters"),
    "half a pair": (zipped({"SKILL.md": '---\nname: x\ndescription: "a\\ud800b"\n---\n'}), "control characters"),
    "no description": (zipped({"SKILL.md": "---\nname: x\n---\n"}), "no `description`"),
    "name with a slash": (zipped({"SKILL.md": "---\nname: a/b\ndescription: x\n---\n"}), "its name must be"),
    "name of dots": (zipped({"SKILL.md": "---\nname: '..'\ndescription: x\n---\n"}), "its name must be"),
    "long description": (zipped({"SKILL.md": f"---\nname: x\ndescription: {'x' * 2000}\n---\n"}), "its description"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_reason(name):
    data, reason = HOSTILE[name]
    with pytest.raises(ApiError, match="Invalid skill") as raised:
        read_archive(data, "tools[0].x")
    assert reason in raised.value.message
    assert (raised.value.status, raised.value.param) == (400, "tools[0].x")


def test_sizes_that_lie_are_not_believed():
    data = bytearray(BOMB)
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        at = data.rindex(signature)
        data[at + offset : at + offset + 4] = (10).to_bytes(4, "little")
    with pytest.raises(ApiError, match="Invalid skill"):
        read_archive(bytes(data), "files")


@pytest.mark.parametrize("cut", [10, 100, -30, -5])
def test_a_cut_archive_is_refused(cut):
    with pytest.raises(ApiError, match="not a valid ZIP"):
        read_archive(zipped({"SKILL.md": HEAD * 20})[:cut], "files")


def test_an_encrypted_archive_is_refused():
    data = bytearray(zipped({"SKILL.md": HEAD}))
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    with pytest.raises(ApiError, match="encrypted"):
        read_archive(bytes(data), "files")
