"""Conformance tests for implementations of `BlobStore`.

pytest with anyio's plugin collects them from a subclass that opens the blobs under test:

    import pytest
    from antwort.testing.blobs import BlobConformance

    @pytest.mark.anyio
    class TestMyBlobs(BlobConformance):
        async def open(self, directory, orphan_age):
            return MyBlobs(directory, orphan_age)

`directory` is pytest's `tmp_path`: opening the same directory again must open the same blobs, another one is another
place. Assertions are plain `AssertionError`s with both values in the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from antwort.engine.stores import StoreFault
from antwort.storage.blobs import ORPHAN_AGE, BlobStore
from antwort.storage.errors import UnusableStore
from antwort.testing.checks import check, check_equal, not_none

MIB = 1024 * 1024
SIZES = (0, 1, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 8 * MIB, 9 * MIB + 7)
MAX_CHUNK = 8 * MIB
LISTING_TIMEOUT = 30.0


def pattern(size: int) -> bytes:
    """Content that differs at every place where a part may be lost or repeated."""
    return Random(size).randbytes(size)  # noqa: S311 - not cryptographic


async def pieces(content: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    """The content in pieces, as it comes from a client."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def store(blobs: BlobStore, content: bytes) -> str:
    """Write a blob as if its record was committed; its name."""
    upload = await blobs.write(pieces(content))
    check_equal(upload.size, len(content))
    await upload.close(keep=True)
    return upload.name


async def read(blobs: BlobStore, name: str) -> bytes:
    """The content of a blob."""
    return b"".join([chunk async for chunk in not_none(await blobs.open(name))])


async def all_unowned(blobs: BlobStore, limit: int = 1000, calls: int = 1) -> set[str]:
    """What some calls of `unowned` return together."""
    return {name for _ in range(calls) for name in await blobs.unowned(limit)}


async def unknown(names: Sequence[str]) -> Collection[str]:
    """What a store without records knows of some blobs."""
    del names
    return ()


class BlobConformance:
    """All conformance tests. Subclass it and implement `open`."""

    is_exclusive = False
    """Whether only one process can have the blobs open."""

    async def open(self, directory: Path, orphan_age: float) -> BlobStore:
        """Open the blobs in a directory: empty if the directory is new."""
        raise NotImplementedError("define open(directory, orphan_age) so that it returns an open BlobStore")

    @asynccontextmanager
    async def opened_blobs(self, directory: Path, orphan_age: float = ORPHAN_AGE) -> AsyncGenerator[BlobStore]:
        """Context manager: the open blobs, claimed."""
        blobs = await self.open(directory, orphan_age)
        try:
            await blobs.claim("store-1", unknown)
            yield blobs
        finally:
            await blobs.aclose()

    @pytest.fixture
    async def blobs(self, tmp_path: Path) -> AsyncGenerator[BlobStore]:
        """Fixture: the open blobs of one test."""
        async with self.opened_blobs(tmp_path) as blobs:
            yield blobs

    @pytest.mark.parametrize("size", SIZES)
    async def test_a_blob_of_any_size_is_read_as_it_was_written(self, tmp_path: Path, size: int) -> None:
        content = pattern(size)
        async with self.opened_blobs(tmp_path) as blobs:
            name = await store(blobs, content)
            check(await read(blobs, name) == content, f"a blob of {size} bytes differs")
        async with self.opened_blobs(tmp_path) as blobs:
            check(await read(blobs, name) == content, f"a blob of {size} bytes differs after reopening")

    async def test_content_is_read_in_chunks(self, blobs: BlobStore) -> None:
        name = await store(blobs, bytes(9 * MIB))
        sizes = [len(chunk) async for chunk in not_none(await blobs.open(name))]
        check(all(0 < size <= MAX_CHUNK for size in sizes), f"chunks of {sizes} bytes are not bounded")
        check_equal(sum(sizes), 9 * MIB)

    async def test_concurrent_uploads_and_downloads(self, blobs: BlobStore) -> None:
        contents = [bytes([number]) * (700_000 + number) for number in range(12)]
        names = await asyncio.gather(*(store(blobs, content) for content in contents))
        check_equal(len(set(names)), len(names))
        found = await asyncio.gather(*(read(blobs, name) for name in names))
        check(list(found) == contents, "the content of a blob differs")

    async def test_a_missing_blob_is_none(self, blobs: BlobStore) -> None:
        check_equal(await blobs.open("0" * 32), None)

    async def test_removed_blobs_are_missing(self, blobs: BlobStore) -> None:
        removed, kept = await store(blobs, bytes(5 * MIB)), await store(blobs, b"kept")
        await blobs.remove([removed, "0" * 32])
        check_equal(await blobs.open(removed), None)
        check_equal(await read(blobs, kept), b"kept")

    async def test_a_download_of_a_deleted_blob_is_complete_or_fails(self, blobs: BlobStore) -> None:
        content = pattern(9 * MIB)
        name = await store(blobs, content)
        download = not_none(await blobs.open(name))
        found = await anext(download)
        await blobs.remove([name])
        try:
            found += b"".join([chunk async for chunk in download])
        except StoreFault:
            return
        check(found == content, f"the download ended after {len(found)} of {len(content)} bytes without an error")

    async def test_a_failed_upload_leaves_nothing(self, tmp_path: Path) -> None:
        error = ConnectionResetError("client disconnected")

        async def failing() -> AsyncIterator[bytes]:
            yield bytes(9 * MIB)
            raise error

        async with self.opened_blobs(tmp_path) as blobs:
            try:
                await blobs.write(failing())
            except ConnectionResetError as raised:
                check(raised is error, "the error of the content must propagate unchanged")
            else:
                raise AssertionError("the error of the content must propagate")
        await self._check_empty(tmp_path)

    async def test_a_cancelled_upload_leaves_nothing(self, tmp_path: Path) -> None:
        started = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield bytes(9 * MIB)
            started.set()
            await asyncio.Event().wait()

        async with self.opened_blobs(tmp_path) as blobs:
            upload = asyncio.ensure_future(blobs.write(endless()))
            await started.wait()
            upload.cancel()
            await asyncio.wait([upload])
            check(upload.cancelled(), "the upload must be cancelled")
        await self._check_empty(tmp_path)

    async def test_an_upload_is_deleted_kept_or_kept_as_a_possible_orphan(self, blobs: BlobStore) -> None:
        for keep in (False, True, None):
            upload = await blobs.write(pieces(b"content"))
            await upload.close(keep=keep)
            is_there = await blobs.open(upload.name) is not None
            check_equal(is_there, keep is not False)

    async def test_a_blob_of_a_killed_process_becomes_unowned(self, tmp_path: Path) -> None:
        async with self.opened_blobs(tmp_path) as killed:  # a second process would look the same
            names = {(await killed.write(pieces(b"content"))).name for _ in range(3)}
        async with self.opened_blobs(tmp_path, orphan_age=1.0) as blobs, asyncio.timeout(LISTING_TIMEOUT):
            while await all_unowned(blobs) != names:  # noqa: ASYNC110 - the age of the blobs is the condition
                await asyncio.sleep(0.05)
            await blobs.remove(names)
            check_equal(await all_unowned(blobs), set[str]())

    async def test_every_blob_is_listed_in_turn(self, tmp_path: Path) -> None:
        async with self.opened_blobs(tmp_path) as blobs:
            names = {await store(blobs, b"content") for _ in range(9)}
        async with self.opened_blobs(tmp_path, orphan_age=1.0) as blobs, asyncio.timeout(LISTING_TIMEOUT):
            while await all_unowned(blobs, limit=2, calls=10) != names:  # noqa: ASYNC110 - likewise the age
                await asyncio.sleep(0.05)

    async def test_an_upload_in_progress_is_owned(self, tmp_path: Path) -> None:
        async with self.opened_blobs(tmp_path) as blobs, AsyncExitStack() as stack:
            seen: list[set[str]] = []
            other = blobs if self.is_exclusive else await stack.enter_async_context(self.opened_blobs(tmp_path))

            async def slow() -> AsyncIterator[bytes]:
                for _ in range(2):
                    yield bytes(5 * MIB)
                    seen.append(await all_unowned(other))

            upload = await blobs.write(slow())
            seen.append(await all_unowned(other))
            check_equal(seen, [set[str]()] * 3)
            upload.check_fresh()
            await upload.close(keep=True)
            check_equal(await read(other, upload.name), bytes(10 * MIB))

    async def test_the_blobs_of_another_store_are_not_taken(self, tmp_path: Path) -> None:
        async with self.opened_blobs(tmp_path) as blobs:
            place = await blobs.claim("store-1", unknown)
        async with self.opened_blobs(tmp_path) as blobs:
            check_equal(await blobs.claim("store-1", unknown), place)
        await self._check_refused(tmp_path, "store-2")

    async def test_blobs_without_a_mark_belong_to_the_store_that_knows_one(self, tmp_path: Path) -> None:
        """As a version without marks has left them."""
        blobs = await self.open(tmp_path, ORPHAN_AGE)
        names = [await store(blobs, b"content") for _ in range(3)]
        await blobs.aclose()

        async def known(some: Sequence[str]) -> Collection[str]:
            return {name for name in some if name == names[1]}

        await self._check_refused(tmp_path, "store-1")
        blobs = await self.open(tmp_path, ORPHAN_AGE)
        await blobs.claim("store-2", known)
        await blobs.claim("store-2", unknown)
        await blobs.aclose()
        await self._check_refused(tmp_path, "store-1")

    async def test_closed_blobs_raise_a_store_fault(self, tmp_path: Path) -> None:
        async with self.opened_blobs(tmp_path) as blobs:
            name = await store(blobs, bytes(9 * MIB))
            download = not_none(await blobs.open(name))
        for call in (lambda: blobs.write(pieces(b"x")), lambda: blobs.open(name), lambda: blobs.unowned(10)):
            try:
                await call()
            except StoreFault:
                continue
            raise AssertionError("closed blobs must raise StoreFault")
        try:
            size = sum([len(chunk) async for chunk in download])
        except StoreFault:
            return
        raise AssertionError(f"a download from closed blobs must raise StoreFault, not end after {size} bytes")

    async def _check_refused(self, directory: Path, store_id: str) -> None:
        blobs = await self.open(directory, ORPHAN_AGE)
        try:
            await blobs.claim(store_id, unknown)
        except UnusableStore:
            return
        finally:
            await blobs.aclose()
        raise AssertionError(f"the claim of {store_id} must be refused")

    async def _check_empty(self, directory: Path) -> None:
        async with self.opened_blobs(directory, orphan_age=1e-9) as blobs:
            check_equal(await all_unowned(blobs), set[str]())
