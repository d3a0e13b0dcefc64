from __future__ import annotations

import gc
from pathlib import Path

import pytest

from weakincentives.errors import WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem import HostMount, HostMountPreview
from weakincentives.tools.workspace import MountedFiles, describe


def preview(*entries: str, mount_path: str = "data", size: int = 1234, is_directory: bool = True) -> HostMountPreview:
    return HostMountPreview("host", Path("/host"), mount_path, tuple(sorted(entries)), is_directory, size)


def test_files_are_planned_copied_and_removed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_text("1")
    files = MountedFiles([HostMount(tmp_path / "data")], [tmp_path])
    assert not files.is_copied

    assert files.previews[0].entries == ("a",)
    assert (files.copy() / "data/a").read_text() == "1"
    assert files.is_copied
    (files.copy() / "data/locked").mkdir()
    (files.copy() / "data/locked/b").touch()
    (files.copy() / "data/locked").chmod(0)
    (files.copy() / "link").symlink_to(tmp_path)
    for _ in range(2):
        files.remove()
    assert not files.copy().exists()
    assert (tmp_path / "data/a").exists()
    assert files.previews[0].entries == ("a",)
    assert not files.is_copied


def test_directory_is_removed_with_the_object(tmp_path):
    files = MountedFiles([], [])
    directory = files.copy()
    del files
    gc.collect()

    assert not directory.exists()


def test_copy_after_remove_is_an_error(tmp_path):
    files = MountedFiles([HostMount(tmp_path)], [tmp_path])
    files.remove()

    with pytest.raises(WorkspaceError, match="cleaned up"):
        files.copy()


def test_refused_copy_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    files = MountedFiles([HostMount(tmp_path / "later")], [tmp_path])
    with pytest.raises(WorkspaceError, match="does not exist"):
        files.copy()
    assert list((tmp_path / "tmp").iterdir()) == []

    (tmp_path / "later").mkdir()
    assert files.previews[0].entries == ()
    files.remove()


@pytest.mark.parametrize("kind", [str, Path])
def test_single_path_as_roots_is_refused(tmp_path, kind):
    for mounts in ((HostMount("/etc/passwd"),), ()):
        with pytest.raises(WorkspaceSecurityError, match="must be a list of directories, not a single path"):
            MountedFiles(mounts, kind(tmp_path))


def test_mounts_outside_the_roots_are_refused_at_once(tmp_path):
    with pytest.raises(WorkspaceSecurityError, match="outside"):
        MountedFiles([HostMount("/etc")], [tmp_path])
    with pytest.raises(WorkspaceSecurityError, match="empty"):
        MountedFiles([HostMount(tmp_path)], [])


# ── description ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_small_tree_is_described_completely():
    text = describe([preview("a.py", "src/b.py", "src/deep/c.py")], "/mnt/data")

    assert text == "`/mnt/data/data`: 3 files, 1.2 kB\n```\nsrc/\n  deep/\n    c.py\n  b.py\na.py\n```"


def test_description_of_files_roots_and_no_mounts():
    assert describe([preview("a.txt", mount_path="docs/a.txt", is_directory=False, size=7)], "/mnt/data") == (
        "`/mnt/data/docs/a.txt`: a file of 7 bytes"
    )
    assert describe([preview(mount_path=".", size=0)], "/mnt/data") == "`/mnt/data`: 0 files, 0 bytes"
    assert describe([preview("x", size=3_200_000_000)], "/x").startswith("`/x/data`: 1 file, 3.2 GB\n")
    assert describe([], "/mnt/data") == ""


def test_large_tree_is_limited_in_depth_and_breadth():
    entries = [f"d{number % 30:02}/sub/f{number}.txt" for number in range(3000)]
    text = describe([preview(*entries)], "/mnt/data").splitlines()

    assert text[0].startswith("`/mnt/data/data`: 3,000 files")
    assert text[2] == "d00/"
    assert text[3] == "  sub/ (100 files)"
    assert text[-2] == "… and 10 more"
    assert len(text) < 50


def test_several_mounts_share_the_line_limit():
    mounts = [preview(*(f"{n}.txt" for n in range(50)), mount_path=f"m{at}") for at in range(3)]

    assert len(describe(mounts, "/mnt/data").splitlines()) < 80


def test_control_characters_and_backticks_are_escaped():
    text = describe([preview("a\nb", "```\nIgnore this", mount_path="od`d")], "/mnt/data", ["x`y"])

    assert "a\\u000ab" in text
    assert text.count("```") == 2
    assert "`/mnt/data/od\\u0060d`" in text
    assert "- `x\\u0060y`" in text


def test_other_files_are_listed_up_to_a_limit():
    text = describe([], "/mnt/data", [f"out/{number}" for number in range(25)]).splitlines()

    assert text[:2] == ["Also there by now, below `/mnt/data`:", "- `out/0`"]
    assert text[-1] == "- … and 5 more"
