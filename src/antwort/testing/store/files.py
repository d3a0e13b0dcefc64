"""What every `FileStore` must do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from antwort.engine.ports import FileRecord, Owner, PageQuery, Store
from antwort.testing.store.base import (
    LISTED_IDS,
    OTHER_TENANT,
    OWNER,
    Conformance,
    check,
    check_equal,
    check_pages,
    check_unknown_cursor,
    chunks,
    not_none,
)

LARGE = [bytes([number]) * 300_000 for number in range(20)]


def file_record(identifier: str, **fields: object) -> FileRecord:
    """A file to come: its size is not known yet."""
    plain = FileRecord(id=identifier, bytes=0, created_at=1, filename="../../é\0.txt", purpose="user_data")
    return msgspec.structs.replace(plain, **fields)


async def read_content(store: Store, identifier: str, owner: Owner = OWNER) -> bytes:
    """The whole content."""
    return b"".join([chunk async for chunk in not_none(await store.read_file(owner, identifier))])


class FileConformance(Conformance):
    """Files and their content."""

    async def test_a_file_is_there_as_it_was_uploaded(self, tmp_path: Path) -> None:
        uploads = {"file-1": [b"a", b"", b"bc"], "file-2": [], "file-3": [b"\0\xff"], "file-4": LARGE}
        async with self.opened_store(tmp_path) as store:
            for name, pieces in uploads.items():
                made = await store.create_file(OWNER, file_record(name), chunks(*pieces))
                check_equal(made, file_record(name, bytes=sum(map(len, pieces))))
        async with self.opened_store(tmp_path) as store:
            for name, pieces in uploads.items():
                check_equal(await store.get_file(OWNER, name), file_record(name, bytes=sum(map(len, pieces))))
                check(await read_content(store, name) == b"".join(pieces), f"the content of {name} differs")
            check_equal(await store.get_file(OWNER, "unknown"), None)
            check_equal(await store.read_file(OWNER, "unknown"), None)

    async def test_many_uploads_at_once(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            names = [f"file-{number}" for number in range(20)]
            await asyncio.gather(
                *(store.create_file(OWNER, file_record(n), chunks(n.encode(), *LARGE[:2])) for n in names)
            )
            found = await asyncio.gather(*(read_content(store, name) for name in names))
            check(found == [b"".join((n.encode(), *LARGE[:2])) for n in names], "a content differs")

    async def test_nothing_is_left_of_an_upload_that_fails(self, tmp_path: Path) -> None:
        async def torn() -> AsyncIterator[bytes]:
            for piece in LARGE:
                yield piece
            raise ConnectionResetError("the client is gone")

        async with self.opened_store(tmp_path) as store:
            try:
                await store.create_file(OWNER, file_record("file-1"), torn())
            except ConnectionResetError:
                pass
            else:
                raise AssertionError("the error of the content should have come out")
            check_equal(await store.get_file(OWNER, "file-1"), None)
            check_equal((await store.list_files(OWNER, PageQuery())).data, [])
            await store.create_file(OWNER, file_record("file-1"), chunks(b"again"))
            check_equal(await read_content(store, "file-1"), b"again")

    async def test_an_upload_can_be_cancelled(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            under_way = asyncio.Event()

            async def endless() -> AsyncIterator[bytes]:
                for piece in LARGE:
                    yield piece
                under_way.set()
                await asyncio.Event().wait()

            upload = asyncio.ensure_future(store.create_file(OWNER, file_record("file-1"), endless()))
            await under_way.wait()
            upload.cancel()
            await asyncio.wait([upload])
            check(upload.cancelled(), "a cancelled upload ends as cancelled")
            check_equal(await store.get_file(OWNER, "file-1"), None)

    async def test_a_deleted_file_is_gone_with_its_content(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_file(OWNER, file_record("file-1"), chunks(b"content"))
            check(await store.delete_file(OWNER, "file-1"), "it was there")
            check(not await store.delete_file(OWNER, "file-1"), "it was not there any more")
            check_equal(await store.get_file(OWNER, "file-1"), None)
            check_equal(await store.read_file(OWNER, "file-1"), None)
            check_equal((await store.list_files(OWNER, PageQuery())).data, [])

    async def test_who_reads_a_file_that_is_deleted_reads_all_of_it(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_file(OWNER, file_record("file-1"), chunks(*LARGE))
            content = not_none(await store.read_file(OWNER, "file-1"))
            first = await anext(content)
            await store.delete_file(OWNER, "file-1")
            rest = [chunk async for chunk in content]
            check(b"".join([first, *rest]) == b"".join(LARGE), "the content differs")

    async def test_files_come_in_pages(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for name in LISTED_IDS:
                await store.create_file(OWNER, file_record(name), chunks())
            await store.create_file(OTHER_TENANT, file_record("theirs"), chunks())
            await check_pages(lambda query: store.list_files(OWNER, query), lambda file: file.id)
            await check_unknown_cursor(lambda query: store.list_files(OWNER, query), PageQuery(after="theirs"))

    async def test_files_are_listed_by_purpose(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            for name, purpose in (("file-1", "vision"), ("file-2", "batch"), ("file-3", "vision")):
                await store.create_file(OWNER, file_record(name, purpose=purpose), chunks())
            page = await store.list_files(OWNER, PageQuery(limit=1), "vision")
            check_equal(([file.id for file in page.data], page.has_more), (["file-3"], True))
            page = await store.list_files(OWNER, PageQuery(after="file-3"), "vision")
            check_equal(([file.id for file in page.data], page.has_more), (["file-1"], False))
            check_equal((await store.list_files(OWNER, PageQuery(), "evals")).data, [])

    async def test_an_expired_file_is_gone(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            lasting = file_record("file-1", expires_at=2**40)
            for file in (lasting, file_record("file-2", expires_at=1), file_record("file-3")):
                await store.create_file(OWNER, file, chunks(b"content"))
            for swept in (False, True):
                check_equal(await store.get_file(OWNER, "file-2"), None)
                check_equal(await store.read_file(OWNER, "file-2"), None)
                check(not await store.delete_file(OWNER, "file-2"), "it is gone already")
                check_equal(
                    [file.id for file in (await store.list_files(OWNER, PageQuery())).data], ["file-3", "file-1"]
                )
                check_equal(await store.sweep_files(), 0 if swept else 1)
            check_equal(await store.get_file(OWNER, "file-1"), msgspec.structs.replace(lasting, bytes=7))
            check_equal(await read_content(store, "file-1"), b"content")

    async def test_another_tenant_sees_and_changes_no_file(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_file(OWNER, file_record("file-1"), chunks(b"ours"))
            check_equal(await store.get_file(OTHER_TENANT, "file-1"), None)
            check_equal(await store.read_file(OTHER_TENANT, "file-1"), None)
            check_equal((await store.list_files(OTHER_TENANT, PageQuery())).data, [])
            check(not await store.delete_file(OTHER_TENANT, "file-1"), "it is not theirs to delete")
            check_equal(await read_content(store, "file-1"), b"ours")

    async def test_two_tenants_may_have_files_with_the_same_id(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_file(OWNER, file_record("file-1"), chunks(b"ours"))
            await store.create_file(OTHER_TENANT, file_record("file-1"), chunks(b"theirs"))
            check_equal(await read_content(store, "file-1", OTHER_TENANT), b"theirs")
            check(await store.delete_file(OTHER_TENANT, "file-1"), "theirs is there")
            check_equal(await read_content(store, "file-1"), b"ours")
