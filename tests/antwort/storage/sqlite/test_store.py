"""What the world does to a store: kills, full disks, locks. What a store must do otherwise is in its conformance."""

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

from antwort.engine.stores import FileRecord, StoreFault
from antwort.storage.errors import UnusableStore
from antwort.storage.sqlite.store import SqliteStore
from antwort.testing.store.base import OURS, chunks, message, there
from antwort.testing.store.files import record
from antwort.testing.store.responses import asked, done

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def opened(place, **options):
    store = await SqliteStore.opened(place / "antwort.db", place / "blobs", **options)
    try:
        yield store
    finally:
        await store.aclose()


def ask_sqlite(place, question):
    connection = sqlite3.connect(place / "antwort.db")
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


async def whole(store, name):
    return b"".join([chunk async for chunk in there(await store.read_file(OURS, name))])


# ── Killed ───────────────────────────────────────────────────────────────────────────────────────────────────────────

ROUNDS = 8

WORKER = """
import asyncio, itertools, os, sys
from pathlib import Path
from antwort.api.responses import Conversation
from antwort.engine.stores import ConversationRecord
from antwort.storage.conformance.base import OURS, chunks, message
from antwort.storage.conformance.files import record
from antwort.storage.conformance.responses import asked, done
from antwort.storage.sqlite import SqliteStore

place, lap = Path(sys.argv[1]), sys.argv[2]

def told(*words):  # what was acknowledged, in one write
    os.write(1, (" ".join(words) + "\\n").encode())

async def talk(store, worker):
    conversation = f"conv_{lap}_{worker}"
    await store.create_conversation(OURS, ConversationRecord(conversation, 1, {}), [])
    for n in itertools.count():
        name = f"{lap}_{worker}_{n}"
        stored = asked(f"resp_{name}", message(f"in_{name}"), conversation=Conversation(conversation))
        await store.begin_response(OURS, stored)
        told("begun", name)
        ended = done(stored, message(f"out_{name}"))
        await store.finish_response(OURS, ended, appended=[*stored.input, *ended.output])
        told("ended", name, conversation)
        if n % 3 == 0:
            await store.delete_response(OURS, f"resp_{name}")
            told("deleted", name)

async def upload(store, worker):
    for n in itertools.count():
        name = f"{lap}_{worker}_{n}"
        await store.create_file(OURS, record(f"file-{name}"), chunks(name.encode() * 50_000))
        told("uploaded", name)
        if n % 3 == 0:
            await store.delete_file(OURS, f"file-{name}")
            told("removed", name)

async def main():
    store = await SqliteStore.opened(place / "antwort.db", place / "blobs")
    told("ready")
    await asyncio.gather(*(talk(store, w) for w in range(6)), *(upload(store, w) for w in range(3)))

asyncio.run(main())
"""


def killed_in_the_middle(place, lap):
    """What a process acknowledged before it was killed, at some moment."""
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(place), str(lap)], stdout=subprocess.PIPE)
    with worker:
        stdout = there(worker.stdout)
        assert stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0, 0.25))  # noqa: S311 — any moment will do
        worker.kill()
        said = stdout.read().decode().splitlines()
    return [tuple(line.split()) for line in said]


async def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path):
    said = []
    for lap in range(ROUNDS):
        said += await asyncio.to_thread(killed_in_the_middle, tmp_path, lap)
        async with opened(tmp_path) as store:
            await check_all_is_there(store, said)
            unfinished = {stored.response.id for _, stored in await store.unfinished_responses()}
        await asyncio.to_thread(check_all_is_sound, tmp_path)
        ended = {f"resp_{name}" for what, name, *_ in said if what == "ended"}
        assert not unfinished & ended
    assert {what for what, *_ in said} == {"begun", "ended", "deleted", "uploaded", "removed"}


async def check_all_is_there(store, said):
    deleted = {name for what, name, *_ in said if what == "deleted"}
    removed = {name for what, name, *_ in said if what == "removed"}
    for what, name, *rest in said:
        # The last delete of each worker may have happened without being acknowledged.
        maybe_gone = int(name.rpartition("_")[2]) % 3 == 0
        if what in {"begun", "ended"}:
            found = await store.get_response(OURS, f"resp_{name}")
            assert found is None if name in deleted else (found is not None or maybe_gone)
            if found is not None:
                assert found.input == [message(f"in_{name}")]
            if found is not None and what == "ended":
                assert found.response.output == [message(f"out_{name}")]
        if what == "ended":
            assert await store.get_item(OURS, rest[0], f"in_{name}") == message(f"in_{name}")
            assert await store.get_item(OURS, rest[0], f"out_{name}") == message(f"out_{name}")
        if what == "uploaded":
            found = await store.get_file(OURS, f"file-{name}")
            assert found is None if name in removed else (found is not None or maybe_gone)
            if found is not None:
                assert await whole(store, f"file-{name}") == name.encode() * 50_000


def check_all_is_sound(place):
    assert ask_sqlite(place, "PRAGMA integrity_check") == [("ok",)]
    assert ask_sqlite(place, "PRAGMA foreign_key_check") == []
    blobs = {file.name for file in (place / "blobs").iterdir()}
    assert blobs == {name for (name,) in ask_sqlite(place, "SELECT blob FROM files")}
    # A response that has ended and what its conversation gained are one change.
    halves = """
        SELECT count(*) FROM response_items AS made JOIN responses ON responses.key = made.response
        WHERE responses.status = 'completed'
        AND NOT EXISTS (SELECT 1 FROM conversation_items AS gained WHERE gained.id = made.id)
    """
    assert ask_sqlite(place, halves) == [(0,)]


# ── A full disk ──────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = 2 * 1024 * 1024


@contextlib.contextmanager
def small_disk(place):
    """A disk of its own, that a file can fill. Only root may make one."""
    mount = shutil.which("mount")
    made = os.geteuid() == 0 and mount
    command = [mount or "", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)]
    if not made or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk, and not everywhere")
    try:
        yield place / "filler"
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def files_no_larger_than(size):
    """For who is not root: the kernel refuses what would make a file larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def write_until_it_fails(store, prefix):
    """The responses that were acknowledged before the fault."""
    written = []
    for number in range(1000):
        stored = asked(f"{prefix}_{number}", message(f"in_{prefix}_{number}", "x" * 20_000))
        try:
            await store.begin_response(OURS, stored)
        except StoreFault:
            return written
        written.append(stored)
    raise AssertionError("the disk never got full")


async def check_it_has_recovered(store, written):
    """All that was acknowledged is there, and there can be more."""
    for stored in written:
        assert await store.get_response(OURS, stored.response.id) == stored
    later = asked("later", message("in_later"))
    await store.begin_response(OURS, later)
    assert await store.get_response(OURS, "later") == later
    await store.create_file(OURS, record("file-later"), chunks(b"content"))
    assert await whole(store, "file-later") == b"content"


async def test_a_full_disk_is_a_fault_and_passes(tmp_path):
    with small_disk(tmp_path) as filler:
        async with opened(tmp_path) as store:
            await asyncio.to_thread(filler.write_bytes, bytes(SMALL // 2))
            written = await write_until_it_fails(store, "resp")
            assert written
            with pytest.raises(StoreFault):
                await store.create_file(OURS, record("file-1"), chunks(bytes(SMALL)))
            for stored in written:  # reading goes on
                assert await store.get_response(OURS, stored.response.id) == stored

            await asyncio.to_thread(filler.unlink)
            await check_it_has_recovered(store, written)
            assert await store.get_file(OURS, "file-1") is None
        await asyncio.to_thread(check_all_is_sound, tmp_path)


async def test_a_disk_that_refuses_to_grow_is_a_fault_and_passes(tmp_path):
    async with opened(tmp_path) as store:
        with files_no_larger_than(600_000):
            written = await write_until_it_fails(store, "resp")
            assert written
            with pytest.raises(StoreFault):
                await store.create_file(OURS, record("file-1"), chunks(bytes(1_000_000)))
        await check_it_has_recovered(store, written)
    await asyncio.to_thread(check_all_is_sound, tmp_path)


async def test_a_trial_has_to_reach_the_disk(tmp_path):
    async with opened(tmp_path) as store:
        await store.begin_response(OURS, asked("resp_1"))
        size = await asyncio.to_thread(lambda: (tmp_path / "antwort.db-wal").stat().st_size)
        with files_no_larger_than(size), pytest.raises(StoreFault):
            await store.check_writable()
        await store.check_writable()


async def test_one_write_that_is_too_large_for_the_disk_hurts_no_other(tmp_path):
    async with opened(tmp_path) as store:
        small = [asked(f"resp_{number}", message(f"in_{number}")) for number in range(20)]
        large = asked("resp_large", message("in_large", "x" * 2_000_000))
        with files_no_larger_than(1_000_000):
            answers = await asyncio.gather(
                *(store.begin_response(OURS, stored) for stored in [*small[:10], large, *small[10:]]),
                return_exceptions=True,
            )
        assert [type(answer) for answer in answers] == [type(None)] * 10 + [StoreFault] + [type(None)] * 10
        await check_it_has_recovered(store, small)


# ── Locked ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_locked_database_is_a_fault_for_writers_and_passes(tmp_path):
    async with opened(tmp_path, patience=0.1) as store:
        first = asked("resp_1")
        await store.begin_response(OURS, first)
        other = sqlite3.connect(tmp_path / "antwort.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFault, match="locked"):
            await store.finish_response(OURS, done(first))
        with pytest.raises(StoreFault, match="locked"):
            await store.create_file(OURS, record("file-1"), chunks(b"content"))
        with pytest.raises(StoreFault, match="locked"):
            await store.check_writable()
        assert await store.get_response(OURS, "resp_1") == first
        other.execute("ROLLBACK")
        other.close()

        assert await asyncio.to_thread(lambda: [*(tmp_path / "blobs").iterdir()]) == []
        await check_it_has_recovered(store, [first])


async def test_who_waits_long_enough_gets_a_lock_that_is_let_go(tmp_path):
    async with opened(tmp_path, patience=5) as store:
        other = sqlite3.connect(tmp_path / "antwort.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.begin_response(OURS, asked("resp_1")))
        await asyncio.sleep(0.2)
        assert not writing.done()
        other.execute("ROLLBACK")
        other.close()
        await writing


async def test_a_damaged_file_is_a_fault(tmp_path):
    (tmp_path / "antwort.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreFault, match="damaged"):
        await SqliteStore.opened(tmp_path / "antwort.db", tmp_path / "blobs")


# ── Deleted, expired, lost ───────────────────────────────────────────────────────────────────────────────────────────


async def test_of_what_is_deleted_not_a_byte_is_left_on_disk(tmp_path):
    async with opened(tmp_path) as store:
        await store.begin_response(OURS, asked("resp_1", message("msg_1", "a secret " * 2000)))
        await store.append_events(OURS, "resp_1", [(0, b"a secret in an event")])
        await store.create_file(OURS, record("file-1"), chunks(b"a secret in a file"))
        await store.delete_response(OURS, "resp_1")
        await store.delete_file(OURS, "file-1")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert [path.name for path in files if b"a secret" in path.read_bytes()] == []
    assert "antwort.db" in {path.name for path in files}


async def test_a_file_expires_on_the_second(tmp_path):
    now = 1000.0
    async with opened(tmp_path, clock=lambda: now) as store:
        await store.create_file(OURS, record("file-1", expires_at=1010), chunks(b"content"))
        now = 1009.9
        assert isinstance(await store.get_file(OURS, "file-1"), FileRecord)
        assert await store.delete_expired_files() == 0
        now = 1010.0
        assert await store.get_file(OURS, "file-1") is None
        assert await store.delete_expired_files() == 1
        assert await asyncio.to_thread(lambda: [*(tmp_path / "blobs").iterdir()]) == []


async def test_a_content_that_somebody_took_away_is_a_fault(tmp_path):
    async with opened(tmp_path) as store:
        await store.create_file(OURS, record("file-1"), chunks(b"content"))
        await asyncio.to_thread(lambda: [file.unlink() for file in (tmp_path / "blobs").iterdir()])
        with pytest.raises(StoreFault, match="missing"):
            await store.read_file(OURS, "file-1")


async def test_a_second_one_is_refused_while_the_first_works_and_harms_nothing(tmp_path):
    async with opened(tmp_path) as first:

        async def slowly():
            yield b"first half, "
            with pytest.raises(UnusableStore, match="in use by another antwort"):
                await SqliteStore.opened(tmp_path / "antwort.db", tmp_path / "blobs")
            yield b"second half"

        await first.create_file(OURS, record("file-1"), slowly())
        assert await whole(first, "file-1") == b"first half, second half"
    async with opened(tmp_path) as second:
        assert await whole(second, "file-1") == b"first half, second half"


# ── Speed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_history_takes_work_in_proportion_to_its_depth(tmp_path):
    async with opened(tmp_path) as store:
        begun = [asked(f"{n}", message(f"in_{n}"), previous_response_id=f"{n - 1}") for n in range(4000)]
        await asyncio.gather(*(store.begin_response(OURS, stored) for stored in begun))
        done = 0

        def step():
            nonlocal done
            done += 1

        async def work(depth):
            """How much of its machine's code SQLite runs for one history, in hundreds."""
            nonlocal done
            for _ in range(10):  # whichever of its threads answers
                await store._database.read_everybodys(lambda connection: connection.set_progress_handler(step, 100))
            done = 0
            assert len(there(await store.history(OURS, f"{depth - 1}"))) == depth
            return done

        assert 0 < await work(4000) < 4 * 1.5 * await work(1000)


async def test_no_question_reads_a_whole_table(tmp_path):
    async with opened(tmp_path) as store:
        asked_for = []
        connection = await store._database.read_everybodys(lambda connection: connection)
        connection.set_trace_callback(asked_for.append)
        for _ in range(10):  # until this connection's thread has answered each
            await store.history(OURS, "resp_1")
            await store.get_response(OURS, "resp_1")
            await store.find_items(OURS, ["msg_1"])
            await store.read_events(OURS, "resp_1", 1)
            await store.get_item(OURS, "conv_1", "msg_1")
            await store.unfinished_responses()
        connection.set_trace_callback(None)
    questions = {sql for sql in asked_for if sql.lstrip().startswith(("SELECT", "WITH"))}

    assert questions
    plans = [row[3] for sql in questions for row in ask_sqlite(tmp_path, f"EXPLAIN QUERY PLAN {sql}")]
    scanned = [step for step in plans if step.startswith("SCAN")]
    assert [step for step in scanned if step not in {"SCAN chain", "SCAN json_each VIRTUAL TABLE INDEX 1:"}] == []
