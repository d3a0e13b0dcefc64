from __future__ import annotations

import asyncio
import errno
import gc
import stat
from pathlib import Path

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.blobs import CHUNK_SIZE, BlobStore, BlobUpload
from antwort.testing.checks import not_none
from antwort.testing.store.base import chunks

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "deep" / "blobs"


@pytest.fixture
def blobs(directory):
    blobs = BlobStore(directory)
    yield blobs
    blobs.close()


def blob_names(directory):
    return sorted(file.name for file in directory.iterdir())


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


async def store_blob(blobs, *pieces):
    upload = await blobs.write(chunks(*pieces))
    upload.close(keep=True)
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
    await asyncio.to_thread(upload.close, keep=False)
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
            await asyncio.to_thread(writing.result().close, keep=False)
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


async def test_orphans_are_removed_and_referenced_or_open_blobs_are_kept(blobs, directory):
    referenced, orphan = await store_blob(blobs, b"referenced"), await store_blob(blobs, b"orphan")
    (directory / ("a" * 32 + ".part")).write_bytes(b"left by a killed process")
    (directory / "README").write_text("not a blob")
    committing = await blobs.write(chunks(b"complete, record not yet committed"))
    writing = BlobUpload(directory)
    await asyncio.to_thread(writing.write, b"half")
    await asyncio.to_thread(blobs.remove_orphans, lambda name: name == referenced)

    assert blob_names(directory) == sorted([referenced, committing.name, writing.name + ".part", "README"])
    assert orphan not in blob_names(directory)
    await asyncio.to_thread(writing.close, keep=False)
    committing.close(keep=True)


async def test_a_reference_is_checked_again_before_an_orphan_is_removed(blobs, directory):
    name = await store_blob(blobs, b"referenced since the first check")
    answers = [False, True]
    await asyncio.to_thread(blobs.remove_orphans, lambda _: answers.pop(0))

    assert blob_names(directory) == [name]
    assert answers == []


async def test_a_closed_blob_store_raises_a_store_fault(blobs, directory):
    name = await store_blob(blobs, b"x" * (2 * CHUNK_SIZE))
    reading = not_none(await blobs.open(name))
    await asyncio.to_thread(blobs.close)

    with pytest.raises(StoreFault, match="closed"):
        await blobs.write(chunks(b"x"))
    with pytest.raises(StoreFault, match="closed"):
        await blobs.open(name)
    with pytest.raises(StoreFault, match="closed"):
        await anext(reading)
    assert blob_names(directory) == [name]
