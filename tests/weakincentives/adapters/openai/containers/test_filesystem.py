"""The files of a container over the plain API, as OpenAI has it and as it may be; our own server is in `together`."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from fake_containers_api import FakeContainersApi, containers_api
from fake_responses_api import FakeResponse, error

from weakincentives.adapters.openai import ContainerConfig, ContainerExpiredError, ContainerFilesystem, ContainerManager
from weakincentives.clock import ManualClock
from weakincentives.errors import FilesystemError, MissingFileError, WorkspaceError
from weakincentives.runtime import ContainerRecreated, Session
from weakincentives.testing.filesystem import FilesystemConformance


def files_of(api: FakeContainersApi, session: Session | None = None, **options: Any) -> ContainerFilesystem:
    manager = ContainerManager(client=api.client, session=session, clock=ManualClock())
    return ContainerFilesystem(manager=manager, **options)


@pytest.mark.parametrize("naming", ["prefixed", "refused"], indirect=True)
class TestOnAnyPlainServer(FilesystemConformance):
    @pytest.fixture(autouse=True)
    def naming(self, request):
        with containers_api(naming=request.param) as self._api:
            yield

    def make(self):
        return ContainerFilesystem(client=self._api.client, container_config=ContainerConfig())


@pytest.fixture
def api():
    with containers_api() as running:
        yield running


@pytest.mark.parametrize("naming", ["kept", "prefixed", "flattened", "refused"])
def test_files_of_one_name_in_many_directories_are_many_files(naming, tmp_path):
    paths = ["a/x", "b/x", "x", "a/b/x", "a%2Fx"]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    with containers_api(naming=naming) as api:
        files = files_of(api, local_root=tmp_path)
        files.write_text("c/x", "c/x")
        files.refresh()

        assert files.glob("**") == sorted([*paths, "c/x"])
        assert sorted(api.contents.values()) == sorted(path.encode() for path in [*paths, "c/x"])
        assert len(api.contents) == len(paths) + 1
        assert len(set(files.relocated().values())) == len(files.relocated())


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_asked_before_the_first_use(api):
    files = files_of(api)

    assert (files.container_id, files.known_paths(), api.requests) == (None, (), [])
    assert repr(files) == "ContainerFilesystem(None)"
    with pytest.raises(OSError, match="leaves the root"):
        files.read_bytes("../x")
    assert api.requests == []


def test_what_was_written_is_read_from_here(api):
    files = files_of(api)
    files.write_text("a/b.txt", "1")

    assert files.read_text("a/b.txt") == "1"
    assert api.count_requests("GET", ".*/content") == 0


def test_a_read_is_kept_by_id_and_size(api):
    files = files_of(api)
    files.ensure_container()
    kept = api.put("made.txt", b"one")
    files.refresh()

    assert [files.read_text("made.txt") for _ in range(3)] == ["one"] * 3
    assert api.count_requests("GET", ".*/content") == 1
    kept.content = b"three"  # the same id, and another size
    files.refresh()
    assert files.read_text("made.txt") == "three"
    kept.id, api.newest.files = "cfile_other", {"cfile_other": kept}
    kept.content = b"seven"  # the same size, and another id
    files.refresh()
    assert files.read_text("made.txt") == "seven"
    assert api.count_requests("GET", ".*/content") == 3


def test_every_page_of_a_listing_is_followed(api):
    files = files_of(api)
    files.ensure_container()
    for number in range(250):
        api.put(f"many/{number:03}", b"x")
    files.refresh()

    assert len(files.list_dir("many")) == 250
    assert api.count_requests("GET", r".*/files\?.*") == 3


def test_a_listing_that_never_ends_is_an_error(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    page = {"object": "list", "data": [api._file(next(iter(api.newest.files.values())), api.newest)], "has_more": True}
    api.routes[r"GET /containers/([^/?]+)/files(\?.*)?"] = lambda _: FakeResponse(page)
    with pytest.raises(FilesystemError, match="repeats its page"):
        files.refresh()


def test_a_file_is_replaced_by_the_new_one_before_the_old_one_goes(api):
    files = files_of(api)
    files.write_text("a.txt", "old")
    api.requests.clear()
    files.write_text("a.txt", "new")

    assert [(one.method, one.path.rpartition("/files")[2][:1]) for one in api.requests] == [
        ("POST", ""),
        ("DELETE", "/"),
    ]
    assert list(api.contents.values()) == [b"new"]


def test_a_file_that_cannot_be_replaced_stays(api):
    files = files_of(api)
    files.write_text("a.txt", "old")
    api.faults = [error(413, "Too large.")]
    with pytest.raises(FilesystemError, match="Too large"):
        files.write_text("a.txt", "new")

    assert files.read_text("a.txt") == "old"
    assert list(api.contents.values()) == [b"old"]


def test_a_server_that_does_not_tell_sizes_is_read_for_them():
    with containers_api(sizes=False) as api:
        files = files_of(api)
        files.write_text("a.txt", "12345")
        api.put("made.txt", b"123")
        files.refresh()

        assert (files.stat("a.txt").size, files.stat("made.txt").size) == (5, 3)
        assert files.grep("12") != []


def test_of_two_files_in_one_place_the_later_one_counts():
    with containers_api(naming="kept") as api:
        files = files_of(api)
        files.ensure_container()
        api.put("a.txt", b"1")
        api.put("a.txt", b"22")
        files.refresh()

        assert (files.list_dir(), files.read_text("a.txt")) == (["a.txt"], "22")


def test_who_is_told_to_wait_waits_and_goes_on(api):
    clock = ManualClock()
    files = ContainerFilesystem(manager=ContainerManager(client=api.client, clock=clock))
    files.ensure_container()
    api.faults = [error(429, "Slow down.", retry_after="7"), error(503, "Later."), FakeResponse(disconnect=True)]
    files.write_text("a.txt", "1")

    assert files.read_text("a.txt") == "1"
    assert clock.slept[0] == 7
    assert len(clock.slept) == 3


def test_an_answer_of_another_api_is_an_error_that_says_so(api):
    files = files_of(api)
    files.ensure_container()
    api.faults = [FakeResponse({"data": "nothing"})]
    with pytest.raises(FilesystemError, match="not of the Containers API"):
        files.refresh()
    api.faults = [FakeResponse(["nothing"])]
    with pytest.raises(FilesystemError, match="not of the Containers API"):
        files.write_text("a", "1")


def test_whatever_goes_wrong_is_the_filesystems_error(api, tmp_path):
    files = files_of(api)
    files.write_text("a.txt", "1")
    api.routes[r"GET /containers/([^/?]+)"] = lambda _: error(403, "Not for you.")
    for use in (files.sync, lambda: files.download_all(tmp_path)):
        with pytest.raises(FilesystemError, match="Not for you"):
            use()


def test_a_download_that_breaks_off_begins_again(api):
    files = files_of(api)
    files.ensure_container()
    api.put("made.bin", b"x" * 100_000)
    files.refresh()
    api.faults = [FakeResponse(b"x" * 10, headers={"content-length": "100000", "connection": "close"})]

    assert files.read_bytes("made.bin") == b"x" * 100_000


def test_a_file_that_went_between_listing_and_reading_is_missing(api):
    files = files_of(api)
    files.ensure_container()
    kept = api.put("made.txt", b"1")
    files.refresh()
    del api.newest.files[kept.id]

    with pytest.raises(MissingFileError):
        files.read_text("made.txt")
    assert not files.exists("made.txt")


def test_deleting_what_is_gone_already_is_done(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    files.write_text("dir/b.txt", "2")
    files.ensure_container()
    api.newest.files.clear()
    files.delete("a.txt")
    files.delete("dir", recursive=True)

    assert files.list_dir() == []


# ── containers that are gone ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["400 expired", "404", "status"])
def test_every_form_of_being_gone_is_one(api, form):
    session, clock = Session(), ManualClock()
    manager = ContainerManager(client=api.client, session=session, clock=clock)
    files = ContainerFilesystem(manager=manager)
    files.write_text("a.txt", "1")
    first = api.newest
    if form == "404":
        del api.containers[first.id]
    else:
        first.status = "expired"
    if form == "status":
        clock.advance(11 * 60)  # then it is request after, and nothing is tried that would fail
        assert files.list_dir() == ["a.txt"]
    else:
        files.write_text("b.txt", "2")

    (told,) = session[ContainerRecreated].all()
    assert (told.old_id, told.new_id, told.restored, told.lost) == (first.id, api.newest.id, ("a.txt",), ())
    assert files.read_text("a.txt") == "1"
    manager_seen = [
        one.path for one in api.requests if one.method == "POST" and one.path.startswith(f"/v1/containers/{first.id}")
    ]
    assert len(manager_seen) == {"400 expired": 2, "404": 2, "status": 1}[form]


def test_one_that_is_gone_again_is_not_tried_for_ever(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    del api.containers[api.newest.id]
    upload = api.routes[r"POST /containers/([^/?]+)/files"]
    seen = []

    def vanish(request):
        seen.append(request.path)
        if len(seen) > 2:  # the old one, and what is restored into the new one, are what they are
            api.containers.clear()
        return upload(request)

    api.routes[r"POST /containers/([^/?]+)/files"] = vanish
    with pytest.raises(ContainerExpiredError, match="is gone too"):
        files.write_text("b.txt", "2")
    assert len(seen) == 3


def test_after_its_end_it_says_so(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    files.cleanup()
    files.cleanup()

    assert api.containers == {}
    with pytest.raises(WorkspaceError, match="cleaned up"):
        files.read_text("a.txt")


# ── what it begins with ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tarball_and_a_directory_to_begin_with(api, tmp_path):
    with tarfile.open(tmp_path / "begin.tar", "w") as tar:
        info = tarfile.TarInfo("src/grün.py")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    (tmp_path / "root").mkdir()
    (tmp_path / "root/here.txt").write_text("1")
    files = files_of(api, tarball_path=tmp_path / "begin.tar", local_root=tmp_path / "root")

    assert files.glob("**") == ["here.txt", "src/grün.py"]
    assert (tmp_path / "root/src/grün.py").read_bytes() == b"abc"
    assert sorted(api.contents.values()) == [b"1", b"abc"]


@pytest.mark.parametrize(
    "name, kind", [("../out", tarfile.REGTYPE), ("/etc/x", tarfile.REGTYPE), ("l", tarfile.SYMTYPE)]
)
def test_a_tarball_that_is_not_safe_is_refused_before_anything_is_made(api, tmp_path, name, kind):
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    files = files_of(api, tarball_path=tmp_path / "bad.tar", local_root=tmp_path / "root")
    (tmp_path / "root").mkdir()
    with pytest.raises(FilesystemError):
        files.ensure_container()

    assert (api.containers, list((tmp_path / "root").iterdir()), (tmp_path / "out").exists()) == ({}, [], False)


# ── bringing it here ─────────────────────────────────────────────────────────────────────────────────────────────────


def everything(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


HOSTILE = ["../outside", "a/../../outside", "/etc/cron.d/x", "a//b", "C:\\x", "nul\0byte", "..", "x/" + "y" * 300]


def test_a_name_that_would_leave_the_directory_is_refused_and_told(tmp_path):
    (tmp_path / "outside").write_text("untouched")
    with containers_api(naming="kept") as api:
        files = files_of(api, local_root=tmp_path / "in/root")
        (tmp_path / "in/root").mkdir(parents=True)
        files.ensure_container()
        for name in HOSTILE:
            api.put(f"/mnt/data/{name}", b"bad")
        api.put("good.txt", b"good")
        for synced in (files.sync(), files.download_all(tmp_path / "in/all")):
            assert synced.added == ("good.txt",)
            assert {name for name, _ in synced.refused} == set(HOSTILE)

    assert everything(tmp_path) == {"outside": b"untouched", "in/root/good.txt": b"good", "in/all/good.txt": b"good"}


def test_links_on_this_side_are_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("untouched")
    with containers_api(naming="kept") as api:
        files = files_of(api)
        files.ensure_container()
        for name in ("dir/new", "file", "fine"):
            api.put(name, b"1")
        dest = tmp_path / "dest"
        dest.mkdir()
        (dest / "dir").symlink_to(tmp_path / "outside")
        (dest / "file").symlink_to(tmp_path / "outside/file")
        synced = files.download_all(dest)

    assert (synced.added, sorted(name for name, _ in synced.refused)) == (("fine",), ["dir/new", "file"])
    assert everything(tmp_path / "outside") == {"file": b"untouched"}


def test_kinds_may_have_changed_meanwhile(tmp_path):
    """Code made a file of our directory, and a directory of our file."""
    with containers_api(naming="kept") as api:
        files = files_of(api, local_root=tmp_path)
        files.write_text("dir/inner", "1")
        files.write_text("file", "2")
        api.newest.files.clear()
        api.put("dir", b"now a file")
        api.put("file/inner", b"now a directory")
        synced = files.sync()

    assert (synced.added, synced.removed) == (("dir", "file/inner"), ())
    assert everything(tmp_path) == {"dir": b"now a file", "file/inner": b"now a directory"}
