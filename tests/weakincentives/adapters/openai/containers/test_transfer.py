"""Transfers: archives, also from a hostile server; progress events; parallel jobs."""

from __future__ import annotations

import io
import tarfile
import threading
from typing import Any

import pytest
from fake_containers_api import FakeContainersApi, containers_api
from fake_responses_api import FakeResponse, error

from weakincentives.adapters.openai import ContainerFilesystem, ContainerManager
from weakincentives.adapters.openai.containers.api import ContainerApi
from weakincentives.adapters.openai.containers.manager import OpenContainer
from weakincentives.adapters.openai.containers.transfer import ProgressReporter, run_parallel
from weakincentives.clock import ManualClock
from weakincentives.errors import FilesystemError
from weakincentives.runtime import Session, TransferProgress


def tar_of(*members: tuple[str, bytes | bytearray, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def api():
    """A fake server with the archive extension."""
    with containers_api(naming="kept") as running:

        def unpacked(request: Any) -> FakeResponse:
            with tarfile.open(fileobj=io.BytesIO(request.raw)) as tar:
                for member in tar:
                    if member.isfile():
                        running.put(member.name, tar.extractfile(member).read(), source="user")  # type: ignore[union-attr] - a file has content
            return FakeResponse({"object": "container.archive"})

        running.routes = {r"PUT /containers/([^/?]+)/archive": unpacked, **running.routes}
        yield running


def send_archive(api: FakeContainersApi, tar: bytes) -> None:
    api.routes = {r"GET /containers/([^/?]+)/archive": lambda request: FakeResponse(tar), **api.routes}


def files_of(api: FakeContainersApi, **options: Any) -> ContainerFilesystem:
    return ContainerFilesystem(manager=ContainerManager(client=api.client, clock=ManualClock()), **options)


def test_archive_transfers_many_files_in_one_request(api, tmp_path):
    root = tmp_path / "root"
    for number in range(30):
        (root / f"d{number % 3}").mkdir(parents=True, exist_ok=True)
        (root / f"d{number % 3}/{number}").write_text(str(number))
    (root / "empty").mkdir()
    files = files_of(api, local_root=root)
    files.ensure_container()

    assert api.count_requests("PUT", ".*/archive") == 2  # the first one is the probe
    assert api.count_requests("POST", ".*/files") == 0
    assert len(api.contents) == 30
    created = [(f"new/{number}", b"x" * number, tarfile.REGTYPE) for number in range(20)]
    for name, content, _ in created:
        api.put(name, content)
    send_archive(api, tar_of(*created, *(("d0/0", b"0", tarfile.REGTYPE),)))
    synced = files.sync()

    assert (len(synced.added), synced.unchanged, synced.refused) == (20, 30, ())
    assert api.count_requests("GET", ".*/content") == 0
    assert (root / "new/19").read_bytes() == b"x" * 19


def test_few_files_are_downloaded_one_by_one(api, tmp_path):
    files = files_of(api, local_root=tmp_path)
    files.ensure_container()
    api.put("a", b"1")
    files.sync()

    assert api.count_requests("GET", ".*/content") == 1


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_refused(api, tmp_path, kind):
    files = files_of(api, local_root=tmp_path)
    files.ensure_container()
    good = [(f"good{number}", b"1", tarfile.REGTYPE) for number in range(9)]
    for name, content, _ in good:
        api.put(name, content)
    send_archive(
        api, tar_of(("evil", b"", kind), *good, ("unlisted", b"2", tarfile.REGTYPE), ("../up", b"3", tarfile.REGTYPE))
    )
    synced = files.sync()

    assert len(synced.added) == 9
    assert [name for name, _ in synced.refused] == ["evil"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name for name, _, _ in good)
    files.expect_changes()
    whole = files.download_all(tmp_path / "in/all")
    assert (len(whole.added), sorted(name for name, _ in whole.refused)) == (10, ["../up", "evil"])
    assert not (tmp_path.parent / "up").exists()
    assert not (tmp_path / "in/up").exists()


def test_incomplete_archive_is_an_error_without_loss(api, tmp_path):
    files = files_of(api, local_root=tmp_path)
    files.write_text("own", "1")
    for number in range(9):
        api.put(f"f{number}", b"x" * 600)
    members = [(f"f{number}", b"x" * 600, tarfile.REGTYPE) for number in range(9)]
    send_archive(api, tar_of(*members)[:4000])
    with pytest.raises(FilesystemError, match="invalid tar archive"):
        files.sync()

    assert files.read_text("own") == "1"
    assert {path.name for path in tmp_path.iterdir()} <= {"own", *(name for name, _, _ in members)}
    assert all(path.stat().st_size in (1, 600) for path in tmp_path.iterdir())


def test_archive_probe_is_retried_after_503(api):
    answers = [error(503, "Later."), FakeResponse({"object": "container.archive"})]
    api.routes[r"PUT /containers/([^/?]+)/archive"] = lambda request: answers.pop(0)
    files = files_of(api)
    files.ensure_container()

    container = files.manager.current()
    assert container is not None
    assert container.takes_archives
    assert answers == []


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def container(session: Session) -> OpenContainer:
    return OpenContainer("cntr_1", ContainerApi(object()), session, takes_archives=False, is_new=True)  # type: ignore[arg-type] - no request is sent


def test_progress_is_reported_ten_times_a_second_and_at_the_end():
    session, clock = Session(session_id="s"), ManualClock()
    progress = ProgressReporter(container(session), "upload", [10] * 100, clock=clock)
    for _ in range(100):
        progress.add_bytes(10)
        progress.add_file()
        clock.advance(0.01)
        progress.report()
    progress.report(is_last=True)

    events = session[TransferProgress].all()
    assert 8 <= len(events) <= 12
    assert [event.done for event in events] == [False] * (len(events) - 1) + [True]
    assert (events[-1].files, events[-1].bytes, events[-1].total_bytes, events[-1].session_id) == (100, 1000, 1000, "s")


def test_unknown_total_is_one_more_than_transferred():
    session, clock = Session(), ManualClock()
    progress = ProgressReporter(container(session), "download", clock=clock)
    for _ in range(3):
        progress.add_bytes(10)
        progress.add_file()
        clock.advance(1)
        progress.report()
    progress.report(is_last=True)

    assert [(event.files, event.total_files, event.done) for event in session[TransferProgress].all()] == [
        *((1, 2, False), (2, 3, False), (3, 4, False), (3, 3, True))
    ]


def test_no_progress_without_files():
    session = Session()
    for sizes in ([], None):
        ProgressReporter(container(session), "upload", sizes).report(is_last=True)

    assert session[TransferProgress].all() == ()


def test_retried_upload_is_not_counted_twice(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    session = Session()
    with containers_api(naming="kept") as api:
        manager = ContainerManager(client=api.client, clock=ManualClock(), session=session)
        files = ContainerFilesystem(manager=manager, local_root=tmp_path)
        api.faults = [error(503, "Later."), error(429, "Slow down.")]
        files.ensure_container()

    assert session[TransferProgress].latest() == session[TransferProgress].all()[-1]
    assert session[TransferProgress].all()[-1].bytes == 1000


def test_retried_archive_is_not_counted_twice(api, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    session, route = Session(), r"PUT /containers/([^/?]+)/archive"
    unpacked = api.routes[route]
    faults = [error(503, "Later."), None]
    api.routes[route] = lambda request: (len(request.raw) > 1024 and faults.pop(0)) or unpacked(request)
    manager = ContainerManager(client=api.client, clock=ManualClock(), session=session)
    ContainerFilesystem(manager=manager, local_root=tmp_path).ensure_container()

    assert (faults, api.contents) == ([], {"a": b"x" * 1000})
    assert (session[TransferProgress].all()[-1].bytes, session[TransferProgress].all()[-1].files) == (1000, 1)


def test_first_error_cancels_pending_jobs():
    begun: list[int] = []
    released = threading.Event()

    def job(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("the first")
        released.wait(5)
        return number

    def tick() -> None:
        released.set()

    with pytest.raises(ValueError, match="the first"):
        run_parallel([lambda number=number: job(number) for number in range(200)], tick)
    assert len(begun) < 200
    assert run_parallel([lambda: 1, lambda: 2], lambda: None) == [1, 2]
    assert run_parallel([], lambda: None) == []
