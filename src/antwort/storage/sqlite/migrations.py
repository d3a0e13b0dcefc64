"""Database migrations: numbered steps, each in one transaction, never changed once released.

`user_version` counts the steps that a file has had; `application_id` marks it as a database of antwort.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from antwort.storage.errors import UnusableStore

APPLICATION_ID = 0x616E7477  # "antw"

_RESPONSES = (
    # `body` is the response without its output. Ids are unique per tenant only, so that a write does not reveal
    # whether another tenant uses an id.
    """
    CREATE TABLE responses (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        previous TEXT,
        status TEXT NOT NULL,
        body BLOB NOT NULL,
        request BLOB NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX unfinished_responses ON responses (status) WHERE status IN ('queued', 'in_progress')",
    """
    CREATE TABLE response_items (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        response INTEGER NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        part INTEGER NOT NULL CHECK (part IN (0, 1)), -- input, output
        id TEXT,
        is_reference INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    "CREATE INDEX response_items_in_order ON response_items (response, part)",
    "CREATE INDEX response_items_by_id ON response_items (tenant, id) WHERE NOT is_reference",
    """
    CREATE TABLE events (
        tenant TEXT NOT NULL,
        response INTEGER NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        sequence INTEGER NOT NULL,
        frame BLOB NOT NULL,
        PRIMARY KEY (response, sequence)
    ) WITHOUT ROWID
    """,
)

_CONVERSATIONS = (
    """
    CREATE TABLE conversations (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        metadata BLOB NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    """
    CREATE TABLE conversation_items (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        conversation INTEGER NOT NULL REFERENCES conversations (key) ON DELETE CASCADE,
        id TEXT,
        is_reference INTEGER NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (conversation, id)
    )
    """,
    "CREATE INDEX conversation_items_in_order ON conversation_items (conversation)",
    "CREATE INDEX conversation_items_by_id ON conversation_items (tenant, id) WHERE NOT is_reference",
)

_FILES = (
    """
    CREATE TABLE files (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        blob TEXT NOT NULL UNIQUE, -- the name of its content, never of the caller's choosing
        expires_at INTEGER,
        purpose TEXT NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX files_in_order ON files (tenant, key)",
    "CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL",
)

_CONTAINERS = (
    """
    CREATE TABLE containers (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        last_active_at REAL NOT NULL,
        expires_after REAL NOT NULL,
        memory_limit TEXT NOT NULL,
        memory INTEGER NOT NULL,
        status TEXT NOT NULL,
        sandbox TEXT,
        lost TEXT,
        disk INTEGER NOT NULL DEFAULT 0, -- the bytes of its files, so that a quota need not add them up
        UNIQUE (tenant, id)
    )
    """,
    "CREATE INDEX containers_in_order ON containers (tenant, key)",
    "CREATE INDEX running_containers ON containers (tenant) WHERE status = 'running'",
    "CREATE INDEX containers_by_expiry ON containers (status, last_active_at + expires_after)",
    """
    CREATE TABLE container_files (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        container INTEGER NOT NULL REFERENCES containers (key) ON DELETE CASCADE,
        id TEXT NOT NULL,
        path TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        source TEXT NOT NULL,
        modified INTEGER NOT NULL,
        file_id TEXT,
        UNIQUE (container, path),
        UNIQUE (container, id)
    )
    """,
    "CREATE INDEX container_files_in_order ON container_files (container, key)",
)

_CHECKPOINTS = (
    # Each step has only what changed since the step before it, so that a long response costs no more per step.
    """
    CREATE TABLE checkpoint_steps (
        tenant TEXT NOT NULL,
        response INTEGER NOT NULL REFERENCES responses (key) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        sequence INTEGER NOT NULL, -- the last event that the step includes
        body BLOB NOT NULL,
        PRIMARY KEY (response, number)
    ) WITHOUT ROWID
    """,
)

_REPLICAS = (
    # The process that works on it. It differs from the current one after a restart: `storage.sql.replicas`.
    "ALTER TABLE responses ADD COLUMN replica TEXT",
    "ALTER TABLE responses ADD COLUMN cancel_requested INTEGER NOT NULL DEFAULT FALSE",
    "ALTER TABLE containers ADD COLUMN replica TEXT",
)

_CONTAINERS_OF_REPLICAS = (
    "ALTER TABLE containers ADD COLUMN used_by TEXT",
    # The bytes of an upload in progress, which count towards the quota.
    "ALTER TABLE containers ADD COLUMN uploading INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX containers_with_sandboxes ON containers (replica) WHERE sandbox IS NOT NULL",
)

_IDENTITY = (
    "CREATE TABLE store_identity (id TEXT NOT NULL)",
    "INSERT INTO store_identity (id) VALUES (lower(hex(randomblob(16))))",
)

_SKILLS = (
    """
    CREATE TABLE skills (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        key_id TEXT NOT NULL,
        id TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        default_version INTEGER NOT NULL,
        last_version INTEGER NOT NULL DEFAULT 1, -- of all that there were: a number is not used twice
        UNIQUE (tenant, id)
    )
    """,
    """
    CREATE TABLE skill_versions (
        key INTEGER PRIMARY KEY,
        tenant TEXT NOT NULL,
        skill INTEGER NOT NULL REFERENCES skills (key) ON DELETE CASCADE,
        id TEXT NOT NULL,
        version INTEGER NOT NULL,
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        body BLOB NOT NULL, -- a ZIP archive
        UNIQUE (skill, version)
    )
    """,
    "CREATE INDEX skill_versions_by_tenant ON skill_versions (tenant)",
    # Copies: a container keeps its skills when they are changed or deleted.
    """
    CREATE TABLE container_skills (
        tenant TEXT NOT NULL,
        container INTEGER NOT NULL REFERENCES containers (key) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        name TEXT NOT NULL,
        description TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (container, number)
    )
    """,
)

MIGRATIONS: tuple[Sequence[str], ...] = (
    (*_RESPONSES, *_CONVERSATIONS, *_FILES),
    _CONTAINERS,
    _CHECKPOINTS,
    _REPLICAS,
    _CONTAINERS_OF_REPLICAS,
    _IDENTITY,
    _SKILLS,
)
"""The statements of each step. The first step creates version 1 in an empty file."""


def migrate(connection: sqlite3.Connection, steps: Sequence[Sequence[str]] = MIGRATIONS) -> int:
    """Run the missing steps; returns the version before. `UnusableStore` if it is newer, or of another program."""
    before = check_compatible(connection, len(steps))
    while _migrate_once(connection, steps):
        pass
    return before


def _migrate_once(connection: sqlite3.Connection, steps: Sequence[Sequence[str]]) -> bool:
    """Run the next step; returns whether more follow. The version is read under the lock of the transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _pragma(connection, "user_version")
        if version < len(steps):
            for statement in steps[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return version + 1 < len(steps)


def check_compatible(connection: sqlite3.Connection, newest: int = len(MIGRATIONS)) -> int:
    """The version, 0 for an empty file; `UnusableStore` if this antwort cannot use it. Changes nothing."""
    # The tables first, the mark last: a migration of another process may be committed in between.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version, application = _pragma(connection, "user_version"), _pragma(connection, "application_id")
    if application != APPLICATION_ID and (application or version or tables):
        raise UnusableStore("This database belongs to another program. Set `storage.url` to another file.")
    if version > newest:
        raise UnusableStore(
            f"This database has version {version}, and this antwort supports versions up to {newest}. "
            "Install the version that wrote it, or a newer one; or set `storage.url` to another file."
        )
    return version


def check_writable(connection: sqlite3.Connection) -> None:
    """Write `user_version` with its current value. SQLite does not compare, so this reaches the disk."""
    connection.execute(f"PRAGMA user_version = {_pragma(connection, 'user_version')}")


def _pragma(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
