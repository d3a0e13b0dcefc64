"""Export and import of whole stores: SQLite and PostgreSQL, contents in directories."""

from __future__ import annotations

import asyncio
import io
import sqlite3
import tempfile
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unfinished import unfinished_ids

from antwort.api.responses import Response
from antwort.engine.stores import ContainerFileRecord, ConversationRecord, Owner, PageQuery, SandboxRef, StoredResponse
from antwort.storage import UnusableStore, maintenance, open_store
from antwort.storage.blobs import DirectoryBlobs
from antwort.storage.transfer import (
    DamagedExport,
    ExportReader,
    RowProgress,
    TransferError,
    export_store,
    import_store,
)
from antwort.storage.transfer.archive import ExportWriter
from antwort.testing.checks import not_none
from antwort.testing.store.base import OTHER_TENANT, OWNER, chunks, message
from antwort.testing.store.containers import NO_QUOTA, NOW, container_record
from antwort.testing.store.files import file_record

pytestmark = pytest.mark.anyio

ALL = PageQuery(limit=1000, order="asc")


@pytest.fixture(autouse=True)
def _fail_on_blocking_calls():
    """Exports and imports are programs of their own, and block."""


class Place:
    """A store in a directory."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.blobs = directory / "blobs"
        self.url = url or f"sqlite:///{directory}/antwort.db"
        self.is_shared = url is not None

    @asynccontextmanager
    async def opened(self):
        store = await open_store(self.url, self.blobs)
        try:
            yield store
        finally:
            await store.aclose()

    async def export(self, progress: RowProgress | None = None) -> bytes:
        file, database = io.BytesIO(), maintenance.open_snapshot(self.url)
        blobs = DirectoryBlobs(self.blobs, is_shared=self.is_shared)
        try:
            await export_store(database, blobs, file, progress or RowProgress())
        finally:
            database.close()
            await blobs.aclose()
        return file.getvalue()

    async def load(self, data: bytes, *, merge: bool = False) -> None:
        blobs = DirectoryBlobs(self.blobs, is_shared=self.is_shared)
        database = maintenance.open_target(self.url, self.blobs)
        try:
            assert await import_store(database, blobs, ExportReader(io.BytesIO(data)), RowProgress(), merge=merge)
        finally:
            database.close()
            await blobs.aclose()

    def blob_names(self) -> set[str]:
        return {file.name for file in self.blobs.iterdir() if len(file.name) == 32}


async def fill(store, prefix: str = "") -> None:
    """Objects of every kind, of two tenants."""
    for number, owner in enumerate((OWNER, OTHER_TENANT, OWNER)):
        name = f"{prefix}{number}"
        conversation = ConversationRecord(f"conv_{name}", number, {"a": "b\0é"})
        await store.create_conversation(owner, conversation, [message(f"msg_{name}")])
        response = Response(
            id=f"resp_{name}", created_at=number, model="m", previous_response_id=f"resp_{prefix}{number - 2}"
        )
        stored = StoredResponse(response=response, input=[message(f"in_{name}")], request={"x": [1, 2.5, None]})
        await store.begin_response(owner, stored)
        response.status, response.output = "completed", [message(f"out_{name}", "\0\ud7ff")]
        frames = [(sequence, b"data: \xff%d\n\n" % sequence) for sequence in (0, 1, 7)]
        await store.finish_response(owner, response, events=frames)
        await store.create_file(owner, file_record(f"file-{name}"), chunks(bytes([number]) * 1_500_000, b"end"))
        record = container_record(f"cntr_{name}", created_at=number)
        await store.create_container(owner, record, NO_QUOTA, 0.0)
        sandbox = SandboxRef(store.replica_id, "sandbox-1")
        await store.set_sandbox(owner, record.id, sandbox)
        file = ContainerFileRecord(
            id=f"cfile_{name}", container_id=record.id, path="a", bytes=5, created_at=1, source="user", modified=1
        )
        await store.change_container_files(owner, record.id, put=[file], sandbox=sandbox)


async def shown(store, owner: Owner, prefix: str = "") -> list:
    """All that the API can show of the objects of `fill`."""
    found: list = []
    for number in range(3):
        name = f"{prefix}{number}"
        found += [
            await store.get_response(owner, f"resp_{name}"),
            await store.history(owner, f"resp_{name}"),
            await store.read_events(owner, f"resp_{name}", -1),
            await store.get_conversation(owner, f"conv_{name}"),
            await store.all_items(owner, f"conv_{name}"),
            await store.find_items(owner, [f"in_{name}", f"out_{name}", f"msg_{name}"]),
        ]
        content = await store.read_file(owner, f"file-{name}")
        found.append(content and b"".join([chunk async for chunk in content]))
    return [
        *found,
        (await store.list_files(owner, ALL)).data,
        (await store.list_containers(owner, ALL, 0.0)).data,
        await unfinished_ids(store),
    ]


async def test_a_round_trip_over_postgres_shows_the_same(tmp_path, postgres_server):  # noqa: F811 - a fixture
    first, last = Place(tmp_path / "1"), Place(tmp_path / "3")
    url = await asyncio.to_thread(schema_url, postgres_server, tmp_path)
    middle = Place(tmp_path / "2", url)
    async with first.opened() as store:
        await fill(store)
        reason = "The container was imported from another store, without its sandbox."
        await store.mark_sandboxes_lost(await store.sandbox_replicas(), reason)
        before = [await shown(store, owner) for owner in (OWNER, OTHER_TENANT)]
    exported = await first.export()
    await middle.load(exported)
    async with middle.opened() as store:
        assert [await shown(store, owner) for owner in (OWNER, OTHER_TENANT)] == before
        await fill(store, "more_")  # later keys follow those of the import
        assert [file.id for file in (await store.list_files(OWNER, ALL)).data] == [
            "file-0",
            "file-2",
            "file-more_0",
            "file-more_2",
        ]
        await store.mark_sandboxes_lost(await store.sandbox_replicas(), "x")
        before = [await shown(store, owner) for owner in (OWNER, OTHER_TENANT)]
    await last.load(await middle.export())
    async with last.opened() as store:
        assert [await shown(store, owner) for owner in (OWNER, OTHER_TENANT)] == before


async def test_a_container_moves_without_its_sandbox_and_an_expired_one_with_its_files(tmp_path):
    first, second = Place(tmp_path / "1"), Place(tmp_path / "2")
    async with first.opened() as store:
        await fill(store)
        await store.create_container(OWNER, container_record("cntr_old", expires_after=1.0), NO_QUOTA, 0.0)
        file = ContainerFileRecord(
            id="cfile_old", container_id="cntr_old", path="a", bytes=5, created_at=1, source="user", modified=1
        )
        await store.change_container_files(OWNER, "cntr_old", put=[file])
        await store.expire_containers(NOW + 5.0)
    await second.load(await first.export())
    async with second.opened() as store:
        running = not_none(await store.get_container(OWNER, "cntr_0", 0.0))
        assert (running.sandbox, running.status) == (None, "running")
        assert "imported" in not_none(running.lost)
        assert not_none(await store.list_container_files(OWNER, "cntr_0", ALL)).data == []
        assert (await store.container_use(OWNER, 0.0)).disk == 0
        assert not_none(await store.get_container(OWNER, "cntr_old", 0.0)).status == "expired"
        assert not_none(await store.list_container_files(OWNER, "cntr_old", ALL)).data == [file]


async def test_an_export_is_a_snapshot_and_files_deleted_meanwhile_are_left_out(tmp_path):
    place, other = Place(tmp_path / "1"), Place(tmp_path / "2")
    async with place.opened() as store:
        await fill(store)
        database, file = maintenance.open_snapshot(place.url), io.BytesIO()
        database.rows.fetchone("SELECT count(*) FROM responses")
        await store.delete_file(OWNER, "file-0")
        await store.delete_response(OWNER, "resp_0")
        await fill(store, "later_")
        blobs, progress = DirectoryBlobs(place.blobs), RowProgress()
        await export_store(database, blobs, file, progress)
        database.close()
        await blobs.aclose()
    assert (progress.skipped_files, progress.rows["files"]) == (1, 2)
    await other.load(file.getvalue())
    async with other.opened() as store:
        assert await store.get_response(OWNER, "resp_0") is not None
        assert await store.get_response(OWNER, "resp_later_0") is None
        assert await store.get_file(OWNER, "file-0") is None
        assert len(other.blob_names()) == 2


@pytest.mark.parametrize("is_postgres", [False, True])
async def test_a_damaged_file_changes_nothing(tmp_path, postgres_server, is_postgres):  # noqa: F811 - a fixture
    first = Place(tmp_path / "1")
    async with first.opened() as store:
        await fill(store)
    data = await first.export()
    url = await asyncio.to_thread(schema_url, postgres_server, tmp_path) if is_postgres else None
    second = Place(tmp_path / "2", url)
    altered = bytearray(data)
    altered[data.rindex(b'"modified"' if b'"modified"' in data else b"cntr_2")] ^= 1
    for damaged in (data[: len(data) // 2], data[:-2000], bytes(altered)):
        with pytest.raises(DamagedExport):
            await second.load(damaged)
        assert second.blob_names() == set()
    await second.load(data)  # which requires an empty store
    async with second.opened() as store:
        assert await store.delete_orphans() == 0


async def test_a_store_that_is_not_empty_is_refused_unless_it_is_to_be_merged(tmp_path):
    first, second = Place(tmp_path / "1"), Place(tmp_path / "2")
    async with first.opened() as store:
        await fill(store)
    async with second.opened() as store:
        await fill(store, "own_")
        own = await shown(store, OWNER, "own_")
    data = await first.export()
    with pytest.raises(TransferError, match=r"not empty.*--merge"):
        await second.load(data)
    await second.load(data, merge=True)
    async with second.opened() as store:
        assert (await shown(store, OWNER, "own_"))[:21] == own[:21]
        assert [message("in_0"), message("in_2")] == [
            item for item in not_none(await store.history(OWNER, "resp_2")) if item["id"].startswith("in_")
        ]
        assert [file.id for file in (await store.list_files(OWNER, ALL)).data] == [
            "file-own_0",
            "file-own_2",
            "file-0",
            "file-2",
        ]
    names = second.blob_names()
    with pytest.raises(TransferError, match="already has an object of the file"):
        await second.load(data, merge=True)
    assert second.blob_names() == names


async def test_a_store_in_use_is_exported_and_not_imported_into(tmp_path, postgres_server):  # noqa: F811 - a fixture
    url = await asyncio.to_thread(schema_url, postgres_server, tmp_path)
    for place in (Place(tmp_path / "1"), Place(tmp_path / "2", url)):
        async with place.opened() as store:
            await fill(store)
            data = await place.export()
            with pytest.raises(UnusableStore, match="in use by another antwort"):
                await place.load(data, merge=True)


async def test_a_file_with_unknown_columns_is_refused(tmp_path):
    first, second = Place(tmp_path / "1"), Place(tmp_path / "2")
    async with first.opened() as store:
        await fill(store)
    with closing(sqlite3.connect(tmp_path / "1" / "antwort.db")) as database:
        database.execute("ALTER TABLE responses ADD COLUMN later TEXT")
        database.commit()
    with pytest.raises(TransferError, match=r"'responses\.later', which this antwort does not know. Install"):
        await second.load(await first.export())


@pytest.mark.parametrize("tables", [{"responses": ["key", "id", "id"]}, {"files": ["key", "blob"]}])
async def test_a_file_with_columns_that_no_export_has_is_refused(tmp_path, tables):
    file = io.BytesIO()
    ExportWriter(file, tables).end()
    with pytest.raises(DamagedExport, match=r"columns of '(responses|files)' that no export has"):
        await Place(tmp_path).load(file.getvalue())


@pytest.mark.parametrize("values", [[1, 1, "c", b"{}"], [True, True, "c", b"{}"], ["1", 1, "c", b"{}"]])
async def test_a_row_that_does_not_fit_its_table_is_refused(tmp_path, postgres_server, values):  # noqa: F811 - a fixture
    file = io.BytesIO()
    writer = ExportWriter(file, {"conversations": ["key", "created_at", "id", "metadata"]})  # without a tenant
    writer.rows("conversations", [values])
    writer.end()
    url = await asyncio.to_thread(schema_url, postgres_server, tmp_path)
    for place in (Place(tmp_path / "1"), Place(tmp_path / "2", url)):
        place.blobs.parent.mkdir()
        with pytest.raises(DamagedExport, match=r"does not fit its table|has no key"):
            await place.load(file.getvalue())


async def test_columns_that_the_file_lacks_get_their_default(tmp_path):
    first, second = Place(tmp_path / "1"), Place(tmp_path / "2")
    for place in (first, second):
        async with place.opened() as store:
            if place is first:
                await fill(store)
    with closing(sqlite3.connect(tmp_path / "2" / "antwort.db")) as database:
        database.execute("ALTER TABLE responses ADD COLUMN later TEXT DEFAULT 'x'")
        database.commit()
    await second.load(await first.export())
    with closing(sqlite3.connect(tmp_path / "2" / "antwort.db")) as database:
        assert database.execute("SELECT DISTINCT later FROM responses").fetchall() == [("x",)]


names = st.text("abc", min_size=1, max_size=3)
operations = st.lists(
    st.tuples(
        st.sampled_from(["respond", "converse", "upload", "contain", "delete"]),
        names,
        st.sampled_from([OWNER, OTHER_TENANT]),
        st.binary(max_size=300),
    ),
    max_size=25,
)


async def apply(store, operation, name, owner, data) -> None:
    text = data.decode("latin-1")
    if operation == "respond":
        response = Response(id=name, created_at=1, model=text, previous_response_id=name[:-1] or None)
        await store.begin_response(owner, StoredResponse(response=response, input=[message(f"i{name}", text)]))
        response.status = "completed"
        await store.finish_response(owner, response, events=[(number, data) for number in range(len(name))])
    elif operation == "converse":
        await store.create_conversation(owner, ConversationRecord(name, 1, {"a": text}), [message(text or "i")])
    elif operation == "upload" and await store.get_file(owner, name) is None:
        await store.create_file(owner, file_record(name), chunks(data))
    elif operation == "contain" and await store.get_container(owner, name, 0.0) is None:
        await store.create_container(owner, container_record(name), NO_QUOTA, 0.0)
    elif operation == "delete":
        await store.delete_response(owner, name)
        await store.delete_file(owner, name)


async def everything(store) -> list:
    found: list = []
    for owner in (OWNER, OTHER_TENANT):
        found += [(await store.list_files(owner, ALL)).data, (await store.list_containers(owner, ALL, 0.0)).data]
        for name in [a + b + c for a in "abc" for b in ("", *"abc") for c in ("", *"abc")]:
            found += [
                await store.get_response(owner, name),
                await store.history(owner, name),
                await store.read_events(owner, name, -1),
                await store.get_conversation(owner, name),
                await store.all_items(owner, name),
            ]
            content = await store.read_file(owner, name)
            found.append(content and b"".join([chunk async for chunk in content]))
    return found


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(operations)
def test_the_import_of_an_export_is_the_identity(steps):
    async def run(directory: Path) -> None:
        first, second, third = (Place(directory / name) for name in "123")
        async with first.opened() as store:
            for step in steps:
                await apply(store, *step)
            before = await everything(store)
        data = await first.export()
        await second.load(data)
        async with second.opened() as store:
            assert await everything(store) == before
        await third.load(await second.export())
        async with third.opened() as store:
            assert await everything(store) == before

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))
