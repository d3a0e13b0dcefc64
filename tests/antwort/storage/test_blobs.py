from __future__ import annotations

import asyncio
import errno
import gc
import stat
from pathlib import Path

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.blobs import CHUNK, Blobs, Upload
from antwort.testing.store.base import chunks, there

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "blobs"


@pytest.fixture
def blobs(folder):
    blobs = Blobs(folder)
    yield blobs
    blobs.close()


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


async def kept(blobs, *pieces):
    upload = await blobs.receive(chunks(*pieces))
    upload.settle(kept=True)
    return upload.name


async def content(blobs, name):
    return b"".join([chunk async for chunk in there(await blobs.open(name))])


async def test_a_content_is_for_us_alone_and_has_a_name_of_ours(blobs, folder):
    name = await kept(blobs, b"a", b"b")

    assert names(folder) == [name]
    assert len(name) == 32
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert await content(blobs, name) == b"ab"


async def test_content_goes_through_memory_in_chunks(blobs):
    name = await kept(blobs, b"x" * (3 * CHUNK + 5))

    assert [len(chunk) async for chunk in there(await blobs.open(name))] == [CHUNK, CHUNK, CHUNK, 5]


async def test_until_it_is_whole_it_has_no_final_name(blobs, folder):
    seen = []

    async def slowly():
        for _ in range(3):
            yield b"x" * CHUNK
            seen.append(await asyncio.to_thread(names, folder))

    upload = await blobs.receive(slowly())

    assert {name for listing in seen for name in listing} == {upload.name + ".part"}
    assert names(folder) == [upload.name]
    await asyncio.to_thread(upload.settle, kept=False)
    assert names(folder) == []


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), OSError(errno.EIO, "the client's"), LookupError()])
async def test_nothing_is_left_of_content_that_fails_and_its_error_stays_its_own(blobs, folder, error):
    async def torn():
        yield b"x" * CHUNK
        raise error

    before = open_files()
    with pytest.raises(type(error)) as raised:
        await blobs.receive(torn())

    assert raised.value is error
    assert names(folder) == []
    assert open_files() == before


async def test_nothing_is_left_of_an_upload_that_is_cancelled_while_the_disk_writes(blobs, folder):
    before = open_files()
    for _ in range(20):
        receiving = asyncio.ensure_future(blobs.receive(chunks(*[b"x" * CHUNK] * 20)))
        await asyncio.sleep(0.002)
        receiving.cancel()
        await asyncio.wait([receiving])
        if not receiving.cancelled():
            await asyncio.to_thread(receiving.result().settle, kept=False)
    await asyncio.sleep(0.05)

    assert names(folder) == []
    assert open_files() == before


async def test_a_disk_that_refuses_is_a_fault(blobs, folder):
    folder.rmdir()
    with pytest.raises(StoreFault, match="No such file"):
        await blobs.receive(chunks(b"x"))


async def test_a_reader_who_stops_half_way_holds_nothing_open(blobs):
    name = await kept(blobs, b"x" * (2 * CHUNK))
    before = open_files()
    closed, dropped, ended = [there(await blobs.open(name)) for _ in range(3)]
    await anext(closed)
    await anext(dropped)
    await closed.aclose()
    del dropped
    gc.collect()

    assert len([chunk async for chunk in ended]) == 2
    assert [chunk async for chunk in ended] == []
    assert [chunk async for chunk in closed] == []
    assert open_files() == before


async def test_what_is_not_there_is_none(blobs):
    assert await blobs.open("0" * 32) is None


async def test_a_sweep_removes_what_nobody_writes_and_nobody_needs(blobs, folder):
    needed, orphan = await kept(blobs, b"needed"), await kept(blobs, b"orphan")
    (folder / ("a" * 32 + ".part")).write_bytes(b"left by a process that was killed")
    (folder / "README").write_text("somebody else's")
    committing = await blobs.receive(chunks(b"whole, and its record is on its way"))
    writing = Upload(folder)
    await asyncio.to_thread(writing.write, b"half")
    await asyncio.to_thread(blobs.sweep, lambda name: name == needed)

    assert names(folder) == sorted([needed, committing.name, writing.name + ".part", "README"])
    assert orphan not in names(folder)
    await asyncio.to_thread(writing.settle, kept=False)
    committing.settle(kept=True)


async def test_a_sweep_asks_again_before_it_removes(blobs, folder):
    name = await kept(blobs, b"got its record just now")
    answers = [False, True]
    await asyncio.to_thread(blobs.sweep, lambda _: answers.pop(0))

    assert names(folder) == [name]
    assert answers == []


async def test_a_closed_one_answers_with_a_fault(blobs, folder):
    name = await kept(blobs, b"x" * (2 * CHUNK))
    reading = there(await blobs.open(name))
    await asyncio.to_thread(blobs.close)

    with pytest.raises(StoreFault, match="closed"):
        await blobs.receive(chunks(b"x"))
    with pytest.raises(StoreFault, match="closed"):
        await blobs.open(name)
    with pytest.raises(StoreFault, match="closed"):
        await anext(reading)
    assert names(folder) == [name]
