from __future__ import annotations

import os

import pytest

from weakincentives.errors import FilesystemError
from weakincentives.filesystem.journal import Absent, HostSnapshot, Journal, SavedDirectory, SavedFile, SavedLink


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "file").write_text("content")
    (tmp_path / "dir").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("somewhere")
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def paths(journal, snapshot):
    return [parts for parts, _ in journal.since(snapshot)]


def test_it_remembers_how_things_were_last_change_first(directory):
    journal = Journal()
    snapshot = journal.mark()
    for name in ("file", "dir", "link", "nothing", "fifo"):
        journal.note(("some", name), directory)

    (nothing, link, folder, file) = journal.since(snapshot)
    assert nothing == (("some", "nothing"), Absent())
    assert link == (("some", "link"), SavedLink("somewhere"))
    assert folder == (("some", "dir"), SavedDirectory(0o750))
    assert isinstance(file[1], SavedFile)
    assert b"".join(file[1].content) == b"content"


def test_without_a_living_snapshot_it_remembers_nothing(directory):
    journal = Journal()
    journal.note(("file",), directory)
    early = journal.mark()
    journal.note(("dir",), directory)
    late = journal.mark()
    journal.note(("link",), directory)
    assert paths(journal, early) == [("link",), ("dir",)]
    assert paths(journal, late) == [("link",)]

    del early
    assert paths(journal, late) == [("link",)]
    assert len(journal._log) == 1
    del late
    assert journal._log == []


def test_going_back_keeps_the_way_forward_only_for_later_snapshots(directory):
    journal = Journal()
    early = journal.mark()
    journal.note(("file",), directory)
    late = journal.mark()
    journal.note(("file",), directory)  # as when restoring
    journal.rewound(early)
    assert paths(journal, late) == [("file",)]

    del late
    journal.rewound(early)
    assert journal.since(early) == []


@pytest.mark.parametrize("stranger", [None, object(), HostSnapshot()])
def test_a_strangers_snapshot_is_refused(stranger):
    with pytest.raises(FilesystemError, match="another filesystem"):
        Journal().since(stranger)
