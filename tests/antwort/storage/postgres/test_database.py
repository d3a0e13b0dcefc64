from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from fake_postgres_proxy import running_proxy
from fixtures_postgres import frozen, postgres_server, schema_url, stoppable_postgres  # noqa: F401 - a fixture
from psycopg.sql import SQL, Identifier, Literal
from waiting import wait_until, wait_until_async

from antwort.api.responses import Response
from antwort.engine.replicas.port import ReplicaRecord
from antwort.engine.stores import ContainerRecord, ContainerUse, Owner, SandboxRef, StoredResponse, StoreFault
from antwort.storage import UnusableStore, display_url, inspect_store, open_store
from antwort.storage.postgres.database import PostgresDatabase
from antwort.storage.postgres.migrations import _MIGRATION_LOCK, MIGRATIONS, SCHEMA_LOCK, check_compatible, migrate
from antwort.storage.postgres.store import PostgresStore

pytestmark = pytest.mark.anyio

OWNER = Owner("tenant", "key")


@pytest.fixture
def url(postgres_server, tmp_path):  # noqa: F811 - a fixture
    return schema_url(postgres_server, tmp_path)


@pytest.fixture
def own_server():
    """A server that the test may stop: its URL and the id of its process."""
    with stoppable_postgres() as server:
        yield server


@asynccontextmanager
async def opened(url, directory) -> AsyncIterator[Any]:
    store = await open_store(url, directory / "blobs")
    try:
        yield store
    finally:
        await store.aclose()


def stored(identifier):
    return StoredResponse(response=Response(id=identifier, created_at=1, model="m"), input=[])


async def eventually(operation):
    """The result of an operation, repeated while it is a `StoreFault`."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await operation()
            except StoreFault:
                await asyncio.sleep(0.05)


async def test_two_servers_open_one_schema(url, tmp_path):
    async with opened(url, tmp_path) as first, opened(url, tmp_path) as second:
        await first.begin_response(OWNER, stored("resp_1"))
        assert await second.get_response(OWNER, "resp_1") == stored("resp_1")


async def test_a_claim_whose_commit_is_not_acknowledged_is_returned_by_the_next_one(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """Otherwise nothing would work on what was claimed: its replica lives."""
    with running_proxy(postgres_server) as proxy:
        async with opened(schema_url(postgres_server, tmp_path), tmp_path) as gone:
            for number in range(3):
                await gone.begin_response(OWNER, stored(f"resp_{number}"))
        async with opened(schema_url(proxy.url, tmp_path), tmp_path) as store:
            proxy.lost_commits = 1
            with pytest.raises(StoreFault):
                await store.claim_responses(2)
            assert await store.own_unfinished() == {"resp_0": False, "resp_1": False}
            claimed = [await eventually(lambda: store.claim_responses(1)) for _ in range(4)]
        assert [[one.stored.response.id for one in claim] for claim in claimed] == [
            ["resp_0"],
            ["resp_1"],
            ["resp_2"],
            [],
        ]


async def test_a_claim_takes_the_next_response_where_another_one_has_locked_the_first(url, tmp_path):
    async with opened(url, tmp_path) as gone:
        for number in range(2):
            await gone.begin_response(OWNER, stored(f"resp_{number}"))
    async with opened(url, tmp_path) as store:
        async with locked(url, "SELECT 1 FROM responses WHERE id = 'resp_0' FOR UPDATE"):
            assert [one.stored.response.id for one in await store.claim_responses(1)] == ["resp_1"]
        assert [one.stored.response.id for one in await store.claim_responses(2)] == ["resp_0"]


async def test_a_replica_that_is_just_now_writing_its_beat_is_not_removed(url, tmp_path):
    async with opened(url, tmp_path) as store:
        await store.replicas.beat(ReplicaRecord(id="rep_other"))
        async with locked(url, "SELECT 1 FROM replicas WHERE id = 'rep_other' FOR UPDATE"):
            assert not await store.replicas.remove_replica("rep_other", 1)
        assert await store.replicas.remove_replica("rep_other", 1)


@asynccontextmanager
async def locked(url, statement):
    """Another process is in a transaction with this statement."""
    connection = await asyncio.to_thread(psycopg.connect, url)
    try:
        await asyncio.to_thread(connection.execute, statement)
        yield
        await asyncio.to_thread(connection.rollback)  # a close alone releases the locks a moment later
    finally:
        await asyncio.to_thread(connection.close)


@pytest.mark.parametrize(
    "is_heartbeat, is_read", [(False, True), (True, True), pytest.param(False, False, marks=pytest.mark.long)]
)
async def test_a_process_that_is_stopped_in_a_transaction_loses_its_locks(url, tmp_path, is_heartbeat, is_read):
    """No time-out of its own runs then: PostgreSQL has to end the transaction."""
    if not is_read and await asyncio.to_thread(server_version, url) < 170_000:
        pytest.skip("PostgreSQL has no time-out for transactions before version 17")
    async with opened(url, tmp_path) as store:
        await store.begin_response(OWNER, stored("resp_1"))
    attempts, goes_on = [], threading.Event()

    def freeze(rows):
        found = rows.execute("SELECT id FROM responses FOR UPDATE")
        attempts.append(found.fetchone() if is_read else None)
        goes_on.wait(60)

    def lock():
        with psycopg.connect(url) as connection:
            connection.execute("SET lock_timeout = '30s'")
            return connection.execute("SELECT id FROM responses FOR UPDATE").fetchall()

    database = await asyncio.to_thread(
        PostgresDatabase, url, max_connections=1, timeout=90.0, is_heartbeat=is_heartbeat
    )
    try:
        writing = asyncio.create_task(database.write_all_tenants(freeze))
        await wait_until_async(lambda: attempts)
        if not is_read:
            await asyncio.to_thread(wait_until, lambda: is_locked(url))
        assert await asyncio.to_thread(lock) == [("resp_1",)]
        goes_on.set()
        with suppress(StoreFault):  # unless it is run again
            await writing
    finally:
        goes_on.set()
        await asyncio.to_thread(database.close)


def server_version(url):
    with psycopg.connect(url) as connection:
        return connection.info.server_version


def is_locked(url):
    """Whether another transaction has locked a response."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT 1 FROM responses FOR UPDATE SKIP LOCKED").fetchall() == []


async def test_a_container_of_an_earlier_version_gets_a_new_sandbox(url, tmp_path):
    """Its row names the sandbox, but no replica."""
    record = ContainerRecord(
        id="cntr_1", name="x", created_at=1, last_active_at=1, expires_after=60, memory_limit="1g", memory=1
    )
    async with opened(url, tmp_path) as opened_store:
        store: Any = opened_store
        await store.create_container(OWNER, record, ContainerUse(1, 1, 1), 1)
        earlier = "UPDATE containers SET sandbox = 'before', replica = NULL"
        await store._database.write_all_tenants(lambda rows: rows.execute(earlier))
        changed = await store.set_sandbox(OWNER, "cntr_1", SandboxRef(store.replica_id, "new"))
        assert (changed.replica, changed.sandbox) == (store.replica_id, "new")


async def test_a_token_bucket_fills_again_after_a_clock_was_set_back(url, tmp_path):
    async with opened(url, tmp_path) as opened_store:
        store: Any = opened_store

        async def take(seconds: float) -> bool:
            """Take a request from a bucket that was updated later by these seconds."""
            move = "UPDATE rate_limits SET updated_at = updated_at + :seconds"
            await store._database.write_all_tenants(lambda rows: rows.execute(move, seconds=seconds))
            return (await store.replicas.take_request("key", 1)).is_granted

        assert [await take(0), await take(0)] == [True, False]
        assert not await take(3600)
        assert await take(-60)
        assert not await take(30)  # statements that wait for the row arrive late, and do not fill it twice
        assert not await take(-30)


async def test_an_older_server_that_runs_prevents_the_migration(url, tmp_path):
    """It does not note its responses as its own, so that this one would take them over."""

    def run_older():
        connection = psycopg.connect(url, autocommit=True)
        migrate(connection, MIGRATIONS[:1])
        connection.execute("SELECT pg_advisory_lock(hashtextextended('antwort:' || current_schema(), 0))")
        return connection

    older = await asyncio.to_thread(run_older)
    with pytest.raises(UnusableStore, match=r"older antwort.*stop that server"):
        await open_store(url, tmp_path / "blobs")
    await asyncio.to_thread(older.close)
    async with opened(url, tmp_path) as store:
        assert await store.claim_responses(10) == []


async def test_a_migration_does_not_wait_for_an_export_and_hold_up_the_servers(url):
    def run():
        with (
            psycopg.connect(url, autocommit=True) as migrating,
            psycopg.connect(url) as exporting,
            psycopg.connect(url, autocommit=True) as serving,
        ):
            assert migrate(migrating, MIGRATIONS[:2]) == 0
            exporting.execute("SELECT 1 FROM responses")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                migrate(migrating)
            serving.execute("SELECT 1 FROM responses")
            exporting.rollback()
            assert migrate(migrating) == 2

    async with asyncio.timeout(60):
        await asyncio.to_thread(run)


async def test_a_server_starts_though_an_import_that_is_refused_waited_for_the_lock_meanwhile(url):
    """The first connection of the beats is refused while a process waits to have the schema for itself."""

    def wait_in_vain(connection: psycopg.Connection) -> None:
        connection.execute("SET lock_timeout = '1s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(f"SELECT pg_advisory_lock({SCHEMA_LOCK})")

    with psycopg.connect(url, autocommit=True) as server, psycopg.connect(url, autocommit=True) as importing:
        server.execute(f"SELECT pg_advisory_lock_shared({SCHEMA_LOCK})")
        waiting = asyncio.create_task(asyncio.to_thread(wait_in_vain, importing))
        is_waiting = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        await wait_until_async(lambda: server.execute(is_waiting, [importing.info.backend_pid]).fetchall() == [(1,)])
        database = await asyncio.to_thread(partial(PostgresDatabase, url, max_connections=1, is_heartbeat=True))
        try:
            await asyncio.to_thread(database.connect)
        finally:
            await asyncio.to_thread(database.close)
        await waiting


async def test_a_newer_schema_is_an_error_that_says_what_to_do(url, tmp_path):
    async with opened(url, tmp_path):
        pass

    newer = len(MIGRATIONS) + 1

    def make_newer():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("INSERT INTO antwort_migrations (version) VALUES (%s)", (newer,))

    await asyncio.to_thread(make_newer)
    with pytest.raises(UnusableStore, match=rf"schema version {newer}.*Install the version that migrated it"):
        await open_store(url, tmp_path / "blobs")
    with pytest.raises(UnusableStore, match=f"schema version {newer}"):
        await asyncio.to_thread(inspect_store, url, tmp_path)


async def test_tables_of_another_program_are_not_touched(url, tmp_path):
    def create():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE responses (x int)")

    await asyncio.to_thread(create)
    with pytest.raises(UnusableStore, match="tables of another program"):
        await open_store(url, tmp_path / "blobs")


async def test_two_migrations_at_once_run_each_step_once(url):
    def run():
        with psycopg.connect(url, autocommit=True) as connection:
            migrate(connection)

    await asyncio.gather(*(asyncio.to_thread(run) for _ in range(4)))

    def versions():
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT version FROM antwort_migrations").fetchall()

    assert await asyncio.to_thread(versions) == [(number + 1,) for number in range(len(MIGRATIONS))]


class InterruptedConnection(psycopg.Connection):
    """A connection before whose second statement another process makes the tables."""

    url = ""
    statements = 0

    def execute(self, *arguments: Any, **options: Any) -> Any:
        self.statements += 1
        if self.statements == 2:
            with psycopg.connect(self.url, autocommit=True) as other:
                migrate(other)
        return super().execute(*arguments, **options)


async def test_a_migration_that_is_committed_during_the_look_at_the_tables_is_not_another_program(url):
    with InterruptedConnection.connect(url, autocommit=True) as connection:
        connection.url = url
        version = await asyncio.to_thread(check_compatible, connection)
        assert connection.statements >= 2
    assert version in (0, len(MIGRATIONS))


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_locks_hold_whatever_the_default_isolation_of_the_database_is(url, tmp_path, isolation):
    """A snapshot from before the wait for a lock does not have what the holder of the lock has changed."""
    url = f"{url}%20-cdefault_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}"

    def migrated() -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return migrate(connection)

    with psycopg.connect(url, autocommit=True) as lock:
        lock.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
        migrations = [asyncio.create_task(asyncio.to_thread(migrated)) for _ in range(3)]
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await wait_until_async(lambda: lock.execute(waiting).fetchall() == [(3,)])
        lock.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
        assert sorted(await asyncio.gather(*migrations)) == [0, len(MIGRATIONS), len(MIGRATIONS)]
    async with opened(url, tmp_path) as store:
        await store.replicas.beat(ReplicaRecord(id=store.replica_id))
        granted = await asyncio.gather(
            *(store.replicas.take_slot("key", str(number), store.replica_id, 2) for number in range(8))
        )
    assert granted.count(True) == 2


async def test_a_migration_that_does_not_end_is_an_error_that_says_so(url):
    def run():
        with psycopg.connect(url) as migrating, psycopg.connect(url, autocommit=True) as connection:
            migrating.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            with pytest.raises(UnusableStore, match=r"has been migrating the database.*for 0.1 s.*pg_terminate_back"):
                migrate(connection, MIGRATIONS[:1], wait=0.1)
            migrating.rollback()
            assert migrate(connection, wait=0.1) == 0
            migrating.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            assert migrate(connection, wait=0.1) == len(MIGRATIONS)  # nothing to do

    async with asyncio.timeout(60):
        await asyncio.to_thread(run)


async def test_the_clock_of_the_database_is_that_of_all_replicas(url, tmp_path):
    ahead = -100.0
    store = await PostgresStore.open(url, tmp_path / "blobs", clock=lambda: time.time() + ahead)
    try:
        assert store.replicas.now() < time.time() - 90
        await store.replicas.beat(ReplicaRecord(id=store.replica_id))
        assert store.replicas.now() > time.time() - 90
        ahead = 900.0  # the clock of the host is set
        async with asyncio.timeout(30):
            while store.replicas.now() > time.time() + 90:  # a beat that takes long does not change it
                await store.replicas.beat(ReplicaRecord(id=store.replica_id))
    finally:
        await store.aclose()


async def test_a_server_that_does_not_exist_is_a_fault_without_the_password(tmp_path):
    url = "postgresql://user:hunter2@127.0.0.1:9/db"
    with pytest.raises(StoreFault) as error:
        await open_store(url, tmp_path / "blobs")
    assert "hunter2" not in str(error.value)
    with pytest.raises(UnusableStore) as inspected:
        await asyncio.to_thread(inspect_store, url, tmp_path)
    assert "hunter2" not in str(inspected.value)
    assert display_url(url) == "postgresql://127.0.0.1:9/db"


async def test_an_invalid_url_is_an_error_that_names_the_form(tmp_path):
    with pytest.raises(UnusableStore, match="Write `postgresql://user@host/database`"):
        await open_store("postgresql://host/db?nonsense=1", tmp_path / "blobs")


async def test_connections_that_the_server_has_closed_are_replaced(url, tmp_path):
    """As after a restart of PostgreSQL: every connection of the pool is broken."""

    def terminate():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'antwort' AND pid <> pg_backend_pid()"
            )

    async with opened(url, tmp_path) as store:
        await asyncio.gather(*(store.begin_response(OWNER, stored(f"resp_{n}")) for n in range(32)))
        await asyncio.to_thread(terminate)
        await asyncio.gather(*(store.begin_response(OWNER, stored(f"resp_{n}")) for n in range(32, 64)))
        found = [await store.get_response(OWNER, f"resp_{n}") for n in range(64)]
    assert all(found)


async def test_a_read_only_database_is_a_fault_and_recovers(url, tmp_path):
    async with opened(url, tmp_path) as store:
        assert await store.get_response(OWNER, "resp_1") is None

        def set_read_only(value):
            with psycopg.connect(url, autocommit=True) as connection:
                name = connection.info.dbname
                statement = SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
                connection.execute("SET default_transaction_read_only = off")
                connection.execute(statement.format(Identifier(name), Literal(value)))
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'antwort' AND pid <> pg_backend_pid()"
                )

        await asyncio.to_thread(set_read_only, "on")
        try:
            with pytest.raises(StoreFault, match="read-only"):
                await store.begin_response(OWNER, stored("resp_1"))
            assert await store.get_response(OWNER, "resp_1") is None
        finally:
            await asyncio.to_thread(set_read_only, "off")
        await store.begin_response(OWNER, stored("resp_1"))
        assert await store.get_response(OWNER, "resp_1") is not None


async def test_a_connection_whose_prepared_statements_do_not_fit_the_tables_any_more_is_replaced(url, tmp_path):
    """As after the migration of a newer version, beside which this one still runs."""

    def alter():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE responses ALTER COLUMN status TYPE VARCHAR(20)")

    async with opened(url, tmp_path) as store:
        await store.begin_response(OWNER, stored("resp_1"))
        for number in range(20):  # so often that psycopg prepares the statements
            await store.append_events(OWNER, "resp_1", [(number, b"x")])
        await asyncio.to_thread(alter)
        await store.append_events(OWNER, "resp_1", [(20, b"x")])
        assert len(await store.read_events(OWNER, "resp_1", -1)) == 21


async def test_a_frozen_server_is_a_fault_in_time_and_recovers(own_server, tmp_path):
    """A stopped process sends no error: the operation is aborted at its time-out, and its thread is free again."""
    server, pid = own_server
    database = await asyncio.to_thread(PostgresDatabase, server, max_connections=2, timeout=0.5)
    try:
        assert await database.read_all_tenants(lambda rows: rows.execute("SELECT 1").fetchone()) == (1,)
        stopped = frozen(pid)
        await asyncio.to_thread(stopped.__enter__)
        try:
            for _ in range(4):  # more than there are threads
                with pytest.raises(StoreFault):
                    await database.read_all_tenants(lambda rows: rows.execute("SELECT 1").fetchone())
        finally:
            stopped.__exit__(None, None, None)
        assert await eventually(lambda: database.read_all_tenants(lambda rows: rows.execute("SELECT 1").fetchone()))
    finally:
        await asyncio.to_thread(database.close)


@pytest.mark.parametrize("broken", [0, 1])
async def test_a_connection_that_gets_no_answers_is_replaced_with_one_that_breaks(postgres_server, broken):  # noqa: F811 - a fixture
    """As after a fail-over: the network drops what is sent on the old connections, and rejects some of it."""
    with running_proxy(postgres_server) as proxy:
        database = await asyncio.to_thread(PostgresDatabase, proxy.url, max_connections=2, timeout=1.0)

        async def read():
            return await database.read_all_tenants(lambda rows: rows.execute("SELECT 1 FROM pg_sleep(0.1)").fetchone())

        try:
            while len(proxy.clients) < 2:
                await asyncio.gather(read(), read())
            proxy.silent.add(1 - broken)
            proxy.break_connection(broken)
            async with asyncio.timeout(30):
                with suppress(StoreFault):  # if the one that gets no answers is used first
                    assert await read() == (1,)
                assert await read() == await read() == (1,)
        finally:
            proxy.close_clients()
            await asyncio.to_thread(database.close)


async def test_one_connection_without_answers_costs_one_operation(postgres_server):  # noqa: F811 - a fixture
    with running_proxy(postgres_server) as proxy:
        database = await asyncio.to_thread(PostgresDatabase, proxy.url, max_connections=2, timeout=1.0)

        async def read():
            return await database.read_all_tenants(lambda rows: rows.execute("SELECT 1 FROM pg_sleep(0.1)").fetchone())

        try:
            while len(proxy.clients) < 2:
                await asyncio.gather(read(), read())
            proxy.silent |= {0, 1}
            with pytest.raises(StoreFault, match=r"did not answer in time|connection to PostgreSQL broke"):
                await read()
            assert await read() == (1,)
        finally:
            await asyncio.to_thread(database.close)


@pytest.mark.parametrize("is_heartbeat", [False, True])
async def test_new_connections_that_get_no_answers_after_the_login_do_not_occupy_the_pool(
    postgres_server,  # noqa: F811 - a fixture
    is_heartbeat,
):
    with running_proxy(postgres_server) as proxy:
        database = await asyncio.to_thread(
            PostgresDatabase, proxy.url, max_connections=4, timeout=0.5, is_heartbeat=is_heartbeat
        )

        async def read():
            return await database.read_all_tenants(lambda rows: rows.execute("SELECT 1").fetchone())

        try:
            assert await read() == (1,)
            proxy.is_silent_after_login = True
            proxy.break_connection(0)
            while len(proxy.silent) < 6:  # more than the threads of the pool
                with suppress(StoreFault):
                    await read()
            proxy.is_silent_after_login = False
            async with asyncio.timeout(30):
                assert await eventually(read) == (1,)
        finally:
            proxy.close_clients()
            await asyncio.to_thread(database.close)


@pytest.mark.parametrize("ahead, is_granted", [(30, False), (300, True)])
async def test_a_job_that_another_replica_has_claimed_meanwhile_is_not_granted(url, tmp_path, ahead, is_granted):
    """A claim waits for the row of another one that began later; a time far ahead is of before a clock was set back."""
    async with opened(url, tmp_path) as store:
        assert store.replicas is not None
        assert await store.replicas.claim_job("sweep", 3600)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(SQL("UPDATE jobs SET started_at = started_at + {}").format(Literal(ahead)))
        assert await store.replicas.claim_job("sweep", 3600) == is_granted
