from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat
import time
from pathlib import Path

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.blobs import DirectoryBlobs
from antwort.storage.blobs.directory import CHUNK_SIZE, OWNER_FILE
from antwort.storage.errors import UnusableStore
from antwort.testing.blobs import BlobConformance, unknown
from antwort.testing.checks import not_none
from antwort.testing.store.base import chunks

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "deep" / "blobs"


class TestDirectoryOfOneProcess(BlobConformance):
    """The conformance suite, on a directory that a lock keeps others away from."""

    is_exclusive = True

    async def open(self, directory, orphan_age):
        return await asyncio.to_thread(DirectoryBlobs, directory, orphan_age=orphan_age)


class TestSharedDirectory(BlobConformance):
    """The conformance suite, on a directory of several processes."""

    async def open(self, directory, orphan_age):
        return await asyncio.to_thread(DirectoryBlobs, directory, is_shared=True, orphan_age=orphan_age)


@pytest.fixture
async def blobs(directory):
    blobs = await asyncio.to_thread(DirectoryBlobs, directory)
    yield blobs
    await blobs.aclose()


def blob_names(directory):
    return sorted(file.name for file in directory.iterdir())


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


async def store_blob(blobs, *pieces):
    upload = await blobs.write(chunks(*pieces))
    await upload.close(keep=True)
    return upload.name


async def content(blobs, name):
    return b"".join([chunk async for chunk in not_none(await blobs.open(name))])


async def test_a_blob_is_private_to_the_user_and_has_a_random_name(blobs, directory):
    name = await store_blob(blobs, b"a", b"b")

    assert blob_names(directory) == [name]
    assert len(name) == 32
    assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert await content(blobs, name) == b"ab"


async def test_content_is_read_in_chunks(blobs):
    name = await store_blob(blobs, b"x" * (3 * CHUNK_SIZE + 5))

    assert [len(chunk) async for chunk in not_none(await blobs.open(name))] == [CHUNK_SIZE, CHUNK_SIZE, CHUNK_SIZE, 5]


async def test_an_incomplete_upload_has_a_partial_name(blobs, directory):
    listings = []

    async def source():
        for _ in range(3):
            yield b"x" * CHUNK_SIZE
            listings.append(await asyncio.to_thread(blob_names, directory))

    upload = await blobs.write(source())

    assert {name for listing in listings for name in listing} == {upload.name + ".part"}
    assert blob_names(directory) == [upload.name]
    await upload.close(keep=False)
    assert blob_names(directory) == []


@pytest.mark.parametrize(
    "error", [ConnectionResetError("reset"), OSError(errno.EIO, "error of the source"), LookupError()]
)
async def test_an_error_of_the_source_removes_the_blob_and_propagates_unchanged(blobs, directory, error):
    async def failing():
        yield b"x" * CHUNK_SIZE
        raise error

    before = open_files()
    with pytest.raises(type(error)) as raised:
        await blobs.write(failing())

    assert raised.value is error
    assert blob_names(directory) == []
    assert open_files() == before


async def test_a_cancelled_upload_leaves_no_file_and_no_descriptor(blobs, directory):
    before = open_files()
    for _ in range(20):
        writing = asyncio.ensure_future(blobs.write(chunks(*[b"x" * CHUNK_SIZE] * 20)))
        await asyncio.sleep(0.002)
        writing.cancel()
        await asyncio.wait([writing])
        if not writing.cancelled():
            await writing.result().close(keep=False)
    await asyncio.sleep(0.05)

    assert blob_names(directory) == []
    assert open_files() == before


async def test_a_failed_write_is_a_store_fault(blobs, directory):
    directory.rmdir()
    with pytest.raises(StoreFault, match="No such file"):
        await blobs.write(chunks(b"x"))


async def test_an_aborted_download_leaves_no_descriptor_open(blobs):
    name = await store_blob(blobs, b"x" * (2 * CHUNK_SIZE))
    gc.collect()  # descriptors in garbage of earlier tests are not counted
    before = open_files()
    closed, dropped, ended = [not_none(await blobs.open(name)) for _ in range(3)]
    await anext(closed)
    await anext(dropped)
    await closed.aclose()
    del dropped
    gc.collect()

    assert len([chunk async for chunk in ended]) == 2
    assert [chunk async for chunk in ended] == []
    assert [chunk async for chunk in closed] == []
    assert open_files() == before


async def test_a_missing_blob_is_none(blobs):
    assert await blobs.open("0" * 32) is None


async def test_a_download_stays_readable_when_its_blob_is_deleted(blobs):
    name = await store_blob(blobs, b"x" * (2 * CHUNK_SIZE))
    download = not_none(await blobs.open(name))
    await anext(download)
    await blobs.remove([name])

    assert [len(chunk) async for chunk in download] == [CHUNK_SIZE]


async def test_in_a_directory_of_one_process_all_but_its_own_uploads_are_unowned(blobs, directory):
    complete, partial = await store_blob(blobs, b"complete"), "a" * 32
    (directory / (partial + ".part")).write_bytes(b"left by a killed process")
    (directory / "README").write_text("not a blob")
    committing = await blobs.write(chunks(b"complete, record not yet committed"))
    seen = []

    async def source():
        yield b"x" * CHUNK_SIZE
        seen.append(await blobs.unowned(10))

    await (await blobs.write(source())).close(keep=False)
    assert seen == [sorted([complete, partial])]
    await blobs.remove([partial])
    assert blob_names(directory) == sorted([complete, committing.name, "README"])
    await committing.close(keep=None)
    assert await blobs.unowned(10) == sorted([complete, committing.name])


async def test_in_a_shared_directory_a_blob_is_unowned_by_its_age(directory):
    shared = await asyncio.to_thread(DirectoryBlobs, directory, is_shared=True, orphan_age=3600.0)
    name, partial = await store_blob(shared, b"x"), "a" * 32
    (directory / (partial + ".part")).write_bytes(b"upload of another live process")
    assert await shared.unowned(10) == []

    for file in directory.iterdir():
        os.utime(file, (time.time() - 3700.0, time.time() - 3700.0))
    assert await shared.unowned(10) == sorted([name, partial])
    await shared.aclose()


async def test_a_shared_directory_of_another_database_is_named_with_its_mark(directory):
    shared = await asyncio.to_thread(DirectoryBlobs, directory, is_shared=True)
    await shared.claim("store-1", unknown)
    with pytest.raises(UnusableStore, match=rf"another database\. .* delete .*{OWNER_FILE}"):
        await shared.claim("store-2", unknown)
    await shared.aclose()


@pytest.fixture
def no_hard_links(monkeypatch):
    """`os.link` fails as on SMB and FUSE file systems."""

    def refuse(*_args, **_options):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_hard_links")
async def test_processes_that_mark_a_directory_without_hard_links_at_once_agree(directory):
    several = [await asyncio.to_thread(DirectoryBlobs, directory, is_shared=True) for _ in range(8)]
    places = await asyncio.gather(*(blobs.claim("store-1", unknown) for blobs in several))
    assert len({*places}) == 1
    assert blob_names(directory) == [OWNER_FILE]
    with pytest.raises(UnusableStore, match="another database"):
        await several[0].claim("store-2", unknown)
    for blobs in several:
        await blobs.aclose()


@pytest.mark.usefixtures("no_hard_links")
async def test_a_mark_that_cannot_be_written_leaves_no_file(blobs, directory, monkeypatch):
    def fail(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreFault, match="No space left"):
        await blobs.claim("store-1", unknown)
    assert blob_names(directory) == []


async def test_a_mark_that_another_process_is_writing_is_waited_for(blobs, directory):
    mark = directory / OWNER_FILE
    mark.write_text("store-1\nabc", encoding="ascii")
    claim = asyncio.ensure_future(blobs.claim("store-1", unknown))
    await asyncio.to_thread(mark.write_text, "store-1\nabcdef\n", encoding="ascii")
    assert await claim == "abcdef"


async def test_a_mark_that_a_killed_process_has_not_completed_is_named(blobs, directory):
    (directory / OWNER_FILE).write_text("store-1", encoding="ascii")
    with pytest.raises(UnusableStore, match=rf"{OWNER_FILE} is incomplete: .* Delete that file"):
        await blobs.claim("store-1", unknown)


async def test_a_closed_blob_store_raises_a_store_fault(blobs, directory):
    name = await store_blob(blobs, b"x" * (2 * CHUNK_SIZE))
    reading = not_none(await blobs.open(name))
    await blobs.aclose()

    with pytest.raises(StoreFault, match="closed"):
        await blobs.write(chunks(b"x"))
    with pytest.raises(StoreFault, match="closed"):
        await blobs.open(name)
    with pytest.raises(StoreFault, match="closed"):
        await anext(reading)
    assert blob_names(directory) == [name]
