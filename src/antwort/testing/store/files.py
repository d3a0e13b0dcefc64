"""What every `FileStore` must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from antwort.engine.stores import (
    FileRecord,
    Owner,
    PageQuery,
    Store,
)
from antwort.testing.store.base import (
    LISTED,
    OURS,
    THEIRS,
    Conformance,
    check,
    chunks,
    equal,
    pages,
    refuses_cursor,
    there,
)

LARGE = [bytes([number]) * 300_000 for number in range(20)]


def record(identifier: str, **fields: object) -> FileRecord:
    """A file to come: its size is not known yet."""
    plain = FileRecord(id=identifier, bytes=0, created_at=1, filename="../../é\0.txt", purpose="user_data")
    return msgspec.structs.replace(plain, **fields)


async def read(store: Store, identifier: str, owner: Owner = OURS) -> bytes:
    """The whole content."""
    return b"".join([chunk async for chunk in there(await store.read_file(owner, identifier))])


class FileConformance(Conformance):
    """Files and their content."""

    async def test_a_file_is_there_as_it_was_uploaded(self, tmp_path: Path) -> None:
        uploads = {"file-1": [b"a", b"", b"bc"], "file-2": [], "file-3": [b"\0\xff"], "file-4": LARGE}
        async with self.store(tmp_path) as store:
            for name, pieces in uploads.items():
                made = await store.create_file(OURS, record(name), chunks(*pieces))
                equal(made, record(name, bytes=sum(map(len, pieces))))
        async with self.store(tmp_path) as store:
            for name, pieces in uploads.items():
                equal(await store.get_file(OURS, name), record(name, bytes=sum(map(len, pieces))))
                check(await read(store, name) == b"".join(pieces), f"the content of {name} differs")
            equal(await store.get_file(OURS, "unknown"), None)
            equal(await store.read_file(OURS, "unknown"), None)

    async def test_many_uploads_at_once(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            names = [f"file-{number}" for number in range(20)]
            await asyncio.gather(*(store.create_file(OURS, record(n), chunks(n.encode(), *LARGE[:2])) for n in names))
            found = await asyncio.gather(*(read(store, name) for name in names))
            check(found == [b"".join((n.encode(), *LARGE[:2])) for n in names], "a content differs")

    async def test_nothing_is_left_of_an_upload_that_fails(self, tmp_path: Path) -> None:
        async def torn() -> AsyncIterator[bytes]:
            for piece in LARGE:
                yield piece
            raise ConnectionResetError("the client is gone")

        async with self.store(tmp_path) as store:
            try:
                await store.create_file(OURS, record("file-1"), torn())
            except ConnectionResetError:
                pass
            else:
                raise AssertionError("the error of the content should have come out")
            equal(await store.get_file(OURS, "file-1"), None)
            equal((await store.list_files(OURS, PageQuery())).data, [])
            await store.create_file(OURS, record("file-1"), chunks(b"again"))
            equal(await read(store, "file-1"), b"again")

    async def test_an_upload_can_be_cancelled(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            under_way = asyncio.Event()

            async def endless() -> AsyncIterator[bytes]:
                for piece in LARGE:
                    yield piece
                under_way.set()
                await asyncio.Event().wait()

            upload = asyncio.ensure_future(store.create_file(OURS, record("file-1"), endless()))
            await under_way.wait()
            upload.cancel()
            await asyncio.wait([upload])
            check(upload.cancelled(), "a cancelled upload ends as cancelled")
            equal(await store.get_file(OURS, "file-1"), None)

    async def test_a_deleted_file_is_gone_with_its_content(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_file(OURS, record("file-1"), chunks(b"content"))
            check(await store.delete_file(OURS, "file-1"), "it was there")
            check(not await store.delete_file(OURS, "file-1"), "it was not there any more")
            equal(await store.get_file(OURS, "file-1"), None)
            equal(await store.read_file(OURS, "file-1"), None)
            equal((await store.list_files(OURS, PageQuery())).data, [])

    async def test_who_reads_a_file_that_is_deleted_reads_all_of_it(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_file(OURS, record("file-1"), chunks(*LARGE))
            content = there(await store.read_file(OURS, "file-1"))
            first = await anext(content)
            await store.delete_file(OURS, "file-1")
            rest = [chunk async for chunk in content]
            check(b"".join([first, *rest]) == b"".join(LARGE), "the content differs")

    async def test_files_come_in_pages(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for name in LISTED:
                await store.create_file(OURS, record(name), chunks())
            await store.create_file(THEIRS, record("theirs"), chunks())
            await pages(lambda query: store.list_files(OURS, query), lambda file: file.id)
            await refuses_cursor(lambda query: store.list_files(OURS, query), PageQuery(after="theirs"))

    async def test_files_are_listed_by_purpose(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for name, purpose in (("file-1", "vision"), ("file-2", "batch"), ("file-3", "vision")):
                await store.create_file(OURS, record(name, purpose=purpose), chunks())
            page = await store.list_files(OURS, PageQuery(limit=1), "vision")
            equal(([file.id for file in page.data], page.has_more), (["file-3"], True))
            page = await store.list_files(OURS, PageQuery(after="file-3"), "vision")
            equal(([file.id for file in page.data], page.has_more), (["file-1"], False))
            equal((await store.list_files(OURS, PageQuery(), "evals")).data, [])

    async def test_an_expired_file_is_gone(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            lasting = record("file-1", expires_at=2**40)
            for file in (lasting, record("file-2", expires_at=1), record("file-3")):
                await store.create_file(OURS, file, chunks(b"content"))
            for swept in (False, True):
                equal(await store.get_file(OURS, "file-2"), None)
                equal(await store.read_file(OURS, "file-2"), None)
                check(not await store.delete_file(OURS, "file-2"), "it is gone already")
                equal([file.id for file in (await store.list_files(OURS, PageQuery())).data], ["file-3", "file-1"])
                equal(await store.delete_expired_files(), 0 if swept else 1)
            equal(await store.get_file(OURS, "file-1"), msgspec.structs.replace(lasting, bytes=7))
            equal(await read(store, "file-1"), b"content")

    async def test_another_tenant_sees_and_changes_no_file(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_file(OURS, record("file-1"), chunks(b"ours"))
            equal(await store.get_file(THEIRS, "file-1"), None)
            equal(await store.read_file(THEIRS, "file-1"), None)
            equal((await store.list_files(THEIRS, PageQuery())).data, [])
            check(not await store.delete_file(THEIRS, "file-1"), "it is not theirs to delete")
            equal(await read(store, "file-1"), b"ours")

    async def test_two_tenants_may_have_files_with_the_same_id(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_file(OURS, record("file-1"), chunks(b"ours"))
            await store.create_file(THEIRS, record("file-1"), chunks(b"theirs"))
            equal(await read(store, "file-1", THEIRS), b"theirs")
            check(await store.delete_file(THEIRS, "file-1"), "theirs is there")
            equal(await read(store, "file-1"), b"ours")
