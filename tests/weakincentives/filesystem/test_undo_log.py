from __future__ import annotations

import gc
import os

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem import Filesystem
from weakincentives.filesystem.undo_log import Absent, HostSnapshot, SavedDir, SavedFile, SavedLink, UndoLog
from weakincentives.resources import Snapshotable


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "file").write_text("content")
    (tmp_path / "dir").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("somewhere")
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def paths(log, snapshot):
    return [parts for parts, _ in log.changes_since(snapshot)]


def test_changes_are_returned_last_change_first(directory):
    log = UndoLog()
    snapshot = log.take_snapshot()
    for name in ("file", "dir", "link", "nothing", "fifo"):
        log.record(("some", name), directory)

    (nothing, link, folder, file) = log.changes_since(snapshot)
    assert nothing == (("some", "nothing"), Absent())
    assert link == (("some", "link"), SavedLink("somewhere"))
    assert folder == (("some", "dir"), SavedDir(0o750))
    assert isinstance(file[1], SavedFile)
    assert b"".join(file[1].content()) == b"content"


def test_log_is_empty_without_live_snapshots(directory):
    log = UndoLog()
    log.record(("file",), directory)
    early = log.take_snapshot()
    log.record(("dir",), directory)
    late = log.take_snapshot()
    log.record(("link",), directory)
    assert paths(log, early) == [("link",), ("dir",)]
    assert paths(log, late) == [("link",)]

    del early
    assert paths(log, late) == [("link",)]
    assert len(log._log) == 1
    del late
    assert log._log == []


def test_entries_after_a_restored_snapshot_are_kept_only_for_later_snapshots(directory):
    log = UndoLog()
    early = log.take_snapshot()
    log.record(("file",), directory)
    late = log.take_snapshot()
    log.record(("file",), directory)  # as when restoring
    log.discard_after(early)
    assert paths(log, late) == [("file",)]

    del late
    log.discard_after(early)
    assert log.changes_since(early) == []


@pytest.mark.parametrize("foreign", [None, object(), HostSnapshot()])
def test_snapshot_of_another_log_is_rejected(foreign):
    with pytest.raises(FilesystemError, match="another filesystem"):
        UndoLog().changes_since(foreign)


# ── With HostFilesystem ───────────────────────────────────────────────────────────────────────────────────────────────


def test_is_snapshotable(files):
    assert isinstance(files, Snapshotable)
    assert isinstance(files, Filesystem)


def test_restore_keeps_permissions_links_and_times(files, root, list_entries):
    (root / "dir/link").symlink_to("../../outside")
    (root / "dir/file").chmod(0o751)
    os.utime(root / "dir/file", (1_000_000, 1_000_000))
    (root / "dir").chmod(0o750)
    before = list_entries(root)

    snapshot = files.snapshot()
    files.write_text("dir/file", "changed")
    files.delete("dir", recursive=True)
    files.write_text("dir", "a file now")
    files.restore(snapshot)

    assert list_entries(root) == before
    assert (root / "dir/file").stat().st_mtime == 1_000_000


def test_restore_keeps_changes_of_other_processes(files, root):
    snapshot = files.snapshot()
    files.write_text("made/file", "own")
    (root / "made/foreign").write_text("foreign")
    (root / "other").write_text("foreign")
    files.restore(snapshot)

    assert files.list_dir("made") == ["foreign"]
    assert files.read_text("other") == "foreign"


def test_nothing_is_logged_without_a_live_snapshot(files):
    files.write_text("a", "1")
    assert files._undo_log._log == []

    snapshot = files.snapshot()
    files.write_text("a", "2")
    files.read_text("a")
    assert len(files._undo_log._log) == 1

    del snapshot
    gc.collect()
    assert files._undo_log._log == []
    assert files._undo_log._store is None


def test_restore_of_a_large_tree(files, root, list_entries):
    for number in range(300):
        (root / f"dir/{number}").write_bytes(os.urandom(1_000))
    (root / "dir/big").write_bytes(os.urandom(5_000_000))
    before = list_entries(root)

    snapshot = files.snapshot()
    files.delete("dir", recursive=True)
    assert files.list_dir() == []
    files.restore(snapshot)
    assert list_entries(root) == before


def test_log_that_is_collected_before_its_snapshots_closes_its_store(directory):
    log = UndoLog()
    snapshot = log.take_snapshot()
    log.record(("file",), directory)
    store = log._store
    assert store is not None

    del log
    gc.collect()

    assert store.closed
    assert snapshot is not None
