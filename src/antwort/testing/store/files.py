"""Conformance tests for `FileStore`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from antwort.engine.stores import FileRecord, Owner, PageQuery, Store, StoreFault
from antwort.testing.checks import check, check_equal, not_none
from antwort.testing.store.base import OTHER_TENANT, OWNER, Conformance, chunks
from antwort.testing.store.paging import LISTED_IDS, check_pages, check_unknown_cursor

LARGE = [bytes([number]) * 300_000 for number in range(20)]


def file_record(identifier: str, **fields: object) -> FileRecord:
    """The record of a new file; its size is not known yet."""
    plain = FileRecord(id=identifier, bytes=0, created_at=1, filename="../../é\0.txt", purpose="user_data")
    return msgspec.structs.replace(plain, **fields)


async def read_content(store: Store, identifier: str, owner: Owner = OWNER) -> bytes:
    """The content of a file."""
    return b"".join([chunk async for chunk in not_none(await store.read_file(owner, identifier))])


class FileConformance(Conformance):
    """Tests of files and their content."""

    async def test_an_uploaded_file_can_be_read_after_reopening(self, tmp_path: Path) -> None:
        uploads = {"file-1": [b"a", b"", b"bc"], "file-2": [], "file-3": [b"\0\xff"], "file-4": LARGE}
        async with self.opened_store(tmp_path) as store:
            for name, pieces in uploads.items():
                created = await store.create_file(OWNER, file_record(name), chunks(*pieces))
                check_equal(created, file_record(name, bytes=sum(map(len, pieces))))
        async with self.opened_store(tmp_path) as store:
            for name, pieces in uploads.items():
                check_equal(await store.get_file(OWNER, name), file_record(name, bytes=sum(map(len, pieces))))
                check(await read_content(store, name) == b"".join(pieces), f"the content of {name} differs")
            check_equal(await store.get_file(OWNER, "unknown"), None)
            check_equal(await store.read_file(OWNER, "unknown"), None)

    async def test_concurrent_uploads(self, store: Store) -> None:
        names = [f"file-{number}" for number in range(20)]
        await asyncio.gather(*(store.create_file(OWNER, file_record(n), chunks(n.encode(), *LARGE[:2])) for n in names))
        found = await asyncio.gather(*(read_content(store, name) for name in names))
        check(found == [b"".join((n.encode(), *LARGE[:2])) for n in names], "the content of a file differs")

    async def test_a_failed_upload_stores_nothing(self, tmp_path: Path) -> None:
        async def failing() -> AsyncIterator[bytes]:
            for piece in LARGE:
                yield piece
            raise ConnectionResetError("client disconnected")

        async with self.opened_store(tmp_path) as store:
            try:
                await store.create_file(OWNER, file_record("file-1"), failing())
            except ConnectionResetError:
                pass
            else:
                raise AssertionError("the error of the content source must propagate")
            check_equal(await store.get_file(OWNER, "file-1"), None)
            check_equal((await store.list_files(OWNER, PageQuery())).data, [])
            await store.create_file(OWNER, file_record("file-1"), chunks(b"again"))
            check_equal(await read_content(store, "file-1"), b"again")

    async def test_a_cancelled_upload_stores_nothing(self, store: Store) -> None:
        started = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            for piece in LARGE:
                yield piece
            started.set()
            await asyncio.Event().wait()

        upload = asyncio.ensure_future(store.create_file(OWNER, file_record("file-1"), endless()))
        await started.wait()
        upload.cancel()
        await asyncio.wait([upload])
        check(upload.cancelled(), "the upload must be cancelled")
        check_equal(await store.get_file(OWNER, "file-1"), None)

    async def test_deleting_a_file_deletes_its_content(self, store: Store) -> None:
        await store.create_file(OWNER, file_record("file-1"), chunks(b"content"))
        check(await store.delete_file(OWNER, "file-1"), "the file existed")
        check(not await store.delete_file(OWNER, "file-1"), "the file was already deleted")
        check_equal(await store.get_file(OWNER, "file-1"), None)
        check_equal(await store.read_file(OWNER, "file-1"), None)
        check_equal((await store.list_files(OWNER, PageQuery())).data, [])

    async def test_an_open_download_survives_the_deletion_of_its_file_or_fails(self, store: Store) -> None:
        await store.create_file(OWNER, file_record("file-1"), chunks(*LARGE))
        content = not_none(await store.read_file(OWNER, "file-1"))
        first = await anext(content)
        await store.delete_file(OWNER, "file-1")
        try:
            rest = [chunk async for chunk in content]
        except StoreFault:
            return
        check(b"".join([first, *rest]) == b"".join(LARGE), "the content differs")

    async def test_files_with_a_record_are_no_orphans(self, store: Store) -> None:
        for name in ("file-1", "file-2"):
            await store.create_file(OWNER, file_record(name), chunks(b"content"))
        await store.delete_file(OWNER, "file-2")
        for _ in range(3):
            check_equal(await store.delete_orphans(), 0)
        check_equal(await read_content(store, "file-1"), b"content")

    async def test_files_are_paged(self, store: Store) -> None:
        for name in LISTED_IDS:
            await store.create_file(OWNER, file_record(name), chunks())
        await store.create_file(OTHER_TENANT, file_record("other_tenant"), chunks())
        await check_pages(lambda query: store.list_files(OWNER, query), lambda file: file.id)
        await check_unknown_cursor(lambda query: store.list_files(OWNER, query), PageQuery(after="other_tenant"))

    async def test_files_are_listed_by_purpose(self, store: Store) -> None:
        for name, purpose in (("file-1", "vision"), ("file-2", "batch"), ("file-3", "vision")):
            await store.create_file(OWNER, file_record(name, purpose=purpose), chunks())
        page = await store.list_files(OWNER, PageQuery(limit=1), "vision")
        check_equal(([file.id for file in page.data], page.has_more), (["file-3"], True))
        page = await store.list_files(OWNER, PageQuery(after="file-3"), "vision")
        check_equal(([file.id for file in page.data], page.has_more), (["file-1"], False))
        check_equal((await store.list_files(OWNER, PageQuery(), "evals")).data, [])

    async def test_an_expired_file_does_not_exist(self, store: Store) -> None:
        lasting = file_record("file-1", expires_at=2**40)
        for file in (lasting, file_record("file-2", expires_at=1), file_record("file-3")):
            await store.create_file(OWNER, file, chunks(b"content"))
        for swept in (False, True):
            check_equal(await store.get_file(OWNER, "file-2"), None)
            check_equal(await store.read_file(OWNER, "file-2"), None)
            check(not await store.delete_file(OWNER, "file-2"), "the file has expired")
            check_equal([file.id for file in (await store.list_files(OWNER, PageQuery())).data], ["file-3", "file-1"])
            check_equal(await store.delete_expired_files(), 0 if swept else 1)
        check_equal(await store.get_file(OWNER, "file-1"), msgspec.structs.replace(lasting, bytes=7))
        check_equal(await read_content(store, "file-1"), b"content")

    async def test_another_tenant_cannot_read_or_delete_a_file(self, store: Store) -> None:
        await store.create_file(OWNER, file_record("file-1"), chunks(b"own"))
        check_equal(await store.get_file(OTHER_TENANT, "file-1"), None)
        check_equal(await store.read_file(OTHER_TENANT, "file-1"), None)
        check_equal((await store.list_files(OTHER_TENANT, PageQuery())).data, [])
        check(not await store.delete_file(OTHER_TENANT, "file-1"), "another tenant must not delete")
        check_equal(await read_content(store, "file-1"), b"own")

    async def test_two_tenants_can_use_the_same_file_id(self, store: Store) -> None:
        await store.create_file(OWNER, file_record("file-1"), chunks(b"own"))
        await store.create_file(OTHER_TENANT, file_record("file-1"), chunks(b"other tenant"))
        check_equal(await read_content(store, "file-1", OTHER_TENANT), b"other tenant")
        check(await store.delete_file(OTHER_TENANT, "file-1"), "the other tenant's file exists")
        check_equal(await read_content(store, "file-1"), b"own")
