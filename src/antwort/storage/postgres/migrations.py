"""Migrations of the PostgreSQL schema: numbered steps, never changed once released.

All missing steps run in one transaction under an advisory lock, so that servers which start together migrate once.
The table `antwort_migrations` has one row per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, TypeAlias

import psycopg

from antwort.storage.errors import UnusableStore

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SCHEMA_LOCK: LiteralString = "hashtextextended('antwort:' || current_schema(), 0)"
"""The key of an advisory lock. Servers share it; an import, and servers of old versions, hold it for themselves."""
_MIGRATION_LOCK = 0x616E7477  # "antw"; any number that other programs are unlikely to use

_LOCK_TIMEOUT_MS: LiteralString = "3000"
"""How long a step waits for a table: all statements of running servers on that table wait behind it, also while an
export reads the table. Shorter than their statement time-out."""

_FIRST: tuple[LiteralString, ...] = (
    # The tables of version 2 of the SQLite schema, whose comments apply here too.
    """
    CREATE TABLE responses (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        previous TEXT,
        status TEXT NOT NULL,
        body BYTEA NOT NULL,
        request BYTEA NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX unfinished_responses ON responses (status) WHERE status IN ('queued', 'in_progress')",
    """
    CREATE TABLE response_items (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        response BIGINT NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        part SMALLINT NOT NULL CHECK (part IN (0, 1)), -- input, output
        id TEXT,
        is_reference BOOLEAN NOT NULL,
        body BYTEA NOT NULL
    )
    """,
    "CREATE INDEX response_items_in_order ON response_items (response, part, key)",
    "CREATE INDEX response_items_by_id ON response_items (tenant, id) WHERE NOT is_reference",
    """
    CREATE TABLE events (
        tenant TEXT NOT NULL,
        response BIGINT NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        sequence BIGINT NOT NULL,
        frame BYTEA NOT NULL,
        PRIMARY KEY (response, sequence)
    )
    """,
    """
    CREATE TABLE conversations (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        metadata BYTEA NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    """
    CREATE TABLE conversation_items (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        conversation BIGINT NOT NULL REFERENCES conversations (key) ON DELETE CASCADE,
        id TEXT,
        is_reference BOOLEAN NOT NULL,
        body BYTEA NOT NULL,
        UNIQUE (conversation, id)
    )
    """,
    "CREATE INDEX conversation_items_in_order ON conversation_items (conversation, key)",
    "CREATE INDEX conversation_items_by_id ON conversation_items (tenant, id) WHERE NOT is_reference",
    """
    CREATE TABLE files (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        blob TEXT NOT NULL UNIQUE,
        expires_at BIGINT,
        purpose TEXT NOT NULL,
        body BYTEA NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX files_in_order ON files (tenant, key)",
    "CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE TABLE containers (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        last_active_at DOUBLE PRECISION NOT NULL,
        expires_after DOUBLE PRECISION NOT NULL,
        memory_limit TEXT NOT NULL,
        memory BIGINT NOT NULL,
        status TEXT NOT NULL,
        sandbox TEXT,
        lost TEXT,
        disk BIGINT NOT NULL DEFAULT 0,
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX containers_in_order ON containers (tenant, key)",
    "CREATE INDEX running_containers ON containers (tenant) WHERE status = 'running'",
    "CREATE INDEX containers_by_expiry ON containers (status, (last_active_at + expires_after))",
    """
    CREATE TABLE container_files (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        container BIGINT NOT NULL REFERENCES containers (key) ON DELETE CASCADE,
        id TEXT NOT NULL,
        path TEXT NOT NULL,
        bytes BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        source TEXT NOT NULL,
        modified BIGINT NOT NULL,
        file_id TEXT,
        UNIQUE (container, path),
        UNIQUE (container, id)
    )
    """,
    "CREATE INDEX container_files_in_order ON container_files (container, key)",
)

_CHECKPOINTS: tuple[LiteralString, ...] = (
    # Version 3 of the SQLite schema.
    """
    CREATE TABLE checkpoint_steps (
        tenant TEXT NOT NULL,
        response BIGINT NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        sequence BIGINT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (response, number)
    )
    """,
)

_REPLICAS: tuple[LiteralString, ...] = (
    # The replica that works on it; see `storage.sql.replicas`.
    "ALTER TABLE responses ADD COLUMN replica TEXT",
    "ALTER TABLE responses ADD COLUMN cancel_requested BOOLEAN NOT NULL DEFAULT FALSE",
    "ALTER TABLE containers ADD COLUMN replica TEXT",
    # Never UNLOGGED: a replica without a row is dead, so a crash of PostgreSQL must not empty the table.
    """
    CREATE TABLE replicas (
        id TEXT PRIMARY KEY,
        beat BIGINT NOT NULL,
        url TEXT,
        sealing_keys TEXT[] NOT NULL,
        blobs TEXT NOT NULL
    )
    """,
    "CREATE TABLE jobs (name TEXT PRIMARY KEY, started_at DOUBLE PRECISION NOT NULL)",
    # Token buckets. UNLOGGED: a request waits for no flush of the disk, and a crash of PostgreSQL fills the buckets.
    """
    CREATE UNLOGGED TABLE rate_limits (
        key_id TEXT PRIMARY KEY,
        tokens DOUBLE PRECISION NOT NULL,
        updated_at DOUBLE PRECISION NOT NULL,
        is_granted BOOLEAN NOT NULL
    )
    """,
    # Running responses of keys with a concurrency limit. A row counts while its replica has one in `replicas`.
    "CREATE TABLE running_slots (id TEXT PRIMARY KEY, key_id TEXT NOT NULL, replica TEXT NOT NULL)",
    "CREATE INDEX running_slots_by_key ON running_slots (key_id)",
)

_CONTAINERS_OF_REPLICAS: tuple[LiteralString, ...] = (
    "ALTER TABLE containers ADD COLUMN used_by TEXT",
    "ALTER TABLE containers ADD COLUMN uploading BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX containers_with_sandboxes ON containers (replica) WHERE sandbox IS NOT NULL",
)

_IDENTITY: tuple[LiteralString, ...] = (
    "CREATE TABLE store_identity (id TEXT NOT NULL)",
    "INSERT INTO store_identity (id) VALUES (md5(random()::text || clock_timestamp()::text || random()::text))",
)

_SKILLS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE skills (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        default_version BIGINT NOT NULL,
        last_version BIGINT NOT NULL DEFAULT 1, -- of all that there were: a number is not used twice
        UNIQUE (tenant, id)
    )
    """,
    """
    CREATE TABLE skill_versions (
        key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        tenant TEXT NOT NULL,
        skill BIGINT NOT NULL REFERENCES skills (key) ON DELETE CASCADE,
        id TEXT NOT NULL,
        version BIGINT NOT NULL,
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        bytes BIGINT NOT NULL,
        body BYTEA NOT NULL, -- a ZIP archive
        UNIQUE (skill, version)
    )
    """,
    "CREATE INDEX skill_versions_by_tenant ON skill_versions (tenant)",
    # Copies: a container keeps its skills when they are changed or deleted.
    """
    CREATE TABLE container_skills (
        tenant TEXT NOT NULL,
        container BIGINT NOT NULL REFERENCES containers (key) ON DELETE CASCADE,
        number BIGINT NOT NULL,
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (container, number)
    )
    """,
)

MIGRATIONS: tuple[Sequence[LiteralString], ...] = (
    _FIRST,
    _CHECKPOINTS,
    _REPLICAS,
    _CONTAINERS_OF_REPLICAS,
    _IDENTITY,
    _SKILLS,
)
"""The statements of each step."""


def migrate(
    connection: Connection, steps: Sequence[Sequence[LiteralString]] = MIGRATIONS, *, wait: float = 60.0
) -> int:
    """Run the missing steps; returns the version before. `UnusableStore` for a newer schema, or for other tables.

    Waits for another migration for `wait` seconds; not at all where no step is missing.
    """
    if check_compatible(connection, len(steps)) == len(steps):
        return len(steps)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # sees what the one before has committed
        _lock_migrations(connection, wait)
        version = check_compatible(connection, len(steps))
        if version == 0:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS antwort_migrations"
                " (version INTEGER PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
            )
        elif version < len(steps):
            _refuse_exclusive_user(connection)
            connection.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
        for number, step in enumerate(steps[version:], version + 1):
            for statement in step:
                connection.execute(statement)
            connection.execute("INSERT INTO antwort_migrations (version) VALUES (%s)", (number,))
        return version


def _lock_migrations(connection: Connection, wait: float) -> None:
    """Take the lock. PostgreSQL ends the connection of a migration that does nothing, so that a lost one frees it."""
    connection.execute(
        "SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', '60s', true)",
        (f"{wait * 1000:.0f}ms",),
    )
    try:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
    except psycopg.errors.LockNotAvailable as error:
        raise UnusableStore(
            f"Another antwort has been migrating the database of `storage.url` for {wait:g} s. Start this one when it "
            "has finished. If none is running, end the connection that holds the advisory lock: `pg_locks` has its "
            "process id, for `pg_terminate_backend`."
        ) from error


def _refuse_exclusive_user(connection: Connection) -> None:
    """Raise `UnusableStore` while an import, or an antwort of a version without replicas, has the schema for itself."""
    row = connection.execute(f"SELECT pg_try_advisory_xact_lock_shared({SCHEMA_LOCK})").fetchone()
    if row is None or not row[0]:
        raise exclusive_use_error()


def exclusive_use_error() -> UnusableStore:
    """The error of a server or a migration while another process holds `SCHEMA_LOCK` for itself."""
    return UnusableStore(
        "The database of `storage.url` is in use by `antwort import`, or by an older antwort that cannot share it. "
        "Wait for the import, or stop that server first, or set `storage.url` to another database. If neither is "
        "running, end the connection that holds the advisory lock: `pg_locks` has its process id, for "
        "`pg_terminate_backend`."
    )


def check_compatible(connection: Connection, newest: int = len(MIGRATIONS)) -> int:
    """The version of the schema, 0 for none; `UnusableStore` if this antwort cannot use it. Changes nothing."""
    has_responses = _exists(connection, "responses")  # before the version: a migration may be committed in between
    version = _version(connection)
    if version == 0 and has_responses:
        raise UnusableStore(
            "This database has tables of another program. Set `storage.url` to another database, or to another schema "
            "with `?options=-csearch_path%3Dantwort`."
        )
    if version > newest:
        raise UnusableStore(
            f"This database has schema version {version}, and this antwort supports versions up to {newest}. "
            "Install the version that migrated it, or a newer one; or set `storage.url` to another database."
        )
    return version


def _version(connection: Connection) -> int:
    if not _exists(connection, "antwort_migrations"):
        return 0
    row = connection.execute("SELECT coalesce(max(version), 0) FROM antwort_migrations").fetchone()
    return 0 if row is None else int(row[0])


def _exists(connection: Connection, table: LiteralString) -> bool:
    """Whether the schema that new tables are created in has this table."""
    row = connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = %s", (table,)
    ).fetchone()
    return row is not None
