"""SqliteStore under failures: SIGKILL, full disks, locks. `antwort.testing.store` tests its regular behaviour."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest
from unfinished import unfinished_ids

from antwort.engine.stores import FileRecord, StoreFault
from antwort.storage.blobs.directory import OWNER_FILE
from antwort.storage.errors import UnusableStore
from antwort.storage.sql.replicas import claim
from antwort.storage.sqlite.store import SqliteStore
from antwort.testing.checks import not_none
from antwort.testing.store.base import OWNER, chunks, message
from antwort.testing.store.files import file_record
from antwort.testing.store.responses import completed, new_response

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def opened(directory, **options):
    store = await SqliteStore.open(directory / "antwort.db", directory / "blobs", **options)
    try:
        yield store
    finally:
        await store.aclose()


def query_sqlite(directory, sql):
    connection = sqlite3.connect(directory / "antwort.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def read_content(store, name):
    return b"".join([chunk async for chunk in not_none(await store.read_file(OWNER, name))])


# ── SIGKILL ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ROUNDS = 8

WORKER = """
import asyncio, itertools, os, sys
from pathlib import Path
from antwort.api.responses import Conversation
from antwort.engine.stores import ConversationRecord
from antwort.testing.store.base import OWNER, chunks, message
from antwort.testing.store.files import file_record
from antwort.testing.store.responses import completed, new_response
from antwort.storage.sqlite.store import SqliteStore

directory, run = Path(sys.argv[1]), sys.argv[2]

def report(*words):  # an acknowledged operation, in one write
    os.write(1, (" ".join(words) + "\\n").encode())

async def write_responses(store, worker):
    conversation = f"conv_{run}_{worker}"
    await store.create_conversation(OWNER, ConversationRecord(conversation, 1, {}), [])
    for n in itertools.count():
        name = f"{run}_{worker}_{n}"
        stored = new_response(f"resp_{name}", message(f"in_{name}"), conversation=Conversation(conversation))
        await store.begin_response(OWNER, stored)
        report("begun", name)
        ended = completed(stored, message(f"out_{name}"))
        await store.finish_response(OWNER, ended, appended=[*stored.input, *ended.output])
        report("ended", name, conversation)
        if n % 3 == 0:
            await store.delete_response(OWNER, f"resp_{name}")
            report("deleted", name)

async def write_files(store, worker):
    for n in itertools.count():
        name = f"{run}_{worker}_{n}"
        await store.create_file(OWNER, file_record(f"file-{name}"), chunks(name.encode() * 50_000))
        report("uploaded", name)
        if n % 3 == 0:
            await store.delete_file(OWNER, f"file-{name}")
            report("removed", name)

async def main():
    store = await SqliteStore.open(directory / "antwort.db", directory / "blobs")
    report("ready")
    await asyncio.gather(*(write_responses(store, w) for w in range(6)), *(write_files(store, w) for w in range(3)))

asyncio.run(main())
"""


def run_and_kill(directory, run):
    """The operations that a process acknowledged before it was killed at a random moment."""
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(directory), str(run)], stdout=subprocess.PIPE)
    with worker:
        stdout = not_none(worker.stdout)
        assert stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0, 0.25))  # noqa: S311 - not cryptographic
        worker.kill()
        lines = stdout.read().decode().splitlines()
    return [tuple(line.split()) for line in lines]


async def test_a_killed_process_loses_no_acknowledged_write(tmp_path):
    operations = []
    for run in range(ROUNDS):
        operations += await asyncio.to_thread(run_and_kill, tmp_path, run)
        async with opened(tmp_path) as store:
            await store.delete_orphans()
            await check_operations(store, operations)
            unfinished = set(await unfinished_ids(store))
        await asyncio.to_thread(check_integrity, tmp_path)
        ended = {f"resp_{name}" for what, name, *_ in operations if what == "ended"}
        assert not unfinished & ended
    assert {what for what, *_ in operations} == {"begun", "ended", "deleted", "uploaded", "removed"}


async def check_operations(store, operations):
    deleted = {name for what, name, *_ in operations if what == "deleted"}
    removed = {name for what, name, *_ in operations if what == "removed"}
    for what, name, *rest in operations:
        # The last delete of each worker may have been committed without being acknowledged.
        may_be_deleted = int(name.rpartition("_")[2]) % 3 == 0
        if what in {"begun", "ended"}:
            found = await store.get_response(OWNER, f"resp_{name}")
            assert found is None if name in deleted else (found is not None or may_be_deleted)
            if found is not None:
                assert found.input == [message(f"in_{name}")]
            if found is not None and what == "ended":
                assert found.response.output == [message(f"out_{name}")]
        if what == "ended":
            assert await store.get_item(OWNER, rest[0], f"in_{name}") == message(f"in_{name}")
            assert await store.get_item(OWNER, rest[0], f"out_{name}") == message(f"out_{name}")
        if what == "uploaded":
            found = await store.get_file(OWNER, f"file-{name}")
            assert found is None if name in removed else (found is not None or may_be_deleted)
            if found is not None:
                assert await read_content(store, f"file-{name}") == name.encode() * 50_000


def blob_names(directory):
    """The files in the directory of blobs, without its mark."""
    return {file.name for file in (directory / "blobs").iterdir()} - {OWNER_FILE}


def check_integrity(directory):
    assert query_sqlite(directory, "PRAGMA integrity_check") == [("ok",)]
    assert query_sqlite(directory, "PRAGMA foreign_key_check") == []
    assert blob_names(directory) == {name for (name,) in query_sqlite(directory, "SELECT blob FROM files")}
    # A completed response and its conversation items are committed in one transaction.
    inconsistent = """
        SELECT count(*) FROM response_items AS item JOIN responses ON responses.key = item.response
        WHERE responses.status = 'completed'
        AND NOT EXISTS (SELECT 1 FROM conversation_items AS stored WHERE stored.id = item.id)
    """
    assert query_sqlite(directory, inconsistent) == [(0,)]


# ── Full disk ───────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = 2 * 1024 * 1024


@contextlib.contextmanager
def small_disk(directory):
    """A small tmpfs. Mounting it requires root."""
    mount = shutil.which("mount")
    may_mount = os.geteuid() == 0 and mount
    command = [mount or "", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(directory)]
    if not may_mount or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs requires root and a permissive kernel")
    try:
        yield directory / "filler"
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextlib.contextmanager
def file_size_limit(size):
    """RLIMIT_FSIZE, which needs no root: the kernel rejects writes past this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def write_until_it_fails(store, prefix):
    """The responses that were acknowledged before the first StoreFault."""
    written = []
    for number in range(1000):
        stored = new_response(f"{prefix}_{number}", message(f"in_{prefix}_{number}", "x" * 20_000))
        try:
            await store.begin_response(OWNER, stored)
        except StoreFault:
            return written
        written.append(stored)
    raise AssertionError("no write failed")


async def check_recovered(store, written):
    """Acknowledged responses can be read, and new ones written."""
    for stored in written:
        assert await store.get_response(OWNER, stored.response.id) == stored
    later = new_response("later", message("in_later"))
    await store.begin_response(OWNER, later)
    assert await store.get_response(OWNER, "later") == later
    await store.create_file(OWNER, file_record("file-later"), chunks(b"content"))
    assert await read_content(store, "file-later") == b"content"


async def test_a_full_disk_is_a_store_fault_until_space_is_free(tmp_path):
    with small_disk(tmp_path) as filler:
        async with opened(tmp_path) as store:
            await asyncio.to_thread(filler.write_bytes, bytes(SMALL // 2))
            written = await write_until_it_fails(store, "resp")
            assert written
            with pytest.raises(StoreFault):
                await store.create_file(OWNER, file_record("file-1"), chunks(bytes(SMALL)))
            for stored in written:  # reads still work
                assert await store.get_response(OWNER, stored.response.id) == stored

            await asyncio.to_thread(filler.unlink)
            await check_recovered(store, written)
            assert await store.get_file(OWNER, "file-1") is None
        await asyncio.to_thread(check_integrity, tmp_path)


async def test_a_file_size_limit_is_a_store_fault_until_it_is_lifted(tmp_path):
    async with opened(tmp_path) as store:
        with file_size_limit(600_000):
            written = await write_until_it_fails(store, "resp")
            assert written
            with pytest.raises(StoreFault):
                await store.create_file(OWNER, file_record("file-1"), chunks(bytes(1_000_000)))
        await check_recovered(store, written)
    await asyncio.to_thread(check_integrity, tmp_path)


async def test_the_write_probe_writes_to_disk(tmp_path):
    async with opened(tmp_path) as store:
        await store.begin_response(OWNER, new_response("resp_1"))
        size = await asyncio.to_thread(lambda: (tmp_path / "antwort.db-wal").stat().st_size)
        with file_size_limit(size), pytest.raises(StoreFault):
            await store.check_writable()
        await store.check_writable()


async def test_one_write_too_large_for_the_disk_does_not_fail_the_others(tmp_path):
    async with opened(tmp_path) as store:
        small = [new_response(f"resp_{number}", message(f"in_{number}")) for number in range(20)]
        large = new_response("resp_large", message("in_large", "x" * 2_000_000))
        with file_size_limit(1_000_000):
            answers = await asyncio.gather(
                *(store.begin_response(OWNER, stored) for stored in [*small[:10], large, *small[10:]]),
                return_exceptions=True,
            )
        assert [type(answer) for answer in answers] == [type(None)] * 10 + [StoreFault] + [type(None)] * 10
        await check_recovered(store, small)


# ── Locks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_locked_database_is_a_store_fault_for_writes_until_released(tmp_path):
    async with opened(tmp_path, lock_timeout=0.1) as store:
        first = new_response("resp_1")
        await store.begin_response(OWNER, first)
        other = sqlite3.connect(tmp_path / "antwort.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFault, match="locked"):
            await store.finish_response(OWNER, completed(first))
        with pytest.raises(StoreFault, match="locked"):
            await store.create_file(OWNER, file_record("file-1"), chunks(b"content"))
        with pytest.raises(StoreFault, match="locked"):
            await store.check_writable()
        assert await store.get_response(OWNER, "resp_1") == first
        other.execute("ROLLBACK")
        other.close()

        assert await asyncio.to_thread(blob_names, tmp_path) == set()
        await check_recovered(store, [first])


async def test_a_write_waits_for_a_lock_within_the_timeout(tmp_path):
    async with opened(tmp_path, lock_timeout=5) as store:
        other = sqlite3.connect(tmp_path / "antwort.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.begin_response(OWNER, new_response("resp_1")))
        await asyncio.sleep(0.2)
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        await writing


async def test_a_damaged_file_is_a_store_fault(tmp_path):
    (tmp_path / "antwort.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreFault, match="damaged"):
        await SqliteStore.open(tmp_path / "antwort.db", tmp_path / "blobs")


# ── Deletion and expiry ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_deleted_data_is_erased_from_disk(tmp_path):
    async with opened(tmp_path) as store:
        await store.begin_response(OWNER, new_response("resp_1", message("msg_1", "a secret " * 2000)))
        await store.append_events(OWNER, "resp_1", [(0, b"a secret in an event")])
        await store.create_file(OWNER, file_record("file-1"), chunks(b"a secret in a file"))
        await store.delete_response(OWNER, "resp_1")
        await store.delete_file(OWNER, "file-1")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert [path.name for path in files if b"a secret" in path.read_bytes()] == []
    assert "antwort.db" in {path.name for path in files}


async def test_a_file_expires_at_expires_at(tmp_path):
    now = 1000.0
    async with opened(tmp_path, clock=lambda: now) as store:
        await store.create_file(OWNER, file_record("file-1", expires_at=1010), chunks(b"content"))
        now = 1009.9
        assert isinstance(await store.get_file(OWNER, "file-1"), FileRecord)
        assert await store.delete_expired_files() == 0
        now = 1010.0
        assert await store.get_file(OWNER, "file-1") is None
        assert await store.delete_expired_files() == 1
        assert await asyncio.to_thread(blob_names, tmp_path) == set()


async def test_a_missing_blob_is_a_store_fault(tmp_path):
    async with opened(tmp_path) as store:
        await store.create_file(OWNER, file_record("file-1"), chunks(b"content"))
        await asyncio.to_thread(lambda: [file.unlink() for file in (tmp_path / "blobs").iterdir()])
        with pytest.raises(StoreFault, match="missing"):
            await store.read_file(OWNER, "file-1")


async def test_a_second_store_on_the_same_files_is_rejected_without_side_effects(tmp_path):
    async with opened(tmp_path) as first:

        async def content():
            yield b"first half, "
            with pytest.raises(UnusableStore, match="in use by another antwort"):
                await SqliteStore.open(tmp_path / "antwort.db", tmp_path / "blobs")
            yield b"second half"

        await first.create_file(OWNER, file_record("file-1"), content())
        assert await read_content(first, "file-1") == b"first half, second half"
    async with opened(tmp_path) as second:
        assert await read_content(second, "file-1") == b"first half, second half"


# ── Speed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reading_a_history_is_linear_in_its_length(tmp_path):
    async with opened(tmp_path) as store:
        begun = [new_response(f"{n}", message(f"in_{n}"), previous_response_id=f"{n - 1}") for n in range(4000)]
        await asyncio.gather(*(store.begin_response(OWNER, stored) for stored in begun))
        steps = 0

        def step():
            nonlocal steps
            steps += 1

        async def work(depth):
            """Hundreds of SQLite VM instructions for one history."""
            nonlocal steps
            for _ in range(10):  # any of the reader threads may answer
                await store._database.read_all_tenants(lambda rows: raw(rows).set_progress_handler(step, 100))
            steps = 0
            assert len(not_none(await store.history(OWNER, f"{depth - 1}"))) == depth
            return steps

        assert 0 < await work(4000) < 4 * 1.5 * await work(1000)


def raw(rows) -> sqlite3.Connection:
    """The connection of the reader thread that runs this."""
    return rows._connection


async def test_no_query_scans_a_whole_table(tmp_path):
    async with opened(tmp_path) as store:
        statements = []
        connection = await store._database.read_all_tenants(raw)
        connection.set_trace_callback(statements.append)
        for _ in range(10):  # until this connection's thread has run each query
            await store.history(OWNER, "resp_1")
            await store.get_response(OWNER, "resp_1")
            await store.find_items(OWNER, ["msg_1"])
            await store.read_events(OWNER, "resp_1", 1)
            await store.get_item(OWNER, "conv_1", "msg_1")
            await store.is_unfinished(OWNER, "resp_1")
            await store.own_unfinished()
            await store._database.read_all_tenants(lambda rows: claim(rows, store.replica_id, 10))
        connection.set_trace_callback(None)
    queries = {sql for sql in statements if sql.lstrip().startswith(("SELECT", "WITH"))}

    assert queries
    plans = [row[3] for sql in queries for row in query_sqlite(tmp_path, f"EXPLAIN QUERY PLAN {sql}")]
    scanned = [step for step in plans if step.startswith("SCAN")]
    assert [
        step
        for step in scanned
        if step not in {"SCAN chain", "SCAN json_each VIRTUAL TABLE INDEX 1:", "SCAN CONSTANT ROW"}
    ] == []
