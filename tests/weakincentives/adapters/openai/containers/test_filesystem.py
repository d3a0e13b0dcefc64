"""`ContainerFilesystem` over the Containers API without archives; antwort is tested in `tests/together`."""

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
class TestWithoutArchiveExtension(FilesystemConformance):
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
def test_equal_names_in_different_directories_are_separate_files(naming, tmp_path):
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


def test_no_request_before_the_first_use(api):
    files = files_of(api)

    assert (files.container_id, files.known_paths(), api.requests) == (None, (), [])
    assert repr(files) == "ContainerFilesystem(None)"
    with pytest.raises(OSError, match="leaves the root"):
        files.read_bytes("../x")
    assert api.requests == []


def test_written_file_is_read_from_the_mirror(api):
    files = files_of(api)
    files.write_text("a/b.txt", "1")

    assert files.read_text("a/b.txt") == "1"
    assert api.count_requests("GET", ".*/content") == 0


def test_read_cache_key_is_id_and_size(api):
    files = files_of(api)
    files.ensure_container()
    file = api.put("made.txt", b"one")
    files.refresh()

    assert [files.read_text("made.txt") for _ in range(3)] == ["one"] * 3
    assert api.count_requests("GET", ".*/content") == 1
    file.content = b"three"  # same id, other size
    files.refresh()
    assert files.read_text("made.txt") == "three"
    file.id, api.newest.files = "cfile_other", {"cfile_other": file}
    file.content = b"seven"  # same size, other id
    files.refresh()
    assert files.read_text("made.txt") == "seven"
    assert api.count_requests("GET", ".*/content") == 3


def test_all_pages_of_a_listing_are_read(api):
    files = files_of(api)
    files.ensure_container()
    for number in range(250):
        api.put(f"many/{number:03}", b"x")
    files.refresh()

    assert len(files.list_dir("many")) == 250
    assert api.count_requests("GET", r".*/files\?.*") == 3


def test_repeated_page_of_a_listing_is_an_error(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    page = {"object": "list", "data": [api._file(next(iter(api.newest.files.values())), api.newest)], "has_more": True}
    api.routes[r"GET /containers/([^/?]+)/files(\?.*)?"] = lambda _: FakeResponse(page)
    with pytest.raises(FilesystemError, match="repeats its page"):
        files.refresh()


def test_replacement_is_uploaded_before_the_old_file_is_deleted(api):
    files = files_of(api)
    files.write_text("a.txt", "old")
    api.requests.clear()
    files.write_text("a.txt", "new")

    assert [(one.method, one.path.rpartition("/files")[2][:1]) for one in api.requests] == [
        ("POST", ""),
        ("DELETE", "/"),
    ]
    assert list(api.contents.values()) == [b"new"]


def test_failed_replacement_keeps_the_old_file(api):
    files = files_of(api)
    files.write_text("a.txt", "old")
    api.faults = [error(413, "Too large.")]
    with pytest.raises(FilesystemError, match="Too large"):
        files.write_text("a.txt", "new")

    assert files.read_text("a.txt") == "old"
    assert list(api.contents.values()) == [b"old"]


def test_missing_sizes_are_measured_by_download():
    with containers_api(sizes=False) as api:
        files = files_of(api)
        files.write_text("a.txt", "12345")
        api.put("made.txt", b"123")
        files.refresh()

        assert (files.stat("a.txt").size, files.stat("made.txt").size) == (5, 3)
        assert files.grep("12") != []


def test_later_one_of_two_files_with_the_same_path_counts():
    with containers_api(naming="kept") as api:
        files = files_of(api)
        files.ensure_container()
        api.put("a.txt", b"1")
        api.put("a.txt", b"22")
        files.refresh()

        assert (files.list_dir(), files.read_text("a.txt")) == (["a.txt"], "22")


def test_429_503_and_disconnect_are_retried(api):
    clock = ManualClock()
    files = ContainerFilesystem(manager=ContainerManager(client=api.client, clock=clock))
    files.ensure_container()
    api.faults = [error(429, "Slow down.", retry_after="7"), error(503, "Later."), FakeResponse(disconnect=True)]
    files.write_text("a.txt", "1")

    assert files.read_text("a.txt") == "1"
    assert clock.slept[0] == 7
    assert len(clock.slept) == 3


def test_response_of_another_api_is_an_error(api):
    files = files_of(api)
    files.ensure_container()
    api.faults = [FakeResponse({"data": "nothing"})]
    with pytest.raises(FilesystemError, match="not of the Containers API"):
        files.refresh()
    api.faults = [FakeResponse(["nothing"])]
    with pytest.raises(FilesystemError, match="not of the Containers API"):
        files.write_text("a", "1")


def test_provider_faults_become_filesystem_errors(api, tmp_path):
    files = files_of(api)
    files.write_text("a.txt", "1")
    api.routes[r"GET /containers/([^/?]+)"] = lambda _: error(403, "Not for you.")
    for use in (files.sync, lambda: files.download_all(tmp_path)):
        with pytest.raises(FilesystemError, match="Not for you"):
            use()


def test_incomplete_download_is_repeated(api):
    files = files_of(api)
    files.ensure_container()
    api.put("made.bin", b"x" * 100_000)
    files.refresh()
    api.faults = [FakeResponse(b"x" * 10, headers={"content-length": "100000", "connection": "close"})]

    assert files.read_bytes("made.bin") == b"x" * 100_000


def test_file_deleted_after_the_listing_is_missing(api):
    files = files_of(api)
    files.ensure_container()
    file = api.put("made.txt", b"1")
    files.refresh()
    del api.newest.files[file.id]

    with pytest.raises(MissingFileError):
        files.read_text("made.txt")
    assert not files.exists("made.txt")


def test_deleting_a_missing_remote_file_succeeds(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    files.write_text("dir/b.txt", "2")
    files.ensure_container()
    api.newest.files.clear()
    files.delete("a.txt")
    files.delete("dir", recursive=True)

    assert files.list_dir() == []


# ── expiry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["400 expired", "404", "status"])
def test_404_400_and_expired_status_all_mean_expiry(api, form):
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
        clock.advance(11 * 60)  # an idle container is retrieved before it is used
        assert files.list_dir() == ["a.txt"]
    else:
        files.write_text("b.txt", "2")

    (event,) = session[ContainerRecreated].all()
    assert (event.old_id, event.new_id, event.restored, event.lost) == (first.id, api.newest.id, ("a.txt",), ())
    assert files.read_text("a.txt") == "1"
    uploads = [
        one.path for one in api.requests if one.method == "POST" and one.path.startswith(f"/v1/containers/{first.id}")
    ]
    assert len(uploads) == {"400 expired": 2, "404": 2, "status": 1}[form]


def test_ensure_container_does_not_count_as_use(api):
    """It sends no request, so the idle time of the container goes on."""
    clock = ManualClock()
    files = ContainerFilesystem(manager=ContainerManager(client=api.client, clock=clock))
    files.write_text("a.txt", "1")
    api.requests.clear()
    for _ in range(2):
        clock.advance(6 * 60)
        files.ensure_container()
    assert [one.method for one in api.requests] == ["GET"]  # after half the lifetime of 20 minutes

    clock.advance(6 * 60)
    files.refresh()
    api.requests.clear()
    clock.advance(6 * 60)
    files.ensure_container()
    assert api.requests == []


def test_second_loss_in_one_operation_is_an_error(api):
    files = files_of(api)
    files.write_text("a.txt", "1")
    del api.containers[api.newest.id]
    upload = api.routes[r"POST /containers/([^/?]+)/files"]
    seen = []

    def vanish(request):
        seen.append(request.path)
        if len(seen) > 2:  # the first upload goes to the old container, the second one restores `a.txt`
            api.containers.clear()
        return upload(request)

    api.routes[r"POST /containers/([^/?]+)/files"] = vanish
    with pytest.raises(ContainerExpiredError, match="is gone too"):
        files.write_text("b.txt", "2")
    assert len(seen) == 3


def test_use_after_cleanup_is_an_error(api, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = files_of(api)
    files.write_text("a.txt", "1")
    files.cleanup()
    files.cleanup()

    assert api.containers == {}
    with pytest.raises(WorkspaceError, match="cleaned up"):
        files.read_text("a.txt")
    assert list(tmp_path.iterdir()) == []  # the mirror is removed and not created again


# ── initial files ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_initial_files_from_tarball_and_directory(api, tmp_path):
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
def test_unsafe_tarball_is_refused_before_a_container_is_created(api, tmp_path, name, kind):
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    files = files_of(api, tarball_path=tmp_path / "bad.tar", local_root=tmp_path / "root")
    (tmp_path / "root").mkdir()
    with pytest.raises(FilesystemError):
        files.ensure_container()

    assert (api.containers, list((tmp_path / "root").iterdir()), (tmp_path / "out").exists()) == ({}, [], False)


# ── sync and download ────────────────────────────────────────────────────────────────────────────────────────────────


def read_tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


HOSTILE = ["../outside", "a/../../outside", "/etc/cron.d/x", "a//b", "C:\\x", "nul\0byte", "..", "x/" + "y" * 300]


def test_names_that_leave_the_directory_are_refused(tmp_path):
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

    assert read_tree(tmp_path) == {"outside": b"untouched", "in/root/good.txt": b"good", "in/all/good.txt": b"good"}


def test_host_symlinks_are_not_followed(tmp_path):
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
    assert read_tree(tmp_path / "outside") == {"file": b"untouched"}


def test_sync_replaces_files_by_directories_and_vice_versa(tmp_path):
    """Code replaced a directory by a file, and a file by a directory."""
    with containers_api(naming="kept") as api:
        files = files_of(api, local_root=tmp_path)
        files.write_text("dir/inner", "1")
        files.write_text("file", "2")
        api.newest.files.clear()
        api.put("dir", b"now a file")
        api.put("file/inner", b"now a directory")
        synced = files.sync()

    assert (synced.added, synced.removed) == (("dir", "file/inner"), ())
    assert read_tree(tmp_path) == {"dir": b"now a file", "file/inner": b"now a directory"}
