"""Transactions in pipeline mode: results, errors and outcomes are those of statements that are sent one by one."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture

from antwort.storage.postgres.database import PostgresDatabase

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(postgres_server, tmp_path):  # noqa: F811 - a fixture
    opened = await asyncio.to_thread(PostgresDatabase, schema_url(postgres_server, tmp_path), max_connections=2)
    await opened.write_all_tenants(
        lambda rows: rows.execute("CREATE TABLE numbers (number int PRIMARY KEY CHECK (number >= 0))")
    )
    yield opened
    await asyncio.to_thread(opened.close)


async def numbers(database):
    rows = await database.read_all_tenants(lambda rows: rows.execute("SELECT number FROM numbers").fetchall())
    return sorted(number for (number,) in rows)


def insert(rows, *values):
    rows.executemany("INSERT INTO numbers VALUES (:number)", ({"number": value} for value in values))


async def test_statements_whose_results_are_not_read_are_executed_in_order(database):
    def change(rows):
        insert(rows, *range(500))
        rows.execute("DELETE FROM numbers WHERE number > 2")
        insert(rows, 9)

    await database.write_all_tenants(change)
    assert await numbers(database) == [0, 1, 2, 9]


async def test_row_counts_are_those_of_their_statement(database):
    def change(rows):
        insert(rows, 1, 2, 3)
        one = rows.execute("DELETE FROM numbers WHERE number = 1")
        others = rows.execute("UPDATE numbers SET number = number + 10")
        return one.rowcount, others.rowcount, rows.execute("DELETE FROM numbers WHERE number = 1").rowcount

    assert await database.write_all_tenants(change) == (1, 2, 0)


@pytest.mark.parametrize("is_read", [False, True])
async def test_an_error_of_an_earlier_statement_rolls_everything_back(database, is_read):
    outcomes = []

    def change(rows):
        insert(rows, 1)
        rows.execute("INSERT INTO numbers VALUES (-1)")
        insert(rows, 2)
        if is_read:
            rows.fetchone("SELECT 1")

    with pytest.raises(psycopg.errors.CheckViolation):
        await database.write_all_tenants(change, outcomes.append)
    assert outcomes == [False]
    assert await numbers(database) == []


async def test_an_error_of_the_change_itself_rolls_everything_back(database):
    outcomes = []

    def change(rows):
        insert(rows, 1)
        raise LookupError("of the change")

    with pytest.raises(LookupError, match="of the change"):
        await database.write_all_tenants(change, outcomes.append)
    assert outcomes == [False]
    assert await numbers(database) == []


async def test_a_change_that_reads_no_result_runs_again_on_a_new_connection(database, postgres_server):  # noqa: F811 - a fixture
    """A connection that was broken while it was idle is found before the commit is sent."""

    def terminate():
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'antwort' AND pid <> pg_backend_pid()"
            )

    outcomes = []
    await asyncio.to_thread(terminate)
    await database.write_all_tenants(lambda rows: insert(rows, 7), outcomes.append)
    assert outcomes == [True]
    assert await numbers(database) == [7]


async def test_a_change_whose_connection_breaks_before_the_commit_runs_again(database):
    runs, outcomes = [], []

    def change(rows):
        runs.append(len(runs))
        insert(rows, 5)
        if len(runs) == 1:
            rows.execute("SELECT pg_terminate_backend(pg_backend_pid())").fetchone()

    await database.write_all_tenants(change, outcomes.append)
    assert (runs, outcomes) == ([0, 1], [True])
    assert await numbers(database) == [5]
