"""Guards against a step that runs twice: the lock, the look at the version behind it, the key of the versions."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import LiteralString

import psycopg
import pytest
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from waiting import wait_until_async

from antwort.storage.postgres.migrations import migrate

pytestmark = pytest.mark.anyio

STEPS: tuple[tuple[LiteralString, ...], ...] = (
    ("CREATE TABLE responses (x int)",),
    ("INSERT INTO responses VALUES (1)", "SELECT pg_advisory_xact_lock(42)"),
)
"""The second one adds a row each time that it runs, and waits for the test."""


@pytest.fixture
def url(postgres_server, tmp_path):  # noqa: F811 - a fixture
    return schema_url(postgres_server, tmp_path)


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True)


def migrated(url: str) -> int:
    with closing(connect(url)) as connection:
        return migrate(connection, STEPS)


async def test_a_migration_that_begins_during_another_one_waits_and_repeats_no_step(url):
    with closing(connect(url)) as blocking, closing(connect(url)) as connection:
        assert migrate(connection, STEPS[:1]) == 0
        blocking.execute("SELECT pg_advisory_lock(42)")
        first = asyncio.create_task(asyncio.to_thread(migrated, url))
        await wait_until_async(lambda: waiting(connection) == 1)  # in the step
        second = asyncio.create_task(asyncio.to_thread(migrated, url))
        await wait_until_async(lambda: waiting(connection) == 2)  # before the step, or in it
        blocking.execute("SELECT pg_advisory_unlock(42)")
        assert await asyncio.gather(first, second) == [1, 2]
        assert connection.execute("SELECT x FROM responses").fetchall() == [(1,)]


async def test_a_step_that_the_database_has_already_is_refused_by_its_key(url):
    """Also where the lock failed: a step and its row are one transaction."""
    with closing(connect(url)) as connection:
        migrate(connection, STEPS)
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO antwort_migrations (version) VALUES (2)")


def waiting(connection: psycopg.Connection) -> int:
    """How many sessions wait for an advisory lock."""
    found = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchone()
    assert found is not None
    return found[0]
